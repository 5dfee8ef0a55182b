"""Azure's trace format: CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens (Patel et al., Splitwise,
ISCA 2024; Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_*.csv).

TIMESTAMP is a date and a time of day with up to nine digits of a second (the 2023 files have seven: 100 ns, which a
float of seconds would lose); times become exact nanoseconds after the earliest row. There is no prefix identity:
every prompt is one of its own. The columns are found by name, so their order and further columns do not matter.
"""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from datetime import datetime

from ppsim.workload.draws import NS_PER_S
from ppsim.workload.lines import MAX_TIME_NS, Line, TraceRow, shown

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# The 2024 files write the zone; all of them are in UTC.
MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII)
NUMBER = re.compile(r"[+-]?\d{1,30}", re.ASCII)


def parse_azure(lines: list[Line]) -> list[TraceRow]:
    """One row a line after the header, in file order. Raises TraceError for the first line that is not a request."""
    header = cells_of(lines[0])
    for column in COLUMNS:
        if header.count(column) != 1:
            raise lines[0].error(column, f"expected one column of this name, the header is {shown(','.join(header))}")
    if len(lines) == 1:
        raise lines[0].error("file", "has a header, but no requests")
    places = {column: header.index(column) for column in COLUMNS}
    rows = [parse_row(number, line, places, len(header)) for number, line in enumerate(lines[1:])]
    start = min(row.at_ns for row in rows)
    for line, row in zip(lines[1:], rows):
        if row.at_ns - start > MAX_TIME_NS:
            raise line.error("TIMESTAMP", "is more than 292 years after the earliest row")
    return [replace(row, at_ns=row.at_ns - start) for row in rows]


def parse_row(number: int, line: Line, places: dict[str, int], num_columns: int) -> TraceRow:
    cells = cells_of(line)
    if len(cells) != num_columns:
        missing = [column for column, place in places.items() if place >= len(cells)]
        problem = f"expected {num_columns} cells as in the header, got {len(cells)}"
        raise line.error(missing[0] if missing else "line", problem)
    values = {column: cells[place] for column, place in places.items()}
    return TraceRow(
        number=number,
        line=line.number,
        at_ns=nanoseconds(line, values["TIMESTAMP"]),
        input_length=tokens(line, "ContextTokens", values["ContextTokens"]),
        output_length=tokens(line, "GeneratedTokens", values["GeneratedTokens"]),
        hash_ids=None,
    )


def cells_of(line: Line) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.text], strict=True))]
    except csv.Error as error:
        raise line.error("line", f"not a line of CSV: {error}") from None


def tokens(line: Line, field: str, text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise line.error(field, f"expected an integer, got {shown(text)}")
    return line.length(field, int(text))


def nanoseconds(line: Line, text: str) -> int:
    """Nanoseconds since the year 1, exact."""
    found = MOMENT.fullmatch(text)
    if not found:
        raise line.error("TIMESTAMP", f"expected a moment as 2023-11-16 18:17:03.9799600, got {shown(text)}")
    day, time, fraction = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day} {time}")
    except ValueError as error:
        raise line.error("TIMESTAMP", f"{shown(text)} is no moment: {error}") from None
    whole = moment - datetime(1, 1, 1)
    return (whole.days * 86_400 + whole.seconds) * NS_PER_S + int((fraction or "0").ljust(9, "0"))
