"""Read a request trace: all of it, or an error that names file, line and field. A file is never loaded by half.

The format is told from the content, not from the name: a line that opens an object is Mooncake's JSONL, a bracket a
JSON array of such objects, and a CSV is known by its header or by the columns that the user names. What gzip packed is
unpacked. Only where the user says so are bad lines skipped; then each is named. ``TraceError`` has line 0 where the
file as a whole is at fault.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from ppsim.errors import TraceError
from ppsim.parsing import as_utf8
from ppsim.workload.dialogues import Dialogues, session_rows
from ppsim.workload.lines import BadLines, Line, TraceRow, lines_of, lines_one_by_one, shown
from ppsim.workload.mooncake import json_object, parse_mooncake
from ppsim.workload.results import Results
from ppsim.workload.table import DELIMITERS, KNOWN, Layout, Rows, cells_of, parse_csv, settled, told_outputs
from ppsim.workload.texts import ESTIMATE, counter_of
from ppsim.workload.times import from_earliest

SHIPPED = "generated_mooncake_like.jsonl"
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows in order of arrival (ties in file order) and what was put right to get there."""

    path: str
    rows: tuple[TraceRow, ...]
    warnings: tuple[str, ...]
    timed: bool = True  # False: it has no times, requests come as the workload says
    block_tokens: int = 512  # of one hash id


@dataclass(frozen=True, slots=True)
class Reading:
    """How a trace is to be read. ``time_unit``: of its numbers, None where the format says. The columns of another
    format are named with ``time``, ``prompt`` and ``output``."""

    block_tokens: int = 512
    time_unit: str | None = None
    time: str | None = None
    prompt: str | None = None
    output: str | None = None
    skip_bad_lines: bool = False
    tokenizer: str | None = None  # of texts
    num_turns: int | None = None  # of a conversation at most

    @property
    def layout(self) -> Layout | None:
        if self.time is None or self.prompt is None:
            return None
        return Layout(self.time, self.prompt, self.output, self.time_unit)


def read_trace(path: str | None, block_tokens: int = 512, how: Reading | None = None) -> Trace:
    """Read a trace file; None is the trace that comes with ppsim.

    ``block_tokens``: tokens of one hash id (Mooncake: 512). Times become integer nanoseconds. Raises TraceError.
    """
    name = path if path is not None else SHIPPED
    how = replace(how or Reading(), block_tokens=block_tokens)
    if how.layout is None and (how.time or how.prompt or how.output):
        lacking = "time" if how.time is None else "prompt"
        raise TraceError(name, 0, "columns", f"workload.columns.{lacking} is missing: name its column (--column)")
    return trace_of(name, load(path), how, BadLines(how.skip_bad_lines))


def trace_of(name: str, content: bytes, how: Reading, bad: BadLines) -> Trace:
    """The trace that a content is; ``bad`` gathers what was left out. Raises TraceError."""
    lines = rows_of_text(name, unpacked(name, content), bad)
    if not lines:
        if bad.errors:
            raise bad.errors[0]
        raise TraceError(name, 0, "file", "the file is empty; expected one request a line")
    kind = kind_of(lines, how)
    if kind in UNTIMED and how.layout is None:
        found = parse_records(name, lines, kind, how, bad)
    else:
        rows, told, size = parsed(name, lines, how, bad)
        found = Trace(name, tuple(rows), told, True, size)
    told = (*found.warnings, *told_outputs(name, found.rows), *bad.told(name, len(found.rows)))
    return replace(arranged(name, list(found.rows), told), timed=found.timed, block_tokens=found.block_tokens)


def kind_of_content(content: bytes) -> str:
    """What request trace a content is, by its first records; empty where it is none. Never raises."""
    try:
        lines = rows_of_text("", unpacked("", content), BadLines(skip=True))
        if not lines:
            return ""
        if lines[0].text.startswith("{"):
            record = json_object(lines[0])
            return "Mooncake" if {"timestamp", "input_length"} <= set(record) else kind_of_record(record)
        layout = known_layout(lines[0])
        return next((name for name, known in KNOWN.items() if known is layout), "")
    except TraceError:
        return ""


UNTIMED = ("ShareGPT", "AIPerf inputs", "requests of texts", "bench_serving", "AIPerf")


def kind_of(lines: Sequence[Line], how: Reading) -> str:
    """Of JSON the kind of its first record that can be read; empty for what has a time and lengths, or no JSON."""
    if not lines[0].text.startswith("{") and not how.skip_bad_lines:
        return ""
    for line in lines[:100]:
        try:
            record = json_object(line)
        except TraceError:
            continue
        return kind_of_record(record)
    return ""


def kind_of_record(record: Mapping[str, object]) -> str:
    if "timestamp" in record or "input_length" in record:
        return ""
    if "input_lens" in record:
        return "bench_serving"
    if "metadata" in record and "metrics" in record:
        return "AIPerf"
    if isinstance(record.get("data"), list):
        return "AIPerf inputs"
    if "conversations" in record or "conversation" in record:
        return "ShareGPT"
    return "requests of texts" if {"prompt", "messages", "text"} & set(record) or "body" in record else ""


