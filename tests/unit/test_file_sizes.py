"""Law: a file fits into a reader's head. Above 400 lines it says at its head why; above 600 nothing is a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("ppsim", "executor") for path in (ROOT / folder).rglob("*.py"))
MANY, TOO_MANY = 400, 600


def complaint(text: str) -> str:
    """What is wrong with the size of a source text; empty where nothing is."""
    num_lines = len(text.splitlines())
    said = re.search(r"^Over 400 lines because \S+ \S+ \S+", ast.get_docstring(ast.parse(text)) or "", re.M)
    if num_lines > TOO_MANY:
        return f"{num_lines} lines: split it"
    if num_lines > MANY and not said:
        return f'{num_lines} lines, and no line of its head begins with "Over 400 lines because"'
    if num_lines <= MANY and said:
        return f"{num_lines} lines: it gives a reason for being long and is not"
    return ""


def test_a_long_file_says_why() -> None:
    found = {str(path.relative_to(ROOT)): complaint(path.read_text(encoding="utf-8")) for path in FILES}
    assert len(found) > 300
    assert {name: text for name, text in found.items() if text} == {}


@pytest.mark.parametrize(
    ("head", "num_lines", "expected"),
    [
        ("What it is.", 400, ""),
        ("What it is.", 401, "401 lines, and no line"),
        ("What it is.\n\nOver 400 lines because of it.", 401, "401 lines, and no line"),  # no reason
        ("What it is.\n\nOver 400 lines because its rules share a state.", 600, ""),
        ("What it is.\n\nOver 400 lines because its rules share a state.", 601, "601 lines: split it"),
        ("What it is.\n\nOver 400 lines because its rules share a state.", 300, "300 lines: it gives a reason"),
    ],
)
def test_a_size_is_judged(head: str, num_lines: int, expected: str) -> None:
    text = f'"""{head}\n"""\n'
    text += "# more\n" * (num_lines - len(text.splitlines()))
    found = complaint(text)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
