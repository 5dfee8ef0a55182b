"""The clients: what arrives when, what the sampler would say, and what the first rank answers.

An idle first rank jumps straight to the next arrival instead of polling through virtual time: nothing else can come,
for what answers bring has been sent when the answers were. A request that names an iteration is read exactly there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol
from zlib import crc32

from ppsim.core.effects import Reply
from ppsim.core.messages import Input, Shutdown
from ppsim.scenario.tree import Scenario
from ppsim.workload import EOS_TOKEN_ID, Arrival, Workload
from ppsim.workload.clients import Clients, Sent

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

    def replied(self, reply: Reply, now_ns: int) -> Sequence[Sent]:
        """A reply reached its client: what is sent because of it."""
        ...

    def told(self) -> tuple[str, ...]:
        """What the user should know once the run is over."""
        ...


class WorkloadClient(Clients):
    """Requests and controls of a workload, by time and by iteration; in one iteration the requests come first."""

    def __init__(
        self, workload: Workload, idle_poll_us: float, arrives: Callable[[Arrival], None] | None = None
    ) -> None:
        super().__init__(workload, arrives=arrives)
        self.poll_ns = round(idle_poll_us * NS_PER_US)

    def ingest(self, iteration: int, idle: bool, now_ns: int) -> tuple[tuple[Input, ...], int]:
        due = self.due(iteration, now_ns)
        if due or not idle or self.by_iteration:
            return due, now_ns
        if not self.by_time:
            return (Shutdown(),), now_ns
        now_ns = self.polled_ns(self.by_time[0][0], now_ns)
        return self.due(iteration, now_ns), now_ns

    def polled_ns(self, at_ns: int, now_ns: int) -> int:
        """The first look of an idle rank that is not before ``at_ns``."""
        wait = at_ns - now_ns
        return now_ns + (-(-wait // self.poll_ns) * self.poll_ns if self.poll_ns else wait)

    def is_due(self, now_ns: int) -> bool:
        return bool(self.by_time) and self.by_time[0][0] <= now_ns

    def next_ns(self) -> int | None:
        return self.by_time[0][0] if self.by_time else None

    def has_input(self, iteration: int, now_ns: int) -> bool:
        """Whether a rank that looks in this iteration, at this instant, finds anything."""
        by_time, by_iteration = self.by_time, self.by_iteration
        return bool((by_time and by_time[0][0] <= now_ns) or (by_iteration and by_iteration[0][0] <= iteration))


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

    def replied(self, reply: Reply, now_ns: int) -> Sequence[Sent]:
        return ()  # what it led to is among the inputs

    def told(self) -> tuple[str, ...]:
        return ()


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
        self.forgets = workload.coming is not None  # requests are made on the way, each with an id of its own
        self.begun: dict[str, int] = {}  # by request: the checksum as far as its id goes

    def noting(self, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        """Requests that are made on the way, each known here before anybody else has it."""
        for arrival in arrivals:
            if arrival.stop_after:
                self.stop_after[arrival.request.rid] = arrival.stop_after
            yield arrival

    def ended(self, rid: str) -> None:
        """Nobody asks for a token of it any more."""
        self.begun.pop(rid, None)
        if self.forgets:
            self.stop_after.pop(rid, None)

    def token(self, rid: str, position: int) -> int:
        """The ``position``-th output token of a request, from 1."""
        if self.recorded:
            tokens = self.recorded.get(rid, ())
            if position <= len(tokens):
                return tokens[position - 1]
        if self.stop_after and self.stop_after.get(rid) == position:
            return EOS_TOKEN_ID
        begun = self.begun.get(rid)
        if begun is None:
            begun = self.begun[rid] = crc32(f"{rid}/".encode(), self.seed & 0xFFFFFFFF)
        return FIRST_TOKEN_ID + crc32(b"%d" % position, begun) % self.span