def parse_records(name: str, lines: Sequence[Line], kind: str, how: Reading, bad: BadLines) -> Trace:
    """Records that are no timed rows of lengths. Raises TraceError for the first that is not of the file's kind."""
    dialogues, results = Dialogues(counter_of(how.tokenizer)), Results(name)
    rows: list[TraceRow] = []
    groups = [0]

    def read(line: Line) -> list[TraceRow]:
        record = json_object(line)
        if kind_of_record(record) != kind:
            raise line.error("format", f"is not like the lines above ({kind}); it has {shown(', '.join(record))}")
        if kind == "bench_serving":
            return results.run(line, record, len(rows))
        if kind == "AIPerf":
            return results.request(line, record, len(rows))
        made: list[TraceRow] = []
        for turns in dialogues.read(line, record):
            made += session_rows(line, turns, len(rows) + len(made), groups[0], how.num_turns)
            groups[0] += 1
        return made

    for line in lines:
        rows += bad.attempt(read, line) or []
    if not rows and not bad.errors:
        raise TraceError(name, 0, "file", "has no requests that could be served")
    told = (*dialogues.told(name), *results.told())
    if kind not in ("bench_serving", "AIPerf") and how.tokenizer is None:
        told = (f"{name}: {ESTIMATE}", *told)
    elif kind in ("bench_serving", "AIPerf") and how.tokenizer is not None:
        told = (f"{name}: workload.tokenizer has no effect: the file has lengths and no texts", *told)
    timed = kind == "AIPerf" or (kind == "bench_serving" and not results.num_untimed)
    if results.num_untimed and results.num_untimed < len(rows):
        raise TraceError(name, 0, "start_times", "some runs have times of their requests, and some have none")
    if timed:
        rows, also = from_earliest(name, rows, 7 * 86_400 * 10**9)
        told += also
    return Trace(name, tuple(rows), told, timed)


def parsed(name: str, lines: list[Line], how: Reading, bad: BadLines) -> tuple[list[TraceRow], tuple[str, ...], int]:
    """Rows of times and lengths, what is told, and the tokens of a hash id."""
    first = lines[0]
    if first.text.startswith("{") or (how.skip_bad_lines and any(line.text.startswith("{") for line in lines[:100])):
        if how.layout is not None:
            return *parse_objects(name, lines, how.layout, bad), how.block_tokens
        return parse_mooncake(lines, how.block_tokens, how.time_unit, bad)
    if how.layout is not None:
        return *parse_csv(lines, how.layout, bad), how.block_tokens
    layout = known_layout(first)
    if layout is None:
        raise first.error(
            "format",
            "expected a JSON object of a known format, a header TIMESTAMP,ContextTokens,GeneratedTokens (Azure), "
            f"BurstGPT's, or --column time=.. prompt=.. output=.., got {shown(first.text)}",
        )
    idle: tuple[str, ...] = ()
    if how.time_unit is not None and layout.needs_moments:
        idle = (f"{name}: workload.time_unit has no effect: {layout.time} is a moment",)
    elif how.time_unit is not None:
        layout = replace(layout, unit=how.time_unit)
    rows, told = parse_csv(lines, layout, bad)
    return rows, (*idle, *told), how.block_tokens


def known_layout(first: Line) -> Layout | None:
    """The layout whose names the header has, whatever parts them. Raises TraceError for a line that is no CSV."""
    burst, azure = KNOWN["BurstGPT"], KNOWN["Azure"]
    headers = [set(cells_of(first, delimiter)) for delimiter in DELIMITERS]
    if any({burst.time, burst.prompt, burst.output} <= header for header in headers):
        return burst
    return azure if any(header & {azure.time, azure.prompt, azure.output} for header in headers) else None


def parse_objects(
    name: str, lines: Sequence[Line], layout: Layout, bad: BadLines
) -> tuple[list[TraceRow], tuple[str, ...]]:
    """JSON objects whose fields the user named."""
    reader = Rows({}, 0, DELIMITERS[0], layout)
    rows = []
    for number, line in enumerate(lines):
        row = bad.attempt(object_row, reader, number, line)
        if row is not None:
            rows.append(row)
    return settled(name, rows, layout, reader, {line.number: line for line in lines}, bad)


def object_row(reader: Rows, number: int, line: Line) -> TraceRow:
    record, layout = json_object(line), reader.layout
    values = {}
    for field in (layout.time, layout.prompt, layout.output):
        if field is None:
            continue
        value = record.get(field)
        if field not in record and field != layout.output:
            raise line.error(field, f"is missing; the line has {shown(', '.join(record))}")
        if isinstance(value, (bool, list, dict)):
            raise line.error(field, f"expected a number, got {shown(value)}")
        values[field] = "" if value is None else f"{value:f}" if isinstance(value, Decimal) else str(value).strip()
    return reader.request(number, line, values)


