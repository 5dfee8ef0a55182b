"""Bugs that are the same on all ranks: only a rule that looks at the fact finds them (INV-80 to INV-85)."""

from __future__ import annotations

from collections.abc import Callable

from ppsim.core import phases
from ppsim.core.effects import Act, Effects
from ppsim.core.hicache import HiRadixCache, Operation
from ppsim.core.hooks import Hooks
from ppsim.core.loop import Plan
from ppsim.core.rank import Rank
from ppsim.core.request import Request
from ppsim.core.scheduler import Scheduler
from ppsim.core.slots import Slot
from ppsim.core.tiers import agree_tiers, exchange, take_in
from ppsim.planted.plans import before, behind, does, instead, replaced
from ppsim.planted.registry import planted

# --- one place: INV-80 ---------------------------------------------------------------------------------------------


@planted("chunk_place_cleared", breaks="INV-80", profile="chunked", source="sglang-jax #1471, #984")
class ChunkPlaceCleared(Hooks):
    """When another request of the chunk's batch ends at the harvest, the pointer to the chunked request is cleared."""

    def plan(self, steps: Plan) -> Plan:
        return behind(steps, "harvest", does(clear_chunk_place))


def clear_chunk_place(rank: Rank) -> None:
    scheduler, result = rank.scheduler, rank.result
    batch = scheduler.slots.to_harvest(rank.iteration).launched
    if result is None or result.harvested is None or batch is None or not result.finished:
        return
    if scheduler.chunked is not None and scheduler.chunked in batch.requests:
        scheduler.chunked = None


@planted("parked_chunk_waits_too", breaks="INV-80", profile="retraction", source="vllm #21809 (the reverse of it)")
class ParkedChunkWaitsToo(Hooks):
    """A chunk that is parked for want of memory is put back into the queue, and stays in the chunk place."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.num_parked = 0

    def plan(self, steps: Plan) -> Plan:
        def put_back(rank: Rank) -> None:
            scheduler = rank.scheduler
            if scheduler.num_parked_chunks > self.num_parked and scheduler.chunked is not None:
                scheduler.waiting = [scheduler.chunked, *scheduler.waiting]
            self.num_parked = scheduler.num_parked_chunks

        return behind(steps, "schedule", does(put_back))


@planted("retracted_stays_in_its_slot", breaks="INV-80", profile="retraction", source="bugs.md B48 (its other half)")
class RetractedStaysInItsSlot(Hooks):
    """A retracted request waits again, and stays in the running set of its slot."""

    def plan(self, steps: Plan) -> Plan:
        return behind(steps, "schedule", does(stay_in_the_slot))


def stay_in_the_slot(rank: Rank) -> None:
    slot = rank.scheduler.slots.current(rank.iteration)
    slot.running += [q for q in rank.scheduler.waiting if q.num_retractions and q not in slot.running]


# --- cache tiers: INV-81, INV-82 -------------------------------------------------------------------------------------


@planted("acks_without_own_copy", breaks="INV-81", profile="hicache", source="bugs.md B07 (its other half)")
class AcksWithoutOwnCopy(Hooks):
    """Each rank consumes as many acks as the first rank has seen, and does not wait for the end of its own copies."""

    def plan(self, steps: Plan) -> Plan:
        def unwaited(rank: Rank) -> Effects[None]:
            tiers = rank.scheduler.kv.tiers
            if tiers is not None and tiers.outstanding:
                take_in(rank, tiers, (yield from exchange(rank, tiers)))

        unwaited.__name__ = agree_tiers.__name__
        return instead(steps, "agree_tiers", unwaited)


@planted("newest_ack_first", breaks="INV-81", profile="hicache", source="protocol.md 6.2, HiCache rows")
class NewestAckFirst(Hooks):
    """Of several writes under way the newest is taken for the one that is over, on all ranks alike."""

    def plan(self, steps: Plan) -> Plan:
        return before(steps, "agree_tiers", does(newest_first))


def newest_first(rank: Rank) -> None:
    tiers = rank.scheduler.kv.tiers
    if tiers is not None and len(tiers.writes) > 1 and not tiers.loads:
        tiers.writes.rotate(1)


@planted("host_pages_given_back_at_once", breaks="INV-82", profile="hicache", source="bugs.md I11, host tier")
class HostPagesGivenBackAtOnce(Hooks):
    """The host pages of a write are given back when it starts, on all ranks alike, and again at its ack."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.given: set[str] = set()

    def plan(self, steps: Plan) -> Plan:
        return behind(steps, "harvest", does(self.give_back))

    def give_back(self, rank: Rank) -> None:
        for tiers, op in writes_of(rank):
            if op.key not in self.given:
                self.given.add(op.key)
                tiers.host.release(op.host_pages)


