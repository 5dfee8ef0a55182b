"""The table of shared launch lines and logs: its rows, and the clauses of its ``expect`` column.

A clause is ``name=value``, or free text behind ``warn:``, ``unresolved:``, ``diagnosis:`` and the like. What cannot be
split by these rules is left whole, for a test to spell out by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "sglang"
MISSING = f"the shared data set is not there: {DATA}"


@dataclass(frozen=True)
class Row:
    file: str
    kind: str
    engine: str
    special: str
    expect: str

    @property
    def text(self) -> str:
        return (DATA / self.file).read_text(encoding="utf-8")

    @property
    def name(self) -> str:
        return self.file.removeprefix(f"{self.kind}/").removesuffix(".txt")

    @property
    def clauses(self) -> list[str]:
        """Parts of the expectation: divided by semicolons outside brackets."""
        return [part.strip() for part in re.split(r";\s*(?![^()]*\))", self.expect) if part.strip()]


def rows(kind: str) -> list[Row]:
    """Rows of a kind, or none where the data set is missing."""
    table = DATA / "index.tsv"
    if not table.is_file():
        return []
    found = []
    for line in table.read_text(encoding="utf-8").splitlines()[1:]:
        file, of_kind, engine, _, _, _, special, expect = line.split("\t")
        if of_kind == kind:
            found.append(Row(file, of_kind, engine, special, expect))
    return found
