"""Law: the rules say of a replay what they say of the run, or the replay says where not; whatever the run's role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.plugin import load
from ppsim.recording import Recording
from ppsim.recording.agreement import NOT_JUDGED_AGAIN, disagreement
from ppsim.recording.reader import read_recording
from ppsim.recording.writer import write_recording
from ppsim.scenario.load import load_scenario, validate
from ppsim.world import simulate
from ppsim.world.replayed import replay
from tests.planted.catalogue import FOLDER, entries

ENTRIES = entries()
ONLY_THERE = {
    *("b33_written_after_abort", "b34_sent_before_computed", "b38_silent_sender", "b40_rejected_by_decode"),
    *("b43_evicted_before_sent", "b83_barrier", "b84_write_not_posted"),
}
"""Bugs that only the run itself can show: what the other server did, when transfers were over, limits in time."""


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def from_file(recording: Recording, folder: Path) -> Recording:
    """Nothing but what is on file."""
    found: list[Recording] = []
    for side in (recording, recording.peer):
        if side is not None:
            write_recording(side, folder / f"{len(found)}.jsonl")
            found.append(read_recording(folder / f"{len(found)}.jsonl"))
    found[0].peer = found[1] if found[1:] else None
    return found[0]


@pytest.mark.parametrize("bug", [False, True], ids=["right", "bug"])
@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_a_public_bug_has_the_same_verdict_in_its_replay(name: str, bug: bool, tmp_path: Path) -> None:
    """The same rule, exit code, rank and iteration; who broke what only its world could see passes, by the table."""
    entry = ENTRIES[name]
    recorded = entry.run(bug=bug)
    scenario = load_scenario(str(FOLDER / f"{name}.toml"))
    sides = replay(from_file(recorded.recording, tmp_path), scenario, load((entry.bug,) if bug else ()).change)
    for _, mine, out in sides:
        assert disagreement(mine, out.recording, is_whole=recorded.verdict.kind == "pass") is None
    wrong = [out.verdict for _, _, out in sides if out.verdict.kind != "pass"]
    verdict = recorded.verdict
    if bug and name in ONLY_THERE:
        assert verdict.invariant in NOT_JUDGED_AGAIN
        assert not wrong
        return
    here = wrong[0] if wrong else sides[0][2].verdict
    places = [(v.kind, v.invariant, v.exit_code, v.rank, v.iteration, v.rid) for v in (verdict, here)]
    assert places[0] == places[1], here.message


STORE: dict[str, Any] = {
    "name": "store",
    "cluster": {"pp_size": 2},
    "scheduler": {"chunked_prefill_size": 8, "max_total_tokens": 256, "max_running_requests": 4},
    "disaggregation": {"role": "prefill", "bootstrap": "store", "store_lag_us": 3000},
    "observations": {"max_delay": 3},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "workload": {
        "source": "requests",
        "requests": [{"rid": f"R{n}", "at_iteration": n, "prompt": 9 + n, "output": 3} for n in range(4)],
    },
    "run": {"invariants": True},
}


def test_what_the_store_held_is_recorded_so_its_rules_are_judged_again(tmp_path: Path) -> None:
    bug, rule = "missing_is_ready", "INV-55"
    scenario = validate(STORE)
    result = simulate(scenario, change=load((bug,)).change)
    assert result.verdict.invariant == rule, result.verdict.message
    recorded = from_file(result.recording, tmp_path)
    assert {len(stored.statuses) for stored in recorded.stores} == {2}
    ((_, mine, out),) = replay(recorded, scenario, load((bug,)).change)
    assert disagreement(mine, out.recording, is_whole=False) is None
    assert (out.verdict.invariant, out.verdict.rid) == (rule, result.verdict.rid)
    recorded.stores = []  # an older recording: nobody can know
    ((_, _, out),) = replay(recorded, scenario, load((bug,)).change)
    assert out.verdict.invariant != rule


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rules_that_the_run_was_not_judged_by_are_found_by_its_replay(here: Path) -> None:
    keys = ["--set", "run.check=false", "--set", "run.invariants=false"]
    assert ppsim("run", "tiny", *keys, "--bug", "other_tokens", "--out", "a").exit_code == 0
    plain = ppsim("replay", "a")
    assert (plain.exit_code, "verdict: pass, as recorded" in plain.stdout) == (0, True), plain.output
    done = ppsim("replay", "a", "--invariants")
    assert done.exit_code == 1, done.output
    assert "equal: every record of every rank" in done.stdout
    assert "the verdicts differ: recorded pass, replayed INV-" in done.stdout
    told = json.loads(ppsim("replay", "a", "--invariants", "--json").stdout)
    assert (told["same_verdict"], told["recorded_invariant"], told["verdict"]) == (False, None, "fail")


def test_a_verdict_that_does_not_come_back_is_told(here: Path) -> None:
    assert ppsim("run", "tiny", "--out", "a").exit_code == 0
    path = Path("a/verdict.json")
    verdict = json.loads(path.read_text())
    for rule, code, sentence in (
        ("INV-14", 4, "the verdicts differ: recorded INV-14 at rank 1, iteration 2, replayed pass"),
        ("INV-64", 0, "replayed pass (what tensors held is not recorded)"),
    ):
        broken = {"invariant": rule, "kind": "fail", "exit_code": 1, "rank": 1, "iteration": 2}
        path.write_text(json.dumps(verdict | broken))
        done = ppsim("replay", "a")
        assert (done.exit_code, sentence in done.stdout) == (code, True), done.output
