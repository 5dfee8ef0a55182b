"""The pages of results say what the simulator says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import bench_loop, bench_votes

PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"
TABLES = {
    **{("loop", name): table for name, table in bench_loop.TABLES.items()},
    **{("votes", name): table for name, table in bench_votes.TABLES.items()},
}


@pytest.mark.parametrize(("page", "name"), list(TABLES))
def test_a_table_of_a_page_is_what_the_bench_prints(page: str, name: str) -> None:
    table = "\n".join(TABLES[page, name]())
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    assert table in text, f"{page}.md is out of date: put in the output of bench/bench_{page}.py"
