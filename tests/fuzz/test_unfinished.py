"""Law: an exploration that was interrupted goes on behind what it has run, and both parts together are the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.cli.explore import without_resume
from ppsim.errors import UsageError
from ppsim.fuzz import explore as module
from ppsim.fuzz.explore import Bounds, Exploration, explore
from ppsim.fuzz.unfinished import read_unfinished, save_unfinished
from ppsim.scenario import load_scenario
from ppsim.scenario.expect_judged import without_expect

BOUNDS = Bounds(delays={"transfer": 1}, aborts=3)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def raw_scenario() -> dict[str, Any]:
    raw = without_expect(load_scenario("explore_release")).model_dump(mode="json", exclude_unset=True)
    raw.pop("bugs", None)
    return raw


def interrupted(after: int, monkeypatch: pytest.MonkeyPatch, before: Exploration | None = None) -> Exploration:
    """An exploration in which somebody presses Ctrl-C in the middle of an execution."""
    real, count = module.run_experiment, [0]

    def run(*args: Any) -> Any:
        count[0] += 1
        if count[0] > after:
            real(*args)  # the choices of this one are drawn, and it does not count
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_experiment", run)
        return explore(raw_scenario(), BOUNDS, before=before)


@pytest.mark.parametrize("after", [0, 1, 17, 40])
def test_the_parts_of_an_exploration_are_the_whole(after: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = explore(raw_scenario(), BOUNDS)
    part = interrupted(after, monkeypatch)
    assert (part.is_cut, part.complete, part.executions) == (True, False, after)
    save_unfinished(tmp_path / "a.json", raw_scenario(), "", part)
    part = interrupted(5, monkeypatch, read_unfinished(str(tmp_path / "a.json"), raw_scenario(), ""))
    save_unfinished(tmp_path / "b.json", raw_scenario(), "", part)
    rest = explore(raw_scenario(), BOUNDS, before=read_unfinished(str(tmp_path / "b.json"), raw_scenario(), ""))
    assert whole.executions > after + 5
    assert (rest.complete, rest.executions) == (True, whole.executions)
    assert (rest.runs, set(rest.states)) == (whole.runs, set(whole.states))
    assert (rest.num_iterations, rest.place) == (whole.num_iterations, None)


def test_what_is_of_another_exploration_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    save_unfinished(file, raw_scenario(), "", interrupted(2, monkeypatch))
    other = raw_scenario()
    other["cluster"]["pp_async_batch_depth"] = 1
    for raw, changed_by in ((other, ""), (raw_scenario(), "a plug-in")):
        with pytest.raises(UsageError, match="is of another scenario, bug or plug-in"):
            read_unfinished(str(file), raw, changed_by)
    for text in ("", "[]", "{}", '{"bounds": {}}'):
        file.write_text(text)
        with pytest.raises(UsageError, match="is no unfinished exploration"):
            read_unfinished(str(file), raw_scenario(), "")
    assert ppsim("explore", "explore_release", "--resume", "nowhere.json").exit_code == 2


def test_the_command_goes_on_with_what_a_budget_has_left() -> None:
    bounds = ("--bound", "aborts=3", "--bound", "delays=transfer:1")
    whole = json.loads(ppsim("explore", "explore_release", *bounds, "--json").stdout)
    first = ppsim("explore", "explore_release", *bounds, "--budget", "0.05")
    assert first.exit_code == 5
    assert "go on with  ppsim " in first.stderr
    file = "runs/explore-explore_release/unfinished.json"
    assert f"--resume {file}" in first.stderr
    again = ppsim("explore", "explore_release", "--resume", file, "--json")
    assert again.exit_code == 0, again.stderr
    found = json.loads(again.stdout)
    for key in ("verdict", "executions", "distinct_executions", "states", "bounds"):
        assert found[key] == whole[key], key
    wrong = ppsim("explore", "explore_release", "--bound", "aborts=4", "--resume", file)
    assert (wrong.exit_code, "other bounds than --bound" in wrong.stderr) == (2, True)


def test_a_command_line_names_one_file_to_go_on_with() -> None:
    assert without_resume(["explore", "x", "--resume", "a", "--bound", "b"]) == ["explore", "x", "--bound", "b"]
    assert without_resume(["explore", "--resume=a", "x"]) == ["explore", "x"]
