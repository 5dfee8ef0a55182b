"""A trace of Mooncake's format that is read twice, line by line, and never held: once to look at, once to serve.

Rule: only what needs nothing put right is read so: every line a request with all four fields, in order of time, with
ids for blocks of the expected size, and times whose unit is not in doubt. Whatever else a file may be,
``trace.read_trace``
reads it whole, and says what it did or what is wrong. So both readings give the same rows and the same sentences.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import IO

from ppsim.errors import TraceError
from ppsim.workload.draws import NS_PER_S
from ppsim.workload.lines import Line, TraceRow, one_line
from ppsim.workload.mooncake import FIELDS, json_object, parse_line
from ppsim.workload.table import outputs_sentence
from ppsim.workload.times import DOUBTFUL_PER_S, MIN_ROWS, WEEK_NS, from_earliest
from ppsim.workload.trace import GZIP, SHIPPED, Reading, Trace

BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Survey:
    """What the first reading has seen: what ``read_trace`` judges a file by."""

    num_rows: int = 0
    first: TraceRow | None = None
    last_ns: int = 0
    first_without: int = 0  # line of the first request without output
    num_without: int = 0

    def add(self, row: TraceRow, block_tokens: int) -> bool:
        """Whether the row goes on as the ones before."""
        if self.first is None:
            self.first = row
        if row.at_ns < self.last_ns or row.hash_ids is None:
            return False
        self.num_rows += 1
        self.last_ns = row.at_ns
        if row.no_output:
            self.num_without += 1
            self.first_without = self.first_without or row.line
        return -(-row.input_length // block_tokens) == len(row.hash_ids)

    def has_a_unit(self) -> bool:
        """Times in milliseconds that are no seconds (``times.ask_for_unit``)."""
        assert self.first is not None
        span_ns = self.last_ns - self.first.at_ns
        return self.num_rows < MIN_ROWS or self.num_rows * NS_PER_S <= DOUBTFUL_PER_S * span_ns or not span_ns


@dataclass(frozen=True, slots=True)
class LineByLine:
    """A trace on a disk. ``head``: all of it but the rows behind the first. ``earliest_ns``: times count from it."""

    path: str | None
    unit: str
    num_rows: int
    earliest_ns: int
    head: Trace

    def rows(self) -> Iterator[TraceRow]:
        """Each time it is asked, from the start of the file. Raises TraceError if that has changed meanwhile."""
        fractions: list[int] = []
        for number, line in enumerate(lines_of_file(self.path)):
            row = parse_line(number, line, self.unit, fractions)
            yield replace(row, at_ns=row.at_ns - self.earliest_ns) if self.earliest_ns else row


def line_by_line(path: str | None, how: Reading) -> LineByLine | None:
    """The trace, if it can be read so; else None."""
    if how.layout is not None or how.time or how.prompt or how.output or how.skip_bad_lines:
        return None
    if path is not None and not Path(path).is_file():
        return None
    try:
        survey = surveyed(path, how)
    except (TraceError, OSError, EOFError, ValueError):
        return None
    if survey is None or survey.first is None or not (how.time_unit or survey.has_a_unit()):
        return None
    name = SHIPPED if path is None else path
    moved, told = from_earliest(name, [survey.first], WEEK_NS)
    earliest_ns = survey.first.at_ns - moved[0].at_ns
    outputs = outputs_sentence(name, survey.num_without, survey.first_without, survey.num_rows)
    head = Trace(name, tuple(moved), (*told, *outputs), True, how.block_tokens)
    return LineByLine(path, how.time_unit or "ms", survey.num_rows, earliest_ns, head)


def surveyed(path: str | None, how: Reading) -> Survey | None:
    survey, fractions = Survey(), list[int]()
    for number, line in enumerate(lines_of_file(path)):
        if number == 0:
            head = json_object(line)
            if any(field not in head for field in FIELDS) or {"chat_id", "parent_chat_id"} <= set(head):
                return None
        if not survey.add(parse_line(number, line, how.time_unit or "ms", fractions), how.block_tokens):
            return None
        if fractions and how.time_unit is None:
            return None
    return survey


def lines_of_file(path: str | None) -> Iterator[Line]:
    """Lines that are not blank."""
    name = SHIPPED if path is None else path
    with opened(path) as content:
        for number, raw in enumerate(content, start=1):
            line = one_line(name, number, raw.removeprefix(BOM) if number == 1 else raw)
            if line.text:
                yield line


def opened(path: str | None) -> AbstractContextManager[IO[bytes]]:
    """What gzip packed is unpacked on the way."""
    place = files("ppsim") / "data" / SHIPPED if path is None else Path(path)
    content = place.open("rb")
    is_packed = content.read(len(GZIP)) == GZIP
    content.seek(0)
    if not is_packed:
        return content
    return gzip.open(content, "rb")  # type: ignore[return-value]
