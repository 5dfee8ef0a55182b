"""INV-80: a live request is in exactly one place. Looked at in the containers themselves, not in states or counters.

    queue            waiting, grammar, those of the role
    chunk place      the prompt that is being cut
    running set      of one slot
    harvested batch  of one slot, whose requests join its running set at the next visit
    batch            launched and not harvested: its row ends the prompt, or is a decode row

The launched batch goes with the place from which it was made: a running set may have its own slot's batch in flight,
and the chunk place any number of middle chunks, one a batch. A marked request (abort) may be in middle chunks alone: it
ends with the last of them. Who has ended may be left in a running set, which drops it at its next visit, and nowhere
else.

The rule looks after each decision, after each harvest and at the end of each iteration, at each rank alone: what is
wrong on all ranks alike is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ppsim.check.observers import Seat
from ppsim.core.errors import InvariantViolation
from ppsim.core.request import Request, State
from ppsim.core.slots import Slot

if TYPE_CHECKING:
    from ppsim.core.scheduler import Scheduler

CHUNK_PLACE = "the chunk place"


@dataclass(slots=True)
class Found:
    """Where one request was found. ``owners``: (place, its slot or -1); a batch is (slot, iteration)."""

    owners: list[tuple[str, int]] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)  # batches that end its prompt, or decode it
    middles: list[tuple[int, int]] = field(default_factory=list)  # batches of which it is a middle chunk


class OnePlace:
    """One for each process."""

    def __init__(self) -> None:
        self.iterations: dict[int, int] = {}  # rank -> the iteration whose end has not been looked at

    def look(self, r: Seat) -> None:
        """A decision or a harvest is made. Raises InvariantViolation for the first request that is misplaced."""
        self.iterations[r.rank_id] = r.rank.iteration
        self._judge(r, r.rank.iteration)

    def look_back(self, r: Seat) -> None:
        """The first effect of an iteration: nothing has happened since the end of the one before."""
        before = self.iterations.get(r.rank_id, r.rank.iteration)
        if before < r.rank.iteration:
            self.iterations[r.rank_id] = r.rank.iteration
            self._judge(r, before)

    def _judge(self, r: Seat, iteration: int) -> None:
        wrong = misplaced(r.rank.scheduler)
        if wrong is not None:
            rid, text = wrong
            slot = iteration % len(r.rank.scheduler.slots)
            raise InvariantViolation("INV-80", r.rank_id, iteration, slot, rid, text)


def misplaced(scheduler: Scheduler) -> tuple[str, str] | None:
    """The first request that is not in exactly one place, and what is wrong with it; None if all are."""
    found = places(scheduler)
    for request, at in found.items():
        if at.owners and scheduler.requests.get(request.rid) is not request:
            text = f"it is {request.state.value} and no live request any more, and still stands in {at.owners[0][0]}"
            return request.rid, text
    for request in scheduler.requests.values():
        text = wrong_with(request, found.get(request) or Found())
        if text:
            return request.rid, f"{text}; a live request is in exactly one queue, slot, chunk place or batch"
    return None


def wrong_with(request: Request, at: Found) -> str:
    """Why a live request is not in one place; empty if it is."""
    if len(at.owners) > 1:
        return f"it stands in {at.owners[0][0]} and in {at.owners[1][0]}"
    batches = [*at.rows, *at.middles]
    if len(at.rows) > 1 or len({slot for slot, _ in batches}) < len(batches):
        first, second = sorted(at.rows if len(at.rows) > 1 else batches)[:2]
        return f"it has a row in {batch(*first)} and {'another ' if first == second else ''}in {batch(*second)}"
    if at.owners:
        place, slot = at.owners[0]
        beside = at.rows if place == CHUNK_PLACE else [b for b in batches if b[0] != slot]
        return f"it stands in {place} and in {batch(*beside[0])}" if beside else ""
    if at.rows or (at.middles and request.to_abort):
        return ""
    left = f"; only middle chunks of it are in flight, in {batch(*at.middles[0])}" if at.middles else ""
    known = f"{request.state.value}, KV of {request.kv_len} of {request.seq_len} tokens"
    return f"it is in no place ({known}{', marked for abort' if request.to_abort else ''}){left}"


def batch(slot: int, iteration: int) -> str:
    return f"the launched batch of iteration {iteration} (slot {slot})"


def places(scheduler: Scheduler) -> dict[Request, Found]:
    """Every request that stands anywhere, in a fixed order."""
    found: dict[Request, Found] = {}
    queues = {"waiting": scheduler.waiting, "grammar": scheduler.grammar_queue, **scheduler.role.queues()}
    for name, queue in queues.items():
        for request in queue:
            found.setdefault(request, Found()).owners.append((f"queue {name}", -1))
    chunked = scheduler.chunked
    if chunked is not None:
        found.setdefault(chunked, Found()).owners.append((CHUNK_PLACE, -1))
    for slot in scheduler.slots.slots:
        for request in slot.running:
            if not request.is_terminal:  # who has ended is dropped at the next visit
                found.setdefault(request, Found()).owners.append((f"the running set of slot {slot.index}", slot.index))
        for request in joining(slot, chunked):
            place = f"the harvested batch of slot {slot.index}"
            found.setdefault(request, Found()).owners.append((place, slot.index))
        if slot.in_flight and slot.launched is not None:
            where = (slot.index, slot.launched.iteration)
            for piece, request in zip(slot.launched.forward.pieces, slot.launched.requests, strict=True):
                at = found.setdefault(request, Found())
                (at.rows if piece.is_last_chunk else at.middles).append(where)
    return found


def joining(slot: Slot, chunked: Request | None) -> Iterator[Request]:
    """Requests of a harvested prefill batch that the slot's next visit takes into its running set."""
    last = slot.last_batch
    if last is None or not last.is_extend:
        return
    for request in last.requests:
        if request.state is State.DECODE and request is not chunked and request.rid != last.chunked_rid:
            yield request
