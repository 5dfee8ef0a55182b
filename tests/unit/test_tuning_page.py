"""docs/results/tuning.md shows what the tool really prints; only the speed of the search may differ.

Rewrite: python docs/sessions.py docs/results/tuning.md.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "results" / "tuning.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"```console\n.*?```", PAGE, re.DOTALL)


def masked(text: str) -> str:
    return re.sub(r"[\d,]+ a second on one core", "N a second on one core", text)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda text: " ".join(text.splitlines()[1].split()[2:5]))
def test_a_session_prints_what_the_page_shows(session: str) -> None:
    fresh = runpy.run_path(str(DOCS / "sessions.py"))["fresh"]
    assert masked(fresh(session)) == masked(session), "run: python docs/sessions.py docs/results/tuning.md"


def test_the_page_has_a_search_for_every_objective_and_its_pictures_are_there() -> None:
    assert len(SESSIONS) >= 5
    for part in ("objective ttft:", "objective ttft_at_rate:", "objective throughput:", "overtakes"):
        assert part in PAGE
    for picture in re.findall(r"\]\(\.\./(images/[\w.]+)\)", PAGE):
        assert (DOCS / picture).exists()
