"""Law: nothing moves in silence. What a set of runs decides, and when, and what the planning commands answer, is saved.

A golden file is no oracle: it says that something changed, never that it is right. Whoever rewrites it says why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppsim.scenario import load_scenario
from tests.golden.commands import COMMANDS, SAMPLES, answer
from tests.golden.conftest import HERE, Goldens
from tests.golden.runs import RUNS, outcome


@pytest.mark.parametrize("name", RUNS)
def test_a_run_decides_and_times_as_saved(name: str, golden: Goldens) -> None:
    golden.hold(f"decided/{name}", outcome(RUNS[name]))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_answers_as_saved(
    name: str, golden: Goldens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples.jsonl").write_text(SAMPLES, encoding="utf-8")
    golden.hold(f"commands/{name}", answer(COMMANDS[name]))


def test_the_runs_are_of_every_kind() -> None:
    """All roles, tiers, retractions, mixed batches, failures: counted in what was saved, not read off the names."""
    saved = [json.loads((HERE / "decided" / f"{name}.json").read_text(encoding="utf-8")) for name in RUNS]
    seen = {kind for run in saved for kind, number in run["kinds"].items() if number}
    assert seen >= {"extend", "decode", "mixed", "empty", "retracted", "kv span", "load span", "write span"}
    assert seen >= {"token reply", "finished reply", "aborted reply"}
    assert {run["exit_code"] for run in saved} >= {0, 1, 3}
    roles = {load_scenario(golden.scenario, golden.overrides).disaggregation.role for golden in RUNS.values()}
    assert roles == {"plain", "prefill", "decode", "pd"}


def test_nothing_is_saved_that_is_not_compared() -> None:
    assert {path.stem for path in (HERE / "decided").iterdir()} == set(RUNS)
    assert {path.stem for path in (HERE / "commands").iterdir()} == set(COMMANDS)
