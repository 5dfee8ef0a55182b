"""Law: a run in which nothing has happened yet has a verdict, a table, a schedule and a diff like any other run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from tests.unit.trace_rules import problems

UNIT: dict[str, Any] = {
    "name": "nothing",
    "cluster": {"pp_size": 2},
    "scheduler": {"chunked_prefill_size": 4, "max_total_tokens": 64},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "workload": {"source": "trace", "trace": "t.jsonl"},
}
ROLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefill": {"disaggregation": {"role": "prefill"}},
    "prefill vote": {"disaggregation": {"role": "prefill", "bootstrap": "vote"}},
    "decode": {"disaggregation": {"role": "decode", "num_reserved_decode_tokens": 4}},
    "pd": {"disaggregation": {"role": "pd", "num_reserved_decode_tokens": 4, "decode_max_total_tokens": 64}},
    "pd one stage": {
        "disaggregation": {
            "role": "pd",
            "decode_pp_size": 1,
            "num_reserved_decode_tokens": 4,
            "decode_max_total_tokens": 64,
        }
    },
    "tiers": {"hicache": {"enabled": True, "host_tokens": 64, "storage": True}},
    "pd tiers": {
        "disaggregation": {"role": "pd", "num_reserved_decode_tokens": 4, "decode_max_total_tokens": 64},
        "hicache": {"enabled": True, "host_tokens": 64},
    },
}
FOR_EVER = "[{rank=0,at_iteration=0}]"
ENDINGS: dict[str, tuple[tuple[str, ...], int]] = {
    # what is changed, and the exit code
    "refused": (("scheduler.context_length=5",), 0),
    "the first rank stands still from the start": ((f"faults.pauses={FOR_EVER}",), 3),
    "the last rank stands still from the start": (("faults.pauses=[{rank=1,at_iteration=0}]",), 3),
    "one iteration": (("run.max_iterations=1",), 5),
    "two iterations": (("run.max_iterations=2",), 5),
    "nobody came": (("workload.time_scale=1e6", "run.max_iterations=1"), 5),
    "aborted at once": (("workload.aborts=[{abort_all=true,at_ms=1.0}]",), 0),
    "the watchdog barks": (("run.watchdog_ms=0.5", f"faults.pauses={FOR_EVER}"), 3),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim(*arguments: str) -> Result:
    """A command that must not die of a bug of ours, whatever it says."""
    result = CliRunner().invoke(app, list(arguments))
    assert "bug in ppsim" not in result.stderr, f"{arguments}\n{result.stderr}"
    return result


def saved(role: str, ending: str, out: str) -> dict[str, Any]:
    """Run into a folder, once for people and once for scripts. The summary."""
    Path("s.toml").write_text(tomli_w.dumps({**UNIT, **ROLES[role]}))
    # What a script asks for is refused before the run; a request of a trace is answered by it.
    Path("t.jsonl").write_text('{"timestamp": 1, "input_length": 9, "output_length": 2, "hash_ids": [1]}\n')
    changes, code = ENDINGS[ending]
    sets = [part for change in changes for part in ("--set", change)]
    for_people = ppsim("run", "s.toml", "--out", out, *sets)
    for_scripts = ppsim("run", "s.toml", "--out", out, "--json", *sets)
    assert for_people.exit_code == for_scripts.exit_code == code, for_people.stderr
    summary: dict[str, Any] = json.loads(for_scripts.stdout)
    verdict = json.loads(Path(out, "verdict.json").read_text())
    assert verdict["exit_code"] == code
    assert summary["verdict"] == verdict["kind"] == {0: "pass", 3: "fail", 5: "unknown"}[code]
    if code:  # the verdict is not lost
        assert verdict["message"].splitlines()[0] in for_people.stderr
    assert f"verdict {verdict['kind']}" in for_people.stdout
    return summary


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("role", ROLES)
def test_a_run_in_which_nothing_has_happened_is_shown_like_any_other(role: str, ending: str) -> None:
    summary = saved(role, ending, "here")
    two = role.startswith("pd")
    assert ("prefill" in summary) == two
    if ending == "refused":
        assert all(stage["busy_s"] == 0.0 for stage in summary["stages"])
    assert summary["num_finished"] == 0
    assert summary["num_refused"] == (ending == "refused")
    assert json.loads(ppsim("show", "here", "--json").stdout) == summary
    for side in ("prefill", "decode"):
        chosen = ("--side", side) if two else ()
        assert "requests    0 of" in ppsim("show", "here", *chosen).stdout
        ranks = 1 if (side, role) == ("decode", "pd one stage") else 2
        for rank in range(ranks):
            lines = ppsim("show", "here", "--schedule", "--rank", str(rank), *chosen)
            rows = ppsim("show", "here", "--schedule", "--rank", str(rank), "--json", *chosen)
            assert lines.exit_code == rows.exit_code == 0
            assert len(lines.stdout.splitlines()) == 1 + len(rows.stdout.splitlines())
        beyond = ppsim("show", "here", "--schedule", "--rank", str(ranks), *chosen)
        assert (beyond.exit_code, beyond.stdout) == (2, "")
        drawn = ppsim("plot", "here", *chosen, "-o", f"{side}.png")
        if drawn.exit_code:  # nothing ran, and it says so
            assert drawn.stderr.startswith("ppsim: nothing to plot: the recording has no forward pass")
        else:
            assert Path(f"{side}.png").stat().st_size > 1000
        assert ppsim("trace", "here", *chosen, "-o", f"{side}.trace.json").exit_code == 0
        assert problems(json.loads(Path(f"{side}.trace.json").read_text())) == []
        if not two:
            break
    for options in ((), ("--times",), ("--decisions",), ("--json",)):
        assert ppsim("diff", "here", "here", *options).exit_code == 0


@pytest.mark.parametrize("role", ROLES)
def test_runs_that_ended_at_once_differ_from_others_without_a_traceback(role: str) -> None:
    for i, ending in enumerate(ENDINGS):
        saved(role, ending, f"run{i}")
    for i in range(1, len(ENDINGS)):
        for options in ((), ("--json",), ("--times",)):
            assert ppsim("diff", "run0", f"run{i}", *options).exit_code in (0, 1)
