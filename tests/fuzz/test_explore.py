"""``ppsim explore``: complete within its bounds, sound in what it leaves out, and it finds abort and vote bugs.

The configuration is that of ``scenarios/explore_release.toml``, smaller where a test runs all of it; the whole of it,
and every bug that can show there, is measured in ``docs/results/explore.md``.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bench import bench_explore
from ppsim.cli.entry import app
from ppsim.errors import EXIT_SAFETY, EXIT_UNKNOWN, EXIT_USAGE
from ppsim.fuzz.experiment import Experiment, run_experiment
from ppsim.fuzz.explore import BoundedChoices, Bounds, Exploration, explore, parse_bounds
from ppsim.fuzz.repro import load as load_repro
from ppsim.plugin import all_bugs, load
from ppsim.recording.digest import run_digest
from ppsim.scenario.load import load_scenario
from ppsim.world.choices import SeededChoices

SCENARIO = str(Path(__file__).resolve().parents[2] / "scenarios" / "explore_release.toml")
ONE = 'workload.requests=[{rid="R1", at_iteration=0, prompt=8, output=1}]'
STORE = "disaggregation.bootstrap=store"
LATE = "links.jitter_us=2500"
DECODE = ("disaggregation.role=decode", "disaggregation.num_reserved_decode_tokens=4")
PLAIN = "disaggregation.role=plain"


def raw(*sets: str) -> dict[str, Any]:
    return load_scenario(SCENARIO, sets).model_dump(mode="json", exclude_unset=True)


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def explored(bounds: str, *sets: str, bug: str = "", reduced: bool = True) -> Exploration:
    return explore(raw(*sets), parse_bounds(bounds.split(), reduced=reduced), load([bug] if bug else []).change)


# --- complete ------------------------------------------------------------------------------------------------------


def test_every_combination_of_delays_is_run_once() -> None:
    """Two requests, each seen by two ranks after 0..2 iterations: 3 ** 4 executions and no other."""
    found = explored("delays=transfer:2")
    assert (found.complete, found.executions, found.findings) == (True, 3**4, [])
    choices, paths = BoundedChoices(Bounds({"transfer": 2})), []
    while True:
        paths.append(tuple(choices.below(f"delay transfer {rid} {rank}", 4) for rid in "ab" for rank in range(2)))
        assert choices.below("delay bootstrap a 0", 4) == 0
        if not choices.advance():
            break
    assert sorted(paths) == list(product(range(3), repeat=4))


def test_every_abort_of_every_request_is_run() -> None:
    """One run without, and one for each request and iteration; an abort after the end finds nothing new."""
    found = explored("aborts=9", PLAIN)
    assert (found.complete, found.executions) == (True, 1 + 2 * 9)
    assert found.num_iterations < 9
    assert sorted(found.states) == sorted(explored("aborts=14", PLAIN).states)
    assert len(found.states) > len(explored("aborts=1", PLAIN).states)


def test_every_time_of_a_failure_is_run() -> None:
    """Two requests, two ranks that see it in one of three iterations."""
    found = explored("failures=bootstrap:3")
    assert (found.complete, found.executions, found.findings) == (True, 1 + 2 * 3**2, [])


def test_a_limit_of_executions_is_no_proof() -> None:
    result = ppsim("explore", SCENARIO, "--bound", "delays=transfer:3", "--bound", "executions=10")
    assert result.exit_code == EXIT_UNKNOWN
    assert "UNKNOWN  no violation in the first 10 executions" in result.stdout
    assert explored("delays=transfer:1 executions=16").complete  # the limit is just enough


# --- sound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "bounds", "late"),
    [
        ((PLAIN, ONE, LATE), "aborts=1", "messages=5"),
        ((ONE, LATE), "delays=transfer:1 aborts=3", "messages=2"),
        ((ONE, LATE), "delays=bootstrap:1 aborts=3", "messages=2"),
        ((ONE, *DECODE), "delays=receive:1 aborts=3", "messages=2"),
    ],
)
def test_without_reduction_there_are_more_executions_and_no_other_ends(
    sets: tuple[str, ...], bounds: str, late: str
) -> None:
    """Every order of equal events, and the first messages in time or 2.5 ms late: the same set of runs and states."""
    one, every = explored(bounds, *sets), explored(f"{bounds} {late}", *sets, reduced=False)
    assert one.complete
    assert every.complete
    assert every.executions >= 4 * one.executions
    assert sorted(every.runs) == sorted(one.runs)
    assert sorted(every.states) == sorted(one.states)
    assert len(one.runs) > 1
    assert not every.findings


class AnyTimes(BoundedChoices):
    """The delays are enumerated; orders and all messages come at random."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.chance = SeededChoices(7, shuffle_order=True)

    def below(self, stream: str, n: int) -> int:
        return super().below(stream, n) if stream.startswith("delay") else self.chance.below(stream, n)


