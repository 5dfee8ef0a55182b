"""What every rank shows in every iteration, as bare values: ``causes``, ``limits``, ``state_parts`` of the scheduler.

Rule: value by value the same as there, without the invariant and the name that go with each: these are looked up
(``scheduler.py`` has them) only where two ranks differ. Nearly all iterations do little, so what nobody has done costs
no list here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from ppsim.core.messages import Input
from ppsim.core.schedule.journal import AbortFound, Advanced, Ended, Entry

if TYPE_CHECKING:
    from ppsim.core.schedule.request import Request
    from ppsim.core.schedule.scheduler import Scheduler

Values: TypeAlias = tuple[object, ...]


def behind_inputs(scheduler: Scheduler, inputs: Sequence[Input], iteration: int) -> Values:
    """The request list, what it and conclusions did to requests, and what the batch was chosen from."""
    batch = scheduler.slots.current(iteration).launched
    config, tiers = scheduler.config, scheduler.kv.tiers
    return (
        tuple([str(item) for item in inputs]) if inputs else (),
        () if tiers is None else tiers.tier_parts(),
        *done_to(scheduler.journal.entries),
        ids(scheduler.grammar_queue) if scheduler.grammar_queue else (),
        scheduler.role.key(),
        (scheduler.kv.enable_radix_cache, bool(config.chunk_table)),
        config.max_micro_batch_size,
        scheduler.last_chunk_budget,
        () if batch is None else tuple([(q.spec.rid, q.num_cached_tokens) for q in batch.requests]),
    )


def behind_harvest(scheduler: Scheduler) -> Values:
    """What the whole iteration did to requests."""
    tiers = scheduler.kv.tiers
    return (
        () if tiers is None else tiers.tier_parts(),
        *done_to(scheduler.journal.entries),
        ids(scheduler.grammar_queue) if scheduler.grammar_queue else (),
        scheduler.role.key(),
    )


def behind_decision(scheduler: Scheduler, iteration: int) -> Values:
    """Everything that must be the same on all ranks."""
    kv, slots, requests = scheduler.kv, scheduler.slots.slots, scheduler.requests.values()
    batch, tree = scheduler.slots.current(iteration).launched, kv.tree
    return (
        batch is not None and batch.forward.skip_output_comm,
        tuple([(q.spec.rid, n) for q in requests if (n := q.inflight_middle_chunks)]) if requests else (),
        (tree.num_evicted, tree.victims_digest),
        kv.pool.free_tokens,
        tree.evictable_tokens,
        (tree.clock, tree.num_nodes),
        (len(kv.free_rows), scheduler.role.num_buffers),
        ids(scheduler.waiting) if scheduler.waiting else (),
        tuple([tuple([q.spec.rid for q in slot.running]) if slot.running else () for slot in slots]),
        tuple([slot.batch_is_full for slot in slots]),
        scheduler.num_idle_resets,
        scheduler.ratio.key(),
        tuple([(q.spec.rid, at) for q in requests if (at := q.retraction_slot) is not None]) if requests else (),
    )


NOTHING_DONE: tuple[tuple[()], tuple[()], tuple[()]] = ((), (), ())


def done_to(entries: Sequence[Entry]) -> tuple[Values, Values, Values]:
    """Whom an abort has found, who has failed, whom a conclusion has moved on."""
    if not entries:
        return NOTHING_DONE
    aborted: list[tuple[str, str]] = []
    failed: list[str] = []
    advanced: list[str] = []
    for entry in entries:
        if isinstance(entry, Ended):
            if entry.failed:
                failed.append(entry.rid)
        elif isinstance(entry, Advanced):
            advanced.append(entry.rid)
        elif isinstance(entry, AbortFound):
            aborted.append((entry.rid, entry.reason))
    return tuple(aborted), tuple(failed), tuple(advanced)


def ids(requests: Sequence[Request]) -> tuple[str, ...]:
    """Of a queue, in order."""
    return tuple([q.spec.rid for q in requests])
