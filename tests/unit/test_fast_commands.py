"""Commands and functions that make runs for a table: one rank stands for all where it can, ``--no-fast`` runs every
rank, ``--fast`` refuses by name, and the answers are the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import ppsim
from ppsim.cli.entry import app
from ppsim.errors import EXIT_PASS, EXIT_USAGE, ScenarioError
from ppsim.studies.paper import PaperRuns

TUNE = "tune tiny --set cost.tp_comm_ms_per_token=0.01 --prompt 400 --max-cp 1"
SERVE = (
    "compare --model qwen3-8b --gpu h20 --gpus 2 --prompt 1024 --chunk 1024 --link-gb-per-s 50"
    " --concurrency 2 --output-tokens 4 --serve 4"
)
SWEEP = "sweep unit --set cluster.pp_size=2,4 --jobs 1"
QUESTION = "questions P26"
COMMANDS = [TUNE, SERVE, SWEEP, QUESTION]
BY_EVENTS = "every rank was run"


@pytest.fixture
def no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs every rank is told so."""

    def refuse(*args: Any) -> None:
        raise RuntimeError(BY_EVENTS)

    monkeypatch.setattr(sys.modules["ppsim.world.simulate"], "simulate_once", refuse)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(line: str, *more: str) -> Result:
    return CliRunner().invoke(app, [*line.split(), "--json", *more])


def by_events(done: Result) -> bool:
    return BY_EVENTS in done.output + str(done.exception)


@pytest.mark.usefixtures("no_events")
@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line.split()[0])
def test_one_rank_stands_for_all_unless_it_is_asked_not_to(line: str) -> None:
    for more in ((), ("--fast",)):
        done = run(line, *more)
        assert done.exit_code == EXIT_PASS, done.output
    assert by_events(run(line, "--no-fast"))


@pytest.mark.usefixtures("no_events")
def test_the_published_figures_are_run_so_too() -> None:
    name = "deepseek_v31_h20_pp4_fixed_12288"
    assert PaperRuns(0.57).ttft_s(name) == PaperRuns(0.57, fast=True).ttft_s(name)
    with pytest.raises(RuntimeError, match=BY_EVENTS):
        PaperRuns(0.57, fast=False).ttft_s(name)


@pytest.mark.usefixtures("no_events")
def test_functions_of_the_library_are_run_so_too() -> None:
    assert ppsim.simulate("unit").passed
    assert ppsim.sweep("unit", {"pp_size": [2, 4]}, num_jobs=0).passed
    keys = {"prompt_tokens": 400, "max_cp_size": 1, "tp_comm_ms_per_token": 0.01}
    assert ppsim.tune("tiny", **keys).best == ppsim.tune("tiny", fast=True, **keys).best
    with pytest.raises(RuntimeError, match=BY_EVENTS):
        ppsim.simulate("unit", fast=False)
    with pytest.raises(RuntimeError, match=BY_EVENTS):
        ppsim.tune("tiny", fast=False, **keys)
    swept = ppsim.sweep("unit", {"pp_size": [2]}, num_jobs=0, fast=False)
    assert BY_EVENTS in swept.columns["message"][0]


def answer(done: Result) -> dict[str, Any]:
    """Without the names of files and the speed of the search."""
    found = json.loads(done.stdout)
    rest = found[0] if isinstance(found, list) else found
    return {key: value for key, value in rest.items() if key not in ("files", "configs_per_s")}


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line.split()[0])
def test_every_rank_gives_the_same_answer(line: str) -> None:
    assert answer(run(line)) == answer(run(line, "--no-fast"))


def test_a_point_that_one_rank_cannot_stand_for_is_refused_and_another_sweep_runs_it() -> None:
    line = "sweep unit --set links.jitter_us=0,5 --jobs 1 --out swept"
    done = run(line, "--fast")
    assert done.exit_code == EXIT_USAGE
    one, other = json.loads(done.stdout)["points"]
    assert (one["outcome"], other["outcome"]) == ("pass", "refused")
    assert "one rank cannot stand for all here: links.jitter_us" in other["message"]
    assert json.loads(run(line).stdout)["counts"] == {"pass": 2}
    again = run(line, "--no-fast")  # to the same bytes: what is there holds
    assert "2 points were finished before" in again.stderr


def test_a_tuning_and_the_published_figures_say_which_key_it_is() -> None:
    done = run(TUNE, "--fast", "--set", "links.jitter_us=5")
    assert done.exit_code == EXIT_USAGE
    assert "one rank cannot stand for all here: links.jitter_us" in done.stderr
    with pytest.raises(ScenarioError, match=r"links\.jitter_us"):
        ppsim.tune("tiny", fast=True, jitter_us=5, prompt_tokens=400, max_cp_size=1, tp_comm_ms_per_token=0.01)
    with pytest.raises(ScenarioError, match=r"links\.jitter_us"):
        PaperRuns(0.57, ("links.jitter_us=5",), fast=True).ttft_s("deepseek_v31_h20_pp4_fixed_12288")


@pytest.mark.parametrize("flag", ["--fast", "--no-fast"])
@pytest.mark.parametrize("line", ["questions --list", SERVE.replace(" --serve 4", "")], ids=["questions", "compare"])
def test_where_nothing_is_run_the_flag_is_refused(line: str, flag: str) -> None:
    done = run(line, flag)
    assert done.exit_code == EXIT_USAGE
    assert flag in done.stderr
