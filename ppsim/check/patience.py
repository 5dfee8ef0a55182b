"""Limits on waiting that a scenario sets: a request that does not move, a rank that waits for an agreement.

    run.max_wait_iterations     INV-69: every request runs, moves to another queue or ends within so many iterations
    run.max_agreement_wait_ms   INV-72: no rank stands still for longer in a vote or a barrier, other than for data

They bound what no invariant of lockstep can: a scheduler that is the same on all ranks, and wrong on all of them. Both
look at the first rank's requests or at a rank's own clock, change nothing, and cost nothing when off.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.core.effects import Decided, Decision, Recv
from ppsim.core.messages import Lane

NS_PER_MS = 1_000_000
AGREEMENT_PHASES = ("first_pass_", "second_receive_", "agree_", "barrier")


def watch_patience(ranks: Sequence[Seat], max_wait_iterations: int, max_agreement_wait_ms: float) -> None:
    """Hang on these ranks what a scenario asks for; 0: no limit. Call before they start."""
    for r in ranks:
        if max_wait_iterations and r.rank_id == 0:
            Movement(r, max_wait_iterations).watch()
        if max_agreement_wait_ms:
            Agreements(r, round(max_agreement_wait_ms * NS_PER_MS)).watch()


class Movement:
    """When each request of a rank has moved last, in iterations."""

    def __init__(self, r: Seat, limit: int) -> None:
        self.r, self.limit = r, limit
        self.last: dict[str, tuple[object, int]] = {}  # rid -> (arrival and state, iteration)

    def watch(self) -> None:
        """Hang it on the rank."""
        self.r.observers.after(lambda effect, _: self.look(effect.decision), Decided)

    def look(self, decision: Decision) -> None:
        """Raises InvariantViolation for the request that has waited longest, if that is too long."""
        ran = {rid for rid, _, _ in decision.pieces}
        at = decision.iteration
        seen: dict[str, tuple[object, int]] = {}
        for rid, request in self.r.rank.scheduler.requests.items():
            place = (request.arrived, request.state, request.num_inflight)
            before = self.last.get(rid)
            moved = before is None or before[0] != place or rid in ran
            seen[rid] = (place, at if moved or before is None else before[1])
        self.last = seen
        late = [(since, rid) for rid, (_, since) in seen.items() if at - since > self.limit]
        if late:
            since, rid = min(late, key=lambda item: item[0])
            state = self.r.rank.scheduler.requests[rid].state.value
            text = f"it has not moved since iteration {since} ({state}), at most {self.limit} iterations are allowed"
            fail("INV-69", self.r, rid, text)


class Agreements:
    """How long a rank stands still inside an agreement; a message that carries data is none."""

    def __init__(self, r: Seat, limit_ns: int) -> None:
        self.r, self.limit_ns = r, limit_ns
        self.since_ns = 0  # when it has begun to receive

    def watch(self) -> None:
        """Hang it on the rank."""
        self.r.observers.before(self.begins, Recv)
        self.r.observers.after(self.ends, Recv)

    def begins(self, effect: Recv) -> None:
        self.since_ns = self.r.now

    def ends(self, effect: Recv, _: object) -> None:
        """Raises InvariantViolation if it took too long."""
        r, waited_ns = self.r, self.r.now - self.since_ns
        if waited_ns > self.limit_ns and effect.lane is not Lane.TENSOR and r.phase().startswith(AGREEMENT_PHASES):
            text = f"it waits {waited_ns / NS_PER_MS:g} ms for rank {effect.src} in phase {r.phase()}, "
            fail("INV-72", r, "", text + f"at most {self.limit_ns / NS_PER_MS:g} ms are allowed")
