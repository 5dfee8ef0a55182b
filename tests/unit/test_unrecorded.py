"""A plug-in that reads the machine's clock is told; what is a clock of its rank, or drawn from a seed, is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.plugin.unrecorded import unrecorded

HEAD = "import ppsim\n\n\nclass Policy(ppsim.Policy):\n    def admission_order(self, waiting):\n"


def sentences(tmp_path: Path, imports: str, body: str) -> list[str]:
    path = tmp_path / "mine.py"
    path.write_text(f"{imports}\n{HEAD}        {body}\n        return waiting\n")
    return unrecorded(str(path))


@pytest.mark.parametrize(
    ("imports", "body", "name"),
    [
        ("import time", "time.time()", "time.time"),
        ("import time as t", "t.monotonic_ns()", "time.monotonic_ns"),
        ("from time import perf_counter as now", "now()", "time.perf_counter"),
        ("import datetime", "datetime.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime as dt", "dt.utcnow()", "datetime.datetime.utcnow"),
        ("", "import time; time.time_ns()", "time.time_ns"),
        ("from time import time", "clock = time", "time.time"),
        ("import random", "random.shuffle(waiting)", "random.shuffle"),
        ("import os", "os.urandom(4)", "os.urandom"),
        ("import uuid", "uuid.uuid4()", "uuid.uuid4"),
    ],
)
def test_whatever_it_is_called_its_line_and_whole_name_are_told(
    imports: str, body: str, name: str, tmp_path: Path
) -> None:
    told = sentences(tmp_path, imports, body)
    assert len(told) == 1, told
    assert told[0].startswith("plug-in mine.py, line ")
    assert f": {name} is " in told[0]


@pytest.mark.parametrize(
    ("imports", "body"),
    [
        ("", "self.wall_clock_ns()"),
        ("import random", "random.Random(7).shuffle(waiting)"),
        ("import time", "time.sleep(0)"),
        ("from datetime import timedelta", "timedelta(1)"),
        ("time = None", "self.time = 1"),
    ],
)
def test_what_is_recorded_or_seeded_or_no_clock_is_not_told(imports: str, body: str, tmp_path: Path) -> None:
    assert sentences(tmp_path, imports, body) == []


def test_a_command_says_it_once_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sentences(tmp_path, "import time", "time.time()")
    done = CliRunner().invoke(app, ["run", "tiny", "--plugin", "mine.py"])
    assert done.exit_code == 0, done.output
    told = "note: plug-in mine.py, line 7: time.time is the machine's clock: what comes of it is not recorded"
    assert done.stderr.count(told) == 1
