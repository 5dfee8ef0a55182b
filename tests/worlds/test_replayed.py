"""Law: a run folder of the simulated world replays, record by record, from what is in it; and what was changed in it,
or is missing beside it, is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.plugin import load
from ppsim.recording.agreement import disagreement
from ppsim.recording.folder import open_run
from ppsim.recording.reader import read_recording
from ppsim.recording.writer import write_recording
from ppsim.scenario import Scenario, load_scenario
from ppsim.world import simulate
from ppsim.world.replayed import Until, replay
from tests.executor.small import small_scenario


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One folder for all, with one run in it: ``a``."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("replayed"))
    assert ppsim("run", "tiny", "--out", "a").exit_code == 0
    yield
    os.chdir(before)


SOURCES: dict[str, list[str]] = {
    "tiny": [],
    "explore_release": [],  # prefill role
    "hicache": ["workload.max_requests=6"],
    "pd_released_votes": [],
    "bugs/b68_abort_in_flight": [],
    "bugs/b17_chunk_holds_the_only_row": [],
    "bugs/b48_retraction_without_effect": [],
}


def scenario_named(name: str) -> Scenario:
    try:
        return load_scenario(name, SOURCES[name])
    except Exception:
        return load_scenario(name, [])


@pytest.mark.parametrize("name", SOURCES)
def test_what_was_recorded_is_enough_to_make_every_record_again(name: str, tmp_path: Path) -> None:
    """Written and read first, so that nothing but the file is fed; of two pipelines each by itself."""
    scenario = scenario_named(name)
    result = simulate(scenario)
    recorded = result.recording
    for place, side in enumerate([recorded, recorded.peer]):
        if side is not None:
            write_recording(side, tmp_path / f"{place}.jsonl")
    again = read_recording(tmp_path / "0.jsonl")
    again.peer = read_recording(tmp_path / "1.jsonl") if recorded.peer is not None else None
    sides = replay(again, scenario, load(scenario.bugs).change)
    assert len(sides) == (1 if recorded.peer is None else 2)
    for _, mine, out in sides:
        assert sum(len(decisions) for decisions in mine.decisions) >= 8
        assert disagreement(mine, out.recording, is_whole=result.verdict.kind == "pass") is None
        assert out.verdict.kind == "pass"


def test_sessions_have_prompts_that_the_scenario_alone_does_not_make() -> None:
    lengths = {"input_length": {"kind": "fixed", "value": 13}, "output_length": {"kind": "fixed", "value": 5}}
    sessions = {"source": "generated", "num_sessions": 3, "num_turns": 3, "concurrency": 2, **lengths}
    scenario = small_scenario(workload=sessions)
    recorded = simulate(scenario).recording
    recorded.ingestions = [read._replace(live=()) for read in recorded.ingestions]
    ((_, mine, out),) = replay(recorded, scenario, load().change)
    assert disagreement(mine, out.recording, is_whole=True) is None
    assert sum(item.kind == "new" for read in mine.ingestions for item in read.inputs) == 9


def test_refused_memory_comes_back_where_it_was_refused() -> None:
    keys = ["chance.max_failed_allocations=2", "chance.max_good_allocations=2"]
    for seed in range(20):
        scenario = load_scenario("tiny", keys, seed=seed)
        recorded = simulate(scenario).recording
        if recorded.refusals:
            break
    assert recorded.refusals
    other = scenario.model_copy(update={"chance": type(scenario.chance)()})  # nothing but the recording knows them
    ((_, mine, out),) = replay(recorded, other, load().change)
    assert disagreement(mine, out.recording, is_whole=True) is None
    recorded.refusals = []
    ((_, mine, out),) = replay(recorded, other, load().change)
    assert disagreement(mine, out.recording, is_whole=True) is not None


def test_a_run_is_replayed_and_both_digests_are_shown() -> None:
    done = ppsim("replay", "a")
    assert done.exit_code == 0, done.output
    assert "equal: every record of every rank" in done.stdout
    assert "rank 1: 23 of 23 decisions" in done.stdout
    told = json.loads(ppsim("replay", "a", "--json").stdout)
    assert told["sides"][0]["equal"] is True
    assert told["sides"][0]["num_decisions"] == [23, 23]


def test_the_first_difference_is_named_with_both_sides() -> None:
    recording = open_run("a")
    at = next(i for i, s in enumerate(recording.samples) if s.token_ids and s.token_ids[0] > 0)
    sample = recording.samples[at]
    recording.samples[at] = sample._replace(token_ids=(sample.token_ids[0] + 1, *sample.token_ids[1:]))
    ppsim("run", "tiny", "--out", "b")
    write_recording(recording, Path("b/recording.jsonl"))
    done = ppsim("replay", "b")
    assert done.exit_code == 4, done.output
    assert "different: first in the harvest record of rank 0" in done.stdout
    assert f"recorded  {sample.token_ids[0]}" in done.stdout
    assert f"replayed  {sample.token_ids[0] + 1}" in done.stdout


def test_a_line_that_was_edited_is_told_whatever_it_is_about() -> None:
    """Also one that no digest of decisions covers: an observation, a sampled token, a time."""
    ppsim("run", "tiny", "--out", "b")
    path = Path("b/recording.jsonl")
    text = path.read_text()
    for kind in ("observed", "sampled", "span", "ingested", "visits", "arrival"):
        row = next(line for line in text.splitlines() if line.startswith(f'["{kind}"'))
        fields = json.loads(row)
        place = next(i for i, value in enumerate(fields) if i and type(value) is int)
        fields[place] += 0 if kind == "observed" and place == 1 else 1
        if kind == "observed":
            fields[-1] = [value + 1 for value in fields[-1]]
        path.write_text(text.replace(row, json.dumps(fields, separators=(",", ":")), 1))
        done = ppsim("replay", "b")
        assert done.exit_code == 2, (kind, done.output)
        assert "edited?" in done.stderr or "goes on with" in done.stderr or "rank" in done.stderr, done.stderr
    path.write_text(text.replace('"version":2', '"version":3', 1))
    assert "has schema version 3, this ppsim reads version 1 and 2" in ppsim("replay", "b").stderr
    path.write_text(text[: len(text) // 2])
    assert ppsim("replay", "b").exit_code == 2


def test_an_older_recording_still_replays() -> None:
    """Version 1 had no origin, no refusals and no digest over its text."""
    ppsim("run", "tiny", "--out", "b")
    path = Path("b/recording.jsonl")
    rows = path.read_text().splitlines()
    head = json.loads(rows[0])
    head["version"] = 1
    head.pop("ppsim")
    rows[0] = json.dumps(head, separators=(",", ":"))
    rows[-1] = json.dumps(json.loads(rows[-1])[:3], separators=(",", ":"))
    path.write_text("\n".join(rows) + "\n")
    done = ppsim("replay", "b")
    assert (done.exit_code, "equal: every record" in done.stdout) == (0, True), done.output


PLUGIN = """import ppsim


