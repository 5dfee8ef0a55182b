"""Bugs of abort handling and of time limits."""

from __future__ import annotations

from ppsim.core.hooks import Hooks
from ppsim.core.intake import Intake
from ppsim.core.request import Request
from ppsim.planted.registry import planted


@planted("free_at_abort", breaks="INV-59", profile="abort", source="bugs.md B68")
class FreeAtAbort(Hooks):
    """An aborted request gives its KV back at once, although a launched batch still contains it."""

    def may_end_now(self, request: Request) -> bool:
        return True


@planted("abort_reaches_two_slots", breaks="INV-60", profile="abort", source="bugs.md B65")
class AbortReachesTwoSlots(Hooks):
    """An abort looks only at the slot of this visit and the one before; requests of other slots run on."""

    def reaches(self, scheduler: Intake, request: Request) -> bool:
        visited = scheduler.iteration % len(scheduler.slots)
        near = (visited, (visited - 1) % len(scheduler.slots))
        decoding = [slot.index for slot in scheduler.slots.slots if request in slot.running]
        return not decoding or decoding[0] in near


@planted("timeouts_on_every_rank", breaks="INV-58", profile="abort", source="bugs.md B02")
class TimeoutsOnEveryRank(Hooks):
    """Every rank watches the running-time limit by its own clock."""

    def watches_timeouts(self, is_leader_of_all: bool) -> bool:
        return True
