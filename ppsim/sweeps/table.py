"""The table of a sweep: a row a point, in their order. CSV always, Parquet with the package pyarrow.

Rule: the bytes are a function of the points and their results. No time of this machine stands in it, numbers are
written so that reading gives the same number, and what is not known is empty. Units stand last in a column's name.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ppsim.errors import UsageError
from ppsim.sweeps.one import PENDING, Result
from ppsim.sweeps.points import Point

FIRST = ("point", "scenario")
RESULT = ("outcome", "exit_code", "rule", "digest")
LAST = ("message",)
NEEDS = "needs the package pyarrow, which is not installed: pip install 'ppsim[parquet]'"


def table_of(points: Sequence[Point], results: Sequence[Result | None], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Column -> values, one a point. A key that a point is not given, and a figure that it does not have, is None.

    Columns: point, scenario, the keys, outcome, exit_code, rule, digest, the figures of [expect.figures] without those
    of single stages, message.
    """
    figures = list(dict.fromkeys(name for result in results if result is not None for name in result.figures))
    table: dict[str, list[Any]] = {name: [] for name in (*FIRST, *keys, *RESULT, *figures, *LAST)}
    for point, result in zip(points, results, strict=True):
        row: dict[str, Any] = {"point": point.number, "scenario": point.scenario, **dict(point.keys)}
        if result is None:
            row["outcome"] = PENDING
        else:
            row |= {"outcome": result.outcome, "exit_code": result.exit_code, "rule": result.rule or None}
            row |= {"digest": result.digest or None, **result.figures, "message": result.message or None}
        for name, column in table.items():
            column.append(row.get(name))
    return table


def csv_text(table: dict[str, list[Any]]) -> str:
    """The table as CSV. A list or a text that reads as something else is written as JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*table.values()):
        writer.writerow(["" if value is None else cell(value) for value in row])
    return out.getvalue()


def cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | dict) else value


def load_pyarrow() -> ModuleType:
    """pyarrow. Raises UsageError where it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise UsageError(f"--parquet {NEEDS}") from None
    module: ModuleType = pyarrow
    return module


def write_parquet(table: dict[str, list[Any]], path: Path) -> None:
    """The table as Parquet. Raises UsageError without pyarrow, and where the place cannot be written."""
    arrow = load_pyarrow()
    from pyarrow import parquet

    columns = {name: arrow.array(*typed(name, values, arrow)) for name, values in table.items()}
    try:
        parquet.write_table(arrow.table(columns), path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def typed(name: str, values: Sequence[Any], arrow: Any) -> tuple[list[Any], Any]:
    """A column's values and its type: whole numbers, numbers, true or false, else text."""
    kinds = {type(value) for value in values if value is not None}
    if name not in (*FIRST[1:], *RESULT[2:], *LAST, "outcome") and kinds:
        for allowed, kind in (({bool}, arrow.bool_()), ({int}, arrow.int64()), ({int, float}, arrow.float64())):
            if kinds <= allowed:
                return list(values), kind
    return [None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values], arrow.string()
