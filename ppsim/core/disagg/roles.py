"""What differs between a plain server and the two sides of prefill-decode disaggregation: queues around the scheduler.

    plain     arrived -> waiting -> slots
    prefill   arrived -> bootstrap -> waiting -> slots -> inflight -> released      (disagg/prefill.py)
    decode    arrived -> prealloc -> transfer -> waiting -> slots, retracted queue  (disagg/decode.py)

The batch rules stay in ``scheduler.py``, once. A role only says where a request goes before and after.
"""

from __future__ import annotations

from typing import Protocol

from ppsim.core.messages import NewRequest
from ppsim.core.schedule.request import Event, Request, State
from ppsim.core.schedule.slots import Slot


class Owner(Protocol):
    """What a plain server's role needs of the scheduler that it belongs to."""

    waiting: list[Request]


class Role:
    """The plain server."""

    prefills = True  # builds prefill batches
    num_buffers = total_buffers = 0  # metadata buffers: free ones, all of them
    clears_full_flag = False  # batch_is_full falls at every visit (as the PD loops do)
    defers_prefill = True  # prefill_decode_interval is looked at (the PD loops never do)

    def __init__(self, scheduler: Owner) -> None:
        self.scheduler: Owner = scheduler

    def enqueue(self, request: Request) -> None:
        """An accepted request (its grammar, if any, is ready) enters its first queue."""
        request.on(Event.GRAMMAR_READY if request.state is State.GRAMMAR else Event.ACCEPT)
        self.scheduler.waiting.append(request)

    def adapted(self, spec: NewRequest) -> NewRequest:
        """The request as this role serves it."""
        return spec

    def why_never(self, request: Request) -> str:
        """A reason of this role why a request could never run."""
        return ""

    def drains(self, request: Request) -> bool:
        """An aborted request leaves the queues of this role; True if it may end only when a transfer is over."""
        return False

    def tells_peer(self, request: Request) -> None:
        """A request ended here before its time, or waits for its transfer to drain: the other side must know."""

    def refused(self, request: Request) -> None:
        """A request was refused at its arrival; the other side may wait for it (bugs.md B40)."""

    def before_schedule(self, slot: Slot) -> None:
        """Before the batch of a slot is chosen."""

    def chunk_done(self, request: Request) -> None:
        """The chunked request's last launched chunk was put into the cache."""

    def takes_over(self, request: Request) -> bool:
        """A token was appended; True if the role, not the decode set, owns the request from here on."""
        return False

    def retracted(self, request: Request) -> None:
        """Where a retracted request waits."""
        request.on(Event.RETRACT)
        self.scheduler.waiting.append(request)

    def queues(self) -> dict[str, list[Request]]:
        """Queues of this role by name, for dumps and checks."""
        return {}

    def key(self) -> tuple[tuple[str, ...], ...]:
        """Canonical content for digests: the rids of every queue in order (invariant 46)."""
        queues = self.queues()
        return tuple([tuple([r.spec.rid for r in q]) if q else () for q in queues.values()]) if queues else ()
