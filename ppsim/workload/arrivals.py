"""The product of this package: requests with the moment at which the first rank may read each, in order.

A world reads the list and never draws anything itself: what a request contains, when it comes, how long it runs and
with which token it stops is all decided here, once, before the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ppsim.core.messages import AbortReq, FlushCache, Input, NewRequest

EOS_TOKEN_ID = 2
"""The stop token of every request that has one. Prompts avoid ids 0..3 where the vocabulary allows."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request and what a simulated sampler needs to know about it.

    Exactly one of ``at_ns`` (time in nanoseconds from the start of the run) and ``at_iteration`` (iteration of the
    first rank) is set. ``output_length`` tokens are sampled unless a stop comes first. ``stop_after`` = n > 0: the
    simulated sampler emits EOS_TOKEN_ID as the n-th token, which ends the request unless it ignores it; 0: never.
    """

    request: NewRequest
    at_ns: int | None
    at_iteration: int | None
    output_length: int
    stop_after: int = 0


@dataclass(frozen=True, slots=True)
class Control:
    """An abort or a flush among the inputs; exactly one of ``at_ns`` and ``at_iteration`` is set."""

    input: AbortReq | FlushCache
    at_ns: int | None
    at_iteration: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    """``arrivals``: first those that name an iteration, then those that name a time, each in order; ties as given.

    ``warnings``: sentences about input that was accepted but put right (an unsorted trace); for the user's eyes.
    """

    arrivals: tuple[Arrival, ...]
    warnings: tuple[str, ...] = ()
    controls: tuple[Control, ...] = ()  # in the order given


def in_order(arrivals: list[Arrival]) -> tuple[Arrival, ...]:
    """Stable order of arrival; iterations and times cannot be compared, so iterations come first."""

    def key(arrival: Arrival) -> tuple[bool, int]:
        if arrival.at_iteration is not None:
            return False, arrival.at_iteration
        return True, arrival.at_ns or 0

    return tuple(sorted(arrivals, key=key))


def by_moment(items: Iterable[tuple[int, Input]]) -> deque[tuple[int, Input]]:
    """(iteration or time, input) in order; ties as given."""
    return deque(sorted(items, key=lambda item: item[0]))
