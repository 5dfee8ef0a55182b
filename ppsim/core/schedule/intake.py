"""Inputs of an iteration: new requests, aborts, flushes, and grammars that became ready.

Everything here is driven by the replicated request list (or by an agreed conclusion), so it happens in the same
iteration on every rank. An abort finds its request wherever it is, ends it at once where no launched batch contains it,
and otherwise when the last such batch is harvested; unknown and finished requests are counted and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from ppsim.core.actions import Action, CancelCompile, Compile
from ppsim.core.agreed import Agreed
from ppsim.core.agreed_call import agreed_call
from ppsim.core.config import RankConfig
from ppsim.core.disagg.roles import Role
from ppsim.core.effects import Reply
from ppsim.core.memory.kv import KVCache
from ppsim.core.messages import AbortReq, FlushCache, Input, NewRequest
from ppsim.core.policy import Policy
from ppsim.core.schedule.admission import expected_output
from ppsim.core.schedule.foresight import RESERVE_TOKENS
from ppsim.core.schedule.journal import Advanced, Ended, Flushed, Journal, abort_found
from ppsim.core.schedule.ratio import NewTokenRatio
from ppsim.core.schedule.request import Event, Request, State
from ppsim.core.schedule.slots import SlotRing


class Intake:
    """All replicated state of a rank, and what inputs do to it. What it did is in the ``journal``.

    What is added here may keep a visit from being empty: ``core/empty_visits.py`` has the list.
    """

    def __init__(
        self, config: RankConfig, kv: KVCache, slots: SlotRing, policy: Policy, journal: Journal | None = None
    ) -> None:
        self.config = config
        self.policy = policy
        self.journal = journal or Journal()
        self.kv = kv
        self.slots = slots
        if kv.tiers is not None:
            kv.tiers.ask = self.ask
        self.ratio = NewTokenRatio(
            config.init_new_token_ratio, config.min_new_token_ratio, config.new_token_ratio_decay_steps
        )
        self.waiting: list[Request] = []
        self.chunked: Request | None = None
        self.requests: dict[str, Request] = {}  # everything that is not terminal, in order of arrival
        self.iteration = 0  # in which inputs are applied
        self.decode_turns = 0  # iterations of decode still owed after a prefill (prefill_decode_interval)
        self.num_chunks = 0  # of the chunked request in a row while others waited (max_consecutive_chunks)
        self.num_ignored_aborts = 0
        self.num_idle_resets = 0
        self.last_chunk_budget: int | None = None
        self.grammar_queue: list[Request] = []
        self.role: Role = Role(self)
        self._last_state: tuple[object, ...] = ()  # behind the latest decision, and its digest
        self._last_digest = ""
        self.refusals_left: dict[str, int] = {}  # by rid: how often its memory is still refused, on all ranks alike

    def ask(self, action: Action) -> None:
        """Ask something of the local environment; the loop hands it out."""
        self.journal.add(action)

    # --- inputs ----------------------------------------------------------------------------------------------

    @agreed_call("INV-01", "inputs")
    def apply(self, inputs: Iterable[Input]) -> None:
        """Process the replicated request list of an iteration, in order."""
        for item in inputs:
            match item:
                case NewRequest():
                    self._accept(Request(item, arrived=self.iteration, listeners=self.journal.listeners))
                case AbortReq():
                    self._abort(item)
                case FlushCache():
                    self._flush(item)

    def _accept(self, request: Request) -> None:
        request.spec = self.role.adapted(request.spec)
        problem = self._why_never(request)
        if problem:
            request.on(Event.REFUSE)
            self.journal.add(Reply(request.rid, "refused", reason=problem))
            self.role.refused(request)
            return
        self.requests[request.rid] = request
        self.kv.prefetch(request)
        if request.spec.grammar is not None:
            request.on(Event.COMPILE)
            self.grammar_queue.append(request)
            self.ask(Compile(request.rid, request.spec.grammar))
            return
        self.role.enqueue(request)

    # --- abort -----------------------------------------------------------------------------------------------

    def _abort(self, item: AbortReq) -> None:
        """Mark what the abort names; whoever is in no launched batch ends at once (protocol.md 7.4)."""
        found = self.named_by(item)
        if not found and not item.abort_all:
            self.num_ignored_aborts += 1  # unknown or finished: no reply, nothing changes (invariant 61)
        for request in found:
            self.journal.add(abort_found(request, item.reason, is_chunked=request is self.chunked))
            if not request.to_abort:
                request.to_abort = item.reason
            if request is self.chunked:
                self.chunked = None  # it launches no further chunk (invariant 60)
            if self.may_end_now(request):
                self._end_aborted(request)

    def named_by(self, item: AbortReq) -> list[Request]:
        """The requests that an abort finds: wherever they are, in whatever slot (bugs.md B65)."""
        return [r for r in self.requests.values() if item.abort_all or r.rid == item.rid]

    def may_end_now(self, request: Request) -> bool:
        """Whether a marked request gives its KV up now: no launched batch contains it (invariants 59, 64)."""
        return request.num_inflight == 0

    def _end_aborted(self, request: Request) -> None:
        """Leave every queue, give all KV back without caching it, and send the one terminal reply."""
        if request.state is State.GRAMMAR:
            self.grammar_queue = [r for r in self.grammar_queue if r is not request]
            self.ask(CancelCompile(request.rid))
        if request.state is State.WAITING:
            self.waiting = [r for r in self.waiting if r is not request]
        if not self.role.drains(request):
            self.end(request, Event.ABORT, request.to_abort)

    @agreed_call("INV-42", "request.rid", "event", "reason")
    def end(self, request: Request, event: Event, reason: str, *, insert: bool = False) -> None:
        """A request ends outside a harvest: KV back, one terminal reply."""
        self.kv.drop_fetch(request)
        if request.req_slot is not None:
            self.kv.finish(request, insert=insert)
        request.on(event)
        del self.requests[request.rid]
        self.journal.add(Ended(request.rid, event))
        if event is not Event.FINISH:
            self.role.tells_peer(request)
        status = "finished" if event is Event.FINISH else "aborted"
        self.journal.add(Reply(request.rid, status, num_output_tokens=len(request.output_ids), reason=reason))

    def _flush(self, item: FlushCache) -> None:
        """Empty the radix cache, but never under a batch in flight (bugs.md B45)."""
        if not self.fully_idle:
            self.journal.add(Reply(item.rid, "refused", reason="flush_cache: requests are waiting or in flight"))
            return
        self.kv.tree.reset()
        self.journal.add(Flushed(item.rid))

    @agreed_call("INV-43", "ready", "failed")
    def resolve_grammar(self, ready: Agreed[tuple[str, ...]], failed: Agreed[tuple[str, ...]]) -> None:
        """Move requests whose grammar is ready to the waiting queue, in queue order; failed ones end. Failed wins."""
        for request in list(self.grammar_queue):
            if request.rid in failed.value:
                self.grammar_queue.remove(request)
                self.end(request, Event.GRAMMAR_FAILED, "grammar failed to compile")
            elif request.rid in ready.value:
                self.grammar_queue.remove(request)
                self.journal.add(Advanced(request.rid))
                self.role.enqueue(request)

    def _why_never(self, request: Request) -> str:
        """Why this request could never run, even alone in an empty pool; empty if it could."""
        config, spec = self.config, request.spec
        if request.rid in self.requests:
            return f"a request with id {request.rid!r} is already here"
        if request.prompt_len == 0 or spec.max_new_tokens < 1:
            return f"nothing to do: {request.prompt_len} prompt tokens, max_new_tokens {spec.max_new_tokens}"
        total = request.prompt_len + spec.max_new_tokens
        if total > config.context_length:
            return (
                f"{request.prompt_len} prompt + {spec.max_new_tokens} new tokens exceed the context length of "
                f"{config.context_length}"
            )
        refusal = self.role.why_never(request)
        if refusal:
            return refusal
        capacity = self.kv.pool.capacity_tokens
        reserve = request.prompt_len + expected_output(config, spec.max_new_tokens) + config.page_size
        if reserve >= capacity or total - 1 > capacity:
            return (
                f"{request.prompt_len} prompt + {spec.max_new_tokens} new tokens + one page never fit the KV pool of "
                f"{capacity} tokens"
            )
        foreseen = spec.ignore_eos and not config.enable_radix_cache and not config.reserve_all_slots
        if foreseen and self.role.prefills:  # admission counts all of its output, not clipped (foresight.py)
            pages = self.kv.pool.pages_for(request.prompt_len)
            if capacity - pages * config.page_size - spec.max_new_tokens <= RESERVE_TOKENS:
                return (
                    f"{request.prompt_len} prompt + {spec.max_new_tokens} new tokens, which it makes all as it ignores "
                    f"the end of sequence, never fit the KV pool of {capacity} tokens"
                )
        return ""

    @property
    def fully_idle(self) -> bool:
        """No request anywhere and nothing in flight, also between the tiers (protocol.md section 9; bugs.md B45)."""
        return not self.requests and self.slots.drained and not self.kv.outstanding

    @property
    def waits_for_tiers(self) -> bool:
        """Copies are under way, and nothing else is that this rank could look at (a compile, a transfer)."""
        elsewhere = self.grammar_queue or any(self.role.queues().values())
        return bool(self.kv.outstanding) and not elsewhere and self.slots.drained

    @agreed_call("INV-28", "acks", "hits")
    def advance_tiers(self, acks: Agreed[tuple[int, int]], hits: Agreed[tuple[int, ...]]) -> None:
        """Consume acknowledgements of writes and loads, and end the fetches whose hit length is agreed."""
        assert self.kv.tiers is not None
        self.kv.tiers.take_acks(*acks.value)
        for rid in self.kv.end_fetches(list(hits.value)):
            self.journal.add(Advanced(rid))
