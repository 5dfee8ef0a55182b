"""No run ends in an undefined state: every workload ends, every request gets one last reply, all memory comes back.

And what the admission rule costs: reserving the decode growth of the current slot only (as SGLang does) lets some valid
requests end without memory; reserving every admitted request's growth lets none (docs/decisions/0001-open-choices.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from ppsim.core.config import RankConfig
from ppsim.core.schedule.scheduler import Scheduler
from tests.interactions.experiment import CROWD, ORDINARY, TIGHT, TURNS, Arrival, Experiment, experiments, request
from tests.interactions.one_rank import OneRank
from tests.interactions.settings import num_examples


def run_to_end(experiment: Experiment) -> OneRank:
    """``visits`` fails beyond the liveness bound."""
    rank = OneRank(experiment)
    for _ in rank.visits():
        pass
    everything_is_given_back(rank.scheduler)
    last = Counter(r.rid for r in rank.replies if r.status != "token")
    assert last == Counter(a.request.rid for a in experiment.arrivals), "one last reply each"
    return rank


def that_ends(experiment: Experiment) -> Experiment:
    """As drawn, but for one rule of SGLang's that may not end (9b).

    Decodes that want logprobs are not mixed. Where they use up a chunk budget that has shrunk, the chunk is launched
    with no token in every visit, and the decodes never are.
    """
    if not any(a.request.return_logprob for a in experiment.arrivals):
        return experiment
    return replace(experiment, config=replace(experiment.config, empty_chunk_pieces=False))


def everything_is_given_back(scheduler: Scheduler) -> None:
    kv = scheduler.kv
    assert not scheduler.waiting
    assert not scheduler.requests
    assert scheduler.chunked is None
    assert sorted(kv.free_rows) == list(range(1, scheduler.config.max_running_requests + 1))
    assert kv.tree.protected_tokens == 0
    kv.tree.reset()
    assert kv.pool.free_tokens == kv.pool.capacity_tokens
    assert kv.audit() == ""


@pytest.mark.parametrize("kind", [ORDINARY, TIGHT, CROWD])
def test_every_workload_ends_with_one_last_reply_a_request_and_all_memory_free(kind: str) -> None:
    @settings(max_examples=num_examples(60), deadline=None, derandomize=True)
    @given(experiments(kind), TURNS)
    def check(experiment: Experiment, turns: dict[str, int]) -> None:
        experiment = that_ends(experiment)
        run_to_end(replace(experiment, config=replace(experiment.config, **turns)))  # type: ignore[arg-type]

    check()


@pytest.mark.parametrize("kind", [TIGHT, CROWD])
def test_with_all_slots_reserved_nothing_is_retracted_parked_or_aborted(kind: str) -> None:
    @settings(max_examples=num_examples(60), deadline=None, derandomize=True)
    @given(experiments(kind), TURNS)
    def check(experiment: Experiment, turns: dict[str, int]) -> None:
        experiment = that_ends(experiment)
        config = replace(experiment.config, reserve_all_slots=True, **turns)  # type: ignore[arg-type]
        met = run_to_end(replace(experiment, config=config)).coverage.situations
        assert (met["unfit"], met["retracted"]) == (0, 0)
        if not config.enable_mixed_chunk:  # a mixed batch parks a chunk when its decodes use the chunk budget up
            assert met["chunk parked"] == 0

    check()


def workload(rng: Random, *, tight: bool) -> Experiment:
    """4 to 12 requests of up to 64 + 32 tokens; the pool holds the largest alone, and up to ten times as much."""
    page = rng.choice([1, 1, 4, 16])
    config = RankConfig(
        0,
        rng.randint(1, 4),
        pp_async_batch_depth=rng.choice([0, 0, 1]),
        chunked_prefill_size=rng.choice([16, 32, None]),
        page_size=page,
        max_running_requests=16,
        max_micro_batch_size=rng.choice([2, 4, 8]),
        enable_radix_cache=rng.random() < 0.7,
        enable_mixed_chunk=rng.random() < 0.3,
    )
    at, arrivals = 0, []
    for number in range(rng.randint(4, 12)):
        at += rng.choice([0, 0, 1, 4])
        prompt = [2] * rng.choice([0, 8, 16]) + [5 + number] * rng.randint(1, 48)
        arrivals.append(Arrival(at, request(f"R{number}", prompt, rng.randint(1, 32))))
    largest = max(len(a.request.prompt) // 4 + a.request.max_new_tokens for a in arrivals)
    spare = rng.uniform(1.0, 1.6) if tight else rng.uniform(1.0, 10.0)
    return Experiment(config, int(largest * spare) + 2 * page, tuple(arrivals))


def count_unfit(num: int, *, tight: bool) -> dict[str, Counter[str]]:
    """Runs with an abort for want of memory, and their aborted requests, for both rules."""
    found: dict[str, Counter[str]] = {"slot": Counter(), "all_slots": Counter()}
    for seed in range(num):
        experiment = workload(Random(f"termination/{tight}/{seed}"), tight=tight)
        for rule, count in found.items():
            config = replace(experiment.config, reserve_all_slots=rule == "all_slots")
            rank = run_to_end(replace(experiment, config=config))
            met = rank.coverage.situations
            count["runs"] += met["unfit"] > 0
            count["aborts"] += met["unfit"]
            count["retractions"] += met["retracted"]
            count["iterations"] += rank.iteration
            count["refused"] += sum(r.status == "refused" for r in rank.replies)
    return found


@pytest.mark.parametrize("tight", [False, True], ids=["ordinary", "tight"])
def test_reserving_the_slot_only_aborts_valid_requests_and_reserving_all_slots_none(tight: bool) -> None:
    num = num_examples(100)
    found = count_unfit(num, tight=tight)
    for rule, count in found.items():
        print(f"{'tight' if tight else 'ordinary'}, {rule}: of {num} runs {dict(count)}")
    assert found["slot"]["aborts"] > 0, "else this shows nothing"
    assert found["all_slots"]["aborts"] == found["all_slots"]["retractions"] == 0
    assert found["all_slots"]["refused"] == 0
