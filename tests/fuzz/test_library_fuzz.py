"""Law: campaigns, explorations and strategies of the library are those of the commands, and leave nothing behind."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from typer.testing import CliRunner

import ppsim
from ppsim.cli.entry import app
from ppsim.core.memory.prefix import RadixCache
from ppsim.fuzz.campaign import run_campaign
from ppsim.fuzz.experiment import Experiment
from ppsim.fuzz.round import Order

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
QUICK = settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@ppsim.planted("rows_by_rank", breaks="INV-13", profile="plain", source="tests")
class ByRank(RadixCache):
    """Every rank has its own idea of recency: the ranks fall out of step as soon as memory is short."""

    def stamp(self) -> int:
        return -super().stamp() if self.policy.pp_rank else super().stamp()


def test_a_campaign_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plugin = EXAMPLES / "shortest_first.py"
    campaign = ppsim.fuzz(policy=plugin, num_examples=12, profile="chunked", seed=1)
    words = ["fuzz", "--plugin", str(plugin), "--profile", "chunked", "--examples", "12", "--seed", "1", "--json"]
    told = json.loads(CliRunner().invoke(app, [*words, "--out", "here"]).stdout)
    assert (campaign.verdict, campaign.num_examples) == (told["verdict"], told["examples"]) == ("pass", 12)
    assert campaign.result.digest == told["digest"]
    assert campaign.never_reached == told["probes_never_hit"]
    assert campaign.findings == []


def test_a_class_of_the_program_is_found_shrunk_and_run_again(tmp_path: Path) -> None:
    campaign = ppsim.fuzz(ByRank, num_examples=200)
    assert (campaign.verdict, campaign.result.order.profile) == ("fail", "plain")
    (found,) = campaign.findings
    again = found.run()
    assert (again.verdict.kind, again.verdict.invariant) == ("fail", found.rule)
    assert again.verdict.message == found.message
    assert len(again.requests()) == found.size["requests"] <= 4
    assert repr(campaign) == f"<Campaign plain, seed 0: fail, {found.rule}, {campaign.num_examples} examples>"
    right = ppsim.simulate(found.experiment)
    assert right.passed, right.verdict.message
    with pytest.raises(ppsim.UsageError, match=r"ByRank: was given as a class.*policy='that_file\.py'"):
        found.save(tmp_path / "repro.json")
    with pytest.raises(ppsim.UsageError, match="was given as a class"):
        found.regression_test("by_rank")
    assert not list(tmp_path.iterdir())


def test_a_finding_of_a_file_is_saved_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plugin = EXAMPLES / "wall_clock_eviction.py"
    campaign = ppsim.fuzz(policy=plugin, bugs=["wall_clock_eviction"], seed=0)
    (found,) = campaign.findings
    assert found.save("repro.json") == Path("repro.json")
    replayed = CliRunner().invoke(app, ["replay", "repro.json"])
    assert "reproduced bit for bit" in replayed.output
    assert "def test_wall_is_caught" in found.regression_test("wall")
    with pytest.raises(ppsim.UsageError, match="cannot be written"):
        found.save("repro.json/below.json")


def test_what_cannot_be_asked_is_told() -> None:
    for keys, told in (
        ({"num_examples": 5, "budget_s": 1.0}, "exclude each other"),
        ({"num_examples": 0}, "num_examples 0: must be at least 1"),
        ({"budget_s": 0.0}, "budget_s 0: must be a number of seconds"),
        ({"budget_s": float("nan")}, "budget_s nan"),
        ({"max_s": -1.0}, "max_s -1"),
        ({"skip": 7}, "multiple"),
        ({"seed": -1}, "seed -1"),
        ({"profile": "plian"}, "did you mean 'plain'"),
        ({"bugs": ["free_at_abrt"]}, "did you mean 'free_at_abort'"),
        ({"profile": "plain", "bugs": ["free_at_abort"]}, "contradict each other"),
    ):
        with pytest.raises(ppsim.UsageError, match=told):
            ppsim.fuzz(**keys)  # type: ignore[arg-type]
    with pytest.raises(ppsim.UsageError, match="unknown profile"):
        ppsim.experiments("nothing")
    with pytest.raises(ppsim.UsageError, match="scripted requests"):
        ppsim.explore("unit")
    with pytest.raises(ppsim.UsageError, match="--bound aborts"):
        ppsim.explore("explore_release", bounds="aborts=none")


def test_an_exploration_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = ppsim.explore("explore_release", bounds=["aborts=4"])
    told = json.loads(CliRunner().invoke(app, ["explore", "explore_release", "--bound", "aborts=4", "--json"]).stdout)
    assert found.complete
    assert (found.executions, len(found.runs), len(found.states)) == (
        told["executions"],
        told["distinct_executions"],
        told["states"],
    )
    assert found.sentence() == told["bounds"]["sentence"]
    broken = ppsim.explore("explore_release", bounds="aborts=4", bugs=["free_at_abort"])
    assert broken.findings


def test_campaigns_in_threads_are_those_of_one_alone() -> None:
    """Nothing of a campaign is the process's: three at once, each with its own seed, are what they are one by one."""
    results: dict[int, str] = {}

    def go(seed: int) -> None:
        results[seed] = ppsim.fuzz(num_examples=6, profile="plain", seed=seed).result.digest

    threads = [threading.Thread(target=go, args=(seed,)) for seed in (3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {seed: run_campaign(Order("plain", seed, 6)).digest for seed in (3, 4, 5)}


@pytest.mark.parametrize("profile", ["plain", "pd", "all"])
def test_experiments_are_a_strategy_for_ones_own_tests(profile: str) -> None:
    seen: list[str] = []

    @QUICK
    @given(ppsim.experiments(profile))
    def holds(experiment: Experiment) -> None:
        try:
            run = ppsim.simulate(experiment)
        except ppsim.ScenarioError:  # a request that no server of that size could ever take
            return
        seen.append(run.digest)
        assert run.passed, run.verdict.message

    holds()
    assert len(set(seen)) > 2


def test_hypothesis_itself_finds_a_bug_with_them() -> None:
    tried: list[bool] = []

    @settings(QUICK, max_examples=200, phases=(Phase.generate,), derandomize=True)
    @given(ppsim.experiments("plain"))
    def holds(experiment: Experiment) -> None:
        try:
            run = ppsim.simulate(experiment, policy=ByRank)
        except ppsim.ScenarioError:
            return
        tried.append(run.passed)
        assert run.passed, run.verdict.message

    with pytest.raises(AssertionError, match="INV-"):
        holds()
    assert tried.count(False) >= 1
