"""The folder of a sweep: what is finished, line by line as it is ready, and what is made of it at the end.

    points.jsonl   a line a finished point: its scenario and keys, the digest of what its run depends on, the version
                   of ppsim, the result
    table.csv      the table, and table.parquet where it was asked for
    plot.png       the picture

Rule: nothing that was computed is lost. A line is written as soon as its point is finished, so a sweep that was
interrupted or killed goes on behind it; a line that was only half written counts as not there. At the end the lines
stand in the order of the points: same order, same bytes, however many processes there were.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from ppsim.errors import UsageError
from ppsim.recording.folder import RUNS, make, next_free
from ppsim.sweeps.one import AGAIN, OUTCOMES, Result
from ppsim.sweeps.order import Refused, Task, differences
from ppsim.sweeps.points import Point
from ppsim.sweeps.version import code_version

POINTS, TABLE, PARQUET, PICTURE = FILES = ("points.jsonl", "table.csv", "table.parquet", "plot.png")


class SweepFolder:
    """A sweep's place. ``changed``: sentences about points that were finished once, of another state of things."""

    def __init__(self, name: str, out: str | None) -> None:
        """Make or open the folder. Raises UsageError if it holds somebody's files, or a sweep goes on in it."""
        if out is not None and not out.strip():
            raise UsageError("out: is empty; give a folder, or leave it out")
        self.path = next_free(RUNS, f"sweep-{name.replace('/', '-')}") if out is None else Path(out)
        make(self.path)
        if out is not None and not (self.path / POINTS).exists() and any(self.path.iterdir()):
            raise UsageError(f"--out {out}: holds files, and no {POINTS} of a sweep; choose another folder")
        self.lines: dict[str, dict[str, Any]] = {}
        self.changed: list[str] = []
        self.num_taken = 0
        try:
            self.file: IO[str] = (self.path / POINTS).open("a+", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(f"--out {self.path}: cannot be written: {error.strerror}") from None
        self._lock()
        self._read()

    def _lock(self) -> None:
        """One sweep at a time: two would run the same points, and write over each other."""
        try:
            import fcntl
        except ImportError:  # no such locks here
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise UsageError(f"--out {self.path}: another sweep is going on in it") from None

    def _read(self) -> None:
        self.file.seek(0)
        text = self.file.read()
        for number, line in enumerate(text.splitlines(), start=1):
            entry = entry_of(line)
            if entry is not None:
                self.lines[name_of(entry["scenario"], entry["keys"])] = entry
            elif line.strip() and number <= text.count("\n"):  # only the last line may be half a line
                raise UsageError(f"{self.path / POINTS}:{number}: is no line of a sweep; choose another folder")
        if text and not text.endswith("\n"):
            self.rewrite(self.lines.values())

    def finished(self, task: Task | Refused) -> Result | None:
        """What came of a point in an earlier sweep in this folder; None if it has to be run."""
        entry = self.lines.get(name_of(task.point.scenario, dict(task.point.keys)))
        if entry is None or entry["result"]["outcome"] in AGAIN:
            return None
        if entry["digest"] == task.digest and entry.get("ppsim") == code_version():
            self.num_taken += 1
            return Result(**entry["result"])
        self.changed.append(f"{task.point}: {why(entry, task)}; it is run again")
        return None

    def add(self, task: Task | Refused, result: Result) -> None:
        """Keep a finished point, at once."""
        entry = entry_for(task, result)
        self.lines[name_of(task.point.scenario, dict(task.point.keys))] = entry
        self.file.write(text_of(entry))
        self.file.flush()

    def close(self, points: Iterable[Point]) -> int:
        """Put the lines into the order of the points; what no point is of stays behind them, and is counted."""
        names = [name_of(point.scenario, dict(point.keys)) for point in points]
        asked = set(names)
        others = [name for name in self.lines if name not in asked]
        self.rewrite(self.lines[name] for name in [*names, *sorted(others)] if name in self.lines)
        self.file.close()
        return len(others)

    def rewrite(self, entries: Iterable[dict[str, Any]]) -> None:
        """Replace the whole file at once: who reads it sees the old or the new one."""
        fresh = self.path / f".{POINTS}"
        try:
            fresh.write_text("".join(map(text_of, entries)), encoding="utf-8", newline="\n")
            os.replace(fresh, self.path / POINTS)
            self.file.close()
            self.file = (self.path / POINTS).open("a", encoding="utf-8", newline="\n")
            self._lock()
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error.strerror}") from None


def name_of(scenario: str, keys: dict[str, Any]) -> str:
    """Which point a line is of."""
    return json.dumps([scenario, sorted(keys.items())], default=str)


def entry_for(task: Task | Refused, result: Result) -> dict[str, Any]:
    known = {"config": task.config, "files": task.files} if isinstance(task, Task) else {}
    point = task.point
    return {
        "scenario": point.scenario,
        "keys": dict(point.keys),
        "digest": task.digest,
        "ppsim": code_version(),
        **known,
        "result": result.as_json(),
    }


def entry_of(line: str) -> dict[str, Any] | None:
    """A line that was read; None where it is none."""
    try:
        entry: dict[str, Any] = json.loads(line)
        is_whole = isinstance(entry["keys"], dict) and isinstance(entry["digest"], str)
        return entry if is_whole and Result(**entry["result"]).outcome in OUTCOMES else None
    except (ValueError, TypeError, KeyError):
        return None


def text_of(entry: dict[str, Any]) -> str:
    return json.dumps(entry, default=str, allow_nan=False) + "\n"


def why(entry: dict[str, Any], task: Task | Refused) -> str:
    """In what a point of an earlier sweep differs from the one that is asked for now."""
    if entry["digest"] == task.digest:
        return f"ppsim has changed since it was finished (then {entry.get('ppsim', 'not told')}; now {code_version()})"
    if isinstance(task, Refused) or "config" not in entry:
        return "its scenario has changed since it was finished"
    files = [key for key in task.files if entry.get("files", {}).get(key) != task.files[key]]
    before = json.loads(json.dumps(task.config, default=str))
    keys = differences(entry["config"], before)
    if keys:
        return f"its scenario has changed since it was finished ({', '.join(keys[:5])}{', ...' * (len(keys) > 5)})"
    if files:
        return f"the file that {files[0]} names has changed since it was finished"
    return "the policy is another one than when it was finished"
