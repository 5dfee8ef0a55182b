"""A campaign: a function of its order, twice the same, with every probe in reach and every failure named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from ppsim.core.parts import UNCHANGED
from ppsim.core.policy import Policy
from ppsim.core.schedule.request import Request
from ppsim.errors import EXIT_LIVENESS, EXIT_NONDETERMINISM, ScenarioError, UsageError
from ppsim.fuzz.campaign import CampaignResult, run_campaign
from ppsim.fuzz.coverage_probes import DERIVED, NOTED, PAIRS, PROBES
from ppsim.fuzz.database import ExampleDatabase
from ppsim.fuzz.experiment import Experiment, run_experiment
from ppsim.fuzz.folder import save_campaign
from ppsim.fuzz.profiles import PROFILES, Profile, covers, profile_of_bugs
from ppsim.fuzz.round import TWICE_EVERY, Order, RoundResult, examine, run_round
from ppsim.plugin import all_bugs
from tests.fuzz.generated import experiments_of
from tests.worlds.making import changed

ORDER = Order("all", 3, 110)


@pytest.fixture(scope="module")
def campaign() -> CampaignResult:
    return run_campaign(ORDER, num_jobs=2)


# --- determinism ---------------------------------------------------------------------------------------------------


def test_the_same_order_gives_the_same_campaign_in_one_process_and_in_two(campaign: CampaignResult) -> None:
    here = run_campaign(ORDER)
    assert (here.digest, here.num_examples, here.twice) == (campaign.digest, campaign.num_examples, campaign.twice)
    assert (here.probes, here.pairs) == (campaign.probes, campaign.pairs)


def test_the_digest_depends_on_profile_seed_and_what_is_planted() -> None:
    orders = [Order("abort", 1, 3), Order("abort", 2, 3), Order("plain", 1, 3)]
    orders.append(Order("abort", 1, 3, bugs=("zigzag_slots",)))
    digests = [run_campaign(order, shrink=False).digest for order in orders]
    assert len(set(digests)) == 4
    assert run_campaign(orders[0]).digest == digests[0]


def test_one_example_in_twenty_is_run_twice() -> None:
    result = run_round(Order("plain", 1, 45), 0, 45)
    assert result.twice == result.num_examples // TWICE_EVERY == 2


def test_a_policy_that_keeps_state_between_runs_is_nondeterminism_and_the_first_difference_is_named() -> None:
    tries = Counter[str]()

    class Alternating(Policy):
        """Another order in every other run."""

        def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
            super().__init__(pp_rank, tp_rank)
            tries["runs"] += pp_rank == 0 == tp_rank
            self.turned = tries["runs"] % 2

        def admission_order(self, waiting: list[Request]) -> list[Request]:
            return waiting[::-1] if self.turned else waiting

    found = []
    for experiment in experiments_of("plain", 15):
        result = RoundResult(0, num_examples=TWICE_EVERY - 1)  # so the next one is run twice
        outcome = examine(experiment, changed(Alternating), result)
        if outcome is not None and outcome.signature is not None:
            found.append(outcome)
    assert found
    assert {outcome.signature.invariant for outcome in found if outcome.signature} == {"nondeterminism"}
    assert {outcome.verdict.exit_code for outcome in found} == {EXIT_NONDETERMINISM}
    assert all("first difference: decision of rank 0" in outcome.verdict.message for outcome in found)


# --- what is checked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bug", "invariants"),
    [
        ("page_lost_at_finish", {"INV-23"}),  # conservation
        ("last_reply_twice", {"INV-61"}),  # exactly one reply
        ("empty_list_not_sent", {"INV-02", "INV-40"}),  # deadlock
    ],
)
def test_conservation_single_replies_and_deadlocks_are_checked(bug: str, invariants: set[str]) -> None:
    result = run_campaign(Order(all_bugs()[bug].profile, 0, 300, bugs=(bug,)), shrink=False)
    assert {f.repro.signature.invariant for f in result.findings} <= invariants
    assert len(result.findings) == 1


def test_a_request_that_never_moves_is_a_liveness_failure_once_faults_have_stopped() -> None:
    """Every fault of an experiment ends; then a waiting request must move within the bound that was derived."""

    class Starves(Policy):
        """Nobody is admitted any more after the first."""

        def may_prefill(self, running: Sequence[Request], waiting: Sequence[Request], free_tokens: int) -> bool:
            return not any(r.rid != "R0" for r in waiting)

    kinds = set()
    for experiment in experiments_of("plain", 10):
        outcome = run_experiment(experiment, changed(Starves))
        if outcome.signature is not None:
            kinds.add((outcome.signature.invariant, outcome.verdict.exit_code))
    assert kinds
    assert {code for _, code in kinds} == {EXIT_LIVENESS}


# --- swarm -----------------------------------------------------------------------------------------------------------


def test_every_example_switches_some_features_off() -> None:
    """Of 200 examples of ``all`` each of these is on in some and off in others, and every role is there."""
    raws = [experiment.raw for experiment in experiments_of("all", 200)]
    signs = {
        "aborts": lambda raw: "aborts" in raw["workload"],
        "late arrivals": lambda raw: raw.get("chance", {}).get("max_arrival_delay", 0) > 0,
        "hicache": lambda raw: "hicache" in raw,
        "jitter": lambda raw: raw["links"].get("jitter_us", 0) > 0,
        "rendezvous": lambda raw: raw["links"].get("send") == "rendezvous",
        "depth": lambda raw: raw["cluster"]["pp_async_batch_depth"] > 0,
        "replicas": lambda raw: raw["cluster"]["tp_replicas"] > 1,
        "delays": lambda raw: raw.get("observations", {}).get("max_delay", 0) > 0,
    }
    for name, sign in signs.items():
        assert 10 < sum(map(sign, raws)) < 190, name
    assert {raw.get("disaggregation", {}).get("role", "plain") for raw in raws} == set(PROFILES["all"].roles)


def test_all_uses_every_feature_of_every_other_profile() -> None:
    every = {feature for p in PROFILES.values() for feature in (*p.features, *p.always)}
    assert every == set(PROFILES["all"].features)


def test_a_seed_generates_the_same_whatever_has_been_imported() -> None:
    before = [e.key() for e in experiments_of("pd", 30)]
    import_module("xml.dom.minidom")  # full of constants that Hypothesis would like to draw
    assert [e.key() for e in experiments_of("pd", 30)] == before


# --- coverage ------------------------------------------------------------------------------------------------------


def test_there_are_sixty_probes_and_more_and_each_has_one_name() -> None:
    assert len(PROBES) >= 60
    assert len(set(PROBES)) == len(PROBES) == len(NOTED) + len(DERIVED)
    assert len(set(PAIRS)) == len(PAIRS)


def test_a_small_campaign_reaches_nearly_all_probes(campaign: CampaignResult) -> None:
    """docs/results/fuzzing.md has the campaign that reaches all of them."""
    assert campaign.findings == []
    never = [name for name in PROBES if not campaign.probes[name]]
    assert len(never) <= 14, never
    assert len([name for name in PAIRS if campaign.pairs[name]]) >= 37


# --- profiles and bugs ---------------------------------------------------------------------------------------------


def test_a_campaign_against_a_bug_takes_its_profile_unless_another_one_can_show_it() -> None:
    assert profile_of_bugs(None, []) == "all"
    assert profile_of_bugs(None, [("a", "abort")]) == "abort"
    assert profile_of_bugs(None, [("a", "abort"), ("b", "pd")]) == "all"
    assert profile_of_bugs("all", [("a", "abort")]) == "all"
    assert profile_of_bugs("plain", [("a", "chunked")]) == "plain"  # it has chunks, sometimes
    with pytest.raises(UsageError, match="--profile plain and --bug a contradict each other"):
        profile_of_bugs("plain", [("a", "pd")])
    with pytest.raises(UsageError, match="planted bug 'a' names the profile 'plian'"):
        profile_of_bugs(None, [("a", "plian")])
    assert not covers(Profile("x", ("plain",), ()), PROFILES["abort"])


# --- the example database -------------------------------------------------------------------------------------------


def test_what_failed_before_is_tried_first_and_forgotten_when_it_passes(tmp_path: Path) -> None:
    broken, mended = Order("abort", 0, 40, bugs=("free_at_abort",)), Order("abort", 0, 20)
    database = ExampleDatabase(tmp_path, "abort")
    first = run_campaign(broken, database=database)
    assert first.findings[0].example > 0
    assert [kept.is_small for kept in database.failing()] == [True, False]
    again = run_campaign(broken, database=ExampleDatabase(tmp_path, "abort"))
    assert (again.findings[0].example, again.num_examples) == (0, 0)
    assert again.findings[0].repro == first.findings[0].repro
    assert run_campaign(mended, database=database).findings == []
    assert database.failing() == []


def test_an_entry_that_somebody_else_wrote_is_dropped(tmp_path: Path) -> None:
    database = ExampleDatabase(tmp_path, "all")
    for text in (
        b"no json",
        b'{"raw": 3, "tape": [], "small": true}',
        b'{"raw": {"cluster": {"pp_size": -1}}, "x": 1}',
    ):
        database.store.save(database.key, text)
    assert database.failing() == []
    assert list(database.store.fetch(database.key)) == []
    with pytest.raises(ValueError, match="take its tape"):
        database.keep(next(iter(e for e in experiments_of("all", 20) if e.chooser.kind != "tape")), is_small=False)


# --- the folder ----------------------------------------------------------------------------------------------------


def test_without_out_each_campaign_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_campaign(Order("plain", 4, 5))
    assert [save_campaign(result, None).path.name for _ in range(2)] == ["fuzz-plain-4-1", "fuzz-plain-4-2"]


def test_a_folder_with_other_files_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match=r"holds thesis\.tex"):
        save_campaign(run_campaign(Order("plain", 4, 1)), str(tmp_path))


def test_an_impossible_scenario_is_no_example() -> None:
    impossible = Experiment({"cluster": {"pp_size": 0}, "workload": {"source": "requests"}})
    result = RoundResult(0)
    assert examine(impossible, UNCHANGED, result) is None
    assert result.num_examples == 0
    with pytest.raises(ScenarioError):
        run_experiment(impossible)
