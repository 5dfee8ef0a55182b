"""Measured tables of chunk times, as people put them into notes: a row has a prefix, a size or a rate, and a time.

Every number keeps its unit, from its cell or from the head of its column: 32K tokens are 32 x 1024, 56 ms are 0.056 s.
A row whose unit is not known, or that lacks one of the three, gives no sample and is named in a remark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ppsim.sglang.samples import Sample

TABLE_ROW = re.compile(r"^\s*\|(.+)\|\s*$")
RULER = re.compile(r"^[\s:|=-]*$")
CELL = re.compile(
    r"^[~\u2248]?\s*(?P<value>\d[\d,_]*(?:\.\d+)?)\s*(?P<unit>[A-Za-z\u00b5\u03bc/%][\w\u00b5\u03bc/%.² ]*?)?\s*$"
)
HEAD_UNIT = re.compile(r"[(\[](?P<bracket>[^)\]]*)[)\]]\s*$|_(?P<tail>ns|us|ms|s|sec)$|,\s*(?P<comma>[\w/\u00b5]+)$")
SCALES = {"k": 1024, "ki": 1024, "kib": 1024, "m": 1024**2, "mi": 1024**2, "mib": 1024**2, "g": 1024**3, "": 1}
COUNTED = ("tokens", "token", "tok", "toks")
TIMES = {
    "ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0,
    "secs": 1.0, "seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "min": 60.0,
}  # fmt: skip
RATE = re.compile(r"^(?P<scale>[kKmM]?)\s*(?:tok|toks|tokens?)(?:/| per )(?P<per>s|sec|second|ms)$")
SIZE_NAME = re.compile(r"\bnew\b|size|tokens|length|chunk[ _]size|extend")
TIME_NAME = re.compile(r"time|latency|duration|elapsed")


def find_chunk_tables(rows: Sequence[str]) -> tuple[list[Sample], list[str]]:
    """Samples of the tables with a prefix column, and a remark for every row of them that gives none."""
    found: list[Sample] = []
    remarks: list[str] = []
    row = 0
    while row < len(rows):
        if not TABLE_ROW.match(rows[row]):
            row += 1
            continue
        end = row
        while end < len(rows) and TABLE_ROW.match(rows[end]):
            end += 1
        read_chunk_table([cells(text) for text in rows[row:end]], row, found, remarks)
        row = end
    return found, remarks


def table_rows(rows: Sequence[str]) -> list[int]:
    """Rows (from 0) of the tables with a prefix column, heads and rulers included."""
    found: list[int] = []
    row = 0
    while row < len(rows):
        end = row
        while end < len(rows) and TABLE_ROW.match(rows[end]):
            end += 1
        if end > row and prefix_column([cell.lower() for cell in cells(rows[row])]) is not None:
            found += range(row, end)
        row = max(end, row + 1)
    return found


def prefix_column(header: Sequence[str]) -> int | None:
    return next((i for i, name in enumerate(header) if "prefix" in name or "history" in name), None)


def cells(text: str) -> list[str]:
    return [cell.strip().strip("*`") for cell in text.strip().strip("|").split("|")]


def read_chunk_table(table: list[list[str]], first: int, found: list[Sample], remarks: list[str]) -> None:
    header = [cell.lower() for cell in table[0]]
    prefix = prefix_column(header)
    if prefix is None:
        return
    units = [unit_of_head(cell) for cell in table[0]]
    for offset, row in enumerate(table[1:], 1):
        if all(RULER.match(cell) for cell in row):
            continue
        try:
            found.append(sample_of(header, units, row, prefix, first + offset + 1))
        except ValueError as error:
            remarks.append(f"line {first + offset + 1}: no sample of this row of a table: {error}")


def unit_of_head(name: str) -> str:
    found = HEAD_UNIT.search(name.strip())
    unit = next((part for part in found.groups() if part), "") if found else ""
    return unit.strip() if is_unit(unit.strip()) else ""


def is_unit(unit: str) -> bool:
    return unit.lower() in TIMES or RATE.match(unit) is not None or scale_of(unit) is not None


def sample_of(header: Sequence[str], units: Sequence[str], row: Sequence[str], prefix: int, line: int) -> Sample:
    """The sample of a row. Raises ValueError with what is lacking."""
    values: dict[int, tuple[float, str]] = {}
    for i, cell in enumerate(row[: len(header)]):
        number = CELL.match(cell)
        if number:
            plain = float(number["value"].replace(",", "").replace("_", "")[:25])
            values[i] = plain, (number["unit"] or "").strip() or units[i]
    if prefix not in values:
        raise ValueError(f"its prefix is {row[prefix] if prefix < len(row) else 'missing'!r}")
    past = tokens(values[prefix], "prefix")
    seconds = time_of(header, values, prefix)
    size = size_of(header, values, prefix, seconds)
    if seconds <= 0 or size <= 0:
        raise ValueError("its time or its size is 0")
    return Sample(past, size, seconds, "table", line)


def scale_of(unit: str) -> int | None:
    """Tokens in one of the unit; None for what counts no tokens."""
    words = unit.split()
    if words and words[-1].lower() in COUNTED:
        words = words[:-1]
    return SCALES.get(words[0].lower() if words else "") if len(words) < 2 else None


def tokens(value: tuple[float, str], what: str) -> int:
    scale = scale_of(value[1])
    if scale is None:
        raise ValueError(f"the unit {value[1]!r} of its {what} is not known; expected tokens, K or M")
    return round(value[0] * scale)


def time_of(header: Sequence[str], values: dict[int, tuple[float, str]], prefix: int) -> float:
    timed = [value for i, value in values.items() if i != prefix and value[1].lower() in TIMES]
    if timed:
        return timed[0][0] * TIMES[timed[0][1].lower()]
    named = next((i for i in values if i != prefix and TIME_NAME.search(header[i])), None)
    if named is None:
        raise ValueError("it has no time")
    unit = values[named][1]
    raise ValueError(f"the unit {unit!r} of its time is not known" if unit else "its time has no unit; write 56 ms")


def size_of(header: Sequence[str], values: dict[int, tuple[float, str]], prefix: int, seconds: float) -> int:
    """New tokens of a row: its own column, or the rate times the time."""
    for i, value in values.items():
        is_other = i == prefix or "prefix" in header[i] or value[1].lower() in TIMES or RATE.match(value[1])
        if not is_other and SIZE_NAME.search(header[i]):
            return tokens(value, "size")
    for value in values.values():
        rate = RATE.match(value[1])
        if rate:
            per_s = value[0] * {"": 1, "k": 1e3, "m": 1e6}[rate["scale"].lower()] * (1e3 if rate["per"] == "ms" else 1)
            return round(per_s * seconds)
    raise ValueError("it has neither a size nor a rate")
