"""Bugs of abort handling and of time limits."""

from __future__ import annotations

from ppsim.core.loop import Loop
from ppsim.core.messages import AbortReq
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import Request
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.plugin import planted
from ppsim.plugin.plans import before, does


@planted("free_at_abort", breaks="INV-59", profile="abort", source="bugs.md B68")
class FreeAtAbort(Scheduler):
    """An aborted request gives its KV back at once, although a launched batch still contains it."""

    def may_end_now(self, request: Request) -> bool:
        return True


@planted("abort_reaches_two_slots", breaks="INV-60", profile="abort", source="bugs.md B65")
class AbortReachesTwoSlots(Scheduler):
    """An abort looks only at the slot of this visit and the one before; requests of other slots run on."""

    def named_by(self, item: AbortReq) -> list[Request]:
        visited = self.iteration % len(self.slots)
        near = (visited, (visited - 1) % len(self.slots))
        far = [r for slot in self.slots.slots if slot.index not in near for r in slot.running]
        return [request for request in super().named_by(item) if request not in far]


@planted("timeouts_on_every_rank", breaks="INV-58", profile="abort", source="bugs.md B02")
class TimeoutsOnEveryRank(Rank):
    """Every rank watches the running-time limit by its own clock."""

    @property
    def watches_timeouts(self) -> bool:
        return True


@planted("limit_counts_the_queue", breaks="INV-88", profile="abort", source="protocol.md 7.3")
class LimitCountsTheQueue(Loop):
    """The time in the queue counts for the limit on running: who runs at last is ended at once."""

    def plan(self) -> Plan:
        return before(super().plan(), "ingest_inputs", does(count_the_queue))


def count_the_queue(rank: Rank) -> None:
    rank.runs_since_ms = {**rank.waits_since_ms, **rank.runs_since_ms}
