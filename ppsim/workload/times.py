"""Times of a trace: moments of a calendar, and numbers in a unit. Both become exact integer nanoseconds.

A number needs its unit. Where nobody gives it (``workload.time_unit``), a name or a format may; where numbers fit
seconds better than the format's milliseconds, the question is asked and not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from ppsim.errors import TraceError
from ppsim.workload.draws import NS_PER_S
from ppsim.workload.lines import MAX_TIME_NS, Line, TraceRow, shown

UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": NS_PER_S}
MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s?(Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
DECIMAL = re.compile(r"[+-]?\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
NAMED_UNIT = re.compile(
    r"(?:_|\b)(ns|us|ms|s|sec|secs|seconds|milliseconds|microseconds|nanoseconds)\W*$", re.IGNORECASE
)
WORDS = {"sec": "s", "secs": "s", "seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
MIN_ROWS = 10
DOUBTFUL_PER_S = 20  # more requests a second than any published trace of one deployment has
WEEK_NS = 7 * 86_400 * NS_PER_S
ASK = 'say which: workload.time_unit = "ms" or "s" (or "us", "ns")'


def moment_ns(line: Line, field: str, text: str) -> int:
    """Nanoseconds since the year 1, UTC, exact. A moment without a zone counts as UTC."""
    found = MOMENT.fullmatch(text)
    if not found:
        raise line.error(field, f"expected a moment as 2023-11-16 18:17:03.9799600, got {shown(text)}")
    day, time, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day} {time}")
    except ValueError as error:
        raise line.error(field, f"{shown(text)} is no moment: {error}") from None
    whole = moment - datetime(1, 1, 1)
    seconds = whole.days * 86_400 + whole.seconds - zone_s(line, field, zone or "")
    return seconds * NS_PER_S + int((fraction or "0").ljust(9, "0"))


def has_zone(text: str) -> bool:
    found = MOMENT.fullmatch(text)
    return found is not None and found[4] is not None


def zone_s(line: Line, field: str, zone: str) -> int:
    """Seconds that a zone is ahead of UTC."""
    if zone in ("", "Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 14 or minutes > 59:
        raise line.error(field, f"{zone} is no time zone: expected at most 14 hours from UTC")
    return (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)


def number_ns(line: Line, field: str, text: str, unit: str) -> int:
    """A number in a unit, to the nearest nanosecond."""
    if not DECIMAL.fullmatch(text):
        raise line.error(field, f"expected a number in {unit}, got {shown(text)}")
    value = Decimal(text) * UNITS[unit]
    if not 0 <= value <= MAX_TIME_NS:
        raise line.error(field, f"expected 0 to {MAX_TIME_NS // UNITS[unit]} {unit}, got {shown(text)}")
    return round(value)


def unit_of_name(name: str) -> str | None:
    """The unit that a column's name ends with: ``arrival_ms``, ``Elapsed time (s)``."""
    found = NAMED_UNIT.search(name)
    if found is None:
        return None
    word = found[1].lower()
    return WORDS.get(word, word)


def ask_for_unit(name: str, rows: Sequence[TraceRow], fractions: Sequence[int]) -> None:
    """Raises TraceError where numbers read as milliseconds may well be seconds. ``fractions``: lines with one."""
    if not rows:
        return
    first, last = min(row.at_ns for row in rows), max(row.at_ns for row in rows)
    rate = len(rows) * NS_PER_S / (last - first) if last > first else 0.0
    doubtful = len(rows) >= MIN_ROWS and rate > DOUBTFUL_PER_S
    if not fractions and not doubtful:
        return
    place = fractions[0] if fractions else rows[-1].line
    why = f"{len(fractions)} of {len(rows)} times have a fraction, " if fractions else ""
    span = f"as milliseconds {len(rows)} requests come in {(last - first) / NS_PER_S:g} s"
    raise TraceError(name, place, "timestamp", f"milliseconds or seconds? {why}{span}; {ASK}")


def from_earliest(name: str, rows: list[TraceRow], after_ns: int) -> tuple[list[TraceRow], tuple[str, ...]]:
    """Times that count from the earliest row, where that one is later than ``after_ns`` (a clock, not a start)."""
    start = min((row.at_ns for row in rows), default=0)
    if start <= after_ns:
        return rows, ()
    moved = [replace(row, at_ns=row.at_ns - start) for row in rows]
    return moved, (f"{name}: times are those of a clock; they count from the earliest request",)
