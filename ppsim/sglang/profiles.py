"""What dynamic chunking prints at start: the profiled lengths and times, and the fitted curve.

The first sample is cold and is dropped, as SGLang drops it; the lengths run from 1.25 times the chunk size down
(protocol.md 5.1). A list that breaks off gives its complete numbers, and says that one was cut.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ppsim.sglang.samples import Sample
from ppsim.sglang.stamps import rank_name, ranks_of

START = re.compile(r"Profiled (?P<count>\d{1,9}) samples?:")
LENGTHS = re.compile(r"seq_lens=\[")
LATENCIES = re.compile(r"latencies_ms=\[")
COEFFICIENTS = re.compile(
    r"coefficients: a=(?P<a>[-+\d.eE]+)(?:\w*)?, b=(?P<b>[-+\d.eE]+)(?:\w*)?, c=(?P<c>[-+\d.eE]+)", re.IGNORECASE
)
TARGET = re.compile(r"[Tt]arget latency: (?P<ms>\d+(?:\.\d+)?) ?ms(?: \(base_chunk_size=(?P<size>\d{1,12})\))?")
NUMBER = re.compile(r"\s*(?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(?P<end>[,\]])")
OVERSIZE = 1.25
MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class Profile:
    """``num_cut``: numbers that break off at the end of the text."""

    line: int
    rank: str
    declared: int
    seq_lens: tuple[int, ...]
    latencies_ms: tuple[float, ...]
    num_cut: int

    @property
    def chunk_size(self) -> int | None:
        return round(self.seq_lens[0] / OVERSIZE) if self.seq_lens else None

    def samples(self) -> list[Sample]:
        """Usable pairs: without the first, which is cold. Prefix 0: each is a prompt of its own."""
        pairs = list(zip(self.seq_lens, self.latencies_ms, strict=False))[1:]
        return [
            Sample(0, length, ms / 1e3, "profile", self.line, self.rank)
            for length, ms in pairs
            if ms > 0 and length > 0
        ]


@dataclass(frozen=True, slots=True)
class LoggedFit:
    """f(l) = a l^2 + b l + c in milliseconds, and the target f(size) - f(0)."""

    line: int
    a_ms: float
    b_ms: float
    c_ms: float
    target_ms: float | None = None
    chunk_size: int | None = None


def find_profiles(rows: Sequence[str]) -> list[Profile]:
    found = []
    for row, text in enumerate(rows):
        start = START.search(text) if "Profiled " in text else None
        if start is None:
            continue
        body = "\n".join(rows[row : row + MAX_ROWS])[start.end() :]
        following = START.search(body)
        body = body[: following.start()] if following else body
        lens, cut_lens = numbers_after(LENGTHS, body)
        times, cut_times = numbers_after(LATENCIES, body)
        found.append(
            Profile(
                row + 1,
                rank_name(ranks_of(text[: start.start()])),
                int(start["count"]),
                tuple(int(length) for length in lens),
                tuple(times),
                cut_lens + cut_times,
            )
        )
    return found


def profile_rows(rows: Sequence[str]) -> list[int]:
    """Rows (from 0) of profiles, to the end of their lists, and of fitted curves with their targets."""
    found: list[int] = []
    for row, text in enumerate(rows):
        if "oefficients" in text and COEFFICIENTS.search(text):
            found.append(row)
            found += [at for at in range(row, min(row + 4, len(rows))) if TARGET.search(rows[at])][:1]
        if "Profiled " in text and START.search(text):
            found += range(row, end_of_profile(rows, row))
    return found


def end_of_profile(rows: Sequence[str], row: int) -> int:
    """The row behind the one in which both lists are closed; of a list that breaks off, behind its last opening."""
    last = row
    for at in range(row, min(row + MAX_ROWS, len(rows))):
        if at > row and START.search(rows[at]):
            break
        last = at if LENGTHS.search(rows[at]) or LATENCIES.search(rows[at]) else last
        body = "\n".join(rows[row : at + 1])
        if all((start := opening.search(body)) and "]" in body[start.end() :] for opening in (LENGTHS, LATENCIES)):
            return at + 1
    return last + 1


def numbers_after(opening: re.Pattern[str], body: str) -> tuple[list[float], int]:
    """Numbers of a bracketed list, and 1 if it breaks off inside one."""
    start = opening.search(body)
    if start is None:
        return [], 0
    found: list[float] = []
    at = start.end()
    while True:
        number = NUMBER.match(body, at)
        if number is None:
            rest = body[at : at + 40].strip()
            return found, int(bool(rest) and rest[0] not in "]")
        value = float(number["number"])
        if not math.isfinite(value):
            return found, 1
        found.append(value)
        at = number.end()
        if number["end"] == "]":
            return found, 0


def find_fits(rows: Sequence[str]) -> list[LoggedFit]:
    """Fitted curves, each with the target latency that the next lines give."""
    found: list[LoggedFit] = []
    for row, text in enumerate(rows):
        curve = COEFFICIENTS.search(text) if "oefficients" in text else None
        if curve is None:
            continue
        try:
            a, b, c = (float(curve[name]) for name in "abc")
        except ValueError:
            continue
        target = next((t for later in rows[row : row + 4] if (t := TARGET.search(later))), None)
        size = int(target["size"]) if target and target["size"] else None
        found.append(LoggedFit(row + 1, a, b, c, float(target["ms"]) if target else None, size))
    return found
