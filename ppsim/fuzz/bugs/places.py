"""Bugs that leave a request in two places, or in none, alike on all ranks (INV-80), or in step otherwise (INV-15)."""

from __future__ import annotations

from ppsim.core.loop import Loop
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.journal import ChunkParked, Ended
from ppsim.plugin import planted
from ppsim.plugin.plans import behind, does


@planted("chunk_place_cleared", breaks="INV-80", profile="chunked", source="sglang-jax #1471, #984")
class ChunkPlaceCleared(Loop):
    """When another request of the chunk's batch ends at the harvest, the pointer to the chunked request is cleared."""

    def plan(self) -> Plan:
        return behind(super().plan(), "harvest", does(clear_chunk_place))


def clear_chunk_place(rank: Rank) -> None:
    scheduler = rank.scheduler
    batch = scheduler.slots.to_harvest(rank.iteration).last_batch
    if batch is None or not rank.journal.of(Ended):
        return
    if scheduler.chunked is not None and scheduler.chunked in batch.requests:
        scheduler.chunked = None


@planted("parked_chunk_waits_too", breaks="INV-80", profile="chunked", source="vllm #21809 (the reverse of it)")
class ParkedChunkWaitsToo(Loop):
    """A chunk that is parked for want of memory is put back into the queue, and stays in the chunk place."""

    def plan(self) -> Plan:
        return behind(super().plan(), "schedule", does(put_back))


def put_back(rank: Rank) -> None:
    scheduler = rank.scheduler
    if rank.journal.of(ChunkParked) and scheduler.chunked is not None:
        scheduler.waiting = [scheduler.chunked, *scheduler.waiting]


@planted("retracted_stays_in_its_slot", breaks="INV-80", profile="retraction", source="bugs.md B48 (its other half)")
class RetractedStaysInItsSlot(Loop):
    """A retracted request waits again, and stays in the running set of its slot."""

    def plan(self) -> Plan:
        return behind(super().plan(), "schedule", does(stay_in_the_slot))


def stay_in_the_slot(rank: Rank) -> None:
    slot = rank.scheduler.slots.current(rank.iteration)
    slot.running += [q for q in rank.scheduler.waiting if q.num_retractions and q not in slot.running]


@planted("ended_rows_dropped_at_harvest", breaks="INV-15", profile="plain", source="protocol.md 4.4")
class EndedRowsDroppedAtHarvest(Loop):
    """Later ranks take who has ended out of an open slot at the harvest, the first rank at the slot's next decode."""

    def plan(self) -> Plan:
        return behind(super().plan(), "harvest", does(drop_ended))


def drop_ended(rank: Rank) -> None:
    if not rank.config.is_first:
        for slot in rank.scheduler.slots.slots:
            if not slot.batch_is_full:  # else its flag would not fall, which is another rule's matter
                slot.running = [q for q in slot.running if not q.is_terminal]
