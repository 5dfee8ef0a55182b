"""``--rewrite-golden`` writes the golden files anew. Read the difference: it is what a change does to decisions, times
and answers, and belongs into the message of the commit that brings it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="write the files of tests/golden anew")


class Goldens:
    """The golden file of one name: compared, or written."""

    def __init__(self, rewrite: bool) -> None:
        self.rewrite = rewrite

    def hold(self, name: str, now: Any) -> None:
        path = HERE / f"{name}.json"
        now = json.loads(json.dumps(now))  # tuples become lists, as in the file
        if self.rewrite:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        saved = json.loads(path.read_text(encoding="utf-8"))
        assert now == saved, f"{path.name} has changed; if that is meant: pytest tests/golden --rewrite-golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Goldens:
    return Goldens(bool(request.config.getoption("--rewrite-golden", default=False)))
