"""At its end a test run says what it left out, and why: tests that were skipped, and data that a clone does not have.

A skipped test is one character in a row of dots, and a test that goes over data that are not there is not even that.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is behind nohup, and in all that the tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = "make test-all runs it (docs/testing.md)"
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"

OUTSIDE = (
    (
        "sglang/index.tsv",
        "40 launch lines and 45 logs that people posted; those written for this project were read",
        ("test_sglang_launch.py", "test_sglang_logs.py", "test_sglang_cli.py", "test_sglang_fuzz.py", "test_read.py"),
    ),
    (
        "sglang/runs/scheduler.jsonl",
        "60 of the 80 recorded runs of SGLang's scheduler; 20 are in the repository",
        ("test_conform.py", "test_reference_against_sglang.py"),
    ),
    (
        "traces",
        "excerpts of the real Mooncake and Azure traces; the generated one and small ones were read",
        ("test_trace_excerpts.py", "test_trace_shipped.py"),
    ),
)
"""Data beside the repository that may not be copied into it: where, what, and the test files that read them."""


def left_out(reasons: Iterable[str], files: set[str], beside: Path = BESIDE) -> list[str]:
    """Lines that say what was left out: skipped tests by reason, most first, then data that are not there.

    ``files``: names of the test files of this run. Data that none of them reads are not told.
    """
    counted = Counter(reasons)
    lines = [f"{number} skipped: {reason}" for reason, number in sorted(counted.items(), key=lambda r: (-r[1], r[0]))]
    return lines + [
        f"not here: {what} (would be {beside / place})"
        for place, what, readers in OUTSIDE
        if files & set(readers) and not (beside / place).exists()
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``long`` are left out, and told at the end, unless PPSIM_LONG=1 asks for them."""
    if os.environ.get("PPSIM_LONG") != "1":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason=LONG))


def reason_of(report: Any) -> str:
    """Why a test was skipped, without pytest's own word in front."""
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for found in terminalreporter.stats.values() for r in found if hasattr(r, "nodeid")]
    files = {Path(report.nodeid.split("::")[0]).name for report in reports}
    reasons = [reason_of(report) for report in terminalreporter.stats.get("skipped", [])]
    lines = left_out(reasons, files)
    if lines:
        terminalreporter.section("left out")
    for line in lines:
        terminalreporter.write_line(line)
