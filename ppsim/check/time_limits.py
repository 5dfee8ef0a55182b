"""INV-88: a time limit ends nobody before its time, by the clock that the watching rank was shown.

The rule keeps the times itself, by state: a request runs in PREFILL and DECODE, from the first look that finds it so;
it waits in every other state, from the first look behind its last run (protocol.md 7.3). What the rank has noted for
itself is not looked at. Who is not ended in time is a matter of the bounds on waiting (INV-85).
"""

from __future__ import annotations

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.core.agreed import Local
from ppsim.core.effects import Decided, Observe
from ppsim.core.messages import AbortReq
from ppsim.core.observations import Clock
from ppsim.core.schedule.request import State

RUNNING = (State.PREFILL, State.DECODE)
WORDS = {"running": True, "waiting": False}
"""How the reason of an abort begins that a limit asks for: whether it is the limit on running."""

NOTHING: tuple[int, dict[bool, int]] = (-1, {})


class TimeLimits:
    """Of the rank that watches the limits: the leader of the first stage."""

    def __init__(self, r: Seat) -> None:
        self.r = r
        self.now_ms = 0
        # Request -> iteration of arrival, as an id may come again; since when it runs (True) and waits (False), in ms.
        self.since: dict[str, tuple[int, dict[bool, int]]] = {}

    def watch(self) -> None:
        """Hang it on the rank, if it has a limit. Call before it runs."""
        if self.r.rank.config.has_timeouts:
            self.r.observers.after(self.looked, Observe)
            self.r.observers.before(lambda _: self.decided(), Decided)

    def looked(self, effect: Observe, local: Local[tuple[int, ...]]) -> None:
        """The clock, before the rank makes anything of it."""
        if not isinstance(effect.observation, Clock):
            return
        self.now_ms, before = local.value[0], self.since
        self.since = {}
        for request in self.r.rank.scheduler.requests.values():
            arrived, known = before.get(request.rid, NOTHING)
            known, runs = known if arrived == request.arrived else {}, request.state in RUNNING
            kept = {True: known[True]} if True in known else {}
            self.since[request.rid] = request.arrived, {**kept, runs: known.get(runs, self.now_ms)}

    def decided(self) -> None:
        """The list of this iteration has been applied."""
        config = self.r.rank.config
        for item in self.r.rank.inputs:
            word = item.reason.split(" ", 1)[0] if isinstance(item, AbortReq) else ""
            if not isinstance(item, AbortReq) or word not in WORDS:
                continue
            limit_ms = config.running_timeout_ms if WORDS[word] else config.waiting_timeout_ms
            since_ms = self.since.get(item.rid, NOTHING)[1].get(WORDS[word])
            if since_ms is None or self.now_ms - since_ms <= limit_ms:
                known = "not at all" if since_ms is None else f"for {self.now_ms - since_ms} ms"
                text = f"a limit of {limit_ms} ms on {word} ends it at {self.now_ms} ms of this rank's clock, "
                fail("INV-88", self.r, item.rid, f"{text}which has seen it {word} {known}")
