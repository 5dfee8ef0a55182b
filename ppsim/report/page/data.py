"""A run as the columns of integers that the page's charts draw.

Rule: nothing is rounded or left out here. A time is whole nanoseconds since ``origin_ns``, the run's first instant, so
that a browser, whose numbers are exact up to 2**53, holds it. Columns that ascend are kept as differences, which makes
them short. The scripts turn all of it back (``assets/decode.js``), and a test holds what they make of it against the
recording.

Pieces of a batch are coded by what is expected of it: a request goes on where its last piece ended.

    0                        the requests of the slot's last batch, each one token further
    [r, s, -1 - t, p, n]     requests r and s one token further; request t computes n tokens behind a prefix of p

where r, s and t are places in ``rids``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ppsim.core.effects import Decision
from ppsim.errors import UsageError
from ppsim.recording.record import Recording
from ppsim.recording.schema import Span, Verdict
from ppsim.recording.summary import Life, request_lives
from ppsim.report.gantt import default_window
from ppsim.report.lanes import KV, Part, lanes_of
from ppsim.report.legend import hexa, slot_colours
from ppsim.report.series import Series, kv_use, request_counts
from ppsim.report.waits import stands_of
from ppsim.report.window import Window, lifetime, whole_run

MODES = ("extend", "decode", "mixed", "empty")
Row = list[int]


def run_data(parts: Sequence[Part], verdict: Verdict) -> dict[str, Any]:
    """What the scripts get of a run, ready for JSON."""
    origin = origin_of(parts)
    rids: dict[str, int] = {}
    lives = request_lives(parts[-1].recording)
    for life in lives:
        rids.setdefault(life.rid, len(rids))
    tables: list[dict[str, Any]] = []
    lanes = lanes_data(parts, origin, rids, tables)
    slots = sorted({slot for lane in lanes for slot in lane["slot"] if slot != KV})
    return {
        "origin_ns": str(origin),
        "lanes": lanes,
        "batches": tables,
        "modes": MODES,
        "slots": slots,
        "slot_colours": [hexa(colour) for colour in slot_colours(slots).values()],
        "window": window_data(parts, verdict, origin),
        "stands": stands_data(parts, origin),
        "counts": [counts_data(part, origin) for part in parts],
        "requests": requests_data(lives, origin, rids),
        "rids": list(rids),
    }


def origin_of(parts: Sequence[Part]) -> int:
    """The first instant that the page shows: of an arrival, a reading, a decision or a pass. 0 where nothing ran."""
    times = []
    for part in parts:
        recording = part.recording
        times += [arrival.at_ns for arrival in recording.arrivals]
        times += [ingested.time_ns for ingested in recording.ingestions[:1]]
        times += [visits[0] for visits in recording.visits if visits]
        times += [span.start_ns for spans in recording.spans for span in spans]
    return min(times, default=0)


def window_data(parts: Sequence[Part], verdict: Verdict, origin: int) -> dict[str, list[int]]:
    """The whole time of the run, and the part that the page shows first."""
    recordings = [part.recording for part in parts]
    try:
        whole = lifetime(*recordings)
    except UsageError:
        return {"whole": [0, 0], "first": [0, 0]}
    try:
        first = default_window(whole_run(*recordings), parts, verdict.kind != "pass")
    except UsageError:
        first = whole
    return {"whole": ends(whole, origin), "first": ends(first, origin)}


def ends(window: Window, origin: int) -> list[int]:
    return [window.start_ns - origin, window.end_ns - origin]


# --- lanes -----------------------------------------------------------------------------------------------------


def lanes_data(
    parts: Sequence[Part], origin: int, rids: dict[str, int], tables: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A lane for each rank, and of each sender of KV. ``batches``: place of its rank's decisions in ``tables``."""
    found = []
    for part in parts:
        of_rank = decisions_of(part.recording, rids, tables)
        for i, lane in enumerate(lanes_of([part])):
            num_ranks = part.recording.num_ranks
            kind = "forward" if i < num_ranks else "kv"
            found.append(lane_data(lane.name, kind, lane.spans, origin) | {"batches": of_rank[i % num_ranks]})
    return found


