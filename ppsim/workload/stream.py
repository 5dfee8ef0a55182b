"""A workload that is made while it is read: one request after the other, in order of time (``run.keep``).

Rule: the requests are those of ``build.build_workload``, to the byte, in the same order. What is written out in the
scenario is small and made at once; what is drawn or read from a file is made when the request before it has been read.
Nobody can wait for what is not made yet: sessions, whose turns follow answers, are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ppsim.core.messages import NewRequest
from ppsim.errors import ScenarioError
from ppsim.scenario.tree import Scenario
from ppsim.workload.arrivals import Workload
from ppsim.workload.build import (
    NUM_GENERATED,
    build_workload,
    controls,
    drawn,
    reading_of,
    row_arrivals,
    told_of_times,
    trace_rows,
)
from ppsim.workload.line_by_line import line_by_line

FIT_BATCH = 256
"""Requests that are looked at together whether they could ever run."""


def stream_workload(s: Scenario) -> Workload:
    """All requests of a run, most of them still to come. Raises TraceError for a trace that cannot be read."""
    if s.workload.source not in SOURCES:
        return build_workload(s)
    return replace(SOURCES[s.workload.source](s), controls=controls(s), concurrency=s.workload.concurrency)


def coming_draws(s: Scenario) -> Workload:
    num = NUM_GENERATED if s.workload.num_requests is None else s.workload.num_requests
    return Workload((), coming=lambda: (arrival for arrival, _ in drawn(s)), num_coming=num)


def coming_rows(s: Scenario) -> Workload:
    """Of a trace that can be read line by line; of any other its rows are kept, but no prompt of theirs."""
    w = s.workload
    found = line_by_line(w.trace, reading_of(w))
    if found is None:
        trace, rows = trace_rows(s)
        if any(row.follows >= 0 for row in rows):
            raise ScenarioError(
                "run.keep",
                f"{s.run.keep!r} makes requests as they are read, and {trace.path} has turns that follow an answer",
                "workload.num_turns 1, or run.keep 'all'",
            )
        warnings = (*trace.warnings, *told_of_times(s, trace, rows))
        return Workload((), warnings, coming=lambda: row_arrivals(s, trace, iter(rows)), num_coming=len(rows))
    head = found.head
    warnings = (*head.warnings, *told_of_times(s, head, list(head.rows)))
    num = min(w.num_requests or found.num_rows, found.num_rows)
    return Workload((), warnings, coming=lambda: row_arrivals(s, head, islice(found.rows(), num)), num_coming=num)


SOURCES = {"generated": coming_draws, "trace": coming_rows}


def cannot_stream(s: Scenario) -> list[str]:
    """Why the requests of a scenario cannot be made as they are read, a sentence for each key that says so."""
    w = s.workload
    if w.source not in SOURCES:
        return []
    reasons = (
        (bool(w.num_sessions), "workload.num_sessions: a turn follows the answer to the one before"),
        (bool(s.chance.max_arrival_delay), "chance.max_arrival_delay: a request may come behind a later one"),
        (bool(s.chance.max_failed_allocations), "chance.max_failed_allocations is drawn for all requests at once"),
        (s.chance.stops, "chance.stops is drawn for all requests at once"),
    )
    return [reason for holds, reason in reasons if holds]


def blank_requests(s: Scenario) -> Iterator[list[NewRequest]]:
    """Drawn requests without content, a few hundred at a time: whether they could run is told from their lengths."""
    arrivals = drawn(s, with_content=False)
    while batch := [arrival.request for arrival, _ in islice(arrivals, FIT_BATCH)]:
        yield batch
