"""A second model of the loop under full load, without generator, messages or event queue: only instants.

Each instant of rank k in its iteration i is the latest of the instants that must come before it, plus a duration
(max-plus algebra). The conditions are read off protocol.md 1.3 to 1.6, 3.1 and 3.3 with payloads that need no time on
the wire: every slot is busy from its first visit on, so nothing is conditional.

    begin      the rank enters iteration i; it asks for the request list then
    forwarded  it has the list, the next rank has asked for the list before, and the list is on its way
    scheduled  plus the host time of scheduling; it asks for hidden states then
    launched   the host has hidden states, and the next rank has asked for those of the iteration before
    exchanged  the output that is harvested in this iteration is announced
    harvested  its tokens are on the host, plus the host time of processing; then the next iteration begins
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec

P = ParamSpec("P")


def remembered(instant: Callable[Concatenate[Loop, P], int]) -> Callable[Concatenate[Loop, P], int]:
    def lookup(loop: Loop, /, *args: P.args, **kwargs: P.kwargs) -> int:
        key = (instant.__name__, args)
        if key not in loop.known:
            loop.known[key] = instant(loop, *args, **kwargs)
        return loop.known[key]

    return lookup


@dataclass(slots=True)
class Loop:
    """``slot_ns``: forward time of a batch in each slot, on every stage; L = len(slot_ns). Times in ns."""

    pp_size: int
    depth: int
    slot_ns: tuple[int, ...]
    schedule_ns: int = 0
    process_ns: int = 0
    latency_ns: int = 0
    in_order: bool = True  # a rank's payload sends stay behind each other
    after_launch: bool = False  # hidden states leave before the harvest
    known: dict[object, int] = field(default_factory=dict)

    @property
    def num_slots(self) -> int:
        return self.pp_size + self.depth

    def starts(self, num_iterations: int) -> list[list[int]]:
        """Start of the forward pass of iteration i on rank k: result[k][i]."""
        table: list[list[int]] = [[] for _ in range(self.pp_size)]
        for i in range(num_iterations):  # in this order the recursion stays shallow
            for k in range(self.pp_size):
                table[k].append(self.forward_start(k, i))
        return table

    # --- the host ----------------------------------------------------------------------------------------------

    @remembered
    def begin(self, k: int, i: int) -> int:
        return self.harvested(k, i - 1) if i > 0 else 0

    @remembered
    def forwarded(self, k: int, i: int) -> int:
        at = self.begin(k, i)
        if k > 0:
            at = max(at, self.forwarded(k - 1, i) + self.latency_ns)
        if k < self.pp_size - 1 and i > 0:
            at = max(at, self.begin(k + 1, i - 1))
        return at

    def scheduled(self, k: int, i: int) -> int:
        return self.forwarded(k, i) + self.schedule_ns

    @remembered
    def launched(self, k: int, i: int) -> int:
        at = self.announced(k, i)
        if self.depth > 0:
            at = self.exchanged(k, i)
        if k < self.pp_size - 1 and i > 0:
            at = max(at, self.scheduled(k + 1, i - 1))
        return at

    def announced(self, k: int, i: int) -> int:
        """The metadata of the hidden states is here."""
        at = self.scheduled(k, i)
        return max(at, self.hidden_sent(k - 1, i) + self.latency_ns) if k > 0 else at

    @remembered
    def output_sent(self, k: int, i: int) -> int:
        """The exchange begins: the output sent in the last one has been asked for, and the next leaves."""
        at = self.announced(k, i) if self.depth > 0 else self.launched(k, i)
        last = k == self.pp_size - 1
        if self.batch_sent(k, i - 1) >= 0:  # its receiver asks for it in the exchange of its own harvest iteration
            receiver = 0 if last else k + 1
            at = max(at, self.output_sent(receiver, self.batch_sent(k, i - 1) + self.num_slots - 1))
        return at

    def batch_sent(self, k: int, i: int) -> int:
        """Launch iteration of the output that a rank sends in iteration i: released on the last, else relayed."""
        return i - self.depth if k == self.pp_size - 1 else i - self.num_slots

    @remembered
    def exchanged(self, k: int, i: int) -> int:
        at = self.output_sent(k, i)
        if i >= self.num_slots - 1:
            at = max(at, self.output_sent(*self.source(k, i)) + self.latency_ns)
        return at

    def source(self, k: int, i: int) -> tuple[int, int]:
        """Rank and iteration in which the output that rank k harvests in iteration i was sent to it."""
        return (k - 1, i + 1) if k > 0 else (self.pp_size - 1, i - self.pp_size + 1)

    @remembered
    def harvested(self, k: int, i: int) -> int:
        at = self.exchanged(k, i) if self.depth == 0 else self.launched(k, i)
        if i >= self.num_slots - 1:
            at = max(at, self.output_arrival(k, i)) + self.process_ns
        return at

    def hidden_sent(self, k: int, i: int) -> int:
        if not self.after_launch:
            return self.harvested(k, i)
        return self.exchanged(k, i) if self.depth == 0 else self.launched(k, i)

    # --- the device --------------------------------------------------------------------------------------------

    @remembered
    def forward_start(self, k: int, i: int) -> int:
        at = self.launched(k, i)
        if i > 0:
            at = max(at, self.forward_end(k, i - 1))
        if k > 0:
            at = max(at, self.hidden_left(k - 1, i) + self.latency_ns)
        return max([at, *self.committed_sends(k, i)])

    def committed_sends(self, k: int, i: int) -> list[int]:
        """Without communication overlap a forward comes after every send that the host has waited for."""
        ends = [self.hidden_left(k, i - 1)] if k < self.pp_size - 1 and i > 0 else []
        j = i - 1 if self.depth > 0 else i - 2  # the exchange commits the send of the one before
        if self.batch_sent(k, j) >= 0:
            ends.append(self.output_left(k, j))
        return ends

    def forward_end(self, k: int, i: int) -> int:
        return self.forward_start(k, i) + self.slot_ns[i % self.num_slots]

    @remembered
    def output_left(self, k: int, i: int) -> int:
        """End of the output send of iteration i, which stands before the hidden states in the stream."""
        batch = self.batch_sent(k, i)
        last = k == self.pp_size - 1
        ready = self.forward_end(k, batch) if last else self.output_arrival(k, i - 1)
        at = max(self.output_sent(k, i), ready)
        if self.in_order and i > 0:
            behind = self.output_left(k, i - 1) if last else self.hidden_left(k, i - 1)
            at = max(at, behind if not last or self.batch_sent(k, i - 1) >= 0 else 0)
        return at

    @remembered
    def output_arrival(self, k: int, i: int) -> int:
        """The output that rank k harvests in iteration i is on its device."""
        return self.output_left(*self.source(k, i)) + self.latency_ns

    @remembered
    def hidden_left(self, k: int, i: int) -> int:
        at = max(self.hidden_sent(k, i), self.forward_end(k, i))
        if self.in_order:
            if self.batch_sent(k, i) >= 0:
                at = max(at, self.output_left(k, i))
            elif i > 0:
                at = max(at, self.hidden_left(k, i - 1))
        return at