def lane_data(name: str, kind: str, spans: Sequence[Span], origin: int) -> dict[str, Any]:
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    return {
        "name": name,
        "kind": kind,
        "start": differences(span.start_ns - origin for span in ordered),
        "length": [span.end_ns - span.start_ns for span in ordered],
        "iteration": differences(span.iteration for span in ordered),
        "slot": [span.slot for span in ordered],
    }


def decisions_of(recording: Recording, rids: dict[str, int], tables: list[dict[str, Any]]) -> list[int]:
    """The place in ``tables`` of each rank's decisions. Ranks that decided alike, as all should, share one."""
    places: list[int] = []
    for rank, mine in enumerate(recording.decisions):
        same = next((other for other in range(rank) if recording.decisions[other] == mine), None)
        if same is not None:
            places.append(places[same])
        else:
            places.append(len(tables))
            tables.append(decisions_data(mine, rids))
    return places


def decisions_data(decisions: Sequence[Decision], rids: dict[str, int]) -> dict[str, Any]:
    """The decisions of a rank that launched something. Grows ``rids`` by requests that nobody announced."""
    full = [decision for decision in decisions if decision.pieces]
    return {
        "iteration": differences(decision.iteration for decision in full),
        "slot": [decision.slot for decision in full],
        "mode": [MODES.index(decision.mode) if decision.mode in MODES else len(MODES) for decision in full],
        "pieces": coded(full, rids),
    }


def coded(decisions: Iterable[Decision], rids: dict[str, int]) -> list[int | Row]:
    """See the rule of the module."""
    reached: dict[int, int] = {}
    last: dict[int, Row] = {}
    found: list[int | Row] = []
    for decision in decisions:
        row: Row = []
        for rid, prefix_len, new_tokens in decision.pieces:
            place = rids.setdefault(rid, len(rids))
            if new_tokens == 1 and reached.get(place) == prefix_len:
                row.append(place)
            else:
                row += [-1 - place, prefix_len, new_tokens]
            reached[place] = prefix_len + new_tokens
        is_same = row == last.get(decision.slot) and all(number >= 0 for number in row)
        found.append(0 if is_same else row)
        last[decision.slot] = row
    return found


def differences(values: Iterable[int]) -> list[int]:
    """The first value, then each less the one before it."""
    listed = list(values)
    return [*listed[:1], *(after - before for before, after in pairwise(listed))]


# --- over time, requests, stands -------------------------------------------------------------------------------


def counts_data(part: Part, origin: int) -> dict[str, Any]:
    """Step functions of a pipeline: requests that run and that wait, and KV tokens of its first rank."""
    counts, kv = request_counts(part.recording), kv_use(part.recording, 0)
    return {
        "name": part.name,
        "running": series_data(counts.running, origin),
        "waiting": series_data(counts.waiting, origin),
        "kv_in_use": series_data(kv.in_use, origin),
        "kv_cached": series_data(kv.cached, origin),
        "kv_most": kv.pool,
    }


def series_data(series: Series, origin: int) -> dict[str, Row]:
    return {"time": differences(time - origin for time in series.times), "value": differences(series.values)}


def requests_data(lives: Sequence[Life], origin: int, rids: dict[str, int]) -> dict[str, Any]:
    """A column for each fact of the requests, in order of ``lives``; None where it never came to that."""

    def since(time_ns: int | None) -> int | None:
        return None if time_ns is None else time_ns - origin

    return {
        "rid": [rids[life.rid] for life in lives],
        "status": [life.status for life in lives],
        "prompt": [life.num_prompt_tokens for life in lives],
        "output": [len(life.token_ns) for life in lives],
        "arrived": [since(life.arrived_ns) for life in lives],
        "read": [since(life.read_ns) for life in lives],
        "first": [since(life.token_ns[0] if life.token_ns else None) for life in lives],
        "last": [since(life.token_ns[-1] if life.token_ns else None) for life in lives],
        "ended": [since(life.ended_ns) for life in lives],
    }


def stands_data(parts: Sequence[Part], origin: int) -> list[dict[str, Any]]:
    """Of a run that failed: the last step of each rank, by the name of its lane."""
    return [
        {"lane": name, "since": stand.since_ns - origin}
        for name, (_, stand) in stands_of(parts).items()
        if stand.since_ns is not None
    ]
