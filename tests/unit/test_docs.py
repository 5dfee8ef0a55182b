"""Pages that are made from tables and from code say what these say. Rewrite: the script that a page names."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPTS = ("generate", "make_keys", "make_reference", "make_commands")
PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    name: (script, page)
    for script in SCRIPTS
    for name, page in runpy.run_path(str(DOCS / f"{script}.py"))["PAGES"].items()
}
# Somebody's clock:
VARIES = re.compile(r"[\d,]+ a second on one core|, \d+\.\d s$|(?<=ex) +\d+\.\d\d s(?=  )", re.MULTILINE)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_what_its_table_gives(name: str) -> None:
    script, page = PAGES[name]
    shown = (DOCS / name).read_text(encoding="utf-8")
    assert VARIES.sub("N", shown) == VARIES.sub("N", page()), f"run: python docs/{script}.py"
