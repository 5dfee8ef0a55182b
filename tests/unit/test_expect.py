"""``[expect]``: a run judges itself by what its scenario says, and says what it does not judge."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import ppsim
from ppsim.check.invariants import BY_NAME
from ppsim.cli.entry import app
from ppsim.core.outcome import Verdict
from ppsim.core.policy import Policy
from ppsim.errors import ScenarioError
from ppsim.recording.summary import summarize
from ppsim.recording.writer import lines
from ppsim.scenario.expect import FIGURES, RULE_NAMES, STAGE, is_figure
from ppsim.scenario.expect_judged import Expectations, expectations, figures_of, is_within
from ppsim.scenario.load import load_scenario, scenario_with
from ppsim.scenario.tree import Scenario
from ppsim.world import simulate

BUG = "grammar_by_own_view"
B01 = "bugs/b01_grammar_readiness"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim_(*words: str) -> Result:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def unit(**expect: Any) -> dict[str, Any]:
    """The scenario of four chunks on four stages of a second each: 7 s, of which 3 / 7 are a bubble."""
    return {
        "name": "unit",
        "scheduler": {"chunked_prefill_size": 64, "max_total_tokens": 65536},
        "cost": {"source": "unit", "unit_ms": 1000},
        "workload": {"source": "chunks", "num_chunks": 4},
        "expect": expect,
    }


def loaded(*pairs: tuple[str, Any], bugs: tuple[str, ...] = (), **expect: Any) -> Scenario:
    return scenario_with(unit(**expect), pairs, bugs)


def judged(scenario: Scenario, world: str = "sim") -> Expectations:
    result = simulate(scenario)
    summary = {**summarize(result.recording, result.verdict), "world": world}
    found = expectations(scenario, summary, result.verdict)
    assert found is not None
    return found


# --- what is met ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "expected", "is_met"),
    [
        ("makespan_ms", 7000, True),
        ("makespan_s", 7, True),
        ("makespan_us", 7e6, True),
        ("makespan_ns", 7e9, True),
        ("makespan_ms", 7001, False),
        ("makespan_ms", {"value": 7001, "tolerance": 1}, True),
        ("makespan_ms", {"value": 7001, "tolerance": 0.5}, False),
        ("ttft_p50_ms", 7000, True),
        ("stages_3_busy_ms", 4000, True),
        ("stages_0_idle_s", 3, True),
        ("bubble_ratio", {"value": 0.4286, "tolerance": 1e-4}, True),
        ("bubble_ratio", {"value": 0.43, "tolerance": 1e-4}, False),
        ("num_finished", 1, True),
        ("num_aborted", 1, False),
        ("tpot_p50_ms", 0, False),  # one token: there is none
        ("concurrency_mean", 0, False),  # no closed loop: there is none
    ],
)
def test_a_figure_is_met_within_its_tolerance_in_the_unit_of_its_name(figure: str, expected: Any, is_met: bool) -> None:
    found = judged(loaded(figures={figure: expected}))
    assert found.met is is_met
    assert [e.key for e in found.unmet] == ([] if is_met else [f"expect.figures.{figure}"])


def test_a_tolerance_is_the_most_that_a_figure_may_be_off() -> None:
    figure = load_scenario("unit", ["expect.figures={makespan_ms={value=10, tolerance=2}}"]).expect
    assert figure is not None
    limits = figure.figures["makespan_ms"]
    assert [is_within(limits, came) for came in (7.9, 8, 12, 12.1, None)] == [False, True, True, False, False]


@pytest.mark.parametrize("key", ["rule", "rank", "iteration", "rid"])
def test_a_failure_is_what_was_expected_only_if_all_that_is_named_agrees(key: str) -> None:
    right = {"rule": "INV-47", "rank": 1, "iteration": 3, "rid": "R1"}
    wrong = {"rule": "INV-48", "rank": 0, "iteration": 4, "rid": "R2"}
    verdict = Verdict("fail", 1, "", "INV-47", 1, 3, 0, "R1")
    passed = simulate(loaded())
    summary = summarize(passed.recording, verdict)
    for named, is_met in ((right, True), ({**right, key: wrong[key]}, False)):
        found = expectations(loaded(verdict="fail", **named), summary, verdict)
        assert found is not None
        assert found.met is is_met
        assert [str(e) for e in found.unmet] == (
            [] if is_met else [f"expect.{key}: expected {wrong[key]}, came {right[key]}"]
        )
    assert not expectations(loaded(verdict="pass"), summary, verdict).met  # type: ignore[union-attr]


# --- commands ------------------------------------------------------------------------------------------------------


def test_a_planted_bug_that_fails_as_its_scenario_says_is_a_success_and_its_folder_runs_again() -> None:
    result = ppsim_("run", B01, "--bug", BUG, "--out", "b01")
    assert result.exit_code == 0
    assert result.stderr.endswith("saved b01\nas expected: verdict fail, rule INV-47, rank 1, iteration 3\n")
    assert json.loads(Path("b01/verdict.json").read_text())["exit_code"] == 1
    again = ppsim_("run", "b01/config.toml", "--out", "again")
    assert (again.exit_code, again.stderr.splitlines()[-1]) == (0, result.stderr.splitlines()[-1])
    assert Path("again/recording.jsonl").read_bytes() == Path("b01/recording.jsonl").read_bytes()
    shown = ppsim_("show", "b01")
    assert shown.stderr == result.stderr.splitlines()[-1] + "\n"


def test_an_expected_failure_that_is_another_one_or_none_is_named_and_keeps_a_failures_code() -> None:
    other = ppsim_("run", B01, "--set", f'bugs=["{BUG}"]', "--set", 'expect={verdict="fail", iteration=9}')
    assert other.exit_code == 1
    assert "not as expected: 1 of 2 expectations are not met\n  expect.iteration: expected 9, came 3\n" in other.stderr
    none = ppsim_("run", B01, "--set", 'expect={verdict="fail"}')
    assert none.exit_code == 1
    assert none.stderr.endswith("  expect.verdict: expected fail, came pass\n")
    stuck = ppsim_("run", "unit", "--set", "run.max_iterations=3", "--set", "expect.verdict=pass")
    assert stuck.exit_code == 5
    known = ppsim_("run", "unit", "--set", "run.max_iterations=3", "--set", "expect.verdict=unknown")
    assert known.exit_code == 0


def test_a_changed_run_is_not_judged_and_the_change_is_named_also_when_it_runs_again() -> None:
    told = "the expectations of the scenario are not judged: changed: "
    for words, changed in (
        (["--set", "cluster.pp_async_batch_depth=1"], "cluster.pp_async_batch_depth"),
        (["--seed", "3"], "seed"),
        (["--bug", "hash_order"], "bugs (nothing is said under expect.bugs.hash_order)"),
        (["--bug", BUG, "--set", "run.check=false"], "bugs, run.check"),
    ):
        result = ppsim_("run", B01, *words, "--out", "here")
        assert result.stderr.splitlines()[-1].startswith(told + changed), result.stderr
        assert result.exit_code == json.loads(Path("here/verdict.json").read_text())["exit_code"]
        assert ppsim_("run", "here/config.toml").stderr.splitlines()[-1] == result.stderr.splitlines()[-1]
        assert ppsim_("show", "here").stderr.startswith(told + changed)


def test_a_plug_in_with_a_policy_is_a_change_and_one_with_a_bug_is_judged_by_what_is_said_of_it() -> None:
    Path("policy.py").write_text("import ppsim\n\n\nclass Policy(ppsim.Policy):\n    pass\n")
    result = ppsim_("run", "unit", "--plugin", "policy.py")
    assert result.stderr.endswith("not judged: changed: the policy (policy.py)\n")
    Path("bug.py").write_text(
        "from ppsim.core.agreed import agree\nfrom ppsim.core.rank import Rank\nfrom ppsim.plugin import planted\n\n\n"
        '@planted("mine", breaks="INV-22", profile="plain", source="own")\n'
        'class Mine(Rank):\n    """Each rank keeps its own."""\n\n'
        "    def start(self, capacity_tokens, host_tokens=None):\n"
        "        super().start(agree(self.local_tokens[0], 'nobody'), host_tokens)\n"
    )
    expect = 'expect.bugs.mine={verdict="fail", rule="INV-22", rank=1}'
    judged = ppsim_("run", "bugs/b04_unequal_pools", "--plugin", "bug.py", "--set", expect)
    assert judged.exit_code == 0, judged.stderr
    assert "there is no planted bug" not in judged.stderr
    Path("mine.toml").write_text(
        Path(ppsim.__file__).parents[1].joinpath("scenarios/bugs/b04_unequal_pools.toml").read_text()
        + '\n[expect.bugs.mine]\nverdict = "fail"\nrule = "INV-22"\nrank = 1\n'
    )
    with_bug = ppsim_("run", "mine.toml", "--plugin", "bug.py", "--bug", "mine")
    assert with_bug.stderr.endswith("as expected: verdict fail, rule INV-22, rank 1\n"), with_bug.stderr
    alone = ppsim_("run", "mine.toml")
    assert (alone.exit_code, "expect.bugs.mine: there is no planted bug of this name" in alone.stderr) == (0, True)


def test_what_changes_nothing_is_judged() -> None:
    result = ppsim_("run", "unit", "--set", "cluster.pp_size=4", "--set", "name=mine", "--seed", "0")
    assert result.stderr.endswith("as expected: verdict pass, 7 figures\n")


def test_an_expectation_of_the_command_line_replaces_one_of_the_file_and_of_a_changed_run_all() -> None:
    one = ppsim_("run", "unit", "--set", "expect.figures.makespan_ms=1")
    assert "not as expected: 1 of 8 expectations" in one.stderr
    changed = ppsim_("run", "unit", "--set", "cluster.pp_size=2", "--set", "expect.figures.makespan_ms=5000")
    assert (changed.exit_code, changed.stderr.splitlines()[-1]) == (0, "as expected: verdict pass, 1 figure")


def test_commands_that_vary_a_scenario_say_that_they_judge_nothing_and_pass_nothing_on() -> None:
    for words in (
        ("explore", "explore_release", "--bound", "aborts=1"),
        ("export", "unit"),
        ("tune", "paper/deepseek_v31_h20_pp4", "--prompt", "16384", "--out", "tuned"),
    ):
        result = ppsim_(*words)
        assert result.exit_code == 0, result.stderr
        assert f"ppsim {words[0]} judges no [expect]" in result.stderr
    (winner,) = Path("tuned").glob("*.toml")
    assert "expect" not in tomllib.loads(winner.read_text())


# --- the world of real processes -----------------------------------------------------------------------------------


def test_on_real_processes_times_are_named_and_not_judged_and_counts_are() -> None:
    figures = {"makespan_ms": 1, "bubble_ratio": 0, "num_finished": 1, "num_iterations": 8, "input_tokens_per_s": 1}
    found = judged(loaded(figures=figures), world="exec")
    assert {e.key.rpartition(".")[2] for e in found.judged} == {"verdict", "num_finished", "num_iterations"}
    assert found.met
    (told,) = [line for line in found.lines() if line.startswith("not judged")]
    assert all(name in told for name in ("makespan_ms", "bubble_ratio", "input_tokens_per_s"))
    requests = [{"rid": "R1", "prompt": 256, "at_ms": 3.0}]
    timed = scenario_with(
        unit(figures=figures), [("workload", {"source": "requests", "requests": requests}), ("expect.figures", figures)]
    )
    assert {e.key.rpartition(".")[2] for e in judged(timed, world="exec").judged} == {"verdict", "num_finished"}


def test_exec_judges_a_scenario_by_its_expectations() -> None:
    pytest.importorskip("torch", reason="the executor needs the extra 'executor'")
    result = ppsim_("exec", "tiny", "--out", "real")
    assert result.exit_code == 0, result.stderr
    assert "as expected: verdict pass, 5 figures" in result.stderr


# --- the library ---------------------------------------------------------------------------------------------------


def test_the_library_has_what_was_expected_beside_what_came(tmp_path: Path) -> None:
    run = ppsim.simulate("unit")
    assert run.expectations is not None
    assert run.expectations.met
    assert ppsim.read_run(run.save(tmp_path / "run")).expectations == run.expectations
    changed = ppsim.simulate("unit", pp_size=2).expectations
    assert changed is not None
    assert (changed.met, changed.not_judged) == (None, "changed: cluster.pp_size")
    other = ppsim.simulate("unit", policy=type("Own", (Policy,), {})).expectations
    assert other is not None
    assert other.not_judged == "changed: the policy"
    assert ppsim.simulate(B01, bugs=[BUG]).expectations.met  # type: ignore[union-attr]
    own = ppsim.simulate("unit", expect={"figures": {"makespan_s": 8}}).expectations
    assert own is not None
    assert [str(e) for e in own.unmet] == ["expect.figures.makespan_s: expected 8, came 7"]
    assert own.to_dict()["met"] is False
    assert ppsim.simulate({"workload": {"source": "chunks"}}).expectations is None


def test_a_run_does_not_depend_on_what_is_expected_of_it() -> None:
    with_it, without = load_scenario("tiny"), load_scenario("tiny").model_copy(update={"expect": None})
    assert with_it.expect is not None
    assert [*lines(simulate(with_it).recording)] == [*lines(simulate(without).recording)]


def test_a_scenario_that_expects_something_can_be_hashed_as_the_chunk_planner_asks() -> None:
    planned = ("scheduler.enable_dynamic_chunking=true", "scheduler.chunk_planner=optimal", "expect.verdict=pass")
    scenario = load_scenario("questions/p12_dynamic_chunks", planned)
    assert scenario.expect is not None
    assert not scenario.expect.changed
    assert simulate(scenario).verdict.kind == "pass"
    assert len({load_scenario("unit"), load_scenario("unit"), load_scenario("tiny")}) == 2


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ({"figures": {"makspan_ms": 1}}, "expect.figures.makspan_ms: unknown figure (did you mean 'makespan_ms'?)"),
        ({"figures": {"bubble": 1}}, "expect.figures.bubble: unknown figure (did you mean 'bubble_ratio'?)"),
        ({"figures": {"ttft_ms": 1}}, "expect.figures.ttft_ms: unknown figure (did you mean 'ttft_p50_ms'?)"),
        ({"figures": {"stages_7_busy_s": 1}}, "expect.figures.stages_7_busy_s: there are 4 stages, 0 to 3"),
        ({"figures": {"prefill_makespan_s": 1}}, "is of the prefill side of two pipelines"),
        ({"figures": {"makespan_ms": float("nan")}}, "expect.figures.makespan_ms.value: must be a finite"),
        ({"figures": {"makespan_ms": float("inf")}}, "expect.figures.makespan_ms.value: must be a finite"),
        ({"figures": {"makespan_ms": True}}, "expect.figures.makespan_ms"),
        ({"figures": {"makespan_ms": "7000"}}, "expect.figures.makespan_ms"),
        ({"figures": {"makespan_ms": {"tolerance": 1}}}, "expect.figures.makespan_ms.value: is missing"),
        ({"figures": {"makespan_ms": {"value": 1, "tolerance": -1}}}, "expect.figures.makespan_ms.tolerance"),
        (
            {"figures": {"makespan_ms": {"value": 1, "tolerence": 1}}},
            "makespan_ms.tolerence: unknown key (did you mean",
        ),
        ({"verdict": "passed"}, "expect.verdict: must be 'pass', 'fail' or 'unknown', got 'passed'"),
        ({"verdict": "fail", "rule": "INV-9"}, "expect.rule: there is no rule 'INV-9' (did you mean 'INV-09'?)"),
        ({"verdict": "fail", "rule": "INV-99"}, "expect.rule: there is no rule 'INV-99'"),
        ({"verdict": "fail", "rank": 4}, "expect.rank: 4, but the 4 ranks are 0 to 3"),
        ({"rule": "INV-09"}, "expect.rule: 'INV-09' belongs to a run that fails, and expect.verdict is 'pass'"),
        ({"bugs": {"x": {"verdict": "fail", "rule": "INV-9"}}}, "expect.bugs.x.rule: there is no rule"),
        ({"bugs": {"x": {"verdct": "fail"}}}, "expect.bugs.x.verdct: unknown key (did you mean 'verdict'?)"),
        ({"bugs": {"x": {"bugs": {}}}}, "expect.bugs.x.bugs: unknown key"),
        ({"verdikt": "fail"}, "expect.verdikt: unknown key (did you mean 'verdict'?)"),
    ],
)
def test_an_impossible_expectation_is_refused_by_its_key(expect: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario_with(unit(**expect), [])
    assert says in str(error.value)


def test_the_rules_are_those_that_there_are() -> None:
    assert set(RULE_NAMES) == set(BY_NAME)


def test_every_number_of_a_summary_can_be_expected_and_every_name_is_one_of_a_summary() -> None:
    seen: set[str] = set()
    closed = ("workload.source=generated", "workload.concurrency=2", "workload.num_requests=3")
    for name, sets in (("unit", closed), ("bugs/b08_storage_hits", ()), ("hicache", ()), ("bugs/b07_load_acks", ()),
                       ("bugs/b34_sent_before_computed", ())):  # fmt: skip
        result = simulate(load_scenario(name, sets))
        found = figures_of(summarize(result.recording, result.verdict))
        assert [figure for figure in found if not is_figure(figure)] == []
        seen |= {STAGE.sub("stages_N_", figure) for figure in found}
    assert seen >= FIGURES, sorted(FIGURES - seen)


# --- a run that keeps less -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [{"keep": "file"}, {"keep": "summary"}, {"compress": "gzip"}])
def test_what_is_left_of_a_run_changes_nothing_of_what_is_expected(changed: dict[str, Any]) -> None:
    whole, less = ppsim.simulate("unit"), ppsim.simulate("unit", **changed)
    assert whole.expectations is not None
    assert whole.expectations.met
    assert less.expectations == whole.expectations
    both = ppsim.simulate("unit", pp_size=2, **changed).expectations
    assert both is not None
    assert both.not_judged == "changed: cluster.pp_size"


def test_what_a_run_that_keeps_less_cannot_tell_is_not_judged_by_name() -> None:
    figures = {"ttft_p99_s": {"value": 1.0}, "ttft_mean_s": {"value": 7.0}, "makespan_s": {"value": 7.0}}
    run = ppsim.simulate("unit", keep="summary")
    scenario = loaded(("run.keep", "summary"), figures=figures)

    def told(summary: dict[str, Any], verdict: Verdict) -> Expectations:
        found = expectations(scenario, summary, verdict)
        assert found is not None
        return found

    exact = told(dict(run.summary), run.verdict)
    assert [e.key for e in exact.unmet] == ["expect.figures.ttft_p99_s"]
    near = told({**run.summary, "percentiles": "within 0.20 %"}, run.verdict)
    assert near.met
    assert [e.key for e in near.all if "within 0.20 %" in e.not_judged] == ["expect.figures.ttft_p99_s"]
    failed = told(dict(run.summary), Verdict("fail", 1, "broken"))
    assert failed.met is None
    assert all("run.keep 'summary'" in e.not_judged for e in failed.all)
