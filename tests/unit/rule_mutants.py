"""SGLang's rules of scheduling, each taken back alone: what the scheduler would do without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ppsim.core.config import RankConfig
from ppsim.core.memory.kv import KVCache
from ppsim.core.schedule import scheduler as scheduler_module
from ppsim.core.schedule.admission import Growth, expected_growth
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import Slot

Mutant = Callable[[pytest.MonkeyPatch], None]

KEYS: dict[str, dict[str, bool]] = {
    "1b": {"reopen_empty_slots": True},
    "2": {"defer_empty_visits": False},
    "3": {"evict_ahead": False},
    "9a": {"chunk_counts_as_row": False},
    "9b": {"empty_chunk_pieces": False},
}
"""Rules that a key of the scenario takes back."""


def without_key(config: RankConfig, rule: str) -> RankConfig:
    return replace(config, **KEYS[rule])  # type: ignore[arg-type]


def flag_stays_with_the_slot(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._merge_last_batch

    def merge(self: Scheduler, slot: Slot) -> None:
        full, was_empty = slot.batch_is_full, not slot.running
        num_last = len(slot.last_batch.requests) if slot.last_batch is not None else 0
        original(self, slot)
        if full and was_empty and 0 < len(slot.running) == num_last:
            slot.batch_is_full = True

    patch.setattr(Scheduler, "_merge_last_batch", merge)


def decode_evicts_due_pages_only(patch: pytest.MonkeyPatch) -> None:
    original = KVCache.evict_ahead
    patch.setattr(KVCache, "evict_ahead", lambda self, tokens, n: original(self, tokens, n) if tokens else None)


def prefill_evicts_new_pages_only(patch: pytest.MonkeyPatch) -> None:
    original = KVCache.evict_ahead
    patch.setattr(KVCache, "evict_ahead", lambda self, tokens, n: None if tokens else original(self, tokens, n))


def nothing_evicted_behind_a_retraction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCache, "evict_after_retraction", lambda self, num_tokens: None)


def growth_is_truncated(patch: pytest.MonkeyPatch) -> None:
    def floored(*args: object) -> Growth:
        down = expected_growth(*args).down  # type: ignore[arg-type]
        return Growth(down, down)

    patch.setattr(scheduler_module, "expected_growth", floored)


def order_stays_after_a_retraction(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._retract

    def retract(self: Scheduler, slot: Slot) -> None:
        before = list(slot.running)
        original(self, slot)
        slot.running = [r for r in before if r in slot.running]

    patch.setattr(Scheduler, "_retract", retract)


def sorted_by_all_but_the_last_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCache, "match_whole", KVCache.match)


MUTANTS: dict[str, Mutant] = {
    "1a": flag_stays_with_the_slot,
    "3a": decode_evicts_due_pages_only,
    "3b": prefill_evicts_new_pages_only,
    "3c": nothing_evicted_behind_a_retraction,
    "4": growth_is_truncated,
    "5": order_stays_after_a_retraction,
    "6": sorted_by_all_but_the_last_token,
}