class Policy(ppsim.Policy):
    def admission_order(self, waiting):
        return waiting[::-1]
"""


def test_the_plug_in_of_a_run_is_asked_for_and_another_one_is_refused() -> None:
    plugin = Path("mine.py")
    plugin.write_text(PLUGIN)
    assert ppsim("run", "tiny", "--plugin", "mine.py", "--out", "p").exit_code == 0
    assert ppsim("replay", "p").exit_code == 0
    plugin.rename("moved.py")
    done = ppsim("replay", "p")
    assert done.exit_code == 2
    assert "the run was recorded with the plug-in mine.py, which is not there: name it with --plugin" in done.stderr
    assert ppsim("replay", "p", "--plugin", "moved.py").exit_code == 0
    Path("other.py").write_text(PLUGIN.replace("[::-1]", ""))
    done = ppsim("replay", "p", "--plugin", "other.py")
    assert done.exit_code == 2
    assert "other.py is not the plug-in that the run was recorded with" in done.stderr
    assert "was recorded without a plug-in" in ppsim("replay", "a", "--plugin", "moved.py").stderr


def test_a_scenario_that_is_missing_or_another_ones_is_told() -> None:
    ppsim("run", "tiny", "--out", "b")
    config = Path("b/config.toml")
    text = config.read_text()
    config.write_text(text.replace("seed = 7", "seed = 8"))
    done = ppsim("replay", "b")
    assert (done.exit_code, "seed 8, recorded 7" in done.stderr) == (2, True), done.output
    config.unlink()
    assert "b/config.toml is missing: a replay needs the scenario of the run" in ppsim("replay", "b").stderr


def test_until_stops_there_and_shows_queues_slots_pool_and_inbox_of_every_rank() -> None:
    done = ppsim("replay", "a", "--until", "rank=1,iteration=8")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("stopped where rank 1 begins iteration 8")
    for rank in ("rank 0: iteration", "rank 1: iteration 8, slot"):
        part = done.stdout[done.stdout.index(rank) :]
        assert all(word in part for word in ("slot 0", "queue waiting", "pool: ", "inbox"))
    assert "inbox from rank 0, lane control: meta of iteration 8" in done.stdout
    for text, message in (
        ("rank=9,iteration=1", "the run has ranks 0 to 1"),
        ("iteration=1", "expected rank=N,iteration=N"),
        ("rank=0,iteration=x", "expected rank=N,iteration=N"),
        ("rank=0,iteration=900", "comes to iteration 23 and no further"),
    ):
        refused = ppsim("replay", "a", "--until", text)
        assert (refused.exit_code, message in refused.stderr) == (2, True), refused.output


def test_the_state_at_a_place_is_that_of_the_run_itself() -> None:
    """Second source: the digest that the recorded rank took of its own state when it decided the iteration before."""
    scenario = load_scenario("tiny", [])
    recorded = simulate(scenario).recording
    ((_, _, out),) = replay(recorded, scenario, load().change, Until(1, 8))
    assert out.is_reached
    assert out.setting.ranks[1].rank.iteration == 8
    assert out.recording.decisions[1] == recorded.decisions[1][:8]


def test_a_deadlock_comes_back_with_the_same_cycle() -> None:
    keys = ["--set", "run.invariants=false", "--set", "run.check=false"]
    hung = ppsim("run", "bugs/b18_everybody_sends_first", *keys, "--bug", "all_send_first", "--out", "h")
    verdict = json.loads(Path("h/verdict.json").read_text())
    assert (verdict["exit_code"], "deadlock" in verdict["message"]) == (3, True), hung.output
    done = ppsim("replay", "h", "--json")
    told = json.loads(done.stdout)["sides"][0]
    assert done.exit_code == 3, done.output
    assert told["equal"] is True
    assert told["recorded_cycle"] == told["cycle"] != []
