"""Law: a campaign writes, reads and shows all that some of its examples leave, and a report that fails is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.cli.every_report import write_and_read
from ppsim.fuzz import round
from ppsim.fuzz.experiment import Terms
from ppsim.fuzz.round import Order, run_round
from ppsim.scenario.load import load_scenario
from ppsim.world import simulate


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_two_of_a_hundred_examples_are_written_and_read() -> None:
    seen: list[str] = []
    terms = Terms(reports=lambda scenario, result: seen.append(scenario.name))
    with_reports = run_round(Order("plain", 1, terms=terms), 0, 100)
    assert with_reports.num_examples // round.REPORTS_EVERY == len(seen) == 2
    assert with_reports.digest == run_round(Order("plain", 1), 0, 100).digest


@pytest.mark.parametrize("profile", ["plain", "pd", "pair", "hicache", "abort"])
def test_the_reports_of_generated_runs_of_every_role_do_not_fail(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round, "REPORTS_EVERY", 3)
    found = run_round(Order(profile, 11, terms=Terms(reports=write_and_read)), 0, 12)
    assert (found.num_examples, found.signature) == (12, None)


@pytest.mark.parametrize("name", ["unit", "pd_chunked_transfer", "hicache"])
def test_a_run_that_passes_is_read_back_as_it_was_written(name: str) -> None:
    scenario = load_scenario(name, ["workload.num_requests=3"] if name != "unit" else [])
    write_and_read(scenario, simulate(scenario))


def break_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    def summary_text(summary: dict[str, Any]) -> str:
        return str(summary["prefill"])

    monkeypatch.setattr("ppsim.report.table.summary_text", summary_text)


def test_a_report_that_fails_is_found_shrunk_saved_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        break_reports(broken)
        found = ppsim("fuzz", "--profile", "plain", "--examples", "60", "--out", "here", "--json")
        assert found.exit_code == 1, found.stderr
        (finding,) = json.loads(found.stdout)["findings"]
        assert (finding["invariant"], finding["example"]) == ("report-KeyError", 50)
        assert finding["message"].startswith("report: KeyError: 'prefill' (test_reports.py, line ")
        assert finding["size"]["requests"] == 1
        again = ppsim("replay", finding["repro"])
        assert again.exit_code == 1
        assert again.stdout.splitlines()[-1] == "reproduced bit for bit"
    assert ppsim("replay", finding["repro"]).exit_code == 0
    kept = ppsim("replay", finding["repro"], "--emit-test").stdout
    assert "run_experiment(Experiment(RAW, TAPE), terms=Terms(reports=write_and_read))" in kept
    scope: dict[str, Any] = {}
    exec(compile(kept, "kept", "exec"), scope)
    (test,) = (scope[name] for name in scope if name.startswith("test_"))
    test()
    break_reports(monkeypatch)
    with pytest.raises(AssertionError, match="report: KeyError"):
        test()
