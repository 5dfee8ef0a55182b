"""The tables of launch lines and logs: their rows, and the clauses of their ``expect`` column.

Two sets have the same form. Ours, ``tests/data/sglang``, was written for this project and is in every clone. The shared
one, 85 texts that people posted, lies beside the repository where it lies at all; its rows are named by numbers.

A clause is ``name=value``, or free text behind ``warn:``, ``unresolved:``, ``diagnosis:`` and the like. What cannot be
split by these rules is left whole, for a test to spell out by hand.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

OURS = Path(__file__).resolve().parents[1] / "data" / "sglang"
SHARED = OURS.parents[2].parent / "shared" / "data" / "sglang"
MISSING = f"the texts that people posted are not at {SHARED}: ours are tested"


@dataclass(frozen=True)
class Row:
    path: Path
    kind: str
    engine: str
    special: str
    expect: str

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def clauses(self) -> list[str]:
        """Parts of the expectation: divided by semicolons outside brackets."""
        return [part.strip() for part in re.split(r";\s*(?![^()]*\))", self.expect) if part.strip()]


def rows_of(folder: Path, kind: str) -> list[Row]:
    """Rows of a kind in one set, or none where it is missing."""
    table = folder / "index.tsv"
    if not table.is_file():
        return []
    with table.open(encoding="utf-8", newline="") as lines:
        found = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        Row(folder / row["file"], row["kind"], row["engine"], row["special"], row["expect"])
        for row in found
        if row["kind"] == kind
    ]


def rows(kind: str) -> list[Row]:
    """Rows of a kind, ours first."""
    return rows_of(OURS, kind) + rows_of(SHARED, kind)
