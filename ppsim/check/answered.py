"""Two promises that are kept when the last rank has kept them: a flush that is answered, a failure that is heard.

    INV-86   a flush is answered when every rank has emptied its cache, and not before
    INV-87   a request that has failed on the other side while it waits for its turn leaves the waiting queue

The facts behind them are the cache of each rank at its decision, and the state of a rank's own transfer in its world.
"""

from __future__ import annotations

from collections.abc import Callable

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.check.together import Answers, Empties, Record
from ppsim.core.consensus import KVPoll
from ppsim.core.effects import Decided, Decision, Reply, Send
from ppsim.core.journal import Flushed
from ppsim.core.messages import FlushCache, Lane, Side
from ppsim.core.pd_prefill import MAX_LOOKS


class Answered:
    """One for each process. ``tell`` takes what is held against the other ranks."""

    def __init__(self, tell: Callable[[Record], None]) -> None:
        self.tell = tell
        self.flushes: dict[str, int] = {}  # what the first rank has read and not answered, and how often
        self.emptied: dict[int, int] = {}  # rank -> the iteration of its latest flush
        self.failed_since: dict[int, dict[str, int]] = {}  # rank -> waiting request -> iteration

    def watch(self, r: Seat) -> None:
        """Hang it on a rank. Call before the rank runs."""
        r.observers.before(lambda effect: self.decided(r, effect.decision), Decided)
        r.observers.before(lambda effect: self.sends(r, effect), Send)
        if r.rank_id == 0:
            r.observers.before(lambda effect: self.replied(r, effect), Reply)

    def decided(self, r: Seat, decision: Decision) -> None:
        """A flush of this iteration was done, and nothing was put into the cache since."""
        scheduler = r.rank.scheduler
        for item in r.rank.inputs:
            if isinstance(item, FlushCache) and r.rank_id == 0:
                self.flushes[item.rid] = self.flushes.get(item.rid, 0) + 1
        self._empties(r)
        if scheduler.config.role == "prefill" and scheduler.config.vote_variant == "agreed":
            self._waiting(r, decision.iteration)

    def sends(self, r: Seat, send: Send) -> None:
        """A rank tells the next one, or its leader, that its cache is empty: its own word is held against the cache."""
        if isinstance(send.message, Side) and send.message.lane is Lane.FLUSH:
            self._empties(r)

    def _empties(self, r: Seat) -> None:
        """What this rank has flushed in this iteration, once: at its word, or at its decision if that comes first."""
        rank, tree = r.rank, r.rank.scheduler.kv.tree
        flushed = rank.journal.of(Flushed)
        if not flushed or self.emptied.get(r.rank_id) == rank.iteration:
            return
        self.emptied[r.rank_id] = rank.iteration
        for entry in flushed if tree.evictable_tokens + tree.protected_tokens == 0 else ():
            self.tell(Empties(r.rank_id, rank.iteration, rank.slot, entry.rid, r.phase()))

    def replied(self, r: Seat, reply: Reply) -> None:
        """The first rank answers a flush."""
        if not self.flushes.get(reply.rid) or reply.status == "token" or reply.rid in r.rank.scheduler.requests:
            return
        self.flushes[reply.rid] -= 1
        if reply.status == "finished":
            self.tell(Answers(r.rank_id, r.rank.iteration, r.rank.slot, reply.rid, r.phase()))

    def _waiting(self, r: Seat, iteration: int) -> None:
        """INV-87: so many iterations are enough for the vote to come to a request, to go round and to be applied."""
        scheduler, config = r.rank.scheduler, r.rank.config
        before, since = self.failed_since.get(r.rank_id, {}), {}
        limit = 2 * (config.num_slots + config.pp_size) + len(scheduler.waiting) // MAX_LOOKS
        for request in scheduler.waiting:
            if r.sender_status(request.rid) != KVPoll.FAILED:
                continue
            key = f"{request.rid} of {request.arrived}"
            since[key] = before.get(key, iteration)
            if iteration - since[key] > limit:
                text = f"it still waits for its turn, although it failed on the decode side in iteration {since[key]}"
                fail("INV-87", r, request.rid, f"{text}, at most {limit} iterations are allowed")
        self.failed_since[r.rank_id] = since
