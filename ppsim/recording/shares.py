"""Where the time to the first token goes in a disaggregated run.

The time from a request's arrival to its first token is cut at the instants below, each not before the one above it, and
every piece belongs to one share. So the shares of a request add up to its TTFT, to the nanosecond.

    share      up to      the instant at which
    queueing   read       the first prefill rank read the request
    control    agreed     the decode side's vote on the handshake first named it
    queueing   allocated  the decode side had memory for it and told the prefill side
    control    ready      every prefill rank may send
    control    admitted   the prefill side's conclusion let it into the waiting queue of the first rank
    queueing   started    its first forward pass began on the first rank
    compute    computed   its last forward pass ended on the last rank
    control    sent       the last rank that got the token asked for its last KV transfer (one way round the ring)
    transfer   landed     the last of its KV had arrived
    transfer   received   every decode rank knew that
    release    (token)    the first token left for the client

A server of a single role has only some of them; a piece whose end was never marked belongs to the next share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from ppsim.recording.record import Recording

CUTS = (
    ("queueing", "read"),
    ("control", "agreed"),
    ("queueing", "allocated"),
    ("control", "ready"),
    ("control", "admitted"),
    ("queueing", "started"),
    ("compute", "computed"),
    ("control", "sent"),
    ("transfer", "landed"),
    ("transfer", "received"),
    ("release", "token"),
)
SHARES = ("queueing", "control", "compute", "transfer", "release")


class Answered(Protocol):
    """What is needed of a request's life (``summary.Life``)."""

    rid: str
    arrived_ns: int | None
    token_ns: list[int]


class Admission(NamedTuple):
    """What the vote (or the chain) that admits a request on the prefill side took, from "ready everywhere" on."""

    rid: str
    iterations: int  # of the first rank: visits until it may schedule the request, at least 0
    first_rank_ns: int
    all_ranks_ns: int  # until the last rank has admitted it too


def ttft_shares(recording: Recording, lives: Iterable[Answered]) -> list[dict[str, int]]:
    """Nanoseconds of each share, one entry for each request with a first token; empty where nothing was marked."""
    if not recording.marks:
        return []
    marks = instants(recording)
    return [
        shares_of(life.arrived_ns, {**marks.get(life.rid, {}), "token": life.token_ns[0]})
        for life in lives
        if life.token_ns and life.arrived_ns is not None
    ]


def shares_of(arrived_ns: int, marks: Mapping[str, int]) -> dict[str, int]:
    """One request's shares. Instants that come out of order are pushed to the latest one before them."""
    shares = dict.fromkeys(SHARES, 0)
    reached = arrived_ns
    for share, what in CUTS:
        at_ns = min(max(marks.get(what, reached), reached), marks["token"])
        shares[share] += at_ns - reached
        reached = at_ns
    return shares


def instants(recording: Recording) -> dict[str, dict[str, int]]:
    """rid -> what -> ns: marks of both sides, and the forward passes of the side that computed the prompt."""
    found: dict[str, dict[str, int]] = {}
    prefill = recording if recording.peer is None else recording.peer
    for part in (recording,) if recording.peer is None else (recording.peer, recording):
        for mark in part.marks:
            found.setdefault(mark.rid, {})[mark.what] = mark.time_ns
    for ingested in prefill.ingestions:
        for item in ingested.inputs:
            if item.kind == "new":
                found.setdefault(item.rid, {}).setdefault("read", ingested.time_ns)
    if any(mark.what == "admitted" for mark in prefill.marks):
        add_passes(prefill, found)
    return found


def add_passes(prefill: Recording, found: dict[str, dict[str, int]]) -> None:
    """``started`` and ``computed`` from the forward passes of the first and the last stage."""
    first = forward_passes(prefill, 0)
    last = forward_passes(prefill, prefill.num_ranks - prefill.tp_replicas)
    for decision in prefill.decisions[0]:
        for rid, _, _ in decision.pieces:
            mine = found.setdefault(rid, {})
            if decision.iteration in first:
                mine.setdefault("started", first[decision.iteration][0])
            if decision.iteration in last:
                mine["computed"] = last[decision.iteration][1]


def forward_passes(recording: Recording, rank: int) -> dict[int, tuple[int, int]]:
    """Start and end of a rank's forward pass in each iteration."""
    return {s.iteration: (s.start_ns, s.end_ns) for s in recording.spans[rank] if s.stream == "forward"}


def admissions(prefill: Recording) -> list[Admission]:
    """Every admission on a prefill side, in the order in which the requests became ready."""
    by_rid: dict[str, dict[str, tuple[int, int]]] = {}
    for mark in prefill.marks:
        by_rid.setdefault(mark.rid, {})[mark.what] = (mark.iteration, mark.time_ns)
    return [
        Admission(
            rid, m["admitted"][0] - m["ready"][0], m["admitted"][1] - m["ready"][1], m["in_force"][1] - m["ready"][1]
        )
        for rid, m in by_rid.items()
        if "ready" in m and "admitted" in m and "in_force" in m
    ]
