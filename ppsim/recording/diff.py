"""The first record in which two runs differ.

Rule: first means first in logical time. Of all ranks and kinds the difference with the smallest iteration is named, in
one iteration the one that comes first in a visit (read inputs, observe, decide, sample, harvest, reply), then the
smaller rank: what comes later is usually its consequence. Times are compared only when asked for, and only
after everything logical is equal, since the two worlds never agree about them. Of two pipelines the prefill side, which
counts iterations of its own, is compared first: the decode side computes on what comes from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

from ppsim.recording.codec import decision_fields, harvest_fields
from ppsim.recording.record import Recording
from ppsim.recording.schema import Ingested, Observed, Sampled, Span, TimedReply

T = TypeVar("T")

ORDER = ("ingested", "observed", "decision", "sampled", "harvest", "reply", "time")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part. ``field`` "" means that one run has no such record at all (its value is None)."""

    kind: str
    rank: int | None
    iteration: int | None
    slot: int | None
    field: str
    left: Any
    right: Any
    side: str = ""  # two pipelines: which of them

    def place(self) -> str:
        """Rank, iteration and slot in words, as far as they apply."""
        parts = [("side", self.side or None), ("rank", self.rank), ("iteration", self.iteration), ("slot", self.slot)]
        return ", ".join(f"{name} {value}" for name, value in parts if value is not None)


@dataclass(frozen=True, slots=True)
class Kind:
    """How to compare one kind of record: the names and values of its fields, and where a record stands."""

    name: str
    fields: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    slot: Callable[[Any], int | None] = lambda record: record.slot


DECISION = Kind(
    "decision",
    ("iteration", "slot", "mode", "pieces", "retracted", "chunked_rid", "state_digest"),
    decision_fields,
)
PIECES = Kind("decision", DECISION.fields[:-1], lambda d: decision_fields(d)[:-1])  # without the state digest
HARVEST = Kind(
    "harvest",
    ("iteration", "slot", "harvested", "delivered", "finished", "token_ids", "free_tokens", "evictable_tokens"),
    harvest_fields,
)
INGESTED = Kind("ingested", ("iteration", "inputs"), lambda r: (r.iteration, r.inputs), lambda r: None)
OBSERVED = Kind("observed", Observed._fields, tuple, lambda r: None)
SAMPLED = Kind("sampled", Sampled._fields, tuple)
REPLY = Kind("reply", TimedReply._fields[1:], lambda r: tuple(r)[1:], lambda r: None)


def first_difference(
    left: Recording, right: Recording, *, times: bool = False, decisions_only: bool = False
) -> Difference | None:
    """None where the runs agree; see the module's rule for which difference is the first.

    ``decisions_only`` is for two worlds that sampled their own tokens: what was scheduled, and the state it left.
    """
    pairs = sides_of(left, right)
    for side, mine, other in pairs:
        if shape(mine) != shape(other):
            return Difference("header", None, None, None, "(pp_size, tp_replicas)", shape(mine), shape(other), side)
    ways = [logical_differences, time_differences] if times else [logical_differences]
    for way in ways:
        for side, mine, other in pairs:
            named = [d for d in way(mine, other) if d.kind == DECISION.name or not decisions_only]
            if named:
                return replace(min(named, key=logical_place), side=side)
    return None


def sides_of(left: Recording, right: Recording) -> list[tuple[str, Recording, Recording]]:
    """The pairs of recordings to compare; one side has no name. An absent prefill side is an empty one."""
    if left.peer is None and right.peer is None:
        return [("", left, right)]
    return [("prefill", left.peer or Recording(0), right.peer or Recording(0)), ("decode", left, right)]


def first_in_batches(left: Recording, right: Recording) -> Difference | None:
    """The first decision that differs in what was scheduled. Inner state may part long before that shows."""
    for side, mine, other in sides_of(left, right):
        found = [d for r in range(mine.num_ranks) for d in first_of(PIECES, r, mine.decisions[r], other.decisions[r])]
        if found:
            return replace(min(found, key=logical_place), side=side)
    return None


def shape(recording: Recording) -> tuple[int, int]:
    return recording.pp_size, recording.tp_replicas


def logical_place(d: Difference) -> tuple[int, int, int]:
    return (-1 if d.iteration is None else d.iteration, ORDER.index(d.kind), d.rank or 0)


def logical_differences(left: Recording, right: Recording) -> Iterator[Difference]:
    """At most one difference for each rank and kind: the first."""
    last = left.num_ranks - left.tp_replicas
    for rank in range(left.num_ranks):
        yield from first_of(DECISION, rank, left.decisions[rank], right.decisions[rank])
        yield from first_of(HARVEST, rank, left.harvests[rank], right.harvests[rank])
        yield from first_of(OBSERVED, rank, left.observations[rank], right.observations[rank])
    yield from first_of(INGESTED, 0, left.ingestions, right.ingestions)
    yield from first_of(SAMPLED, last, left.samples, right.samples)
    yield from first_of(REPLY, 0, left.replies, right.replies)


def first_of(kind: Kind, rank: int, left: Sequence[T], right: Sequence[T]) -> Iterator[Difference]:
    for mine, other in zip_longest(left, right):
        if mine is other or (mine is not None and other is not None and kind.values(mine) == kind.values(other)):
            continue
        yield difference(kind, rank, mine, other)
        return


def difference(kind: Kind, rank: int, left: Any, right: Any) -> Difference:
    """The first field that differs, and in an array the first element of it."""
    present = left if left is not None else right
    iteration = present.iteration if left is None or right is None else min(left.iteration, right.iteration)
    if left is None or right is None:
        return Difference(kind.name, rank, iteration, kind.slot(present), "", left, right)
    pairs = zip(kind.fields, kind.values(left), kind.values(right))
    field, mine, other = next((f, a, b) for f, a, b in pairs if a != b)
    if isinstance(mine, tuple) and isinstance(other, tuple):
        cells = enumerate(zip_longest(mine, other))
        place, (mine, other) = next((i, pair) for i, pair in cells if pair[0] != pair[1])
        field = f"{field}[{place}]"
    return Difference(kind.name, rank, iteration, kind.slot(present), field, mine, other)


def time_differences(left: Recording, right: Recording) -> Iterator[Difference]:
    """Times of equal logical records, the earliest iteration first; arrivals stand before iteration 0."""
    yield from first_time("arrival", left.arrivals, right.arrivals, lambda a: (None, None, None), ("at_ns",))
    yield from first_time("ingested", left.ingestions, right.ingestions, ingested_at, ("time_ns",))
    for rank in range(left.num_ranks):

        def span_at(span: Span, rank: int = rank) -> tuple[int | None, int | None, int | None]:
            return rank, span.iteration, span.slot

        yield from first_time("span", left.spans[rank], right.spans[rank], span_at, Span._fields)
    yield from first_time("reply", left.replies, right.replies, ingested_at, ("time_ns",))


def ingested_at(record: Ingested | TimedReply) -> tuple[int | None, int | None, int | None]:
    return 0, record.iteration, None


def first_time(
    what: str,
    left: Sequence[T],
    right: Sequence[T],
    at: Callable[[T], tuple[int | None, int | None, int | None]],
    fields: tuple[str, ...],
) -> Iterator[Difference]:
    for mine, other in zip_longest(left, right):
        if mine is None or other is None:
            present = mine if mine is not None else other
            yield Difference("time", *at(present), what, mine, other)
            return
        for field in fields:
            a, b = getattr(mine, field), getattr(other, field)
            if a != b:
                yield Difference("time", *at(mine), f"{what}.{field}", a, b)
                return
