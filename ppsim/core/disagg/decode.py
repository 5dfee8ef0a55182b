"""Decode side of disaggregation (protocol.md 4.7, 6.6).

    prealloc    a receiver exists; KV is allocated in queue order by the agreed conclusion, the first misfit stops it
    transfer    KV is being received; leaves by the vote "terminal everywhere" with the first token
    waiting     joins the running set of the slot that is visited next
    retracted   put out of memory; resumes before anything new is allocated, bound to one slot's votes

A conclusion names what failed as well: in the released engine a failed transfer is dropped from what is passed on, and
the later ranks keep its KV for ever (protocol.md 6.3).
"""

from __future__ import annotations

from ppsim.core.actions import AbortReceiver, Handshake, HandshakeAgreed, Refused, SendMetadata
from ppsim.core.agreed import Agreed
from ppsim.core.agreed_call import agreed_call
from ppsim.core.consensus import Rids
from ppsim.core.disagg.roles import Role
from ppsim.core.effects import Reply
from ppsim.core.schedule.intake import Intake
from ppsim.core.schedule.journal import Advanced, Delivered, Ended, NotTaken, Why
from ppsim.core.schedule.request import Event, Request, State
from ppsim.core.schedule.slots import Slot


class DecodeRole(Role):
    """Queues of a decode server."""

    prefills = False
    clears_full_flag = True

    scheduler: Intake

    def __init__(self, scheduler: Intake) -> None:
        super().__init__(scheduler)
        self.prealloc: list[Request] = []
        self.transfer: list[Request] = []
        self.put_out: list[Request] = []  # the retracted queue

    def queues(self) -> dict[str, list[Request]]:
        return {"prealloc": self.prealloc, "transfer": self.transfer, "retracted": self.put_out}

    def enqueue(self, request: Request) -> None:
        request.on(Event.PREALLOC)
        self.prealloc.append(request)
        self.scheduler.ask(Handshake(request.rid, request.spec.room))

    def why_never(self, request: Request) -> str:
        need = request.prompt_len + self.scheduler.config.num_reserved_decode_tokens
        capacity = self.scheduler.kv.pool.capacity_tokens
        if need <= capacity:
            return ""
        return f"{request.prompt_len} prompt tokens + the decode reserve never fit the KV pool of {capacity} tokens"

    # --- prealloc --------------------------------------------------------------------------------------------

    @agreed_call("INV-47", "good", "bad")
    def apply_prealloc(self, good: Agreed[Rids], bad: Agreed[Rids], slot: Slot) -> None:
        """Fail what failed anywhere; allocate in queue order until the first misfit. Retracted requests go first."""
        for request in list(self.prealloc):
            if request.rid in bad.value:
                self.prealloc.remove(request)
                self.scheduler.end(request, Event.FAIL, "the handshake with the prefill side failed")
            elif request.rid in good.value and not request.handshake_agreed:
                request.handshake_agreed = True
                self.scheduler.ask(HandshakeAgreed(request.rid))
        if self.put_out:
            return
        for request in list(self.prealloc):
            if request.rid not in good.value:
                continue
            if not self._fits(request, slot):
                self.scheduler.journal.add(NotTaken(request.rid, Why.NO_ROOM))
                break  # head-of-line blocking, as the engine does
            self._allocate(request)

    def _allocate(self, request: Request) -> None:
        scheduler = self.scheduler
        self.prealloc.remove(request)
        scheduler.kv.take_row(request)
        scheduler.kv.grow(request, request.prompt_len)
        request.on(Event.ALLOCATED)
        scheduler.journal.add(Advanced(request.rid))
        self.transfer.append(request)
        scheduler.ask(SendMetadata(request.rid))

    def _fits(self, request: Request, slot: Slot) -> bool:
        """max(fill + reserve, prompt + expected output - retractable) <= what is free after all reserves (6.6)."""
        scheduler, config = self.scheduler, self.scheduler.config
        kv = scheduler.kv
        if not kv.free_rows:
            return False
        reserve = config.num_reserved_decode_tokens
        running = [r for r in slot.running if r.state is State.DECODE]
        retractable = sum(r.kv_len for r in running)
        holding = running + self.transfer + scheduler.waiting
        largest = max((min(r.spec.max_new_tokens, config.clip_max_new_tokens) for r in holding), default=0)
        allocatable = kv.available_tokens - max(reserve * len(holding), largest - retractable)
        expected = request.prompt_len + min(request.spec.max_new_tokens, config.clip_max_new_tokens) - retractable
        alone = not holding
        need = request.prompt_len + config.page_size if alone else max(request.prompt_len + reserve, expected)
        return need <= allocatable and kv.can_grow(request, request.prompt_len + 1)

    # --- transfer --------------------------------------------------------------------------------------------

    @agreed_call("INV-47", "good", "bad")
    def apply_transferred(self, good: Agreed[Rids], bad: Agreed[Rids], first_tokens: Agreed[dict[str, int]]) -> None:
        """Commit what is terminal everywhere: the first token came with the metadata; failures give their KV back."""
        for request in list(self.transfer):
            if request.rid not in good.value:
                continue
            self.transfer.remove(request)
            if request.to_abort:
                self.scheduler.end(request, Event.ABORT, request.to_abort)
            elif request.rid in bad.value:
                self.scheduler.end(request, Event.FAIL, "the KV transfer from the prefill side failed")
            else:
                self._commit(request, first_tokens.value[request.rid])

    def _commit(self, request: Request, token: int) -> None:
        scheduler = self.scheduler
        request.on(Event.TRANSFERRED)
        scheduler.journal.add(Advanced(request.rid))
        request.output_ids.append(token)
        scheduler.journal.add(Delivered(request.rid, len(request.output_ids), token))
        reason = request.hits_stop()
        if reason:
            scheduler.kv.finish(request, insert=False)
            request.on(Event.FINISH)
            del scheduler.requests[request.rid]
            scheduler.journal.add(Ended(request.rid, Event.FINISH))
        else:
            scheduler.waiting.append(request)
        status = "finished" if reason else "token"
        scheduler.journal.add(Reply(request.rid, status, (token,), len(request.output_ids), reason))

    # --- slots -----------------------------------------------------------------------------------------------

    def before_schedule(self, slot: Slot) -> None:
        """All waiting requests join the slot that is visited now (protocol.md 4.7).

        The engine's limit, max_running_requests in a slot, holds by itself: who waits here has had its row of the
        request table since its KV was allocated, who decodes has one too, and that is how many rows there are.
        """
        for request in self.scheduler.waiting:
            request.on(Event.JOIN)
        slot.running += self.scheduler.waiting
        self.scheduler.waiting = []

    # --- retraction ------------------------------------------------------------------------------------------

    def retracted(self, request: Request) -> None:
        request.on(Event.PUT_OUT)
        request.retraction_slot = None
        self.put_out.append(request)

    def bind_retracted(self, slot: Slot) -> Rids:
        """Bind unbound retracted requests to this slot; the ones bound to it are this vote's set (invariant 53)."""
        for request in self.put_out:
            if request.retraction_slot is None:
                request.retraction_slot = slot.index
        return tuple(r.rid for r in self.put_out if r.retraction_slot == slot.index)

    @agreed_call("INV-47", "good")
    def apply_retract(self, good: Agreed[Rids]) -> None:
        """Resume in queue order; the first misfit stops it."""
        scheduler = self.scheduler
        for request in list(self.put_out):
            if request.rid not in good.value:
                continue
            if not scheduler.kv.free_rows or not scheduler.kv.can_grow(request, request.seq_len):
                break
            self.put_out.remove(request)
            scheduler.kv.take_row(request)
            scheduler.kv.grow(request, request.seq_len - 1)
            request.on(Event.RESUME)
            scheduler.journal.add(Advanced(request.rid))
            scheduler.waiting.append(request)

    # --- abort -----------------------------------------------------------------------------------------------

    def drains(self, request: Request) -> bool:
        if request.state is State.TRANSFER:
            self.tells_peer(request)
            return True
        if request.state is State.PREALLOC:
            self.prealloc.remove(request)
        if request.state is State.RETRACTED:
            self.put_out.remove(request)
        return False

    def tells_peer(self, request: Request) -> None:
        self.scheduler.ask(AbortReceiver(request.rid, request.spec.room))

    def refused(self, request: Request) -> None:
        self.scheduler.ask(Refused(request.rid, request.spec.room))
