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
wrong on all ranks alike is wrong. Nearly always it is enough to count (``counted``); who stands where is written down
only where counting does not show that all is well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ppsim.check.observers import Seat, last_phase
from ppsim.core.errors import InvariantViolation
from ppsim.core.schedule.request import TERMINAL, Request, State
from ppsim.core.schedule.slots import LaunchedBatch

if TYPE_CHECKING:
    from ppsim.core.schedule.scheduler import Scheduler

Place: TypeAlias = tuple[str, int, int]
"""Kind of place, slot, iteration of a batch; -1 where a place has none."""

CHUNK, RUNNING, JOINING = "the chunk place", "the running set", "the harvested batch"
ROW, MIDDLE = "row", "middle chunk"  # of a launched batch; a row ends the prompt or decodes


class OnePlace:
    """One for each process."""

    def __init__(self) -> None:
        self.iterations: dict[int, int] = {}  # rank -> the iteration whose end has not been looked at

    def look(self, r: Seat, *_: object) -> None:
        """A decision or a harvest is made. Raises InvariantViolation for the first request that is misplaced."""
        iteration = self.iterations[r.rank_id] = r.rank.iteration
        self._judge(r, iteration)

    def look_back(self, r: Seat, _: object) -> None:
        """The first effect of an iteration: nothing has happened since the end of the one before."""
        iteration = r.rank.iteration
        before = self.iterations.get(r.rank_id, iteration)
        if before < iteration:
            self.iterations[r.rank_id] = iteration
            self._judge(r, before, last_phase(r))

    def _judge(self, r: Seat, iteration: int, phase: str = "") -> None:
        if counted(r.rank.scheduler):
            return
        wrong = misplaced(r.rank.scheduler)
        if wrong is not None:
            rid, text = wrong
            slot = iteration % len(r.rank.scheduler.slots)
            raise InvariantViolation("INV-80", r.rank_id, iteration, slot, rid, text, phase)


def counted(scheduler: Scheduler) -> bool:
    """Whether counting shows that ``misplaced`` finds nobody. False says nothing: then somebody has to look.

    Listed are all that stand in an owning place, and those of launched batches that are neither at home in their
    batch's slot nor being cut. If these are exactly the live requests, each of them once, everybody is in one place.
    """
    chunked, in_flight = scheduler.chunked, []
    found = [*scheduler.waiting, *scheduler.grammar_queue]
    for queue in scheduler.role.queues().values():
        if queue:
            found += queue
    if chunked is not None:
        found.append(chunked)
    for slot in scheduler.slots.slots:
        running, last = slot.running, slot.last_batch
        own = [q for q in running if q.state not in TERMINAL] if running else []
        if last is not None:
            own += joining(last, chunked)
        if own:
            found += own
        if slot.in_flight and slot.launched is not None:
            in_flight.append((slot.launched, own))
    for batch, own in in_flight:
        if own != [*batch.requests]:
            strangers = only_launched(in_flight, chunked)
            if strangers is None:
                return False
            found += strangers
            break
    live = scheduler.requests.values()
    return len(found) == len(live) and (not found or set(found) == set(live))


def only_launched(
    in_flight: list[tuple[LaunchedBatch, list[Request]]], chunked: Request | None
) -> list[Request] | None:
    """Of launched batches, each with those that are at home in its slot: who is there as a guest, each once.

    None: somebody must be looked at, being twice in a batch, in a last row while being cut, or in middle chunks alone.
    """
    rows, middles = list[Request](), dict[Request, None]()
    for batch, own in in_flight:
        requests, home = batch.requests, set(own)
        if len(set(requests)) < len(requests):
            return None
        for piece, request in zip(batch.forward.pieces, requests):
            if request in home:
                continue
            if request is chunked:
                if piece.is_last_chunk:
                    return None
            elif piece.is_last_chunk:
                rows.append(request)
            else:
                middles[request] = None
    alone = [q for q in middles if q not in rows] if middles else []
    return rows + alone if all(q.to_abort for q in alone) else None


