"""Bugs that let one request wait, or suffer, without a bound, alike on all ranks (INV-84, INV-85, INV-89)."""

from __future__ import annotations

from ppsim.core.policy import Policy
from ppsim.core.schedule.request import Request
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import Slot
from ppsim.core.surroundings import Surroundings
from ppsim.plugin import planted


class OftenestFirst(Policy):
    """Who was put out of memory before goes first again."""

    def retraction_order(self, running: list[Request]) -> list[Request]:
        return sorted(running, key=lambda r: r.num_retractions)


@planted("same_victim_again", breaks="INV-89", profile="retraction", source="outside report", beside=(OftenestFirst,))
class SameVictimAgain(Scheduler):
    """Beside others, who was put out of memory once counts as one too many for ever: it is put out as it comes back."""

    def _decode_fits(self, running: list[Request]) -> bool:
        distrusted = len(running) > 1 and any(r.num_retractions for r in running)
        return super()._decode_fits(running) and not distrusted


@planted("retracted_never_resumes", breaks="INV-84", profile="retraction", source="bugs.md B48 (its other half)")
class RetractedNeverResumes(Scheduler):
    """No slot prefills while who was put out of memory is first in line."""

    def may_prefill(self, slot: Slot) -> bool:
        return self.chunked is not None or not any(r.num_retractions for r in self.waiting[:1])


@planted("write_begins_hours_late", breaks="INV-85", profile="pair", source="sglang #37166")
class WriteBeginsHoursLate(Surroundings):
    """KV of a forward pass that ends in an odd millisecond is sent after 2.8 hours."""

    def write_begins_ns(self, room: int, rank: int, num_tokens: int, computed_ns: int) -> int:
        return computed_ns + (10**13 if computed_ns // 10**6 % 2 else 0)
