"""A test run ends with what it left out and why."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG, OUTSIDE, left_out

ROOT = Path(__file__).resolve().parents[2]
SKIPPING = """
import pytest

@pytest.mark.skipif(True, reason="no such device")
@pytest.mark.parametrize("number", [1, 2])
def test_marked(number): ...

@pytest.mark.long
def test_that_takes_long(): assert False

def test_at_run_time():
    pytest.skip("no such program")

def test_that_passes(): ...
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_run_tells_each_reason_with_its_number(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(SKIPPING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *workers]
    out = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120).stdout
    told = out[out.index(" left out ") :].splitlines()[1:4]
    assert told == ["2 skipped: no such device", f"1 skipped: {LONG}", "1 skipped: no such program"]


def test_a_run_that_leaves_nothing_out_says_nothing(tmp_path: Path) -> None:
    for place, _, _ in OUTSIDE:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).mkdir(exist_ok=True)
    assert left_out([], {"test_conform.py", "test_sglang_logs.py"}, tmp_path) == []


def test_data_that_are_not_there_are_named_where_a_test_of_the_run_reads_them(tmp_path: Path) -> None:
    assert left_out([], {"test_core_pool.py"}, tmp_path) == []
    (line,) = left_out([], {"test_conform.py", "test_core_pool.py"}, tmp_path)
    assert line.startswith("not here: 60 of the 80 recorded runs")
    assert str(tmp_path / "sglang/runs/scheduler.jsonl") in line


def test_every_test_file_that_reads_data_beside_the_repository_is_in_the_table() -> None:
    """Tests find the folder by its name, or import the rows or the runs that are read from it."""
    readers = {name for _, _, files in OUTSIDE for name in files}
    looking = {
        path.name
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != Path(__file__).name
        if re.search(r'/ "shared" /|_sglang_index import|\bEIGHTY\b', path.read_text(encoding="utf-8"))
    }
    assert {"test_conform.py", "test_trace_excerpts.py", "test_sglang_logs.py"} <= looking
    assert looking - readers == set()
