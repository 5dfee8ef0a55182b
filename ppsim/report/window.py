"""Which part of a run's time a picture shows, and the ticks below it.

Rule: what was asked for is drawn, or refused in a sentence; where a run ends before the part that was asked for does,
the picture ends with the run, and the caller is told. A tick is a plain number of the unit that the axis names: no
offset, no exponent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from ppsim.errors import UsageError
from ppsim.recording.record import Recording
from ppsim.recording.schema import Span
from ppsim.recording.summary import NS_PER_S, forward_window

READABLE_PASSES = 36  # forward passes of a rank that fit side by side
UNITS = (("s", NS_PER_S), ("ms", 1_000_000), ("us", 1_000), ("ns", 1))
NUM_TICKS = 10  # at most


@dataclass(frozen=True, slots=True)
class Window:
    """[start_ns, end_ns) of a picture."""

    start_ns: int
    end_ns: int


def whole_run(*recordings: Recording) -> Window:
    """From the first forward start to the last forward end of these pipelines. Raises UsageError if nothing ran."""
    windows = [(start, end) for start, end in map(forward_window, recordings) if end > start]
    if not windows:
        hint = "; the other pipeline has --side prefill" if any(r.peer is not None for r in recordings) else ""
        raise UsageError(f"nothing to plot: the recording has no forward pass{hint}")
    return Window(min(start for start, _ in windows), max(end for _, end in windows))


def lifetime(*recordings: Recording) -> Window:
    """From the first arrival or forward pass to the last reply or forward pass. Raises UsageError if there is none."""
    arrivals = [arrival.at_ns for recording in recordings for arrival in recording.arrivals]
    replies = [reply.time_ns for recording in recordings for reply in recording.replies]
    passes = [window for window in map(forward_window, recordings) if window[1] > window[0]]
    starts, ends = [*arrivals, *(start for start, _ in passes)], [*replies, *(end for _, end in passes)]
    if not starts or not ends or min(starts) >= max(ends):
        raise UsageError("nothing to plot: no request arrived and nothing was computed")
    return Window(min(starts), max(ends))


def chosen_window(whole: Window, typical: Window, from_s: float | None, to_s: float | None) -> Window:
    """``--from`` and ``--to`` in seconds of the run's clock; without both, the ``typical`` part.

    A part that reaches beyond the run is cut to it (``words_on_cut`` says so). Raises UsageError for what is no time
    and for a part in which the run computes nothing.
    """
    if from_s is None and to_s is None:
        return typical
    start = whole.start_ns if from_s is None else nanoseconds("--from", from_s)
    end = whole.end_ns if to_s is None else nanoseconds("--to", to_s)
    runs = f"the run computes from {shown_s(whole.start_ns)} s to {shown_s(whole.end_ns)} s"
    if start >= whole.end_ns:
        raise UsageError(f"--from {shown_s(start)} s: shows nothing, {runs}")
    if end <= whole.start_ns:
        raise UsageError(f"--to {shown_s(end)} s: shows nothing, {runs}")
    if start >= end:
        raise UsageError(f"--from {shown_s(start)} s is not before --to {shown_s(end)} s, which shows nothing; {runs}")
    return Window(max(start, whole.start_ns), min(end, whole.end_ns))


def nanoseconds(option: str, value_s: float) -> int:
    """Exact, also where seconds are too many for a float of nanoseconds. Raises UsageError."""
    if not isfinite(value_s):
        raise UsageError(f"{option} {value_s}: expected a number of seconds of the run's clock")
    return round(Fraction(value_s) * NS_PER_S)


def words_on_cut(window: Window | None, from_s: float | None, to_s: float | None) -> list[str]:
    """What a user should hear who asked for time before the first forward pass or after the last one."""
    told: list[str] = []
    if window is None:
        return told
    if from_s is not None and nanoseconds("--from", from_s) < window.start_ns:
        told.append(f"--from {from_s:g}: the run starts at {shown_s(window.start_ns)} s, drawn from there")
    if to_s is not None and nanoseconds("--to", to_s) > window.end_ns:
        told.append(f"--to {to_s:g}: the run ends at {shown_s(window.end_ns)} s, drawn up to there")
    return told


def shown_s(time_ns: int) -> str:
    """Seconds for a message: all digits of a time, few of a number that is none."""
    return f"{time_ns / NS_PER_S:g}" if abs(time_ns) >= 10**18 else decimal(time_ns, NS_PER_S, 1)


def typical_window(whole: Window, spans: Sequence[Span], num_passes: int = READABLE_PASSES) -> Window:
    """The whole run if it is short; else the passes of a rank around the moment when half of its computing is done.

    Half of the computing, not of the time or of the passes: that lands where the run spends its time, neither in
    a pause nor in the long tail of short decode steps.
    """
    passes = sorted((span.start_ns, span.end_ns) for span in spans)
    if len(passes) <= num_passes:
        return whole
    half = sum(end - start for start, end in passes) / 2
    done = 0
    middle = 0
    while done < half:
        done += passes[middle][1] - passes[middle][0]
        middle += 1
    first = min(max(0, middle - num_passes // 2), len(passes) - num_passes)
    window = Window(passes[first][0], passes[first + num_passes - 1][1])
    return window if window.end_ns > window.start_ns else whole  # passes may take no time at all


def last_window(whole: Window, spans: Sequence[Span], num_passes: int = READABLE_PASSES) -> Window:
    """The end of a run, from the last passes of a rank on: where one that failed is looked at."""
    starts = sorted(span.start_ns for span in spans)[-num_passes:]
    return Window(starts[0], whole.end_ns) if starts and starts[0] < whole.end_ns else whole


def time_unit(window: Window) -> tuple[str, int]:
    """Name and length in ns of the largest unit of which the window's end has at least one."""
    return next((unit for unit in UNITS if abs(window.end_ns) >= unit[1]), UNITS[-1])


def ticks(window: Window, width: int, letter: int = 9) -> tuple[list[float], list[str]]:
    """Places in [0, ``width``] and their labels; ``letter`` is the width of one, so that none touches the next."""
    _, unit_ns = time_unit(window)
    length = window.end_ns - window.start_ns
    for step in steps():
        if length // step > NUM_TICKS:
            continue
        times = range(-(-window.start_ns // step) * step, window.end_ns + 1, step)
        labels = [decimal(time, unit_ns, 0, step) for time in times]
        if len(labels) < 3 or sum(len(label) + 3 for label in labels) * letter <= width:
            return [(time - window.start_ns) / length * width for time in times], labels
    raise AssertionError("steps() does not end")


def steps() -> Iterable[int]:
    """1, 2, 5, 10, 20, ... nanoseconds."""
    ten = 1
    while True:
        yield from (ten, 2 * ten, 5 * ten)
        ten *= 10


def decimal(value: int, unit: int, least: int = 0, step: int = 0) -> str:
    """``value`` / ``unit`` with the decimals that multiples of ``step`` need, or it alone. ``unit``: 10^n."""
    whole, rest = divmod(abs(value), unit)
    num_digits = len(str(unit)) - 1
    digits = str(rest).zfill(num_digits) if num_digits else ""
    if step:
        num_needed = num_digits
        while num_needed and step % 10 == 0:
            step //= 10
            num_needed -= 1
        digits = digits[:num_needed].ljust(least, "0")
    else:
        digits = digits.rstrip("0").ljust(least, "0")
    return f"{'-' if value < 0 else ''}{whole}" + (f".{digits}" if digits else "")
