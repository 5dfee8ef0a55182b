"""Counts over time, read from a recording: requests that wait or run, and KV tokens; and their means over pixels.

Rule: a series is a step function: ``values[i]`` holds from ``times[i]`` to ``times[i + 1]``, and 0 before the first.
All of it is what the first rank knew when: a request waits from the reading on, runs from the first batch that holds
it, waits again when it is retracted, and is gone with its last reply.

A decision has the time at which the first rank made it. Recordings without those times (of processes, or older ones)
have that of its forward pass instead; the KV of an iteration stands from the following decision on, because within an
iteration only the order is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppsim.recording.record import Recording
from ppsim.report.window import Window

WAITING, RUNNING = "waiting", "running"


class Series(NamedTuple):
    """A step function; ``times`` ascend."""

    times: list[int]
    values: list[int]


class Requests(NamedTuple):
    waiting: Series
    running: Series


class Kv(NamedTuple):
    """Tokens of a rank. ``pool``: all that there are (``pool_tokens``)."""

    in_use: Series
    cached: Series
    pool: int


def decided_at(recording: Recording, rank: int) -> dict[int, int]:
    """Iteration -> ns at which a rank decided it; without such times, the start of its forward pass."""
    visits = recording.visits[rank]
    if visits:
        return dict(enumerate(visits))
    return {s.iteration: s.start_ns for s in recording.spans[rank] if s.stream == "forward"}


def request_counts(recording: Recording) -> Requests:
    """How many requests wait and how many run, at every instant."""
    states: dict[str, list[str]] = {}
    num = {WAITING: 0, RUNNING: 0}
    waiting, running = Series([], []), Series([], [])
    for time, kind, rid in sorted(steps(recording), key=lambda step: step[:2]):  # one instant: in the order below
        change(states.setdefault(rid, []), STEPS[kind], num)
        put(waiting, time, num[WAITING])
        put(running, time, num[RUNNING])
    return Requests(waiting, running)


STEPS = ("read", "retracted", "launched", "refused", "ended")


def steps(recording: Recording) -> Iterable[tuple[int, int, str]]:
    """(ns, place in ``STEPS``, rid) of everything that moves a request, in no order of time."""
    for ingested in recording.ingestions:
        yield from ((ingested.time_ns, 0, item.rid) for item in ingested.inputs if item.kind == "new")
    at = decided_at(recording, 0)
    started: set[str] = set()
    for decision in recording.decisions[0]:
        if decision.iteration not in at:
            continue  # nothing was launched in it, and its time is not known
        time = at[decision.iteration]
        for rid in decision.retracted:
            started.discard(rid)
            yield time, 1, rid
        for rid, _, _ in decision.pieces:
            if rid not in started:
                started.add(rid)
                yield time, 2, rid
    for reply in recording.replies:
        if reply.status != "token":
            started.discard(reply.rid)
            yield reply.time_ns, 3 if reply.status == "refused" else 4, reply.rid


def change(mine: list[str], step: str, num: dict[str, int]) -> None:
    """Move one of the requests of an id: a second one of the same id is the one that is refused."""
    if step == "read":
        mine.append(WAITING)
        num[WAITING] += 1
    elif mine and step in ("refused", "ended"):
        num[mine.pop(-1 if step == "refused" else 0)] -= 1
    elif mine:
        before, mine[0] = mine[0], RUNNING if step == "launched" else WAITING
        num[before] -= 1
        num[mine[0]] += 1


def put(series: Series, time: int, value: int) -> None:
    """From ``time`` on; of several values at one instant the last holds."""
    if series.times and series.times[-1] == time:
        series.values[-1] = value
    elif not series.values or series.values[-1] != value:
        series.times.append(time)
        series.values.append(value)


def pool_tokens(recording: Recording, rank: int) -> int:
    """Tokens of a rank's pool: what all ranks agreed on, in whole pages.

    The least that any rank said to hold. A recording has no page size, but all counts are whole pages, so their common
    divisor is one or some; never less than was free or cached at once. Without what the ranks said (older recordings)
    that is all there is: the pool itself, if it ever was empty.
    """
    harvests = recording.harvests[rank]
    most = max((h.free_tokens + h.evictable_tokens for h in harvests), default=0)
    said = [look.values[0] for mine in recording.observations for look in mine if look.what == "capacity"]
    pages = gcd(*(n for h in harvests for n in (h.free_tokens, h.evictable_tokens)))
    return max(most, min(said) // pages * pages) if said and pages else most


def kv_use(recording: Recording, rank: int) -> Kv:
    """KV tokens that requests hold, and those that only the prefix cache holds."""
    at = decided_at(recording, rank)
    harvests = recording.harvests[rank]
    pool = pool_tokens(recording, rank)
    in_use, cached = Series([], []), Series([], [])
    for h in harvests:
        time = at.get(h.iteration + 1, at.get(h.iteration))
        if time is not None and not (in_use.times and time < in_use.times[-1]):
            put(in_use, time, pool - h.free_tokens - h.evictable_tokens)
            put(cached, time, h.evictable_tokens)
    return Kv(in_use, cached, pool)


# --- over the pixels of a picture ------------------------------------------------------------------------------

Floats = NDArray[np.float64]


def means(series: Series, window: Window, num_columns: int) -> Floats:
    """[num_columns]: the mean of the series over each column's part of the window, exact but for rounding."""
    begin, length = window.start_ns, window.end_ns - window.start_ns
    corners, totals = [0.0], [0.0]
    for time, stop, value in pieces(series, window):
        for at, height in ((time, 0), (stop, value)):
            x = (at - begin) / length * num_columns
            totals.append(totals[-1] + height * (x - corners[-1]))
            corners.append(x)
    edges = np.interp(np.arange(num_columns + 1), [*corners, float(num_columns)], [*totals, totals[-1]])
    found: Floats = np.diff(edges)
    return found


def maxima(series: Series, window: Window, num_columns: int) -> Floats:
    """[num_columns]: the largest value within each column's part of the window."""
    begin, length = window.start_ns, window.end_ns - window.start_ns
    found = np.zeros(num_columns)
    for time, stop, value in pieces(series, window):
        first = (time - begin) * num_columns // length
        last = min(-((begin - stop) * num_columns // length), num_columns)
        np.maximum(found[first:last], value, out=found[first:last])
    return found


def pieces(series: Series, window: Window) -> Iterable[tuple[int, int, int]]:
    """(start, end, value) of the steps inside the window; the last one lasts to its end."""
    for i, (time, value) in enumerate(zip(series.times, series.values)):
        stop = series.times[i + 1] if i + 1 < len(series.times) else window.end_ns
        start, stop = max(time, window.start_ns), min(stop, window.end_ns)
        if start < stop:
            yield start, stop, value


def total(*series: Series) -> Series:
    """The sum of step functions."""
    changes: list[tuple[int, int]] = []
    for one in series:
        before = 0
        for time, value in zip(one.times, one.values):
            changes.append((time, value - before))
            before = value
    summed = Series([], [])
    height = 0
    for time, step in sorted(changes):
        height += step
        put(summed, time, height)
    return summed


def highest(values: Sequence[Floats]) -> float:
    return max((float(v.max()) for v in values if len(v)), default=0.0)
