"""Which points a sweep has: scenarios times keys with several values, or a list, in an order of their own.

Rule: the order is that in which things were written. Scenarios first, then the points of a list, then the keys with
several values, the last one fastest. So the number of a point depends on the command alone.
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.parsing import decoded, parse_toml
from ppsim.scenario.load import shortened

MAX_POINTS = 100_000
SCENARIO = "scenario"  # the column or key of a list that names the scenario of a point
Keys = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep: the scenario's name and the dotted keys that it is given, in order."""

    number: int
    scenario: str
    keys: Keys

    def __str__(self) -> str:
        return " ".join([f"point {self.number}: {self.scenario}", *(f"{key}={value}" for key, value in self.keys)])


def points_of(
    scenarios: Sequence[str], grid: Mapping[str, Sequence[Any]], listed: Sequence[Mapping[str, Any]] = ()
) -> list[Point]:
    """The points in their order. ``listed``: keys of points; ``scenario`` among them stands in for ``scenarios``.

    Raises UsageError where there is none, too many, or a key that is in both the grid and the list.
    """
    for key, values in grid.items():
        check_axis(key, values)
    beside = sorted({key for row in listed for key in row if key in grid})
    if beside:
        raise UsageError(f"{beside[0]}: is given by the list of points, and as a key of all; one of the two")
    found: list[Point] = []
    for row in listed or ({},):
        names = [str(row[SCENARIO])] if SCENARIO in row else list(scenarios)
        if not names:
            raise UsageError("no scenario: name one, or give the list of points a column 'scenario'")
        own = tuple((key, value) for key, value in row.items() if key != SCENARIO)
        for name in names:
            for values in product(*grid.values()):
                if len(found) == MAX_POINTS:
                    raise UsageError(f"a sweep has at most {MAX_POINTS} points, these are more")
                found.append(Point(0, name, (*own, *zip(grid, values, strict=True))))
    order = {name: i for i, name in enumerate(dict.fromkeys(point.scenario for point in found))}
    found.sort(key=lambda point: order[point.scenario])  # stable: the list's order below each scenario
    points = [Point(number, point.scenario, point.keys) for number, point in enumerate(found)]
    check_once(points)
    return points


def check_axis(key: str, values: Sequence[Any]) -> None:
    """Raises UsageError for a key without a value, and for what a sweep does not look at."""
    if not values:
        raise UsageError(f"{key}: has no values")
    if key == "expect" or key.startswith("expect."):
        raise UsageError(f"{key}: a sweep judges no [expect]; its table has the figures")


def check_once(points: Iterable[Point]) -> None:
    seen: dict[str, Point] = {}
    for point in points:
        first = seen.setdefault(repr((point.scenario, sorted(point.keys, key=lambda pair: pair[0]))), point)
        if first is not point:
            raise UsageError(f"{point} is point {first.number} again; a point is run once")


# --- text --------------------------------------------------------------------------------------------------------


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """``key=a,b,c`` of each text. Commas in brackets, braces and quotes belong to the value. Raises UsageError."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"--set {text!r}: expected key=value or key=a,b,c, for example cluster.pp_size=2,4,8")
        if key in grid:
            raise UsageError(f"--set {key}: is given twice; give all values at once, as in {key}=a,b,c")
        parts = split_values(values)
        if any(not part for part in parts):
            raise UsageError(f'--set {shortened(text)}: a value between commas is empty; an empty text is ""')
        grid[key] = [parse_value(key, part) for part in parts]
    return grid


def split_values(text: str) -> list[str]:
    """Cut at the commas outside of brackets, braces and quotes."""
    parts, depth, quote, part = [], 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        if letter == "," and not depth and not quote:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return [*parts, part.strip()]


def parse_value(key: str, text: str) -> Any:
    """A value as TOML has it, or a text where it is none, as ``--set`` of every command reads it."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise UsageError(f"--set {shortened(key)}=...: {error}") from None


# --- files -------------------------------------------------------------------------------------------------------


def read_points(path: str) -> list[dict[str, Any]]:
    """The points of a file. Raises UsageError.

    .csv: a column a key, a line a point; an empty cell leaves the scenario's own value. .toml: ``[[points]]`` with
    dotted keys in quotes or sections.
    """
    try:
        text = decoded(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"--points {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    rows = from_toml(path, text) if path.lower().endswith(".toml") else from_csv(path, text)
    if not rows:
        raise UsageError(f"--points {path}: has no points")
    return rows


def from_csv(path: str, text: str) -> list[dict[str, Any]]:
    lines = [row for row in csv.reader(io.StringIO(text)) if any(cell.strip() for cell in row)]
    if not lines:
        return []
    keys = [cell.strip() for cell in lines[0]]
    twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
    if twice is not None or not all(keys):
        what = f"the column {twice!r} is there twice" if twice is not None else "a column has no name"
        raise UsageError(f"--points {path}:1: {what}; the first line names a key in each column")
    rows = []
    for number, row in enumerate(lines[1:], start=2):
        if len(row) != len(keys):
            raise UsageError(f"--points {path}: point {number - 2} has {len(row)} cells for {len(keys)} columns")
        cells = {key: cell.strip() for key, cell in zip(keys, row)}
        rows.append({k: cell if k == SCENARIO else parse_value(k, cell) for k, cell in cells.items() if cell})
    return rows


def from_toml(path: str, text: str) -> list[dict[str, Any]]:
    try:
        content = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"--points {path}: not valid TOML: {error}") from None
    others = [key for key in content if key != "points"]
    points = content.get("points", [])
    if others or not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        came = f", got {others[0]!r}" if others else ""
        raise UsageError(f"--points {path}: expected [[points]] and nothing else{came}")
    return [dict(flat(point)) for point in points]


def flat(section: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys and values of nested sections."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}.")
        else:
            yield before + key, value
