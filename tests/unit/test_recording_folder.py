"""Law: a run folder holds a whole run, can be run again from its config, and never takes another run's place unsaid."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from ppsim.errors import UsageError
from ppsim.recording import PASS, Verdict
from ppsim.recording.folder import (
    UNDER_WAY,
    RunFolder,
    find_run,
    incomplete,
    leave,
    mark_incomplete,
    open_run,
    point_latest,
    prepare_folder,
    read_verdict,
    run_folder,
    write_config,
    write_run,
)
from ppsim.recording.summary import summarize
from ppsim.scenario import Scenario, load_scenario
from ppsim.scenario.load import validate
from ppsim.sweeps import folder as sweeps
from tests.unit.handmade import pipeline


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(out: str | None = None, scenario: Scenario | None = None, verdict: Verdict = PASS) -> Path:
    recording = pipeline(2, 3)
    with run_folder(out, "by-hand", 3) as folder:
        config = (scenario or Scenario(name="by-hand", seed=3)).model_dump(mode="json")
        write_run(folder, config, recording, summarize(recording, verdict), verdict)
    return folder.path


def test_a_run_folder_has_its_four_files_and_latest_names_it() -> None:
    path = saved()
    assert path == Path("runs/by-hand-3-1")
    assert sorted(p.name for p in path.iterdir()) == ["config.toml", "recording.jsonl", "summary.json", "verdict.json"]
    assert Path("runs/latest").resolve() == path.resolve()
    assert json.loads((path / "summary.json").read_text())["bubble_ratio"] == 0.25
    assert read_verdict(str(path)) == PASS
    assert open_run("latest").decisions == pipeline(2, 3).decisions


def test_each_run_gets_the_next_free_number_and_the_same_bytes() -> None:
    first, second = saved(), saved()
    assert second == Path("runs/by-hand-3-2")
    assert Path("runs/latest").resolve() == second.resolve()
    for name in ("config.toml", "recording.jsonl", "summary.json", "verdict.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_hole_in_the_numbers_is_filled_and_nothing_is_overwritten() -> None:
    saved()
    saved()
    os.rename("runs/by-hand-3-1", "runs/kept")
    assert saved() == Path("runs/by-hand-3-1")
    assert saved() == Path("runs/by-hand-3-3")


def test_the_config_is_the_whole_scenario_and_loads_again() -> None:
    scenario = validate(
        {
            "name": 'odd "name"',
            "seed": 7,
            "cluster": {"pp_size": 2},
            "scheduler": {"max_total_tokens": [16384, 20000], "schedule_policy": "lpm"},
            "model": {"layer_partition": [15, 17]},
            "links": {"latency_us": 2.5, "control_latency_us": 0.0},
            "workload": {
                "source": "requests",
                "requests": [
                    {"rid": "R1", "at_iteration": 3, "prompt": 100, "output": 5, "prefix_blocks": [1, 2]},
                    {"rid": "R2", "at_ms": 1.5, "prompt": 1},
                ],
            },
        }
    )
    path = saved("here", scenario)
    assert load_scenario(str(path / "config.toml")) == scenario
    assert tomllib.loads((path / "config.toml").read_text())["workload"]["requests"][0]["at_iteration"] == 3


def test_a_named_folder_that_holds_a_run_is_replaced_and_says_so() -> None:
    saved("mine")
    assert prepare_folder("mine", "x", 0).replaces
    assert not Path("runs").exists()
    saved("mine", verdict=Verdict("fail", 1, "broken", invariant="INV-07", rank=2))
    assert read_verdict("mine").invariant == "INV-07"


def test_a_folder_whose_run_was_killed_before_it_recorded_anything_is_replaced() -> None:
    folder = prepare_folder("mine", "x", 0)
    mark_incomplete(folder.path, UNDER_WAY)
    write_config(folder.path, {"seed": 1})
    assert prepare_folder("mine", "x", 0).replaces


def test_a_mark_without_a_word_is_one_and_stays_while_there_are_files_of_ranks() -> None:
    """The disk was full: there was no room for a word, and none for the recording as a whole."""
    folder = RunFolder(Path("mine"))
    (folder.path / "ranks").mkdir(parents=True)
    (folder.path / "incomplete.txt").write_text("")
    (folder.path / "ranks" / "launch.jsonl").write_text("")
    assert incomplete(folder.path) == UNDER_WAY
    leave(folder)
    assert incomplete(folder.path) == UNDER_WAY
    (folder.path / "ranks" / "launch.jsonl").unlink()
    leave(folder)
    assert incomplete(folder.path) == ""


def test_a_folder_with_somebody_elses_config_is_refused() -> None:
    Path("theirs").mkdir()
    Path("theirs/config.toml").write_text("precious = 1\n")
    with pytest.raises(UsageError, match=r"theirs: holds a config.toml that is not part of a run"):
        saved("theirs")
    assert Path("theirs/config.toml").read_text() == "precious = 1\n"


def test_a_file_in_the_way_is_told() -> None:
    Path("file").write_text("")
    for out in ("file", "file/below"):
        with pytest.raises(UsageError, match="a file is in the way"):
            saved(out)
    Path("runs").write_text("")
    with pytest.raises(UsageError, match="runs: a file is in the way"):
        saved()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_told() -> None:
    Path("locked").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="cannot be"):
        saved("locked/run")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a place where nobody can make a folder")
def test_a_place_where_no_folder_can_be_made_is_told() -> None:
    with pytest.raises(UsageError, match="run folder /proc/ppsim: cannot be made"):
        saved("/proc/ppsim")


def test_a_run_that_never_wrote_leaves_no_folder() -> None:
    def fails() -> None:
        with run_folder(None, "by-hand", 3) as folder:
            assert folder.path.is_dir()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert not any(Path("runs").iterdir())
    assert saved() == Path("runs/by-hand-3-1")


def test_where_links_are_impossible_latest_is_a_text_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", no_links)
    path = saved()
    assert not Path("runs/latest").is_symlink()
    assert find_run("latest").resolve() == path.resolve()
    assert find_run("runs/latest").resolve() == path.resolve()
    point_latest(saved())
    assert find_run("latest").name == "by-hand-3-2"


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_not_the_folder_one_stands_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved())
    open_run(".")
    with pytest.raises(UsageError, match="the name of a run is empty"):
        open_run(name)


def test_the_folder_of_a_sweep_is_called_one() -> None:
    Path("sweep").mkdir()
    Path("sweep", sweeps.POINTS).touch()
    with pytest.raises(UsageError, match=r"no recording\.jsonl; it is that of a sweep.*table\.csv"):
        open_run("sweep")


def test_runs_that_are_not_there_or_not_whole_are_told() -> None:
    with pytest.raises(UsageError, match="run 'nothing' does not exist"):
        open_run("nothing")
    Path("empty").mkdir()
    with pytest.raises(UsageError, match=r"empty is not a run folder: it has no recording\.jsonl"):
        open_run("empty")
    path = saved("whole")
    (path / "verdict.json").write_text('{"kind": "pass"')
    with pytest.raises(UsageError, match=r"verdict\.json: is not a verdict"):
        read_verdict("whole")
    (path / "verdict.json").write_text('{"surprise": 1}')
    with pytest.raises(UsageError, match=r"verdict\.json: is not a verdict"):
        read_verdict("whole")
    (path / "verdict.json").unlink()
    assert read_verdict("whole").kind == "unknown"
