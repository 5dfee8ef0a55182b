"""The replicated scheduler: choose the batch of a slot, absorb its outputs (inputs: ``intake.py``).

Nothing is decided by which rank it runs on. Same inputs in the same order give the same decisions, byte for byte;
everything else in the project rests on that. The order of steps is that of protocol.md 4.1 to 4.8; where SGLang's own
rules and their mended form differ, the configuration says which one holds (docs/batches.md), and where the protocol
leaves a choice, it is that of docs/decisions/0001-open-choices.md.

What a visit does is in the journal (``journal.py``); ``causes``, ``limits`` and ``state_parts`` below show what must be
the same on all ranks.

Over 400 lines because every step reads and writes the same state of a slot, and the order of the steps is the point:
budgets, order, turns, intake and journal have files of their own, and what is left is read from top to bottom.
"""

from __future__ import annotations

from bisect import bisect_right

from ppsim.core.agreed_call import agreed_call
from ppsim.core.config import RankConfig
from ppsim.core.digest import digest
from ppsim.core.effects import CLOSED, DEFERRED, Decision, Harvest, Reply
from ppsim.core.errors import InvariantViolation
from ppsim.core.schedule.admission import Growth, PrefillAdder, Result, expected_growth, full_growth
from ppsim.core.schedule.batch import ForwardBatch, Mode, Piece
from ppsim.core.schedule.fairness import continue_behind, count_prefill, decode_goes_first, waiting_goes_first
from ppsim.core.schedule.foresight import Foresight
from ppsim.core.schedule.intake import Intake
from ppsim.core.schedule.journal import (
    AbortFound,
    Absorbed,
    Advanced,
    ChunkCut,
    ChunkParked,
    DecodeHeldUp,
    Delivered,
    Ended,
    Launched,
    NotTaken,
    PutBack,
    Retracted,
    Unfit,
    Why,
)
from ppsim.core.schedule.order import waiting_order
from ppsim.core.schedule.request import TERMINAL, Event, Request, State
from ppsim.core.schedule.slots import LaunchedBatch, Slot


