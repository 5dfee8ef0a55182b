"""The page of results says what the simulator says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.bench_loop import TABLES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "loop.md"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_page_is_what_the_bench_prints(name: str) -> None:
    table = "\n".join(TABLES[name]())
    assert table in PAGE.read_text(), f"{PAGE.name} is out of date: put in the output of bench/bench_loop.py"
