"""The scenario files of two pipelines do what their comments say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.recording.shares import admissions, instants
from ppsim.recording.summary import summarize
from ppsim.scenario import load_scenario
from ppsim.world import SimulationResult, simulate
from tests.worlds.pd_making import prefill_of, writes_of

S = 1_000_000_000


def ran(name: str, *overrides: str) -> SimulationResult:
    result = simulate(load_scenario(name, overrides))
    assert result.verdict.kind == "pass", result.verdict.message
    return result


def ttft_s(result: SimulationResult) -> float:
    return float(summarize(result.recording, result.verdict)["ttft_s"]["mean"])


def test_pd_chunked_transfer_hides_the_kv_of_a_long_prompt_behind_its_compute() -> None:
    name = "pd_chunked_transfer"
    result = ran(name)
    free = ttft_s(ran(name, "disaggregation.kv_bandwidth_gb_per_s=0"))
    first = writes_of(result, 0)[0]
    passes = [s.end_ns - s.start_ns for s in prefill_of(result).spans[0] if s.stream == "forward"]
    load = first.duration_ns / min(passes)
    print(f"a tenth of the link: {load:.3f} of a pass; TTFT {free:.4f} s without transfer, {ttft_s(result):.4f} s with")
    assert 0.05 < load < 0.12
    assert 0 < ttft_s(result) - free < 0.01 * free
    assert ttft_s(ran(name, "disaggregation.kv_bandwidth_gb_per_s=1")) > 1.2 * free


def test_pd_busy_votes_costs_a_round_more_than_the_leader_chain() -> None:
    found: dict[str, Any] = {}
    for bootstrap in ("vote", "store"):
        result = ran("pd_busy_votes", f'disaggregation.bootstrap="{bootstrap}"')
        found[bootstrap] = next(a for a in admissions(prefill_of(result)) if a.rid == "short")
    assert found["vote"].iterations == 9
    assert round(found["vote"].all_ranks_ns / S) == 16  # 2 P: the last stage is P - 1 visits behind the first
    assert found["store"].iterations == 1
    assert round(found["store"].all_ranks_ns / S) == 8


def test_pd_mooncake_serves_the_first_requests_of_a_trace() -> None:
    result = ran("pd_mooncake", "workload.num_requests=12")
    summary = summarize(result.recording, result.verdict)
    assert summary["num_finished"] == 12
    assert all("landed" in marks for marks in instants(result.recording).values())


def test_either_side_of_a_saved_run_can_be_shown_drawn_and_compared(tmp_path: Path) -> None:
    def ppsim(*words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    for name in ("vote", "store"):
        sets = ["--set", f'disaggregation.bootstrap="{name}"', "--out", str(tmp_path / name)]
        assert ppsim("run", "pd_busy_votes", *sets).exit_code == 0
    one, other = str(tmp_path / "vote"), str(tmp_path / "store")
    for side, last in (("prefill", "short[0:64]"), ("decode", "-")):
        shown = ppsim("show", one, "--schedule", "--side", side)
        assert shown.exit_code == 0
        assert last in shown.stdout
    assert ppsim("plot", one, "--side", "prefill", "-o", str(tmp_path / "prefill.png")).exit_code == 0
    both = ppsim("plot", one, "-o", str(tmp_path / "both.png"))  # the decode side has no token to compute, and is told
    assert both.exit_code == 0
    assert (tmp_path / "both.png").read_bytes() != (tmp_path / "prefill.png").read_bytes()
    assert ppsim("show", one, "--schedule", "--side", "prefill", "--rank", "7").exit_code == 0
    assert ppsim("diff", one, one).stdout.startswith("equal: decisions, tokens and replies of 8 + 1 ranks, ")
    differ = ppsim("diff", one, other)
    assert differ.exit_code == 1
    assert "of side prefill, rank 0, " in differ.stdout
    assert ppsim("run", "unit", "--out", str(tmp_path / "unit")).exit_code == 0
    plain = ppsim("show", str(tmp_path / "unit"), "--side", "prefill")
    assert plain.exit_code == 2
    assert "--side prefill: this run has one pipeline" in plain.output
