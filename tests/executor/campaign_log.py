"""The log of a campaign: one line of JSON for each experiment, so that it goes on where it was stopped.

CPU seconds are those of this process and of everybody it has started, the server that ranks are forked from included.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


class Log:
    """Rows by (``way``, ``seed``), the latest of each. ``path`` None: nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows = {key_of(row): row for row in read_rows(path)} if path is not None else {}

    def find(self, way: str, seed: int) -> dict[str, Any] | None:
        """What has come out of an experiment. None: it is to be run, for the first time or once more."""
        row = self.rows.get((way, seed))
        return None if row is None or "error" in row else row

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, and print it."""
        self.rows[key_of(row)] = row
        text = json.dumps(row)
        print(text, flush=True)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


def key_of(row: dict[str, Any]) -> tuple[str, int]:
    return row["way"], row["seed"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What a log has so far."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def cpu_seconds() -> float:
    """CPU of this process and of its children, the living and the dead."""
    mine = os.times()
    return mine.user + mine.system + mine.children_user + mine.children_system + sum(map(cpu_of, children(os.getpid())))


def cpu_of(pid: int) -> float:
    """CPU of a process and of its children that have ended; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS


def children(pid: int) -> list[int]:
    """The living children of a process, whichever of its threads has started them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue
    return sorted(found)


def descendants(pid: int) -> Iterator[int]:
    """Children, and theirs."""
    for child in children(pid):
        yield child
        yield from descendants(child)
