"""Read a request trace: all of it, or an error that names file, line and field. A file is never loaded by half.

The format is told from the content, not from the name: a line that opens an object is Mooncake's JSONL, a header with
TIMESTAMP is Azure's CSV. ``TraceError`` has line 0 where the file as a whole is at fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from ppsim.errors import TraceError
from ppsim.workload.azure import parse_azure
from ppsim.workload.lines import TraceRow, lines_of, shown
from ppsim.workload.mooncake import parse_mooncake

SHIPPED = "generated_mooncake_like.jsonl"


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows in order of arrival (ties in file order) and what was put right to get there."""

    path: str
    rows: tuple[TraceRow, ...]
    warnings: tuple[str, ...]


def read_trace(path: str | None, block_tokens: int) -> Trace:
    """Read a Mooncake JSONL or Azure CSV file; None is the trace that comes with ppsim.

    ``block_tokens``: tokens of one hash id (Mooncake: 512). Times become integer nanoseconds. Raises TraceError.
    """
    name = path if path is not None else SHIPPED
    lines = list(lines_of(name, load(path)))
    if not lines:
        raise TraceError(name, 0, "file", "the file is empty; expected one request a line")
    first = lines[0]
    if first.text.startswith("{"):
        return arranged(name, parse_mooncake(lines, block_tokens))
    if "TIMESTAMP" in [cell.strip(' "') for cell in first.text.upper().split(",")]:
        return arranged(name, parse_azure(lines))
    raise first.error(
        "format",
        f"expected a JSON object (Mooncake) or the header TIMESTAMP,ContextTokens,GeneratedTokens (Azure), "
        f"got {shown(first.text)}",
    )


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


def arranged(name: str, rows: list[TraceRow]) -> Trace:
    """Sort by time, stably, and say so where the file was not in order."""
    early = [row for before, row in pairwise(rows) if row.at_ns < before.at_ns]
    if not early:
        return Trace(name, tuple(rows), ())
    warning = (
        f"{name}: {len(early)} of {len(rows)} requests come before the one above them "
        f"(first: line {early[0].line}); sorted by time, ties in file order"
    )
    return Trace(name, tuple(sorted(rows, key=lambda row: row.at_ns)), (warning,))
