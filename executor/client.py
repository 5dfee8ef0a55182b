"""The client side of the first rank: which inputs it reads in which iteration.

``LiveClient`` delivers arrivals at their iteration or their wall time, or when the answer before them has come.
``ReplayClient`` delivers a recorded list, the same inputs in the same iterations, whatever the clock says (design
decision 5). Both end the run with ``Shutdown`` once nothing is left and the rank is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ppsim.core.effects import Reply
from ppsim.core.messages import Input, Shutdown
from ppsim.errors import EXIT_UNKNOWN, PpsimError
from ppsim.workload import Arrival, Control, Workload
from ppsim.workload.clients import Clients, Sent


class GaveUp(PpsimError):
    """The first rank has reached the limit of iterations. Batches are in flight, so the ranks cannot leave in order."""

    exit_code = EXIT_UNKNOWN

    def __init__(self, message: str, iteration: int) -> None:
        super().__init__(message, iteration)
        self.message, self.iteration = message, iteration

    def __str__(self) -> str:
        return self.message


class Client(Protocol):
    """Answers ``Ingest``.

    ``timed``: requests that arrive at a time of their own; all others arrive when they are read.
    """

    timed: frozenset[str]

    def ingest(self, iteration: int, idle: bool) -> tuple[Input, ...]: ...

    def replied(self, reply: Reply, now_ns: int) -> Sequence[Sent]:
        """A reply reached its client: what is sent because of it."""
        ...

    def told(self) -> tuple[str, ...]: ...


class LiveClient(Clients):
    """``now_ns`` counts from the start of the run; ``sleep_ns`` waits. ``max_iterations`` 0: no limit."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        now_ns: Callable[[], int],
        sleep_ns: Callable[[int], None],
        max_iterations: int = 0,
        controls: Sequence[Control] = (),
        concurrency: int = 0,
    ) -> None:
        super().__init__(Workload(tuple(arrivals), controls=tuple(controls), concurrency=concurrency))
        self.timed = frozenset(a.request.rid for a in arrivals if a.at_iteration is None)
        self.now_ns, self.sleep_ns = now_ns, sleep_ns
        self.max_iterations = max_iterations

    def ingest(self, iteration: int, idle: bool) -> tuple[Input, ...]:
        """Inputs due now, those that name an iteration first. Waits only if idle and only a time can bring more."""
        if self.max_iterations and iteration >= self.max_iterations:
            raise GaveUp(f"stopped at run.max_iterations = {self.max_iterations}", iteration)
        due = self.due(iteration, self.now_ns())
        if due or not idle or self.by_iteration:
            return due
        if not self.by_time:
            return (Shutdown(),)
        self.sleep_ns(max(0, self.by_time[0][0] - self.now_ns()))
        return self.due(iteration, self.now_ns())


class ReplayClient:
    """Recorded inputs by iteration. A recorded ``Shutdown`` comes where it came; without one the run ends when idle."""

    def __init__(self, inputs_by_iteration: Mapping[int, tuple[Input, ...]]) -> None:
        self.timed = frozenset[str]()
        self.inputs = dict(inputs_by_iteration)
        self.last = max(self.inputs, default=-1)
        self.ends = any(isinstance(item, Shutdown) for inputs in self.inputs.values() for item in inputs)

    def ingest(self, iteration: int, idle: bool) -> tuple[Input, ...]:
        if iteration > self.last and idle and not self.ends:
            return (Shutdown(),)
        return self.inputs.get(iteration, ())

    def replied(self, reply: Reply, now_ns: int) -> Sequence[Sent]:
        return ()  # what it led to is among the inputs

    def told(self) -> tuple[str, ...]:
        return ()
