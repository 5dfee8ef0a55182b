"""Nobody is turned away, ended early or put out of memory for nothing: the cause is looked at, not what is said of it.

    INV-88   refused   it does not fit the pool or the context even alone, or its id is here; a flush: work is left
             ended     an abort of the request list names it; or, where memory is said to be short, it is
    INV-89   put out   the next tokens of its slot did not fit with it

A rank that turns away what it could serve is alike on all ranks, and everybody is answered: no other rule sees it. What
is told to a client is an entry of the journal, and is judged while the state in which it was decided still stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.core.effects import Decided, Reply
from ppsim.core.messages import AbortReq, FlushCache, NewRequest
from ppsim.core.schedule.foresight import RESERVE_TOKENS
from ppsim.core.schedule.journal import Ended, Entry, Unfit
from ppsim.core.schedule.request import Event, Moved
from ppsim.core.tokens import count

if TYPE_CHECKING:
    from ppsim.core.schedule.scheduler import Scheduler


class EarlyEnds:
    """One for each process. ``aborted``: by rank, the requests that an abort of an earlier iteration names."""

    def __init__(self, aborted: Mapping[int, Mapping[str, int]]) -> None:
        self.aborted = aborted

    def watch(self, r: Seat) -> None:
        """Hang it on a rank. Call before it runs."""
        r.rank.journal.listeners.append(partial(self.entered, r))
        r.observers.before(partial(self.put_out, r), Decided)

    def entered(self, r: Seat, entry: Entry | Moved) -> None:
        """Something is done right now."""
        if type(entry) is Moved:
            return
        match entry:
            case Reply(status="refused"):
                self._refused(r, entry.rid)
            case Unfit():
                self._unfit(r, entry.rid)
            case Ended(event=Event.ABORT):
                self._ended(r, entry.rid)

    def _refused(self, r: Seat, rid: str) -> None:
        """A request or a flush of this iteration's list is turned away. Who has the id of another one is let go."""
        scheduler = r.rank.scheduler
        items = [item for item in r.rank.inputs if isinstance(item, NewRequest | FlushCache) and item.rid == rid]
        if not any(isinstance(item, FlushCache) for item in items):
            specs = [item for item in items if isinstance(item, NewRequest)]
            if specs and rid not in scheduler.requests and all(surely_fits(scheduler, spec) for spec in specs):
                capacity = scheduler.kv.pool.capacity_tokens
                text = f"it is refused, although its {count(specs[0].prompt)} + {specs[0].max_new_tokens} tokens fit "
                fail("INV-88", r, rid, f"{text}into {capacity} of KV")
        elif len(items) == 1 and is_at_rest(scheduler):
            fail("INV-88", r, rid, "the flush is refused, although there is no request, no launch and no copy")

    def _unfit(self, r: Seat, rid: str) -> None:
        """The last of its slot is to end, because its next token does not fit."""
        scheduler, request = r.rank.scheduler, r.rank.scheduler.requests.get(rid)
        if request is None or scheduler.kv.tiers is not None:  # memory may be on its way to the host
            return
        page = scheduler.config.page_size
        needed = page if request.kv_len % page == 0 else 0
        if needed <= scheduler.kv.available_tokens:
            text = f"it ends for want of memory: its next token needs {needed} tokens of new pages, "
            fail("INV-88", r, rid, text + f"{scheduler.kv.available_tokens} can be had")

    def _ended(self, r: Seat, rid: str) -> None:
        rank = r.rank
        named = any(isinstance(item, AbortReq) and (item.abort_all or item.rid == rid) for item in rank.inputs)
        named = named or rid in self.aborted.get(r.rank_id, {})
        if not named and all(entry.rid != rid for entry in rank.journal.of(Unfit)):
            fail("INV-88", r, rid, "it ends as aborted, but no abort that this rank has read names it")

    def put_out(self, r: Seat, effect: Decided) -> None:
        """INV-89: with the one that was put out last, the next tokens of the slot would not have fitted.

        Behind the decision those that stay have taken their pages, and it has given back its own.
        """
        decision = effect.decision
        if not decision.retracted:
            return
        scheduler = r.rank.scheduler
        kv, page = scheduler.kv, scheduler.config.page_size
        last = scheduler.requests.get(decision.retracted[-1])
        if last is None or (kv.tiers is not None and kv.is_copying) or r.rank.journal.of(Unfit):
            return
        num_stay = sum(prefix_len % page == 0 for _, prefix_len, _ in decision.pieces)
        kv_len = last.seq_len - 1
        needed = (num_stay + (kv_len % page == 0)) * page
        there = kv.available_tokens + num_stay * page - kv.pool.pages_for(kv_len) * page
        if needed <= there:
            text = f"it is put out of memory, although the slot needs {needed} tokens of new pages, "
            fail("INV-89", r, last.rid, text + f"and {there} were to be had")


def surely_fits(scheduler: Scheduler, spec: NewRequest) -> bool:
    """Whether a request fits even if all that may be set aside for it is."""
    config, num_prompt = scheduler.config, count(spec.prompt)
    total = num_prompt + spec.max_new_tokens
    spare = 2 * config.page_size + config.num_reserved_decode_tokens + RESERVE_TOKENS
    fits = total <= config.context_length and total + spare < scheduler.kv.pool.capacity_tokens
    return fits and num_prompt > 0 and spec.max_new_tokens > 0


def is_at_rest(scheduler: Scheduler) -> bool:
    """No request anywhere, nothing launched, no copy under way."""
    return not scheduler.requests and scheduler.slots.drained and not scheduler.kv.outstanding
