"""The product of this package: requests with the moment at which the first rank may read each, in order.

A world reads the list and never draws anything itself: what a request contains, when it comes, how long it runs and
with which token it stops is all decided here, once, before the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ppsim.core.messages import AbortReq, FlushCache, Input, NewRequest
from ppsim.core.tokens import WIDTH, count

EOS_TOKEN_ID = 2
"""The stop token of every request that has one. Prompts avoid ids 0..3 where the vocabulary allows."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request and what a simulated sampler needs to know about it.

    Exactly one of ``at_ns`` (time in nanoseconds from the start of the run) and ``at_iteration`` (iteration of the
    first rank) is set. ``output_length`` tokens are sampled unless a stop comes first. ``stop_after`` = n > 0: the
    simulated sampler emits EOS_TOKEN_ID as the n-th token, which ends the request unless it ignores it; 0: never.
    ``follows``: id of the turn before in its session. Then the prompt has only the tokens that are new in this turn,
    and ``at_ns`` counts from that one's end, as it does from the moment in which a client is free where their number
    is limited (``Workload.concurrency``).
    """

    request: NewRequest
    at_ns: int | None
    at_iteration: int | None
    output_length: int
    stop_after: int = 0
    follows: str = ""


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
    ``concurrency``: clients that send one request after the other; 0: requests come when they come.
    ``coming``: makes further arrivals one after the other, in order of time, each for nobody but its reader; then there
    are no others, and all name a time (``stream.py``). ``num_coming``: how many these are, where that is known.
    """

    arrivals: tuple[Arrival, ...]
    warnings: tuple[str, ...] = ()
    controls: tuple[Control, ...] = ()  # in the order given
    concurrency: int = 0
    coming: Callable[[], Iterator[Arrival]] | None = None
    num_coming: int = 0

    @property
    def heads(self) -> tuple[Arrival, ...]:
        """The requests that wait for no other one's answer."""
        return tuple(a for a in self.arrivals if not a.follows)

    @property
    def opening(self) -> tuple[Arrival, ...]:
        """What is sent whatever the server answers: in a closed loop the first request of each client."""
        return self.heads[: self.concurrency] if self.concurrency else self.heads

    def whole_requests(self) -> list[NewRequest]:
        """The requests as long as they can get: of a later turn the history is a blank of its greatest length."""
        longest: dict[str, int] = {}
        found = []
        for a in self.in_turn():
            num_tokens = longest.get(a.follows, 0) + count(a.request.prompt)
            longest[a.request.rid] = num_tokens + a.request.max_new_tokens
            found.append(replace(a.request, prompt=bytes(num_tokens * WIDTH)) if a.follows else a.request)
        return found

    def in_turn(self) -> list[Arrival]:
        """All arrivals, each behind the one that it follows."""
        if not any(a.follows for a in self.arrivals):
            return list(self.arrivals)
        behind = {a.follows: a for a in self.arrivals if a.follows}
        found = []
        for head in self.heads:
            turn: Arrival | None = head
            while turn is not None:
                found.append(turn)
                turn = behind.get(turn.request.rid)
        return found


class Ahead:
    """Arrivals of a stream with the next one at hand."""

    def __init__(self, arrivals: Iterator[Arrival]) -> None:
        self.arrivals = arrivals
        self.head = next(arrivals, None)

    def __bool__(self) -> bool:
        return self.head is not None

    def popleft(self) -> Arrival:
        """The next one; there must be one."""
        found, self.head = self.head, next(self.arrivals, None)
        assert found is not None
        return found


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