def rows_of_text(name: str, content: bytes, bad: BadLines) -> list[Line]:
    """Lines that are not blank; of a JSON array its elements, each at the line where it begins; one object that goes
    over several lines is a line of its own."""
    begins = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begins[:1] == b"[":
        list(lines_of(name, content))  # refuses what is not text
        return elements(name, content.decode("utf-8-sig"))
    if begins[:1] == b"{" and begins.split(b"\n", 1)[0].rstrip() in (b"{", b'{"data": [', b'{"data":['):
        found = whole_object(name, content)
        if found is not None:
            return [found]
    return list(lines_one_by_one(name, content, bad) if bad.skip else lines_of(name, content))


def whole_object(name: str, content: bytes) -> Line | None:
    """The one JSON object that the file is; None where it is none."""
    try:
        text = content.decode("utf-8-sig")
        begin = past_blanks(text, 0)
        end = json.JSONDecoder().raw_decode(text, begin)[1]
    except (ValueError, RecursionError):
        return None
    return None if text[end:].strip() else Line(name, text.count("\n", 0, begin) + 1, text[begin:end])


def elements(name: str, text: str) -> list[Line]:
    """The elements of the array that the text is. Raises TraceError: behind a broken one nothing is sure."""
    decoder = json.JSONDecoder()
    found: list[Line] = []
    at, number, counted = text.index("[") + 1, 1, 0
    while True:
        at = past_blanks(text, at)
        number, counted = number + text.count("\n", counted, at), at
        line = Line(name, number, text[at : at + 60])
        if text[at : at + 1] == "]" and not found:
            at += 1
            break
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError) as error:
            raise line.error("json", f"element {len(found)} of the array is no JSON: {error}") from None
        found.append(Line(name, number, text[at:end].strip()))
        at = past_blanks(text, end)
        sign = text[at : at + 1]
        at += 1
        if sign == "]":
            break
        if sign != ",":
            place = text.count("\n", 0, at - 1) + 1
            raise TraceError(name, place, "json", f"behind element {len(found) - 1}: expected ',' or ']', got {sign!r}")
    if text[at:].strip():
        raise TraceError(name, text.count("\n", 0, past_blanks(text, at)) + 1, "json", "text behind the array")
    return found


def past_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def unpacked(name: str, content: bytes) -> bytes:
    """What gzip or zstd packed; anything else as it is. A text whose byte-order mark says another encoding becomes
    UTF-8. Raises TraceError for a packed file that is damaged."""
    if content.startswith(ZSTD):
        return as_utf8(unpack_zstd(name, content))
    if not content.startswith(GZIP):
        return as_utf8(content)
    try:
        return as_utf8(gzip.decompress(content))
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(name, 1, "file", f"not a text file, and as gzip it is damaged: {error}") from None


def unpack_zstd(name: str, content: bytes) -> bytes:
    """With the standard library of Python 3.14 or newer, or with the package zstandard."""
    try:
        try:
            from compression.zstd import decompress  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from zstandard import ZstdDecompressor

            with ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True) as stream:
                return checked(stream.read(), content)
        return bytes(decompress(content))
    except ImportError:
        what = "is packed with zstd, and nothing here reads that: pip install zstandard, or unpack it first (zstd -d)"
        raise TraceError(name, 0, "file", what) from None
    except Exception as error:  # each library has a class of its own for damage
        raise TraceError(name, 0, "file", f"as zstd it is damaged: {error} (zstd -d says more)") from None


def checked(text: bytes, content: bytes) -> bytes:
    """zstandard takes a frame that breaks off for one that ends."""
    from zstandard import frame_content_size

    size = frame_content_size(content)
    if len(text) < size or (size < 0 and not text):
        raise ValueError(f"it breaks off after {len(text)} bytes")
    return text


def load(path: str | None) -> bytes:
    if path is None:
        return (files("ppsim") / "data" / SHIPPED).read_bytes()
    try:
        place = Path(path)
        if place.is_dir():
            raise TraceError(path, 0, "file", "is a directory; expected a trace file")
        if not place.exists():
            raise TraceError(path, 0, "file", "the trace file does not exist")
        if not (place.is_file() or place.is_fifo()):
            raise TraceError(path, 0, "file", "is a device or socket; expected a trace file")
        return place.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(path, 0, "file", f"the trace file cannot be read: {reason}") from None


def arranged(name: str, rows: list[TraceRow], told: tuple[str, ...]) -> Trace:
    """Sort by time, stably, and say so where the file was not in order."""
    early = [row for before, row in pairwise(rows) if row.at_ns < before.at_ns]
    if not early:
        return Trace(name, tuple(rows), told)
    warning = (
        f"{name}: {len(early)} of {len(rows)} requests come before the one above them "
        f"(first: line {early[0].line}); sorted by time, ties in file order"
    )
    return Trace(name, tuple(sorted(rows, key=lambda row: row.at_ns)), (warning, *told))
