"""Law: invariant 64 is checked at the price of the pages that are new to a launch, and finds what a full look would.

The full look: every launch takes down all pages of all its requests; a page that its request holds alone must be in no
launched, unharvested batch of another one, unless a stash has exchanged it since.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from ppsim.check.audit import Audit
from ppsim.check.page_claims import PageClaims, common_length
from ppsim.core import effects as fx
from ppsim.core.errors import InvariantViolation
from ppsim.fuzz.experiment import Experiment, run_experiment
from ppsim.plugin import all_bugs, load
from ppsim.world.driver import SimulatedRank
from tests.fuzz.generated import experiments_of
from tests.worlds.making import passed, requests


class FullLook:
    """Every page of every batch in flight, by rank, slot and request."""

    def __init__(self) -> None:
        self.flying: dict[tuple[int, int], dict[str, set[int]]] = {}

    def launches(self, r: SimulatedRank, effect: fx.Launch) -> str:
        """The page that is reused too early; empty if there is none."""
        batch = effect.batch
        pool = r.rank.scheduler.kv.pool
        mine = {piece.rid: set(piece.kv.pages) for piece in batch.pieces}
        self.flying.pop((r.rank_id, batch.slot), None)
        for rid, pages in mine.items():
            for (rank, _), batches in self.flying.items():
                for other, used in batches.items() if rank == r.rank_id else ():
                    if other != rid and any(pool.refs(page) == 1 for page in pages & used):
                        return f"{rid} takes a page of {other}"
        self.flying[r.rank_id, batch.slot] = mine
        return ""

    def harvests(self, r: SimulatedRank, harvest: fx.Harvest) -> None:
        if harvest.harvested is not None:
            self.flying.pop((r.rank_id, harvest.harvested % len(r.rank.scheduler.slots)), None)

    def gives_up(self, r: SimulatedRank, pages: list[int]) -> None:
        for (rank, _), batches in self.flying.items():
            for used in batches.values() if rank == r.rank_id else ():
                used.difference_update(pages)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """A full look beside the audit of each run: what one of the two finds, the other must find in the same launch."""
    looks: WeakKeyDictionary[Audit, FullLook] = WeakKeyDictionary()
    launches, harvested, swapped = Audit.launches, Audit._harvest_launched, Audit.swapped
    counts: Counter[str] = Counter()

    def both(self: Audit, r: SimulatedRank, effect: fx.Launch) -> None:
        expected = looks.setdefault(self, FullLook()).launches(r, effect)
        counts["launches"] += 1
        found = ""
        try:
            launches(self, r, effect)
        except InvariantViolation as error:
            found = error.invariant
            counts[found] += 1
            raise
        finally:
            assert (found == "INV-64") == bool(expected) or found not in ("", "INV-64"), (found, expected)

    def harvest(self: Audit, r: SimulatedRank, what: fx.Harvest) -> None:
        harvested(self, r, what)
        looks.setdefault(self, FullLook()).harvests(r, what)

    def swap(self: Audit, r: SimulatedRank, pages: list[int]) -> None:
        swapped(self, r, pages)
        looks.setdefault(self, FullLook()).gives_up(r, pages)

    monkeypatch.setattr(Audit, "launches", both)
    monkeypatch.setattr(Audit, "_harvest_launched", harvest)
    monkeypatch.setattr(Audit, "swapped", swap)
    return counts


@pytest.mark.parametrize("profile", ["retraction", "abort", "chunked", "hicache"])
def test_generated_runs_are_judged_as_by_a_full_look(profile: str, seen: Counter[str]) -> None:
    for experiment in experiments_of(profile, 25):
        outcome = run_experiment(experiment)
        assert outcome.signature is None, outcome.verdict.message
    assert seen["launches"] > 500


def test_whatever_a_bug_of_memory_does_both_looks_agree(seen: Counter[str]) -> None:
    bugs = [name for name, bug in all_bugs().items() if bug.breaks in ("INV-64", "INV-59", "INV-66", "INV-23")]
    for profile in ("retraction", "abort", "chunked"):
        for name in bugs:
            for experiment in experiments_of(profile, 4):
                outcome = run_experiment(Experiment(experiment.raw, (), experiment.chooser), load([name]).change)
                assert "AssertionError" not in outcome.verdict.message, (name, outcome.verdict.message)
    assert seen["INV-64"] >= 3


LONG: dict[str, Any] = {
    "scheduler.chunked_prefill_size": 8192,
    "scheduler.max_total_tokens": 1_000_000,
    "scheduler.context_length": 1_000_000,
    "scheduler.max_prefill_tokens": 1_000_000,
    "scheduler.pp_max_micro_batch_size": 4,
}


def test_every_page_is_claimed_once_however_many_chunks_a_prompt_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 prompts of 40,000 tokens and 4 of output, page size 1, two ranks: 240,024 pages and no claim more."""
    writes = 0
    claim = PageClaims.claim

    def counted(self: PageClaims, r: SimulatedRank, rid: str, pages: list[int], iteration: int) -> None:
        nonlocal writes
        before = self.claims.get((r.rank_id, rid))
        num_before = 0 if before is None else len(before.pages)
        claim(self, r, rid, pages, iteration)
        same = self.claims[r.rank_id, rid] is before
        writes += len(pages) - (num_before if same else 0)

    monkeypatch.setattr(PageClaims, "claim", counted)
    changes = {**LONG, "scheduler.chunked_prefill_size": 512, "run.invariants": True}
    passed({**changes, "workload.requests": requests(3, prompt=40_000, output=4)})
    assert writes == 2 * 3 * (40_000 + 4 - 1)  # the last token's KV is never written


@pytest.mark.parametrize("what", ["own", "same", "tight"])
def test_what_the_invariants_cost_grows_with_the_prompts_and_not_with_their_square(what: str) -> None:
    """As long as each launch looked at all pages they cost ten times the run at 200,000 tokens, and it grew: what they
    add to a run of four times the tokens would be sixteen times as much. Of CPU time, so with room for noise."""
    added = {}
    for prompt in (10_000, 50_000, 200_000):  # the first loads what there is to load
        work: dict[str, Any] = {**LONG, "workload.requests": requests(3, prompt=prompt, output=6)}
        if what == "same":
            blocks = list(range(1, prompt // 512 + 1))
            work["workload.requests"] = requests(3, prompt=prompt, output=6, prefix_blocks=blocks)
        if what == "tight":
            work["scheduler.max_total_tokens"] = 9 * prompt // 4
        seconds = {invariants: min(cpu_seconds(work, invariants) for _ in range(2)) for invariants in (False, True)}
        added[prompt] = seconds[True] - seconds[False]
    assert added[200_000] < 8 * max(added[50_000], 0.1), added


def cpu_seconds(work: dict[str, Any], invariants: bool) -> float:
    started = time.process_time()
    passed({**work, "run.invariants": invariants})
    return time.process_time() - started


def test_common_length_is_that_of_a_walk() -> None:
    for a, b in (
        ([], []),
        ([1], []),
        ([1, 2, 3], [1, 2, 4]),
        ([1, 2], [1, 2, 3]),
        ([9], [8]),
        ([5] * 7, [5] * 6 + [4]),
    ):
        walked = next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)))
        assert common_length(a, b) == walked
