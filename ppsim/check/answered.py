"""Two promises that are kept when the last rank has kept them: a flush that is answered, a failure that is heard.

    INV-86   a flush is answered when every rank has emptied its cache, and not before
    INV-87   a request that has failed on the other side while it waits for its turn leaves the waiting queue

The facts behind them are the cache of each rank at its decision, and the state of a rank's own transfer in its world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.check.together import Answers, Empties, Record
from ppsim.core.disagg.prefill import MAX_LOOKS
from ppsim.core.effects import Decided, Reply
from ppsim.core.messages import FlushCache, Lane, Side, Vote
from ppsim.core.schedule.journal import Flushed
from ppsim.core.schedule.request import Request


@dataclass(slots=True)
class Wait:
    """A request that waits for its turn: the latest iterations in which it did, and the time of their decisions."""

    request: Request
    visits: deque[tuple[int, int]] = field(default_factory=deque)
    failed_ns: int | None = None  # of the rank's own transfer


class Answered:
    """One for each process. ``tell`` takes what is held against the other ranks."""

    def __init__(self, tell: Callable[[Record], None]) -> None:
        self.tell = tell
        self.flushes: dict[str, int] = {}  # what the first rank has read and not answered, and how often
        self.emptied: dict[int, int] = {}  # rank -> the iteration of its latest flush
        self.waits: dict[int, dict[int, Wait]] = {}  # rank -> identity of a request that waits, or has waited

    def watch(self, r: Seat) -> None:
        """Hang it on a rank; of what it sends ``Audit.posted`` tells. Call before the rank runs."""
        r.observers.before(partial(self.decided, r), Decided)
        if r.rank_id == 0:
            r.observers.before(lambda effect: self.replied(r, effect), Reply)

    def decided(self, r: Seat, effect: Decided) -> None:
        """A flush of this iteration was done, and nothing was put into the cache since."""
        rank = r.rank
        if r.rank_id == 0:
            for item in rank.inputs:
                if isinstance(item, FlushCache):
                    self.flushes[item.rid] = self.flushes.get(item.rid, 0) + 1
        if rank.journal.entries:
            self._empties(r)
        config = rank.config
        if config.role == "prefill" and config.vote_variant == "agreed":
            self._waiting(r, effect.decision.iteration)

    def sends(self, r: Seat, message: Side | Vote) -> None:
        """A rank tells the next one, or its leader, that its cache is empty: its own word is held against the cache."""
        if isinstance(message, Side) and message.lane is Lane.FLUSH:
            self._empties(r)

    def _empties(self, r: Seat) -> None:
        """What this rank has flushed in this iteration, once: at its word, or at its decision if that comes first."""
        rank = r.rank
        flushed = rank.journal.of(Flushed)
        if not flushed or self.emptied.get(r.rank_id) == rank.iteration:
            return
        tree = rank.scheduler.kv.tree
        self.emptied[r.rank_id] = rank.iteration
        for entry in flushed if tree.evictable_tokens + tree.protected_tokens == 0 else ():
            self.tell(Empties(r.rank_id, rank.iteration, rank.slot, entry.rid))

    def replied(self, r: Seat, reply: Reply) -> None:
        """The first rank answers a flush."""
        if not self.flushes.get(reply.rid) or reply.status == "token" or reply.rid in r.rank.scheduler.requests:
            return
        self.flushes[reply.rid] -= 1
        if reply.status == "finished":
            self.tell(Answers(r.rank_id, r.rank.iteration, r.rank.slot, reply.rid))

    def _waiting(self, r: Seat, iteration: int) -> None:
        """INV-87: so many iterations are enough for the vote to come to a request, to go round and to be applied.

        A request is remembered until it has left the rank: its world may hear of the failure only when somebody looks.
        """
        scheduler, config = r.rank.scheduler, r.rank.config
        waits = self.waits.get(r.rank_id)
        if waits is None:
            waits = self.waits[r.rank_id] = {}
        if not waits and not scheduler.waiting:
            return
        limit = 2 * (config.num_slots + config.pp_size) + len(scheduler.waiting) // MAX_LOOKS
        for key in [key for key, wait in waits.items() if scheduler.requests.get(wait.request.rid) is not wait.request]:
            del waits[key]
        for request in scheduler.waiting:
            wait = waits.get(id(request))
            if wait is None:
                wait = waits[id(request)] = Wait(request)
            wait.visits.append((iteration, r.now))
            while wait.visits[0][0] < iteration - limit - 1:
                wait.visits.popleft()
        for wait in waits.values():
            if wait.failed_ns is None:
                wait.failed_ns = r.sender_failed_ns(wait.request.rid)
            (first, first_ns), (last, _) = wait.visits[0], wait.visits[-1]
            if wait.failed_ns is not None and wait.failed_ns < first_ns and last - first > limit:
                text = f"it waited from iteration {first} to {last}, although it had failed on the decode side"
                fail("INV-87", r, wait.request.rid, f"{text}, at most {limit} iterations are allowed")
