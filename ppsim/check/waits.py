"""INV-85 in time: no request waits for longer than ``run.max_wait_ms``, and who owes it something is told.

Iterations say nothing where ranks sleep: beside a second pipeline, or while copies between the tiers are under way. Two
kinds of waits:

    for something outside    a handshake, KV on its way, a compile, a fetch from storage: since the request moved last
    for its turn             memory, a place, a batch: since any request of the rank moved last. Behind a long queue a
                             request may wait for hours, as long as somebody gets on

A request moves when its state, what is computed, delivered or sent of it, or the batches that hold it change. To cost
nothing it is looked at now and then (``LOOKS`` times in a limit) and whenever the first rank has slept for that long.
"""

from __future__ import annotations

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.core.effects import Decided, Ingest
from ppsim.core.schedule.request import Request, State

NS_PER_MS = 1_000_000
LOOKS = 8
PREFILL_SIDE, DECODE_SIDE = "the prefill side", "the decode side"


class Waits:
    """Of the first rank of a pipeline."""

    def __init__(self, r: Seat, limit_ns: int) -> None:
        self.r, self.limit_ns = r, limit_ns
        self.step_ns = max(1, limit_ns // LOOKS)
        self.last: dict[str, tuple[object, int]] = {}  # rid -> (what it shows, since when)
        self.moved_ns = 0  # when any request has moved last, as far as was seen
        self.due_ns = 0  # of the next look
        self.began_ns = 0  # of the last reading of inputs

    def watch(self) -> None:
        """Hang it on the rank."""
        self.r.observers.before(self.begins, Ingest)
        self.r.observers.after(self.slept, Ingest)
        self.r.observers.after(self.decided, Decided)

    def begins(self, effect: Ingest) -> None:
        """The first rank may sleep until something changes; what it slept through has changed nothing of its own."""
        self.began_ns = self.r.now

    def slept(self, effect: Ingest, inputs: object) -> None:
        """It is awake, and has applied nothing yet: its requests are as they were when it fell asleep."""
        if self.r.now - self.began_ns >= self.step_ns and self.r.rank.started is not None:
            self.look(self.began_ns)

    def decided(self, effect: Decided, _: object) -> None:
        if self.r.now >= self.due_ns:
            self.due_ns = self.r.now + self.step_ns
            self.look(self.r.now)

    def look(self, known_ns: int) -> None:
        """The requests are since ``known_ns`` at least as they are now. Raises InvariantViolation for a late one."""
        requests, seen = self.r.rank.scheduler.requests, {}
        for rid, request in requests.items():
            shows, before = self._shows(request), self.last.get(rid)
            seen[rid] = before if before is not None and before[0] == shows else (shows, known_ns)
        if any(seen.get(rid) is not before for rid, before in self.last.items()):
            self.moved_ns = max(self.moved_ns, known_ns)
        self.last = seen
        now = self.r.now
        for rid, (_, since_ns) in seen.items():
            if now - since_ns <= self.limit_ns:
                continue
            request = requests[rid]
            debt = self._outside(request)
            since_ns = since_ns if debt else max(since_ns, self.moved_ns)
            debt = debt or self._turn(request)
            if debt and now - since_ns > self.limit_ns:
                waited = f"it has waited for {(now - since_ns) / NS_PER_MS:.10g} ms ({request.state.value}): {debt}"
                text = f"{waited}; at most {self.limit_ns / NS_PER_MS:.10g} ms are allowed"
                fail("INV-85", self.r, rid, text)

    def _shows(self, request: Request) -> object:
        done = (request.kv_len, len(request.output_ids), request.sent_len)
        held_up = request.rid in self.r.rank.scheduler.kv.fetches, request.handshake_agreed
        return (request.arrived, request.state, request.num_inflight, *done, *held_up)

    def _outside(self, request: Request) -> str:
        """Who owes what to a request that waits for something outside the rank; empty: for nothing."""
        other = self.r.other_side(request.rid)
        match request.state:
            case State.BOOTSTRAP:
                return handshake_of_prefill(other)
            case State.PREALLOC if not request.handshake_agreed:
                return f"{PREFILL_SIDE} owes its part of the handshake"
            case State.TRANSFER if other == "success":
                return f"{DECODE_SIDE} owes the end of the transfer: all KV was sent"
            case State.TRANSFER:
                return f"{PREFILL_SIDE} owes the KV"
            case State.INFLIGHT:
                return f"{PREFILL_SIDE} owes the KV that it has computed, or the word that it is sent"
            case State.GRAMMAR:
                return "its grammar is owed by the compiler"
            case State.WAITING if request.rid in self.r.rank.scheduler.kv.fetches:
                return "the storage tier owes what it has of the prompt"
        return ""

    def _turn(self, request: Request) -> str:
        """The same of one that waits for its turn. What is in flight is the device's matter (run.watchdog_ms)."""
        if request.num_inflight or request.state is State.BOOTSTRAP:  # that one waits for the decode side's memory
            return ""
        return "the scheduler owes it a turn, and nobody else gets on either"


def handshake_of_prefill(other: str) -> str:
    """What a request on the prefill side waits for before it is admitted, by what the decode side shows."""
    match other:
        case "waiting_for_input":
            return ""  # for memory of the decode side, which looks at that itself
        case "transferring":
            return f"{PREFILL_SIDE} owes the admission: the decode side has given pages"
        case "bootstrapping":
            return f"{PREFILL_SIDE} owes its part of the handshake"
        case "failed" | "success":
            return f"{PREFILL_SIDE} owes the end: the transfer is over on the decode side"
    return f"{DECODE_SIDE} owes its part of the handshake"
