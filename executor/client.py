"""The client side of the first rank: which inputs it reads in which iteration.

``LiveClient`` delivers arrivals at their iteration or their wall time. ``ReplayClient`` delivers a recorded list, the
same inputs in the same iterations, whatever the clock says (design decision 5). Both end the run with ``Shutdown`` once
nothing is left and the rank is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ppsim.core.messages import Input, Shutdown
from ppsim.errors import EXIT_UNKNOWN, PpsimError
from ppsim.workload import Arrival, Control
from ppsim.workload.arrivals import by_moment


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


class LiveClient:
    """``now_ns`` counts from the start of the run; ``sleep_ns`` waits. ``max_iterations`` 0: no limit."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        now_ns: Callable[[], int],
        sleep_ns: Callable[[int], None],
        max_iterations: int = 0,
        controls: Sequence[Control] = (),
    ) -> None:
        items: list[tuple[int | None, int | None, Input]] = [
            *((a.at_iteration, a.at_ns, a.request) for a in arrivals),
            *((c.at_iteration, c.at_ns, c.input) for c in controls),
        ]
        self.by_iteration = by_moment([(at, item) for at, _, item in items if at is not None])
        self.by_time = by_moment([(at or 0, item) for iteration, at, item in items if iteration is None])
        self.timed = frozenset(a.request.rid for a in arrivals if a.at_iteration is None)
        self.now_ns, self.sleep_ns = now_ns, sleep_ns
        self.max_iterations = max_iterations

    def ingest(self, iteration: int, idle: bool) -> tuple[Input, ...]:
        """Inputs due now, those that name an iteration first. Waits only if idle and only a time can bring more."""
        if self.max_iterations and iteration >= self.max_iterations:
            raise GaveUp(f"stopped at run.max_iterations = {self.max_iterations}", iteration)
        due = self.due(iteration)
        if due or not idle or self.by_iteration:
            return due
        if not self.by_time:
            return (Shutdown(),)
        self.sleep_ns(max(0, self.by_time[0][0] - self.now_ns()))
        return self.due(iteration)

    def due(self, iteration: int) -> tuple[Input, ...]:
        found: list[Input] = []
        for waiting, limit in ((self.by_iteration, iteration), (self.by_time, self.now_ns())):
            while waiting and waiting[0][0] <= limit:
                found.append(waiting.popleft()[1])
        return tuple(found)


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