def misplaced(scheduler: Scheduler) -> tuple[str, str] | None:
    """The first request that is not in exactly one place, and what is wrong with it; None if all are."""
    found, requests = places(scheduler), scheduler.requests
    for request, at in found.items():
        kind = at[0][0]
        if requests.get(request.rid) is not request and kind is not ROW and kind is not MIDDLE:
            text = f"it is {request.state.value} and no live request any more, and still stands in {words(at[0])}"
            return request.rid, text
    for request in requests.values():
        at = found.get(request, NOWHERE)
        if len(at) == 1 and at[0][0] is not MIDDLE:
            continue
        text = wrong_with(request, at)
        if text:
            return request.rid, f"{text}; a live request is in exactly one queue, slot, chunk place or batch"
    return None


def wrong_with(request: Request, at: list[Place]) -> str:
    """Why a live request is not in one place; empty if it is. Batches come behind all other places."""
    owners = [place for place in at if place[0] is not ROW and place[0] is not MIDDLE]
    batches = at[len(owners) :]
    rows = [place for place in batches if place[0] is ROW]
    if len(owners) > 1:
        return f"it stands in {words(owners[0])} and in {words(owners[1])}"
    if len(rows) > 1 or len({slot for _, slot, _ in batches}) < len(batches):
        first, second = sorted(rows if len(rows) > 1 else batches, key=lambda place: place[2])[:2]
        again = "another in " if first[2] == second[2] else "in "
        return f"it has a row in {words(first)} and {again}{words(second)}"
    if owners:
        kind, slot, _ = owners[0]
        beside = rows if kind is CHUNK else [place for place in batches if place[1] != slot]
        return f"it stands in {words(owners[0])} and in {words(beside[0])}" if beside else ""
    if rows or (batches and request.to_abort):
        return ""
    left = f"; only middle chunks of it are in flight, in {words(batches[0])}" if batches else ""
    known = f"{request.state.value}, KV of {request.kv_len} of {request.seq_len} tokens"
    return f"it is in no place ({known}{', marked for abort' if request.to_abort else ''}){left}"


def words(place: Place) -> str:
    kind, slot, iteration = place
    if iteration >= 0:
        return f"the launched batch of iteration {iteration} (slot {slot})"
    return kind if slot < 0 else f"{kind} of slot {slot}"


NOWHERE: list[Place] = []


def places(scheduler: Scheduler) -> dict[Request, list[Place]]:
    """Every request that stands anywhere, in a fixed order; of each the batches come last."""
    found: dict[Request, list[Place]] = {}
    queues = {"waiting": scheduler.waiting, "grammar": scheduler.grammar_queue, **scheduler.role.queues()}
    for name, queue in queues.items():
        if queue:
            place = (f"queue {name}", -1, -1)
            for request in queue:
                found.setdefault(request, []).append(place)
    chunked, slots = scheduler.chunked, scheduler.slots.slots
    if chunked is not None:
        found.setdefault(chunked, []).append((CHUNK, -1, -1))
    for slot in slots:
        if slot.running:
            place = (RUNNING, slot.index, -1)
            for request in slot.running:
                if request.state not in TERMINAL:  # who has ended is dropped at the next visit
                    found.setdefault(request, []).append(place)
        if slot.last_batch is not None:
            for request in joining(slot.last_batch, chunked):
                found.setdefault(request, []).append((JOINING, slot.index, -1))
    for slot in slots:
        batch = slot.launched
        if slot.in_flight and batch is not None:
            row, middle = (ROW, slot.index, batch.iteration), (MIDDLE, slot.index, batch.iteration)
            for piece, request in zip(batch.forward.pieces, batch.requests):
                found.setdefault(request, []).append(row if piece.is_last_chunk else middle)
    return found


def joining(last: LaunchedBatch, chunked: Request | None) -> list[Request]:
    """Requests of a harvested prefill batch that its slot's next visit takes into its running set."""
    if not last.is_extend:
        return []
    return [q for q in last.requests if q.state is State.DECODE and q is not chunked and q.rid != last.chunked_rid]