@planted("host_pages_kept", breaks="INV-82", profile="hicache", source="bugs.md I11, host tier")
class HostPagesKept(Hooks):
    """A write holds its host pages once too often, on all ranks alike: they are never free again."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.kept: set[str] = set()

    def plan(self, steps: Plan) -> Plan:
        return behind(steps, "harvest", does(self.keep))

    def keep(self, rank: Rank) -> None:
        for tiers, op in writes_of(rank):
            if op.key not in self.kept:
                self.kept.add(op.key)
                tiers.host.share(op.host_pages)


def writes_of(rank: Rank) -> list[tuple[HiRadixCache, Operation]]:
    """The copies to host memory that are under way."""
    tiers = rank.scheduler.kv.tiers
    return [] if tiers is None else [(tiers, op) for op in tiers.writes]


@planted("loads_asked_for_late", breaks="INV-82", profile="hicache", source="protocol.md 6.2, HiCache rows")
class LoadsAskedForLate(Hooks):
    """The copy of a host hit is asked for an iteration late: the batch that stands on it reads what is not there."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.late: list[Act] = []

    def plan(self, steps: Plan) -> Plan:
        def ask_now(rank: Rank) -> Effects[None]:
            late, self.late = self.late, []
            yield from late

        def schedule(rank: Rank) -> Effects[None]:
            loop, answer = phases.schedule(rank), None
            while True:
                try:
                    effect = loop.send(answer)
                except StopIteration:
                    return
                answer = None
                if isinstance(effect, Act) and effect.what == "hicache_load":
                    self.late.append(effect)
                else:
                    answer = yield effect

        return before(instead(steps, "schedule", schedule), "apply_inputs", ask_now)


# --- bounds: INV-84, INV-85 ------------------------------------------------------------------------------------------


@planted("same_victim_again", breaks="INV-84", profile="retraction", source="outside report")
class SameVictimAgain(Hooks):
    """Beside others, who was put out of memory once counts as one too many for ever: it is put out as it comes back."""

    def plan(self, steps: Plan) -> Plan:
        return before(steps, "schedule", does(distrust_who_was_put_out))

    def retraction_order(self, running: list[Request]) -> list[Request]:
        return sorted(running, key=lambda r: r.num_retractions)


def distrust_who_was_put_out(rank: Rank) -> None:
    if rank.iteration == 0:
        replaced(rank.scheduler, "_decode_fits", fits_without_a_victim)


def fits_without_a_victim(fits: Callable[[list[Request]], bool], running: list[Request]) -> bool:
    return fits(running) and not (len(running) > 1 and any(r.num_retractions for r in running))


@planted("retracted_never_resumes", breaks="INV-84", profile="retraction", source="bugs.md B48 (its other half)")
class RetractedNeverResumes(Hooks):
    """No slot prefills while who was put out of memory is first in line."""

    def may_prefill(self, scheduler: Scheduler, slot: Slot) -> bool:
        return scheduler.chunked is not None or not any(r.num_retractions for r in scheduler.waiting[:1])


@planted("write_begins_hours_late", breaks="INV-85", profile="pair", source="sglang #37166")
class WriteBeginsHoursLate(Hooks):
    """KV of a forward pass that ends in an odd millisecond is sent after 2.8 hours."""

    def write_begins_ns(self, computed_ns: int) -> int:
        return computed_ns + (10**13 if computed_ns // 10**6 % 2 else 0)


# --- in step, with every live request in one place: INV-15 -----------------------------------------------------------


@planted("ended_rows_dropped_at_harvest", breaks="INV-15", profile="plain", source="protocol.md 4.4")
class EndedRowsDroppedAtHarvest(Hooks):
    """Later ranks take who has ended out of an open slot at the harvest, the first rank at the slot's next decode."""

    def plan(self, steps: Plan) -> Plan:
        return behind(steps, "harvest", does(drop_ended))


def drop_ended(rank: Rank) -> None:
    if not rank.config.is_first:
        for slot in rank.scheduler.slots.slots:
            if not slot.batch_is_full:  # else its flag would not fall, which is another rule's matter
                slot.running = [q for q in slot.running if not q.is_terminal]
