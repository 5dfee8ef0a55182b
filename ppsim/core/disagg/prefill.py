"""Prefill side of disaggregation (protocol.md 4.6, 6.5).

    bootstrap   the decode side has not given the request a place yet; leaves by an agreed conclusion
    waiting     scheduled like any other; max_new_tokens counts as 1; KV of finished chunks is sent at once. What fails
                on the other side meanwhile leaves by the release vote ("failed somewhere"): it has sent nothing yet
    inflight    the last chunk is harvested, its KV is being sent; leaves by the release vote ("terminal everywhere")

KV is given back only when the transfer is terminal on every rank: an aborted request whose chunks are on their way
drains in the inflight queue first (invariant 52).
"""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.actions import AbortSender, Admitted, Bootstrap, Refused, SendChunk, SendLast
from ppsim.core.agreed import Agreed
from ppsim.core.agreed_call import agreed_call
from ppsim.core.consensus import Rids
from ppsim.core.disagg.roles import Role
from ppsim.core.effects import Reply
from ppsim.core.messages import NewRequest
from ppsim.core.schedule.intake import Intake
from ppsim.core.schedule.journal import Advanced, Ended
from ppsim.core.schedule.request import Event, Request, State
from ppsim.core.schedule.slots import Slot

MAX_LOOKS = 64  # waiting requests that one vote looks at


class PrefillRole(Role):
    """Queues of a prefill server. ``num_buffers`` counts the metadata buffers of protocol.md 6.5."""

    clears_full_flag = True
    defers_prefill = False

    scheduler: Intake

    def __init__(self, scheduler: Intake) -> None:
        super().__init__(scheduler)
        self.bootstrap: list[Request] = []
        self.inflight: list[Request] = []
        self.just_computed: list[Request] = []  # in this iteration: what they send has not been asked for yet
        self.num_buffers = self.total_buffers = 2 * scheduler.config.max_running_requests

    def queues(self) -> dict[str, list[Request]]:
        return {"bootstrap": self.bootstrap, "inflight": self.inflight}

    def adapted(self, spec: NewRequest) -> NewRequest:
        """A prefill server computes the prompt and one token."""
        return replace(spec, max_new_tokens=1)

    def enqueue(self, request: Request) -> None:
        request.on(Event.BOOTSTRAP)
        self.bootstrap.append(request)
        self.scheduler.ask(Bootstrap(request.rid, request.spec.room))

    @agreed_call("INV-47", "good", "bad")
    def apply_bootstrap(self, good: Agreed[Rids], bad: Agreed[Rids]) -> None:
        """Admit or fail, in queue order; bad wins. A request without a free metadata buffer stays."""
        for request in list(self.bootstrap):
            if request.rid in bad.value:
                self.bootstrap.remove(request)
                self.scheduler.end(request, Event.FAIL, "the handshake with the decode side failed")
            elif request.rid in good.value and self.num_buffers:
                self.num_buffers -= 1
                self.bootstrap.remove(request)
                request.on(Event.BOOTSTRAPPED)
                self.scheduler.journal.add(Advanced(request.rid))
                self.scheduler.waiting.append(request)
                self.scheduler.ask(Admitted(request.rid))

    def before_schedule(self, slot: Slot) -> None:
        self.just_computed = []

    def chunk_done(self, request: Request) -> None:
        """Send the finished whole pages of a chunk, in the iteration that schedules the next one."""
        page = self.scheduler.config.page_size
        whole = request.kv_len // page * page
        if whole > request.sent_len:
            self.scheduler.ask(SendChunk(request.rid, request.sent_len, whole))
            request.sent_len = whole

    def takes_over(self, request: Request) -> bool:
        """The prompt is computed: send what is left with the first token, and wait for the release vote."""
        scheduler = self.scheduler
        scheduler.kv.stash(request)
        scheduler.ask(SendLast(request.rid, request.sent_len, request.kv_len))
        request.sent_len = request.kv_len
        request.on(Event.COMPUTED)
        self.inflight.append(request)
        self.just_computed.append(request)
        return True

    def in_turn(self, iteration: int) -> list[Request]:
        """Waiting requests whose transfers the vote of an iteration looks at: all, of a long queue a part in turn."""
        waiting = self.scheduler.waiting
        num_parts = -(-len(waiting) // MAX_LOOKS) or 1
        start = iteration % num_parts * MAX_LOOKS
        return waiting[start : start + MAX_LOOKS]

    @agreed_call("INV-47", "good", "bad")
    def apply_release(self, good: Agreed[Rids], bad: Agreed[Rids]) -> None:
        """Give KV back for what is terminal everywhere; what failed anywhere is a failure everywhere.

        Who still waits for its turn has sent nothing, so it need not be terminal everywhere to leave. Whose turn has
        come since the vote, and is over in this very iteration, is left to the next vote.
        """
        scheduler = self.scheduler
        for request in [r for r in scheduler.waiting if r.rid in bad.value]:
            scheduler.waiting = [r for r in scheduler.waiting if r is not request]
            self.num_buffers += 1
            scheduler.end(request, Event.FAIL, "it failed on the decode side before its turn came")
        for request in list(self.inflight):
            if request.rid not in good.value or request in self.just_computed:
                continue
            self.inflight.remove(request)
            self.num_buffers += 1
            if request.to_abort:
                scheduler.end(request, Event.ABORT, request.to_abort)
            elif request.rid in bad.value:
                scheduler.end(request, Event.FAIL, "the KV transfer to the decode side failed", insert=True)
            else:
                self._finish(request)

    def _finish(self, request: Request) -> None:
        scheduler = self.scheduler
        scheduler.kv.finish(request)
        request.on(Event.FINISH)
        scheduler.journal.add(Advanced(request.rid))
        del scheduler.requests[request.rid]
        scheduler.journal.add(Ended(request.rid, Event.FINISH))
        scheduler.journal.add(
            Reply(request.rid, "finished", (request.output_ids[-1],), len(request.output_ids), "transferred")
        )

    def drains(self, request: Request) -> bool:
        if request.state is State.INFLIGHT or (request.state is State.PREFILL and request.sent_len):
            self.tells_peer(request)
            if request.state is State.PREFILL:
                request.on(Event.DRAIN)
                self.inflight.append(request)
            return True
        if request.state is State.BOOTSTRAP:
            self.bootstrap.remove(request)
        elif request.state is not State.GRAMMAR:  # those two hold no buffer yet
            self.num_buffers += 1
        return False

    def tells_peer(self, request: Request) -> None:
        self.scheduler.ask(AbortSender(request.rid, request.spec.room))

    def refused(self, request: Request) -> None:
        self.scheduler.ask(Refused(request.rid, request.spec.room))
