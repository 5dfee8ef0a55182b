"""What the passes of the shrinker propose: valid experiments, smaller ones, and no scenario that is at fault itself."""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.fuzz.experiment import Experiment, is_valid, run_experiment
from ppsim.fuzz.generate import patience
from ppsim.fuzz.shrink import Shrinker
from ppsim.fuzz.shrink_passes import (
    fewer_ranks,
    fewer_where_less_fits,
    less_patience,
    numbers,
    stages,
    without_last_zeros,
)
from ppsim.plugin import load
from tests.fuzz.generated import experiments_of


@pytest.mark.parametrize("profile", ["pair", "pd", "hicache", "plain"])
def test_fewer_ranks_are_a_valid_scenario_of_every_profile(profile: str) -> None:
    """Whatever has an entry for each rank, or a rank's number, is cut with the ranks; of both pipelines alike."""
    experiments = [e for e in experiments_of(profile, 30) if is_valid(e)]
    candidates = [candidate for e in experiments for candidate in fewer_ranks(e)]
    assert len(candidates) > 30
    wrong = [c.raw for c in candidates if not is_valid(c)]
    assert wrong == []
    assert any(stages(candidate) == 1 for candidate in candidates)


def test_many_requests_get_fewer_in_a_smaller_pool_or_batch() -> None:
    experiment = next(
        e
        for e in experiments_of("plain", 40)
        if len(e.raw["workload"]["requests"]) > 3 and isinstance(e.raw["scheduler"]["max_total_tokens"], int)
    )
    before = len(experiment.raw["workload"]["requests"]), experiment.raw["scheduler"]["max_total_tokens"]
    candidates = list(fewer_where_less_fits(experiment))
    assert candidates
    for candidate in candidates:
        scheduler = candidate.raw["scheduler"]
        assert before[0] - len(candidate.raw["workload"]["requests"]) in (1, 2)
        assert scheduler["max_total_tokens"] < before[1] or scheduler["pp_max_micro_batch_size"] in (1, 2)


def test_patience_comes_down_with_the_work_and_never_goes_up() -> None:
    for experiment in experiments_of("chunked", 20):
        raw: dict[str, Any] = experiment.raw
        assert list(less_patience(experiment)) == []  # as it was generated, it is that of the work
        if len(raw["workload"]["requests"]) < 2:
            continue
        one = Experiment({**raw, "workload": {**raw["workload"], "requests": raw["workload"]["requests"][:1]}})
        (candidate,) = less_patience(one)
        limit = candidate.raw["run"]["max_wait_iterations"]
        assert limit == patience(one.raw) < raw["run"]["max_wait_iterations"]
        assert run_experiment(candidate).verdict.kind == "pass"  # and it is enough for the right protocol


def test_times_of_two_pipelines_become_smaller_too() -> None:
    (experiment, *_) = (e for e in experiments_of("pair", 40) if e.raw["workload"].get("aborts"))
    paths = [path for path, _, _ in numbers(experiment.raw)]
    assert ("workload", "requests", 0, "at_ms") in paths
    assert ("workload", "aborts", 0, "at_ms") in paths


def test_a_scenario_that_the_right_protocol_does_not_survive_is_no_smaller_form_of_a_bug() -> None:
    """On links that block, everybody sends first: a deadlock with the bug, and with the scenario's own order alike."""
    change = load(["all_send_first"]).change
    failing = next(
        (e, outcome.signature)
        for e in experiments_of("blocking", 30)
        if (outcome := run_experiment(e, change)).signature is not None and outcome.signature.invariant == "INV-40"
    )
    experiment, signature = failing
    assert signature is not None
    smallest = Shrinker(signature, change).shrink(experiment)
    assert run_experiment(smallest).verdict.kind == "pass"
    assert smallest.raw["scheduler"]["exchange_order"] == "parity"


def test_zeros_at_the_end_of_a_tape_say_nothing() -> None:
    assert without_last_zeros((0, 3, 0, 0)) == (0, 3)
    assert without_last_zeros((0, 0)) == ()
