"""Rules of public bug reports that no numbered invariant of protocol.md says, checked beside them (``run.invariants``).

    I4    a conclusion is the intersection of what all ranks saw as good, and the union of what any saw as bad: named
          after what it would break, invariant 52 (too early), 47 (good) or 48 (bad)
    INV-66   no page is lost (invariant 23), KV is held for known tokens only, and a retracted request holds none
    INV-67   a request that is marked for abort delivers nothing more
    INV-68   nobody is marked for abort whom no abort names
    INV-69   admission: what is admitted fits, and a slot is closed only where places, rows or tokens are short
    INV-73   the cache is emptied only while nothing is in flight

The numbers are those of the catalogue of public bugs (``docs/bugs.md``). Each rule looks at one rank, or at what a rank
says to another; the comparison of ranks is ``together.py``'s. What bounds a run in time is in ``wait_limits.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ppsim.check.observers import Seat
from ppsim.check.together import Concludes, Record, Voices
from ppsim.check.turn_rules import TurnRules
from ppsim.core import effects as fx
from ppsim.core.consensus import KVPoll
from ppsim.core.disagg.ballots import TERMINAL_VOTES
from ppsim.core.errors import InvariantViolation
from ppsim.core.messages import AbortReq, Conclusion, FlushCache
from ppsim.core.schedule.admission import expected_output
from ppsim.core.schedule.journal import Flushed
from ppsim.core.schedule.request import Request, State

if TYPE_CHECKING:
    from ppsim.core.schedule.scheduler import Scheduler
    from ppsim.core.schedule.slots import Slot

OVER, READY = (KVPoll.SUCCESS, KVPoll.FAILED), (KVPoll.WAITING_FOR_INPUT,)
"""What a rank agrees to: in a vote on what is over, and in any other."""


class Rules:
    """One for each process. ``tell`` takes what is held against the other ranks."""

    def __init__(self, tell: Callable[[Record], None]) -> None:
        self.tell = tell
        self.marked: dict[int, dict[str, int]] = {}  # rank -> rid -> iteration of arrival, once it is marked
        self.was_full: dict[tuple[int, int], bool] = {}  # (rank, slot) -> batch_is_full after its last visit
        self.members: dict[tuple[int, int], dict[str, None]] = {}  # likewise: running in it or launched
        self.known: dict[int, set[str]] = {}  # rank -> requests that have run before
        self.turns = TurnRules()

    # --- votes: I4 -------------------------------------------------------------------------------------------

    def seen(self, r: Seat, effect: fx.Observe, values: tuple[int, ...]) -> None:
        """What a rank looked at; in the first pass of a vote that is its voice."""
        phase = r.phase()
        if not phase.startswith("first_pass_"):
            return
        name = phase.removeprefix("first_pass_")
        good = OVER if name in TERMINAL_VOTES else READY
        pairs = [*zip(effect.keys, values, strict=True)]
        view = tuple([rid for rid, v in pairs if v in good]), tuple([rid for rid, v in pairs if v == KVPoll.FAILED])
        self.tell(Voices(r.rank_id, effect.iteration, r.rank.slot, name, view))

    def published(self, r: Seat, conclusion: Conclusion) -> None:
        """The last rank publishes a conclusion: all ranks have spoken."""
        if r.rank.config.is_last:
            about = (conclusion.name, conclusion.iteration, conclusion.good, conclusion.bad)
            self.tell(Concludes(r.rank_id, r.rank.iteration, r.rank.slot, *about))

    # --- a decision -----------------------------------------------------------------------------------------

    def before_decision(self, r: Seat, decision: fx.Decision) -> None:
        """After the inputs were applied and the batch was chosen."""
        inputs, scheduler = r.rank.inputs, r.rank.scheduler
        config, slots = scheduler.config, scheduler.slots.slots
        slot = slots[decision.iteration % len(slots)]
        self._newly_marked(r, [item for item in inputs if isinstance(item, AbortReq)] if inputs else [])
        if inputs:
            self._flushes(r, decision)
        if decision.pieces or slot.launched is not None:
            self._admissions(r, decision, slot)
        self._closed_slot(r, decision, slot)
        if config.max_consecutive_prefills or config.max_consecutive_chunks:
            self.turns.decided(r, decision)
        for rid in decision.retracted:
            requests = scheduler.requests
            if rid in requests and requests[rid].pages:
                fail("INV-66", r, rid, f"it is retracted and still holds {len(requests[rid].pages)} pages")

    def _newly_marked(self, r: Seat, aborts: list[AbortReq]) -> None:
        """INV-68: whoever is marked for abort was named by an abort of this list."""
        requests = r.rank.scheduler.requests
        found = [request for request in requests.values() if request.to_abort]
        if not found:
            return
        marked = self.marked.setdefault(r.rank_id, {})
        for request in found:
            if marked.get(request.rid) != request.arrived:
                if not any(item.abort_all or item.rid == request.rid for item in aborts):
                    fail(
                        "INV-68",
                        r,
                        request.rid,
                        f"it is marked ({request.to_abort}), but no abort of this list names it",
                    )
                marked[request.rid] = request.arrived
        if len(marked) > len(requests) + 64:
            self.marked[r.rank_id] = {rid: at for rid, at in marked.items() if rid in requests}

    def _flushes(self, r: Seat, decision: fx.Decision) -> None:
        """INV-73: a flush that was granted found no launched batch but the one that came after it."""
        granted = {entry.rid for entry in r.rank.journal.of(Flushed)}
        for item in r.rank.inputs:
            if not isinstance(item, FlushCache) or item.rid not in granted:
                continue
            busy = [s for s in r.rank.scheduler.slots.slots if s.in_flight and s.index != decision.slot]
            if busy and busy[0].launched is not None:
                text = f"the cache is emptied while the batch of iteration {busy[0].launched.iteration} is in flight"
                fail("INV-73", r, item.rid, text)

    # --- admission: INV-69 ----------------------------------------------------------------------------------------

    def _admissions(self, r: Seat, decision: fx.Decision, slot: Slot) -> None:
        """A request is admitted only if all of it fits, not just the chunk of this batch (bugs.md B90).

        In pages that it does not hold yet; the KV of a last token is never written. Admission looks before the decode
        rows of a mixed batch grow, so pages that those have taken meanwhile count as left.
        """
        scheduler = r.rank.scheduler
        pool = scheduler.kv.pool
        known = self.known.setdefault(r.rank_id, set())
        self._places(r, slot, known)
        for rid, prefix_len, new_tokens in decision.pieces if decision.mode in ("extend", "mixed") else ():
            request = scheduler.requests.get(rid)
            key = life_of(request) if request is not None else ""
            if request is None or request.state is not State.PREFILL or key in known:
                continue
            known.add(key)
            rest = request.seq_len - prefix_len - new_tokens
            output = expected_output(scheduler.config, request.spec.max_new_tokens - len(request.output_ids))
            missing = (pool.pages_for(request.seq_len + output - 1) - len(request.pages)) * pool.page_size
            left = scheduler.kv.available_tokens + self._taken_by_decodes(scheduler, decision)
            left += self._given_back(scheduler, decision, request)
            if missing > left:
                text = f"it is admitted, but {rest} more prompt tokens and its output ({missing} in all) do not fit "
                fail("INV-69", r, rid, text + f"into the {left} tokens that are left")

    def _places(self, r: Seat, slot: Slot, known: set[str]) -> None:
        """Whoever is admitted had a place in its slot. A prompt that is being cut goes on without one (bugs.md B17)."""
        launched = () if slot.launched is None else slot.launched.requests
        prefills = [q for q in launched if q.state is State.PREFILL]
        fresh = [q.rid for q in prefills if life_of(q) not in known]
        if not fresh:
            return
        limit = r.rank.scheduler.config.max_micro_batch_size
        cut = [q.rid for q in prefills if life_of(q) in known]
        members = dict.fromkeys(q.rid for q in (*slot.running, *launched) if not q.is_terminal and q.rid not in cut)
        if fresh and len(members) > limit:
            text = f"it is admitted to slot {slot.index}, which then holds {len(members)} requests, at most {limit} "
            fail("INV-69", r, fresh[-1], text + "have a place")

    def _given_back(self, scheduler: Scheduler, decision: fx.Decision, request: Request) -> int:
        """Tokens that a request may count on although others of its slot still hold them (foresight.py), at most."""
        config, slot = scheduler.config, scheduler.slots.current(decision.iteration)
        if not is_foreseen(scheduler, request):
            return 0
        beside = {q.rid: len(q.pages) for q in (*slot.running, *(slot.launched.requests if slot.launched else ()))}
        return config.page_size * sum(pages for rid, pages in beside.items() if rid != request.rid)

    def _taken_by_decodes(self, scheduler: Scheduler, decision: fx.Decision) -> int:
        """Tokens of the pages that the decode rows of a mixed batch have begun."""
        if decision.mode != "mixed":
            return 0
        page = scheduler.kv.pool.page_size
        rows = [(scheduler.requests.get(rid), prefix_len) for rid, prefix_len, _ in decision.pieces]
        return page * sum(q is not None and q.state is State.DECODE and at % page == 0 for q, at in rows)

    def _closed_slot(self, r: Seat, decision: fx.Decision, slot: Slot) -> None:
        """A slot is closed (batch_is_full) only where it has no place, no row or no tokens left (bugs.md B86)."""
        scheduler = r.rank.scheduler
        key = (r.rank_id, slot.index)
        closed = slot.batch_is_full and not self.was_full.get(key, False)
        self.was_full[key] = slot.batch_is_full
        may_mix = scheduler.config.enable_mixed_chunk
        if not closed and not may_mix:
            return
        beside = [*slot.running, *(() if slot.launched is None else slot.launched.requests)]
        members = dict.fromkeys([q.rid for q in beside])
        counted = members
        if may_mix:
            # Mixing drops who has ended after they were counted last, also where nobody is left to be mixed.
            if decision.mode in ("extend", "mixed"):
                counted = self.members.get(key, {}) | members
            self.members[key] = members
        if not closed or not scheduler.waiting or not scheduler.role.prefills:
            return
        taken = len(counted)
        num_rows = len(scheduler.kv.free_rows) - self._rows_of_chunk(scheduler, slot)
        if num_rows <= 0 or taken >= scheduler.config.max_micro_batch_size:
            return
        first = next((q for q in scheduler.waiting if q.rid not in scheduler.kv.fetches), None)
        if first is None:  # all of them wait for storage
            return
        wanted = self._wanted(r, first) + sum(self._growth(r, q) for q in scheduler.requests.values() if q.pages)
        if is_foreseen(scheduler, first):
            wanted = max(wanted, foreseen_at_most(scheduler, first, beside))
        if wanted < scheduler.kv.available_tokens:
            places = scheduler.config.max_micro_batch_size - taken
            text = f"slot {slot.index} is closed to it, although {places} places, {num_rows} rows "
            fail("INV-69", r, first.rid, text + f"and {scheduler.kv.available_tokens} tokens are free")

    def _rows_of_chunk(self, scheduler: Scheduler, slot: Slot) -> int:
        """The row that a continued chunk of this batch has already, where the rules count it once more (9a)."""
        if slot.launched is None or not scheduler.config.chunk_counts_as_row:
            return 0
        batch = slot.launched
        pieces = zip(batch.forward.pieces, batch.requests)
        return sum(not piece.is_decode and piece.prefix_len > q.num_cached_tokens for piece, q in pieces)

    def _wanted(self, r: Seat, request: Request) -> int:
        config = r.rank.scheduler.config
        return request.seq_len + request.spec.max_new_tokens + 2 * config.page_size

    def _growth(self, r: Seat, request: Request) -> int:
        """All that is set aside for a request that holds memory: what it may still take, and a page.

        Admission sets all of its output aside again for one that was retracted, as SGLang does, also what it has made.
        """
        total = request.prompt_len + request.spec.max_new_tokens
        made = len(request.output_ids) if request.state is State.PREFILL else 0
        return max(total - request.kv_len, 0) + made + 2 * r.rank.scheduler.config.page_size

    # --- a harvest --------------------------------------------------------------------------------------------

    def harvested(self, r: Seat, harvest: fx.Harvest) -> None:
        """After everything that this iteration delivered or ended."""
        scheduler, marked = r.rank.scheduler, self.marked.get(r.rank_id, {})
        for rid, n in harvest.delivered if marked else ():
            request = scheduler.requests.get(rid)
            if rid in marked and (request is None or request.arrived == marked[rid]):
                fail("INV-67", r, rid, f"it delivers its token {n} although it is marked for abort")
        self._newly_marked(r, [])
        for rid in harvest.finished if marked else ():
            self.marked[r.rank_id].pop(rid, None)
        self._pages(r)

    def _pages(self, r: Seat) -> None:
        """INV-66: the pages that are not free are those of the tree and those that requests hold alone."""
        scheduler = r.rank.scheduler
        pool, tree = scheduler.kv.pool, scheduler.kv.tree
        page_size = pool.page_size
        held = (tree.evictable_tokens + tree.protected_tokens) // page_size
        for request in scheduler.requests.values():
            held += len(request.pages) - request.cached_len // page_size
            kv_len = request.kv_len
            if not kv_len:
                continue
            at_rest = request.state is State.DECODE and not request.num_inflight and not request.to_abort
            known = request.seq_len - at_rest
            if kv_len > known:
                fail("INV-66", r, request.rid, f"it holds KV for {kv_len} tokens, but only {known} are computed")
        used = pool.num_pages - pool.num_free_pages
        if used > held:
            fail("INV-23", r, "", f"pages are lost: {used} are in use, but cache and requests hold {held}")


def is_foreseen(scheduler: Scheduler, request: Request) -> bool:
    """Whether the request is admitted by what is known to come (foresight.py) instead of by the common rule."""
    off = scheduler.kv.enable_radix_cache or scheduler.config.reserve_all_slots
    return request.spec.ignore_eos and not off


def foreseen_at_most(scheduler: Scheduler, request: Request, beside: list[Request]) -> int:
    """Free tokens with which foresight admits ``request`` beside the others, in whatever order it puts them.

    It asks at each end for one token and the tokens left of that one, times those that still run. SGLang puts one that
    ends last in front of the last (foresight.py), so the longest may be asked for by all of them. A page each for the
    ceilings, which it takes off what is free.
    """
    longest = max(q.spec.max_new_tokens for q in (request, *beside))
    return request.seq_len + (len(beside) + 1) * (longest + 1 + 2 * scheduler.config.page_size)


def life_of(request: Request) -> str:
    """A request between two admissions."""
    return f"{request.rid}/{request.num_retractions}/{request.arrived}"


def fail(rule: str, r: Seat, rid: str, text: str) -> None:
    raise InvariantViolation(rule, r.rank_id, r.rank.iteration, r.rank.slot, rid, text)
