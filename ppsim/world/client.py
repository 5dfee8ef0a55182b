"""The clients: what arrives when, what the sampler would say, and what the first rank answers.

Arrivals are fixed before the run, so an idle first rank can jump straight to the next one instead of polling through
virtual time. A request that names an iteration is read exactly there.
"""

from __future__ import annotations

from typing import Protocol
from zlib import crc32

from ppsim.core.messages import Input, Shutdown
from ppsim.scenario.tree import Scenario
from ppsim.workload import EOS_TOKEN_ID, Workload
from ppsim.workload.arrivals import by_moment

NS_PER_US = 1000
FIRST_TOKEN_ID = 4  # ids below are special


class Client(Protocol):
    """What stands behind ``Ingest`` on the first rank."""

    def ingest(self, iteration: int, idle: bool, now_ns: int) -> tuple[tuple[Input, ...], int]:
        """The inputs of this iteration, and the host time at which the rank goes on."""
        ...

    def next_ns(self) -> int | None:
        """When the next input comes that names a time; None if there is none."""
        ...


class WorkloadClient:
    """Requests and controls of a workload, by time and by iteration; in one iteration the requests come first."""

    def __init__(self, workload: Workload, idle_poll_us: float) -> None:
        items: list[tuple[int | None, int | None, Input]] = [
            *((a.at_iteration, a.at_ns, a.request) for a in workload.arrivals),
            *((c.at_iteration, c.at_ns, c.input) for c in workload.controls),
        ]
        self.by_iteration = by_moment([(at, item) for at, _, item in items if at is not None])
        self.by_time = by_moment([(at or 0, item) for iteration, at, item in items if iteration is None])
        self.poll_ns = round(idle_poll_us * NS_PER_US)

    def ingest(self, iteration: int, idle: bool, now_ns: int) -> tuple[tuple[Input, ...], int]:
        due = self._due(iteration, now_ns)
        if due or not idle or self.by_iteration:
            return due, now_ns
        if not self.by_time:
            return (Shutdown(),), now_ns
        wait = self.by_time[0][0] - now_ns
        now_ns += -(-wait // self.poll_ns) * self.poll_ns if self.poll_ns else wait
        return self._due(iteration, now_ns), now_ns

    def next_ns(self) -> int | None:
        return self.by_time[0][0] if self.by_time else None

    def _due(self, iteration: int, now_ns: int) -> tuple[Input, ...]:
        due: list[Input] = []
        for queue, limit in ((self.by_iteration, iteration), (self.by_time, now_ns)):
            while queue and queue[0][0] <= limit:
                due.append(queue.popleft()[1])
        return tuple(due)


class ReplayClient:
    """The inputs that another run has recorded, at the same iterations (design decision 5)."""

    def __init__(self, inputs_by_iteration: dict[int, tuple[Input, ...]]) -> None:
        self.inputs = inputs_by_iteration
        self.last = max(inputs_by_iteration, default=-1)

    def ingest(self, iteration: int, idle: bool, now_ns: int) -> tuple[tuple[Input, ...], int]:
        due = self.inputs.get(iteration, ())
        if not due and idle and iteration > self.last:
            return (Shutdown(),), now_ns
        return due, now_ns

    def next_ns(self) -> int | None:
        return None


class Sampler:
    """Tokens that the model would sample: a function of seed, request and position only.

    So the token streams are the same for every chunk size, depth and pp_size. ``recorded`` tokens of a real run take
    precedence: then the simulator takes the very decisions that followed from them.
    """

    def __init__(
        self, scenario: Scenario, workload: Workload, recorded: dict[str, tuple[int, ...]] | None = None
    ) -> None:
        self.seed = scenario.seed
        self.span = max(1, scenario.model.vocab_size - FIRST_TOKEN_ID)
        self.stop_after = {a.request.rid: a.stop_after for a in workload.arrivals if a.stop_after}
        self.recorded = recorded or {}

    def token(self, rid: str, position: int) -> int:
        """The ``position``-th output token of a request, from 1."""
        tokens = self.recorded.get(rid)
        if tokens is not None and position <= len(tokens):
            return tokens[position - 1]
        if self.stop_after.get(rid) == position:
            return EOS_TOKEN_ID
        drawn = FIRST_TOKEN_ID + crc32(f"{rid}/{position}".encode(), self.seed & 0xFFFFFFFF) % self.span
        return min(drawn, self.span + FIRST_TOKEN_ID - 1)
