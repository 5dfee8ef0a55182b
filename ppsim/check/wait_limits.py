"""Limits that a scenario sets: requests that do not move or are put out of memory again and again, ranks that wait.

    run.max_wait_iterations     INV-85: every request runs, moves to another queue or ends within so many iterations;
                                INV-84 where it was put out of memory, and has not come back
    run.max_retractions         INV-84: no request is put out of memory more often
    run.max_wait_ms             INV-85 in time (waits.py)
    run.max_agreement_wait_ms   INV-72: no rank stands still for longer in a vote or a barrier, other than for data

They bound what no invariant of lockstep can: a scheduler that is the same on all ranks, and wrong on all of them. All
look at the first rank's requests or at a rank's own clock, and change nothing. Two have a value of their own where
``run.invariants`` is on and the scenario names none: far beyond what a right scheduler comes to on any load.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.check.waits import NS_PER_MS, Waits
from ppsim.core.effects import Decided, Decision, Recv
from ppsim.core.messages import Lane

AGREEMENT_PHASES = ("first_pass_", "second_receive_", "agree_", "barrier")

MAX_RETRACTIONS = 16
"""Of one request, with run.invariants. The least advanced is put out first, so that the others get through before it
comes to this: 600 experiments with pools of a few pages came to 5."""

MAX_WAIT_MS = 3_600_000.0
"""An hour, with run.invariants: no transfer, no compile and no copy takes that long."""


def watch_patience(
    ranks: Sequence[Seat],
    max_wait_iterations: int,
    max_agreement_wait_ms: float,
    *,
    max_retractions: int | None,
    max_wait_ms: float | None,
    audited: bool,
) -> None:
    """Hang on these ranks what a scenario asks for; 0: no limit. Call before they start.

    ``audited`` (run.invariants) gives the two that may be None their own value; otherwise None is no limit.
    """
    if max_retractions is None:
        max_retractions = MAX_RETRACTIONS if audited else 0
    if max_wait_ms is None:
        max_wait_ms = MAX_WAIT_MS if audited else 0.0
    for r in ranks:
        if max_retractions and r.rank_id == 0:
            Retractions(r, max_retractions).watch()
        if max_wait_iterations and r.rank_id == 0:
            Movement(r, max_wait_iterations).watch()
        if max_wait_ms and r.rank_id == 0:
            Waits(r, round(max_wait_ms * NS_PER_MS)).watch()
        if max_agreement_wait_ms:
            Agreements(r, round(max_agreement_wait_ms * NS_PER_MS)).watch()


class Retractions:
    """How often each request of a rank was put out of memory, counted from the decisions."""

    def __init__(self, r: Seat, limit: int) -> None:
        self.r, self.limit = r, limit
        self.counts: dict[str, tuple[int, list[int]]] = {}  # rid -> (its arrival, iterations in which it was put out)

    def watch(self) -> None:
        """Hang it on the rank."""
        self.r.observers.after(lambda effect, _: self.look(effect.decision), Decided)

    def look(self, decision: Decision) -> None:
        """Raises InvariantViolation for a request that was put out of memory once too often."""
        if not decision.retracted:
            return
        requests = self.r.rank.scheduler.requests
        for rid in decision.retracted:
            arrived = requests[rid].arrived if rid in requests else -1
            before = self.counts.get(rid)
            at = before[1] if before is not None and before[0] == arrived else []
            at.append(decision.iteration)
            self.counts[rid] = (arrived, at)
            if len(at) > self.limit:
                done = f" ({len(requests[rid].output_ids)} tokens made)" if rid in requests else ""
                text = f"retraction {len(at)} of it{done}, the last ones were in iterations {at[-4:-1]}; "
                fail("INV-84", self.r, rid, text + f"at most {self.limit} retractions of one request are allowed")
        if len(self.counts) > len(requests) + 64:
            self.counts = {rid: count for rid, count in self.counts.items() if rid in requests}


class Movement:
    """When each request of a rank has moved last, in iterations."""

    def __init__(self, r: Seat, limit: int) -> None:
        self.r, self.limit = r, limit
        self.last: dict[str, tuple[object, int]] = {}  # rid -> (arrival and state, iteration)
        self.put_out: dict[str, int] = {}  # rid -> arrival, of those that were retracted and have not run since

    def watch(self) -> None:
        """Hang it on the rank."""
        self.r.observers.after(lambda effect, _: self.look(effect.decision), Decided)

    def look(self, decision: Decision) -> None:
        """Raises InvariantViolation for the request that has waited longest, if that is too long."""
        ran = {rid for rid, _, _ in decision.pieces}
        at = decision.iteration
        seen: dict[str, tuple[object, int]] = {}
        requests = self.r.rank.scheduler.requests
        for rid, request in requests.items():
            place = (request.arrived, request.state, request.num_inflight)
            before = self.last.get(rid)
            moved = before is None or before[0] != place or rid in ran
            seen[rid] = (place, at if moved or before is None else before[1])
        self.last = seen
        if self.put_out:
            self.put_out = {
                rid: arrived
                for rid, arrived in self.put_out.items()
                if rid not in ran and rid in requests and requests[rid].arrived == arrived
            }
        for rid in decision.retracted:
            if rid in requests:
                self.put_out[rid] = requests[rid].arrived
        late = [(since, rid) for rid, (_, since) in seen.items() if at - since > self.limit]
        if late:
            since, rid = min(late, key=lambda item: item[0])
            state = requests[rid].state.value
            text = f"it has not moved since iteration {since} ({state}), at most {self.limit} iterations are allowed"
            if rid in self.put_out:
                fail("INV-84", self.r, rid, f"it was put out of memory and has not come back: {text}")
            fail("INV-85", self.r, rid, text)


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
