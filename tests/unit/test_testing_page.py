"""What CI has no time for has a line each on when it was last run, and the Makefile runs all of it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `make ([\w-]+)` \| (.+?) \| (.+?) \| (.*?) ?\|$",
    (ROOT / "docs" / "testing.md").read_text(encoding="utf-8"),
    re.M,
)


def test_each_target_of_test_all_has_a_row_in_the_same_order() -> None:
    wanted = re.search(r"^test-all: (.*)$", MAKEFILE, re.M)
    assert wanted
    assert [name for name, *_ in ROWS] == wanted[1].split()
    for name, *_ in ROWS:
        assert re.search(rf"^{name}:", MAKEFILE, re.M), name


def test_each_row_says_when_and_what_came_out() -> None:
    for name, what, last, result in ROWS:
        assert what
        assert last in ("each landing", "not recorded") or re.fullmatch(r"\d{4}-\d\d-\d\d, [0-9a-f]{7}", last), name
        assert bool(result) == (last != "not recorded"), name


def test_the_variables_that_the_page_names_are_the_makefiles() -> None:
    named = {word for _, what, *_ in ROWS for word in re.findall(r"`([A-Z_]+)`", what)}
    assert named == set(re.findall(r"^((?:FUZZ|BUG)_[A-Z]+) :=", MAKEFILE, re.M))
    assert "PPSIM_LONG=1" in MAKEFILE
