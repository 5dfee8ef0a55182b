"""Traces as CSV, or as objects with other names: a column each for the time, the prompt's length and the output's.

Columns are found by name, so their order and further columns do not matter. There is no prefix identity: every prompt
is one of its own. A row whose output is empty or 0 has one output token here, since a prefill always samples one; how
many rows that are is told.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ppsim.workload.lines import MAX_TIME_NS, BadLines, Line, TraceRow, shown
from ppsim.workload.times import ASK, MOMENT, from_earliest, has_zone, moment_ns, number_ns, unit_of_name

NUMBER = re.compile(r"[+-]?\d{1,30}", re.ASCII)
DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of the columns; ``output`` is None where there is none. ``unit``: of numbers; None where times are moments
    or nobody said."""

    time: str
    prompt: str
    output: str | None
    unit: str | None = None
    needs_moments: bool = False


# BurstGPT (Wang et al., 2024; HPMLL/BurstGPT, data/BurstGPT_*.csv): seconds from the start; failed requests have 0
# response tokens. Azure 2023 and 2024 (Patel et al., ISCA 2024; Stojkovic et al., HPCA 2025; Azure/AzurePublicDataset).
KNOWN = {
    "Azure": Layout("TIMESTAMP", "ContextTokens", "GeneratedTokens", needs_moments=True),
    "BurstGPT": Layout("Timestamp", "Request tokens", "Response tokens", "s"),
}


def parse_csv(lines: Sequence[Line], layout: Layout, bad: BadLines) -> tuple[list[TraceRow], tuple[str, ...]]:
    """Rows in file order and what was put right. Raises TraceError for the first line that is not a request."""
    delimiter = delimiter_of(lines[0], layout)
    header = cells_of(lines[0], delimiter)
    wanted = [name for name in (layout.time, layout.prompt, layout.output) if name is not None]
    for column in wanted:
        if header.count(column) != 1:
            raise lines[0].error(column, f"expected one column of this name, the header is {shown(','.join(header))}")
    if len(lines) == 1:
        raise lines[0].error("file", "has a header, but no requests")
    reader = Rows({column: header.index(column) for column in wanted}, len(header), delimiter, layout)
    rows = []
    for number, line in enumerate(lines[1:]):
        row = bad.attempt(reader.row, number, line)
        if row is not None:
            rows.append(row)
    return settled(lines[0].path, rows, layout, reader, {line.number: line for line in lines}, bad)


def settled(
    name: str, rows: list[TraceRow], layout: Layout, reader: Rows, lines: Mapping[int, Line], bad: BadLines
) -> tuple[list[TraceRow], tuple[str, ...]]:
    if not rows:
        return rows, ()
    start = min(row.at_ns for row in rows)
    near = []
    for row in rows:
        if row.at_ns - start <= MAX_TIME_NS:
            near.append(row)
        else:
            bad.attempt(too_late, lines[row.line], layout.time)
    told: tuple[str, ...] = ()
    if reader.num_moments:
        near = [replace(row, at_ns=row.at_ns - start) for row in near]
    else:
        near, told = from_earliest(name, near, 7 * 86_400 * 10**9)
    if reader.num_moments and 0 < reader.num_zones < reader.num_moments:
        told += (f"{name}: {reader.num_moments - reader.num_zones} times without a zone are taken as UTC",)
    return near, told


def too_late(line: Line, field: str) -> None:
    raise line.error(field, "is more than 292 years after the earliest row")


@dataclass(slots=True)
class Rows:
    """Reads one line after another; counts moments and zones on the way."""

    places: dict[str, int]
    num_columns: int
    delimiter: str
    layout: Layout
    num_moments: int = 0
    num_numbers: int = 0
    num_zones: int = 0

    def row(self, number: int, line: Line) -> TraceRow:
        cells = cells_of(line, self.delimiter)
        if len(cells) != self.num_columns:
            missing = [column for column, place in self.places.items() if place >= len(cells)]
            problem = f"expected {self.num_columns} cells as in the header, got {len(cells)}"
            raise line.error(missing[0] if missing else "line", problem)
        return self.request(number, line, {column: cells[place] for column, place in self.places.items()})

    def request(self, number: int, line: Line, values: Mapping[str, str]) -> TraceRow:
        layout = self.layout
        at_ns = self.time(line, values[layout.time])
        prompt = tokens(line, layout.prompt, values[layout.prompt])
        text = values[layout.output] if layout.output is not None else ""
        no_output = text in ("", "0")
        output = 1 if no_output or layout.output is None else tokens(line, layout.output, text)
        return TraceRow(number, line.number, at_ns, prompt, output, None, no_output)

    def time(self, line: Line, text: str) -> int:
        field = self.layout.time
        if self.layout.needs_moments or MOMENT.fullmatch(text):
            if self.num_numbers:
                raise line.error(field, f"is a moment, and the lines above have numbers: {shown(text)}")
            at_ns = moment_ns(line, field, text)
            self.num_moments += 1
            self.num_zones += has_zone(text)
            return at_ns
        unit = self.layout.unit or unit_of_name(field)
        if self.num_moments:
            raise line.error(field, f"is no moment, as the lines above have: {shown(text)}")
        if unit is None:
            raise line.error(field, f"a number without a unit, {shown(text)}; {ASK}")
        at_ns = number_ns(line, field, text, unit)
        self.num_numbers += 1
        return at_ns


def delimiter_of(line: Line, layout: Layout) -> str:
    """The first delimiter that parts the header into the columns that are wanted."""
    wanted = {name for name in (layout.time, layout.prompt, layout.output) if name is not None}
    return next((sign for sign in DELIMITERS if wanted <= set(cells_of(line, sign))), ",")


def cells_of(line: Line, delimiter: str = ",") -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.text], strict=True, delimiter=delimiter))]
    except csv.Error as error:
        raise line.error("line", f"not a line of CSV: {error}") from None


def tokens(line: Line, field: str, text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise line.error(field, f"expected an integer, got {shown(text)}")
    return line.length(field, int(text))


def told_outputs(name: str, rows: Sequence[TraceRow]) -> tuple[str, ...]:
    without = [row for row in rows if row.no_output]
    return outputs_sentence(name, len(without), without[0].line if without else 0, len(rows))


def outputs_sentence(name: str, num_without: int, first_line: int, num_rows: int) -> tuple[str, ...]:
    if not num_without:
        return ()
    return (
        f"{name}: {num_without} of {num_rows} requests have no output (first: line {first_line}); "
        "each gets the one token that its prefill samples",
    )