ABORT = 'workload.aborts=[{rid="R1", at_iteration=4}]'


@pytest.mark.parametrize(("kind", "limit", "what"), [("transfer", 2, ONE), ("bootstrap", 1, ABORT)])
def test_with_the_same_delays_every_timing_is_the_same_execution(kind: str, limit: int, what: str) -> None:
    """One request, or both and an abort of one of them; each combination of delays: six random timings each."""
    scenario = raw(LATE, what, f"observations.max_delay={limit}", "run.invariants=true")
    one, other = BoundedChoices(Bounds({kind: limit})), AnyTimes(Bounds({kind: limit}))
    seen = []
    while True:
        expected = run_experiment(Experiment(scenario), None, one)
        assert expected.result is not None
        seen.append(run_digest(expected.result.recording))
        for _ in range(6):
            other.position = 0
            got = run_experiment(Experiment(scenario), None, other)
            assert got.result is not None
            assert run_digest(got.result.recording) == seen[-1]
        assert one.advance() == other.advance()
        if not one.path:
            break
    assert len(seen) >= 9
    assert len(set(seen)) > 1


def test_what_reads_the_time_is_said_and_is_not_covered() -> None:
    """The consensus store is read at an instant: a late message can put a decision off, so the bounds name it."""
    bounds = "delays=transfer:1"
    one, every = explored(bounds, ONE, STORE, LATE), explored(f"{bounds} messages=2", ONE, STORE, LATE, reduced=False)
    assert set(one.runs) < set(every.runs)
    assert one.sentence().endswith("the consensus store: at the times of this scenario only")
    assert "at the times" not in explored(bounds, ONE).sentence()
    by_the_clock = ONE.replace("at_iteration=0", "at_ms=1.0")
    assert "arrivals and aborts by the clock" in explored("executions=1", by_the_clock).sentence()
    assert "left to chance: as written" in explored("executions=1", "chance.max_lost_pages=1").sentence()


# --- bugs of aborts and votes --------------------------------------------------------------------------------------

BUGS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "free_at_abort": ("INV-59", (PLAIN,), "aborts=9"),
    "token_before_abort": ("INV-67", (PLAIN,), "aborts=9"),
    "aborted_chunk_leaks": ("INV-23", (PLAIN,), "aborts=9"),
    "abort_in_the_middle": ("INV-68", (PLAIN,), "aborts=9"),
    "only_the_first_view_counts": ("INV-52", (), "delays=transfer:3"),
    "last_view_counts": ("INV-52", (), "delays=transfer:3"),
    "release_at_own_transfer": ("INV-47", (), "delays=transfer:3"),
    "polls_after_the_vote": ("INV-49", (), "delays=transfer:3"),
    "conclusions_swapped": ("INV-31", (), "delays=bootstrap:3"),
    "own_failures_win": ("INV-79", (), "failures=bootstrap:4"),
    "good_and_bad": ("INV-56", (), "failures=bootstrap:4"),
    "aborted_entry_stays": ("INV-51", DECODE, "delays=receive:1 aborts=2"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_aborts_or_votes_is_found(name: str) -> None:
    invariant, sets, bounds = BUGS[name]
    found = explored(bounds, *sets, bug=name)
    assert len(found.findings) == 1
    signature = found.findings[0][1].signature
    assert signature is not None
    assert signature.invariant == invariant


def test_what_is_found_replays_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = ppsim("explore", SCENARIO, "--bound", "delays=transfer:3", "--bug", "last_view_counts", "--json")
    assert result.exit_code == EXIT_SAFETY
    report = json.loads(result.stdout)
    assert {"verdict", "complete", "executions", "states", "bounds", "findings"} <= set(report)
    assert (report["verdict"], report["findings"][0]["invariant"]) == ("fail", "INV-52")
    saved = load_repro(report["findings"][0]["repro"])
    assert saved.again(saved.run())
    again = ppsim("replay", report["findings"][0]["repro"])
    assert again.exit_code == EXIT_SAFETY
    assert "INV-52" in again.output


# --- what is said --------------------------------------------------------------------------------------------------


def test_json_says_what_was_bounded() -> None:
    result = ppsim("explore", SCENARIO, "--bound", "delays=transfer:1", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    expected = {"verdict": "pass", "complete": True, "executions": 16, "findings": []}
    assert {key: report[key] for key in expected} == expected
    assert report["states"] > 1
    assert report["longest_run"] > 1
    assert report["bounds"]["delays"] == {"transfer": 1}
    assert "each transfer fact 0..1 iterations late on each rank" in report["bounds"]["sentence"]


def test_the_text_says_whether_later_aborts_could_matter() -> None:
    for bound, sentence in ((9, "an abort at any time is covered"), (2, "aborts from iteration 2 on are not covered")):
        result = ppsim("explore", SCENARIO, "--set", PLAIN, "--bound", f"aborts={bound}")
        assert result.exit_code == 0
        assert "PASS  no violation in all" in result.stdout
        assert sentence in result.stdout


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ("delays=rumour:3", "unknown kind of fact 'rumour'"),
        ("failures=abort:3", "unknown kind of fact 'abort'"),
        ("delays=transfer", "expected a whole number from 1 on, got ''"),
        ("messages=3", "only --unreduced looks at messages that are late"),
        ("aborts=0", "expected a whole number from 1 on, got '0'"),
        ("depth=3", "expected delays=KIND:N, aborts=N, failures=KIND:N, executions=N"),
    ],
)
def test_a_bound_that_says_nothing_is_refused(bound: str, message: str) -> None:
    result = ppsim("explore", SCENARIO, "--bound", bound)
    assert result.exit_code == EXIT_USAGE
    assert message in result.stderr


