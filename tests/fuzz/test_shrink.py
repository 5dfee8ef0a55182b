"""Shrinking keeps the same bug and leaves out what it does not need: coarse before fine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ppsim.core.parts import UNCHANGED
from ppsim.fuzz import shrink
from ppsim.fuzz.experiment import ANY_ROLE, Chooser, Experiment, Outcome, Signature, run_experiment
from ppsim.fuzz.shrink import Shrinker
from ppsim.fuzz.shrink_passes import PASSES, simpler_tape
from ppsim.recording import Verdict
from tests.fuzz.generated import experiments_of

Bad = Callable[[Experiment], bool]
BUG = Signature("INV-59", "first")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bad], Shrinker]:
    """A shrinker over a made-up world: an experiment fails if a predicate says so. No run is needed."""

    def shrinker(bad: Bad, signature: Callable[[Experiment], Signature] = lambda e: BUG) -> Shrinker:
        def fake(experiment: Experiment, change: object = None, choices: object = None, **_: object) -> Outcome:
            fails = bad(experiment)
            verdict = Verdict("fail", 1, "") if fails else Verdict("pass", 0, "")
            return Outcome(verdict, "", signature(experiment) if fails else None, experiment.tape)

        monkeypatch.setattr(shrink, "run_experiment", fake)
        return Shrinker(BUG, UNCHANGED)

    return shrinker


def requests_of(e: Experiment) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = e.raw["workload"]["requests"]
    return found


def big() -> Experiment:
    """An experiment of profile abort with at least four requests, three stages and an abort."""
    for experiment in experiments_of("abort", 60):
        raw = experiment.raw
        if len(requests_of(experiment)) >= 4 and raw["cluster"]["pp_size"] >= 3 and raw["workload"].get("aborts"):
            return Experiment(raw, (3, 0, 7, 2, 0, 5))
    raise AssertionError("none generated")


# --- the same bug --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (("INV-59", "first"), ("INV-59", "first"), True),
        (("INV-59", "middle"), ("INV-59", "last"), True),  # of few stages a middle one may be the last
        (("INV-59", "first"), ("INV-59", "last"), False),
        (("INV-59", "first"), ("INV-58", "first"), False),
        (("INV-59", ANY_ROLE), ("INV-59", "first"), True),
        (("crash-KeyError", ""), ("crash-TypeError", ""), False),
    ],
)
def test_the_same_bug_is_the_same_rule_broken_by_the_same_kind_of_rank(
    one: tuple[str, str], other: tuple[str, str], alike: bool
) -> None:
    assert Signature(*one).is_like(Signature(*other)) is alike
    assert Signature(*other).is_like(Signature(*one)) is alike
    assert not Signature(*one).is_like(None)


def test_shrinking_never_slips_into_another_bug(world: Callable[..., Shrinker]) -> None:
    """Everything fails, but with fewer than three requests it fails otherwise."""

    def signature(e: Experiment) -> Signature:
        return BUG if len(requests_of(e)) >= 3 else Signature("INV-10", "first")

    smallest = world(lambda e: True, signature).shrink(big())
    assert len(requests_of(smallest)) == 3


# --- what is left out ----------------------------------------------------------------------------------------------


def test_only_what_the_bug_needs_is_left(world: Callable[..., Shrinker]) -> None:
    """It needs two requests, an abort, two stages and one choice that is not 0."""

    def bad(e: Experiment) -> bool:
        has_abort = bool(e.raw["workload"].get("aborts"))
        return len(requests_of(e)) >= 2 and has_abort and e.raw["cluster"]["pp_size"] >= 2 and any(e.tape)

    shrinker = world(bad)
    smallest = shrinker.shrink(big())
    size = smallest.size()
    assert (size["requests"], size["pp_size"], size["choices"]) == (2, 2, 1)
    assert len(smallest.raw["workload"]["aborts"]) == 1
    assert {"faults", "timeouts", "observations", "chance", "hicache"}.isdisjoint(smallest.raw)
    assert all(r.get("output", 1) == 1 and r["prompt"] == 1 for r in requests_of(smallest))
    assert max(smallest.tape) == 1
    assert shrinker.runs <= shrinker.max_runs


def test_a_candidate_is_tried_once(world: Callable[..., Shrinker]) -> None:
    failed: list[str] = []

    def bad(e: Experiment) -> bool:
        if len(requests_of(e)) < 3:
            failed.append(e.key())
        return len(requests_of(e)) >= 3

    world(bad).shrink(big())
    assert len(failed) == len(set(failed)) > 0


def test_requests_go_before_faults_before_ranks_before_choices() -> None:
    """By the first candidate of each kind among the passes."""
    experiment = big()
    kinds: list[str] = []
    for candidates in PASSES:
        for candidate in candidates(experiment):
            changed = [key for key in experiment.size() if candidate.size()[key] < experiment.size()[key]]
            kinds += [kind for kind in changed[:1] if kind not in kinds]
    assert kinds == ["requests", "faults", "pp_size", "choices"]


def test_a_chooser_stays_until_nothing_coarse_can_go_then_its_tape_is_taken(
    world: Callable[..., Shrinker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded answers belong to names, so they are the same when a request is left out; a tape's are not."""
    chooser = Chooser("seeded", 5)
    kept: list[bool] = []

    def bad(e: Experiment) -> bool:
        kept.append(e.chooser == chooser)
        return (e.chooser == chooser or any(e.tape)) and len(requests_of(e)) >= 2

    def taped(e: Experiment, change: object = None, choices: object = None, **_: object) -> Outcome:
        return Outcome(Verdict("fail", 1, ""), "", BUG if bad(e) else None, e.tape or (0, 4, 0, 0))

    shrinker = world(bad)
    monkeypatch.setattr(shrink, "run_experiment", taped)
    smallest = shrinker.shrink(Experiment(big().raw, (), chooser))
    assert smallest.chooser.kind == "tape"
    assert len(requests_of(smallest)) == 2
    assert smallest.tape == (0, 1)
    first_tape = kept.index(False, 1)
    assert sum(kept[:first_tape]) > 10


def test_a_long_tape_is_cleared_in_blocks() -> None:
    tape = tuple(range(1, 401))
    candidates = list(simpler_tape(Experiment({}, tape)))
    assert Experiment({}, ()) in candidates
    assert len(candidates) < 300
    assert all(len(c.tape) < 400 or sum(c.tape) < sum(tape) for c in candidates if c.tape != tape)


def test_a_shrunk_failure_still_fails_alike_in_the_real_world() -> None:
    from ppsim.fuzz.campaign import run_campaign
    from ppsim.fuzz.round import Order

    result = run_campaign(Order("abort", 2, 100, bugs=("free_at_abort",)))
    found = result.findings[0]
    before, after = found.original.size(), found.repro.experiment.size()
    assert after["requests"] == 1 <= before["requests"]
    assert after["pp_size"] <= 3
    assert found.repro.signature.is_like(run_experiment(found.repro.experiment, result.order.loaded().change).signature)
    assert run_experiment(found.original, result.order.loaded().change).signature is not None