class Scheduler(Intake):
    """The decisions of a rank."""

    adder_class: type[PrefillAdder] = PrefillAdder  # fills a prefill batch within its budgets

    # --- a visit of a slot -----------------------------------------------------------------------------------

    @agreed_call("INV-10", "iteration", result=("result.1",))
    def schedule(self, iteration: int) -> tuple[LaunchedBatch | None, Decision]:
        """Choose what the current slot runs now: prefill first, else decode (protocol.md 4.1)."""
        slot = self.slots.current(iteration)
        self._stash_chunk()
        self._merge_last_batch(slot)
        batch, role = None, self.role
        role.before_schedule(slot)
        deferred = self._prefill_is_deferred(slot)
        if role.prefills and not deferred and self.may_prefill(slot):
            batch = self._new_prefill(slot, iteration)
        if batch is None:
            batch = self._decode(slot, iteration)
        if self.config.max_consecutive_prefills:
            count_prefill(self, slot, batch)
        slot.launched, slot.in_flight = batch, batch is not None
        return batch, self._decision(iteration, slot, batch, self._stall(slot, iteration, deferred))

    def _stash_chunk(self) -> None:
        """Cache what is launched of the chunked request, so that the next chunk continues on the tree's pages."""
        if self.chunked is not None and self.chunked.kv_len > self.chunked.stashed_len:
            self.kv.stash(self.chunked)
            self.role.chunk_done(self.chunked)

    def _merge_last_batch(self, slot: Slot) -> None:
        """Requests whose prompt is done join the slot's decode set; consumed once (protocol.md 1.4, stale entry).

        SGLang keeps ``batch_is_full`` on the running batch. Where the slot ran nothing, the harvested batch becomes the
        running batch: another object, whose flag is down (docs/batches.md).
        """
        last, slot.last_batch = slot.last_batch, None
        falls = False
        if last is not None and last.is_extend:
            unfinished = (last.chunked_rid, self.chunked.rid if self.chunked else None)
            stay = [r for r in last.requests if r.state is State.DECODE and r.rid not in unfinished]
            shrank, becomes_running = len(stay) < len(last.requests), bool(stay) and not slot.running
            falls = shrank or becomes_running
            slot.running += stay
        if self.config.reopen_empty_slots and not slot.running:
            falls = True
        if falls or self.role.clears_full_flag:
            self.reopen(slot)

    def may_prefill(self, slot: Slot) -> bool:
        """Whether this visit tries a prefill before it decodes, as the policy says."""
        return self.policy.may_prefill(slot.running, self.waiting, self.kv.pool.free_tokens)

    def reopen(self, slot: Slot) -> None:
        """``batch_is_full`` falls (docs/batches.md; bugs.md B86)."""
        slot.batch_is_full = False

    def _prefill_is_deferred(self, slot: Slot) -> bool:
        """prefill_decode_interval: after a prefill the rank prefills nothing for so many iterations.

        SGLang holds up every slot, also one that has nothing to decode and a prompt that is being cut.
        """
        if self.decode_turns == 0 or not self.role.defers_prefill:
            return False
        self.decode_turns -= 1
        return self.config.defer_empty_visits or any(r.state is State.DECODE for r in slot.running)

    def _stall(self, slot: Slot, iteration: int, deferred: bool) -> str:
        """Why this visit runs nothing, if that is a rule's doing and not for want of work or memory."""
        if slot.launched is not None or slot.running:
            slot.closed_since = -1
            return ""
        if self.role.clears_full_flag or self.config.reopen_empty_slots or not slot.batch_is_full:
            slot.closed_since = -1
        else:
            if slot.closed_since < 0:
                slot.closed_since = iteration
            return CLOSED
        return DEFERRED if deferred and (self.waiting or self.chunked is not None) else ""

    # --- prefill ---------------------------------------------------------------------------------------------

    def num_places(self, slot: Slot, num_admitted: int, num_new_rows: int) -> int:
        """Requests that the slot may still take. SGLang counts the row of a continued chunk twice (bugs.md B86)."""
        in_slot = self.config.max_micro_batch_size - len(slot.running) - num_admitted
        if self.config.chunk_counts_as_row:
            num_new_rows = num_admitted
        return min(in_slot, len(self.kv.free_rows) - num_new_rows)

    def _new_prefill(self, slot: Slot, iteration: int) -> LaunchedBatch | None:
        only_chunk = decode_goes_first(self, slot)
        if self.chunked is None and (only_chunk or slot.batch_is_full or not self.waiting):
            return None
        places = self.num_places(slot, 0, 0)
        if places <= 0 and not self.may_continue_chunk(slot, places):
            return None
        self.waiting = self.policy.admission_order(waiting_order(self.config, self.waiting, self.kv))
        num_mixed = len(slot.running) if self.config.enable_mixed_chunk else 0
        adder = self._adder(slot, num_mixed)
        if not only_chunk and waiting_goes_first(self):
            continue_behind(self, adder, lambda: self.admit_waiting(slot, adder))
        elif self.chunked is not None and not adder.add_chunked(self.chunked):
            self.journal.add(ChunkParked(self.chunked.rid))
            return None  # parked: others must not take the memory that it waits for (bugs.md B100)
        elif not only_chunk:
            self.num_chunks += self.chunked is not None and bool(self.waiting)
            self.admit_waiting(slot, adder)
        if self.chunked is not None and adder.cut_by_memory:
            self.journal.add(ChunkCut(self.chunked.rid))
        if not adder.admitted:
            return None
        return self._launch_prefill(slot, iteration, adder)

    def may_continue_chunk(self, slot: Slot, num_places: int) -> bool:
        """No place is free: a prompt that is being cut goes on all the same (bugs.md B17); else the slot is full."""
        if self.chunked is None:
            slot.batch_is_full = True
        return self.chunked is not None

    def _adder(self, slot: Slot, num_mixed: int) -> PrefillAdder:
        if self.config.reserve_all_slots:
            others = (r for r in self.requests.values() if r.req_slot is not None and r is not self.chunked)
            tokens = full_growth(self.kv.pool, others)
            growth, foresight = Growth(tokens, tokens), None
        else:
            growth = expected_growth(self.config, self.ratio, slot.running)
            foresight = None if self.kv.enable_radix_cache else Foresight(self.ratio, slot.running)
        budget = self.config.chunked_prefill_size
        if budget is not None and self.chunked is not None:
            done = self.chunked.kv_len
            budget = self.policy.chunk_size(done, planned_chunk(self.config, done))
        self.last_chunk_budget = budget
        adder = self.adder_class(self.config, self.kv.pool, self.kv.tree, growth, budget, num_mixed, foresight)
        adder.empty_pieces &= not self._never_mixes(slot)
        return adder

    def _never_mixes(self, slot: Slot) -> bool:
        """Whether the slot's decode set can't ride along with the chunk, now or later.

        SGLang launches a chunk without a budget here too, at every visit: on one stage nothing ever decodes again. No
        run must be without an end, so the visit decodes.
        """
        beside = [*slot.running, self.chunked] if self.chunked is not None else slot.running
        if any(r.spec.return_logprob for r in beside):
            return True
        page = self.config.page_size
        due = sum(r.state is State.DECODE and r.kv_len % page == 0 for r in slot.running)
        return due * page > self.kv.available_tokens

    def admit_waiting(self, slot: Slot, adder: PrefillAdder) -> None:
        """Try waiting requests in order until one does not fit; admitted ones get their row and cached prefix."""
        taken: list[Request] = []
        for request in self.waiting:
            if self.num_places(slot, len(adder.admitted), len(taken)) <= 0:
                no_row = len(self.kv.free_rows) <= len(taken)
                self.journal.add(NotTaken(request.rid, Why.NO_ROW if no_row else Why.FULL))
                slot.batch_is_full = True
            if slot.batch_is_full:
                break
            if request.rid in self.kv.fetches:
                self.journal.add(NotTaken(request.rid, Why.STORAGE))
                continue
            found = self.kv.match(request)
            before = len(adder.admitted)
            result = adder.add(request, found)
            if len(adder.admitted) > before:
                # Rows and prefixes are handed out below: num_places counts them through ``taken``.
                taken.append(request)
                found = self.kv.load_back(request, found)
                request.last_node, request.num_cached_tokens = found.node, found.num_tokens
                request.pages = found.pages
            if result is Result.NO_TOKEN:
                self.journal.add(NotTaken(request.rid, Why.NO_TOKEN))
                # With a host tier an empty slot is not closed: what it waits for may be locked by copies (4.2 step 8).
                slot.batch_is_full = self.kv.tiers is None or bool(adder.admitted) or bool(slot.running)
            if result is not Result.CONTINUE:
                break
        for request in taken:
            assert request.last_node is not None
            self.kv.admit_prefix(request)
        if taken == self.waiting[: len(taken)]:  # nobody was passed over: a long queue is not walked
            self.waiting = self.waiting[len(taken) :]
        else:
            self.waiting = [r for r in self.waiting if r not in taken]

    def _launch_prefill(self, slot: Slot, iteration: int, adder: PrefillAdder) -> LaunchedBatch | None:
        pieces: list[Piece[Request]] = []
        continued, self.chunked = self.chunked, adder.new_chunked
        put_back: list[Request] = []
        self.kv.evict_ahead(sum(piece.new_tokens for piece in adder.admitted), len(adder.admitted))
        for piece in adder.admitted:
            request = piece.kv
            is_second = not piece.is_last_chunk and self.chunked is not request  # the chunk place is taken again
            if is_second or not self.kv.can_grow(request, piece.new_tokens) or self.is_refused_memory(request):
                self.journal.add(PutBack(request.rid))
                put_back.append(request)  # defined end instead of a crash: it waits again, first in line
                if request is continued:
                    self.chunked = continued  # also behind its last chunk: its earlier ones may be in flight
                continue
            self.kv.grow(request, piece.new_tokens)
            request.on(Event.LAUNCH_CHUNK)
            if not piece.is_last_chunk:
                request.inflight_middle_chunks += 1
            pieces.append(piece)
        if put_back:
            self._put_back(put_back)
            slot.batch_is_full = False  # it was full with those who are not in it now
        if not pieces:
            return None
        mode = Mode.EXTEND
        if self.config.enable_mixed_chunk and self._mix_decode(slot, pieces):
            mode = Mode.MIXED
        self.decode_turns = self.config.prefill_decode_interval
        return self._batch(slot, iteration, mode, pieces)

    def is_refused_memory(self, request: Request) -> bool:
        """Whether memory that admission counted on is refused after all: an allocator may fail in spite of free pages.

        ``refusals_left`` says so ahead, on all ranks alike; the request is put back and tries again.
        """
        left = self.refusals_left.get(request.rid, 0)
        if left:
            self.refusals_left[request.rid] = left - 1
        return left > 0

    def _put_back(self, requests: list[Request]) -> None:
        for request in requests:
            if request is self.chunked:
                if request.state is State.PREFILL:
                    continue  # stays chunked: parked
                self.chunked = None
            self.kv.retract(request)
        self.waiting = [r for r in requests if r is not self.chunked] + self.waiting

    def _mix_decode(self, slot: Slot, pieces: list[Piece[Request]]) -> bool:
        """Append the slot's decode set to a prefill batch, one token each (protocol.md 4.8).

        The slot's decode set is a new, empty one behind it, which keeps ``batch_is_full``.
        """
        if not slot.running or any(r.spec.return_logprob for r in slot.running + [piece.kv for piece in pieces]):
            return False
        slot.running = [r for r in slot.running if r.state is State.DECODE]
        if not slot.running or not self._decode_fits(slot.running):
            return False
        pieces += self._grow_all(slot.running)
        slot.running = []
        return True

    # --- decode ----------------------------------------------------------------------------------------------

    def _decode(self, slot: Slot, iteration: int) -> LaunchedBatch | None:
        """One token for each running request of the slot; retract within the slot where memory is short (4.5)."""
        if not slot.running:
            return None
        before, decode = len(slot.running), State.DECODE
        slot.running = [r for r in slot.running if r.state is decode]
        is_held_up = False
        if slot.running and not self._decode_fits(slot.running):
            # What it needs may be locked by copies to host memory, and these end (bugs.md B43).
            is_held_up = self.kv.is_copying
            if is_held_up:
                self.journal.add(DecodeHeldUp(slot.index))
            else:
                self._retract(slot)
        elif slot.running:
            self.ratio.decay()
        if len(slot.running) < before:
            self.reopen(slot)
        if not slot.running or is_held_up:
            return None
        return self._batch(slot, iteration, Mode.DECODE, self._grow_all(slot.running))

    def _decode_fits(self, running: list[Request]) -> bool:
        """Evict only what is missing for one more token each; whether that was enough (protocol.md 4.5)."""
        page = self.config.page_size
        need = len(running) if page == 1 else sum([r.kv_len % page == 0 for r in running])
        self.kv.evict_for(need)
        return need <= self.kv.pool.num_free_pages

    def _retract(self, slot: Slot) -> None:
        """Pop the least preferred request until the rest fits; abort the last one if even that does not."""
        order = list(self.policy.retraction_order(slot.running))
        popped: list[Request] = []
        while len(order) > 1 and (not popped or not self._decode_fits(order)):
            request = order.pop()
            popped.append(request)
            self.put_out(request)
            self.kv.evict_after_retraction(self.config.retract_decode_steps * len(order))
            request.num_retractions += 1
        if not self._decode_fits(order):
            self._abort_unfit(order.pop())
        for request in popped:
            self.journal.add(Retracted(request.rid))
            self.role.retracted(request)
        slot.running = order  # those that stay are in the order of preference from now on
        generated = sum(len(r.output_ids) for r in order)
        limits = sum(r.spec.max_new_tokens for r in order)
        self.ratio.after_retraction(generated, len(order), limits, self.config.retract_decode_steps)

    def put_out(self, request: Request) -> None:
        """A retracted request gives its KV back (bugs.md B48)."""
        self.kv.retract(request)

    def _abort_unfit(self, request: Request) -> None:
        """Even alone its next token does not fit: a clear reply instead of a crash."""
        self.journal.add(Unfit(request.rid))
        reason = "out of KV memory: the next token does not fit, and no other request of the slot can be retracted"
        self.end(request, Event.ABORT, reason)

    def _grow_all(self, running: list[Request]) -> list[Piece[Request]]:
        """One token more for each. SGLang evicts nothing ahead where one of them wants logprobs (kv.py)."""
        if True not in [r.spec.return_logprob for r in running]:
            self.kv.evict_ahead(0, len(running))
        grow, event, pieces = self.kv.grow, Event.LAUNCH_DECODE, []
        for request in running:
            prefix_len = request.kv_len
            grow(request, 1)
            request.on(event)
            pieces.append(Piece(request.spec.rid, prefix_len, 1, True, True, request))
        return pieces

    # --- launch and harvest ----------------------------------------------------------------------------------

    def may_skip_output(self, pieces: list[Piece[Request]]) -> bool:
        """Whether a prefill is one middle chunk alone whose output nobody needs (protocol.md 2.4)."""
        contains_last = self.chunked is None or len(pieces) > 1 or pieces[0].is_last_chunk
        return not contains_last and not pieces[0].kv.spec.return_logprob

    def _batch(self, slot: Slot, iteration: int, mode: Mode, pieces: list[Piece[Request]]) -> LaunchedBatch:
        """Freeze the batch."""
        config = self.config
        requests, num_tokens, num_logprobs = [], 0, 0
        for piece in pieces:
            request = piece.kv
            request.num_inflight += 1
            requests.append(request)
            num_tokens += piece.new_tokens
            num_logprobs += request.spec.return_logprob
        forward = ForwardBatch(
            iteration,
            slot.index,
            mode,
            tuple(pieces),
            num_tokens,
            can_run_cuda_graph=config.cuda_graph and mode is Mode.DECODE,
            skip_output_comm=config.skip_pure_chunk_output and mode is Mode.EXTEND and self.may_skip_output(pieces),
        )
        chunked_rid = self.chunked.rid if self.chunked else None
        batch = LaunchedBatch(forward, tuple(requests), chunked_rid, num_logprobs)
        self.journal.add(Launched(batch))
        return batch

    @agreed_call("INV-41", "iteration", "token_ids")
    def absorb(self, iteration: int, token_ids: tuple[int, ...] | None) -> None:
        """Apply the sampled tokens of the slot that is harvested now; None for a skipped pure middle chunk."""
        slot = self.slots.to_harvest(iteration)
        batch = slot.launched if slot.in_flight else None
        if batch is not None:
            slot.in_flight = False
            slot.last_batch = batch
            self._absorb_rows(iteration, slot, batch, token_ids)
            self.journal.add(Absorbed(batch.iteration))

    def _absorb_rows(self, iteration: int, slot: Slot, batch: LaunchedBatch, token_ids: tuple[int, ...] | None) -> None:
        sampled = self.rows_of(batch, token_ids) if token_ids is not None else ()
        num_sampled, pieces = len(sampled), batch.forward.pieces
        for row, request in enumerate(batch.requests):
            request.num_inflight -= 1
            if request.state in TERMINAL:
                raise InvariantViolation(
                    "INV-59",
                    self.config.rank_id,
                    iteration,
                    slot.index,
                    request.rid,
                    f"it is {request.state.value} although the batch of iteration {batch.iteration} still contains it",
                )
            if request.to_abort:
                # Looked at first: a cancelled request delivers no further token (bugs.md B60).
                if not pieces[row].is_last_chunk:
                    request.inflight_middle_chunks -= 1
                request.on(Event.DISCARD)
                if self.may_end_now(request):
                    self._end_aborted(request)
                continue
            if not pieces[row].is_decode and self.is_middle_chunk(request):
                request.inflight_middle_chunks -= 1
                request.on(Event.MIDDLE_CHUNK)
                continue
            if row >= num_sampled:
                raise InvariantViolation(
                    "INV-45",
                    self.config.rank_id,
                    iteration,
                    slot.index,
                    request.rid,
                    "a skipped result would be appended",
                )
            self._append(request, sampled[row])

    def rows_of(self, batch: LaunchedBatch, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The sampled token of each row of a harvested batch, in the order of its requests."""
        return token_ids

    def is_middle_chunk(self, request: Request) -> bool:
        """Whether a harvested row belongs to a middle chunk, so that its token is to be discarded (protocol.md 4.4)."""
        return request.inflight_middle_chunks > 0

    def _append(self, request: Request, token: int) -> None:
        first, rid, output_ids = request.state is State.PREFILL, request.spec.rid, request.output_ids
        request.on(Event.FIRST_TOKEN if first else Event.TOKEN)
        output_ids.append(token)
        self.journal.add(Delivered(rid, len(output_ids), token))
        if self.role.takes_over(request):
            return
        reason = request.hits_stop()
        if reason:
            self.kv.finish(request)
            request.on(Event.FINISH)
            del self.requests[rid]
            self.journal.add(Ended(rid, Event.FINISH, by_token=True))
        elif first:
            self.kv.stash(request)
        self.journal.add(Reply(rid, "finished" if reason else "token", (token,), len(output_ids), reason))

    @agreed_call("INV-29", state=("fully_idle",))
    def on_idle(self) -> None:
        """End of a sweep without a batch: state resets, on all ranks in the same iteration (invariant 29)."""
        if self.fully_idle:
            self.ratio.reset()
            self.num_idle_resets += 1

    # --- records ---------------------------------------------------------------------------------------------

    @agreed_call("INV-41", "iteration", result=("result",))
    def harvest(self, iteration: int) -> Harvest:
        """The record of an iteration, when everything that it delivers or ends is known."""
        slot = self.slots.to_harvest(iteration)
        return self.journal.harvest(iteration, slot.index, self.kv.pool.free_tokens, self.kv.tree.evictable_tokens)

    def empty_decision(self, iteration: int, slot: Slot) -> Decision:
        """The record of a visit that runs nothing, for want of work (``ppsim.core.empty_visits``)."""
        return self._decision(iteration, slot, None, "")

    def _decision(self, iteration: int, slot: Slot, batch: LaunchedBatch | None, stall: str) -> Decision:
        pieces = () if batch is None else tuple([(p.rid, p.prefix_len, p.new_tokens) for p in batch.forward.pieces])
        mode = "empty" if batch is None else batch.forward.mode.value
        state = self._state(slot)
        if state != self._last_state:  # that of an idle rank stays as it is
            self._last_state, self._last_digest = state, digest(*state)
        entries, chunked = self.journal.entries, self.chunked
        retracted = tuple([e.rid for e in entries if isinstance(e, Retracted)]) if entries else ()
        chunked_rid = chunked.spec.rid if chunked is not None else None
        return Decision(iteration, slot.index, mode, pieces, retracted, chunked_rid, self._last_digest, stall)

    def _state(self, slot: Slot) -> tuple[object, ...]:
        """What the digest of a decision covers."""
        kv, tree, waiting, grammar, running = self.kv, self.kv.tree, self.waiting, self.grammar_queue, slot.running
        return (
            [r.spec.rid for r in waiting] if waiting else [],
            [r.spec.rid for r in grammar] if grammar else [],
            self.role.key(),
            [r.spec.rid for r in running] if running else [],
            slot.batch_is_full,
            kv.pool.free_tokens,
            tree.evictable_tokens,
            tree.clock,
            tree.num_nodes,
            len(kv.free_rows),
            self.ratio.key(),
        )


def names_of(requests: list[Request]) -> tuple[str, ...]:
    """Their ids, in order."""
    return tuple([r.spec.rid for r in requests]) if requests else ()


def causes(scheduler: Scheduler) -> tuple[tuple[str, str, object], ...]:
    """What an iteration did to requests before its batch was chosen: (invariant, name, value), earliest cause first.

    Ranks are compared by the values alone (``check/shown.py``): what is added to this function, or to the two below,
    is added there as well. A test holds the two against each other.
    """
    tiers, journal = scheduler.kv.tiers, scheduler.journal
    return (
        ("INV-28", "acks, hits and load-backs", () if tiers is None else tiers.tier_parts()),
        ("INV-57", "aborted requests", tuple([(found.rid, found.reason) for found in journal.of(AbortFound)])),
        ("INV-48", "failed requests", tuple([end.rid for end in journal.of(Ended) if end.failed])),
        ("INV-47", "advanced requests", tuple([moved.rid for moved in journal.of(Advanced)])),
        ("INV-43", "grammar queue", names_of(scheduler.grammar_queue)),
        ("INV-46", "queues of the role", scheduler.role.key()),
    )


def limits(scheduler: Scheduler, iteration: int) -> tuple[tuple[str, str, object], ...]:
    """What a decision was made from, where it differs before the batch does: (invariant, name, value)."""
    batch = scheduler.slots.current(iteration).launched
    admitted = () if batch is None else batch.requests
    return (
        ("INV-63", "features", (scheduler.kv.enable_radix_cache, bool(scheduler.config.chunk_table))),
        ("INV-21", "max_micro_batch_size", scheduler.config.max_micro_batch_size),
        ("INV-20", "chunk budget", scheduler.last_chunk_budget),
        ("INV-27", "matched prefixes", tuple([(r.rid, r.num_cached_tokens) for r in admitted])),
    )


def state_parts(scheduler: Scheduler, iteration: int) -> tuple[tuple[str, str, object], ...]:
    """Everything that must be the same on all ranks after a decision: (invariant, name, value)."""
    kv, slots = scheduler.kv, scheduler.slots.slots
    batch = scheduler.slots.current(iteration).launched
    requests = scheduler.requests.values()
    retracted = [r for r in requests if r.retraction_slot is not None]
    return (
        ("INV-12", "skip of a pure middle chunk", batch is not None and batch.forward.skip_output_comm),
        ("INV-13", "middle chunks in flight", tuple([(r.rid, n) for r in requests if (n := r.inflight_middle_chunks)])),
        ("INV-26", "evicted nodes", (kv.tree.num_evicted, kv.tree.victims_digest)),
        ("INV-23", "free tokens", kv.pool.free_tokens),
        ("INV-23", "evictable tokens", kv.tree.evictable_tokens),
        ("INV-25", "radix tree operations", (kv.tree.clock, kv.tree.num_nodes)),
        ("INV-24", "free rows and buffers", (len(kv.free_rows), scheduler.role.num_buffers)),
        ("INV-14", "waiting queue", names_of(scheduler.waiting)),
        ("INV-15", "running sets", tuple([names_of(slot.running) for slot in slots])),
        ("INV-16", "batch_is_full", tuple([slot.batch_is_full for slot in slots])),
        ("INV-29", "idle resets", scheduler.num_idle_resets),
        ("INV-17", "new_token_ratio", scheduler.ratio.key()),
        ("INV-53", "slots of retracted requests", tuple([(r.rid, r.retraction_slot) for r in retracted])),
    )


def planned_chunk(config: RankConfig, prefix_len: int) -> int:
    """Size of the next chunk after ``prefix_len`` tokens: from the replicated table, else the fixed size."""
    fixed = config.chunked_prefill_size
    assert fixed is not None
    row = bisect_right(config.chunk_table, prefix_len, key=lambda entry: entry[0]) - 1
    return (config.chunk_table[row][1] if row >= 0 else 0) or fixed