# --- the page ------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "explore.md"


def test_the_page_has_every_abort_and_vote_bug_and_each_is_found() -> None:
    shown = [name for names in bench_explore.FOUND_IN.values() for name in names]
    assert sorted(shown) == sorted(bug.name for bug in all_bugs().values() if bug.profile in ("abort", "pd"))
    text = PAGE.read_text(encoding="utf-8")
    for configuration, names in bench_explore.FOUND_IN.items():
        for name in names:
            assert f"| `{name}` | {all_bugs()[name].breaks} | {configuration} | " in text
            assert (f"- `{name}` ({configuration}): " in text) == (configuration not in bench_explore.OF_THE_ISSUE)
    assert "not found" not in text


@pytest.mark.parametrize("name", ["abort", "failure", "flush", "limit"])
def test_a_row_of_the_page_is_what_is_measured_now(name: str) -> None:
    row = bench_explore.measure(name)
    line = bench_explore.line_of(name, {**row, "seconds": 0})
    before_seconds = line.rsplit("| 0 |", 1)[0]
    assert before_seconds in PAGE.read_text(encoding="utf-8"), f"measure {name} again: {line}"


# --- bounds that nobody gave -----------------------------------------------------------------------------------------


def test_without_a_bound_every_time_of_an_abort_and_every_late_fact_is_explored() -> None:
    """Two requests; bootstrap and transfer on two ranks. The longest run of all must be covered."""
    result = ppsim("explore", SCENARIO, "--set", ONE, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("no bound was given, so these are chosen: --bound aborts=")
    shown = json.loads(result.stdout)
    bounds = shown["bounds"]
    assert bounds["chosen"] is True
    assert bounds["delays"] == {"bootstrap": 1, "transfer": 1}
    assert bounds["aborts"] >= shown["longest_run"]
    # no abort, or one in any iteration; two facts on two ranks in time or late, but for those that an abort forestalls
    assert 2**4 < shown["executions"] <= 2**4 * (1 + bounds["aborts"])
    given = result.stderr.splitlines()[0].partition("chosen: ")[2].split()
    again = ppsim("explore", SCENARIO, "--set", ONE, "--json", *given)
    assert {**json.loads(again.stdout), "seconds": 0} == {
        **shown,
        "seconds": 0,
        "bounds": {**bounds, "chosen": False},
    }


def test_chosen_bounds_find_what_no_bound_never_showed() -> None:
    alone = explored("", "workload.aborts=[]", bug="free_at_abort")
    assert (alone.executions, alone.findings) == (1, [])
    result = ppsim("explore", SCENARIO, "--set", PLAIN, "--bug", "free_at_abort")
    assert result.exit_code == EXIT_SAFETY, result.stdout


def test_too_much_to_explore_is_refused_with_what_to_do() -> None:
    many = "workload.requests=[" + ",".join(f'{{rid="R{i}",prompt=8,output=90}}' for i in range(40)) + "]"
    result = ppsim("explore", SCENARIO, "--set", PLAIN, "--set", many, "--set", "run.max_wait_iterations=0")
    assert result.exit_code == EXIT_USAGE
    assert "explore needs a bound: 40 requests and " in result.stderr
    assert (
        "give --bound aborts=N (before iteration N), --bound delays=KIND:N or --bound failures=KIND:N" in result.stderr
    )


def test_a_bound_on_the_number_of_executions_alone_bounds_what_is_chosen() -> None:
    result = ppsim("explore", SCENARIO, "--set", ONE, "--bound", "executions=3", "--json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, shown["verdict"], shown["executions"]) == (EXIT_UNKNOWN, "unknown", 3)
    assert shown["bounds"]["aborts"] > 0
