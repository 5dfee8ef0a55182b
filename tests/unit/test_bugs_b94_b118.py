"""The handed bugs B94 to B118: chunk planning, performance, crashes, bad input. The table of all of them is
docs/results/bugs_b94_b118.md, which the last tests hold; those whose rule is a formula are tested beside the formula.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.cost.coefficients import Coefficients
from ppsim.cost.plan import Pipeline, from_sizes, treat_tail
from ppsim.cost.sglang_chunks import fit_profile, profile_lengths
from ppsim.errors import ScenarioError
from ppsim.plugin import load
from ppsim.recording import Recording
from ppsim.recording.summary import summarize
from ppsim.scenario import load_scenario
from ppsim.world import SimulationResult, simulate
from tests.worlds.making import listening, situations

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "results" / "bugs_b94_b118.md").read_text(encoding="utf-8")
HANDED = (94, 95, 97, 98, 100, 103, 105, 106, 107, 109, 111, 113, 114, 117, 118)  # bugs.md; the rest was left out there
MS = 1_000_000


def run(name: str, *overrides: str) -> SimulationResult:
    return simulate(load_scenario(name if "/" in name else f"bugs_b94_b118/{name}", overrides), began=listening)


def passed(name: str, *overrides: str) -> Recording:
    result = run(name, *overrides)
    assert result.verdict.kind == "pass", result.verdict.message
    for decisions in result.recording.decisions[1:]:
        assert decisions == result.recording.decisions[0]
    return result.recording


def chunks(recording: Recording, rid: str = "R1") -> list[tuple[int, int]]:
    """(iteration, new tokens) of a request's prefill pieces."""
    prefills = [d for d in recording.decisions[0] if d.mode == "extend"]
    return [(d.iteration, new) for d in prefills for name, _, new in d.pieces if name == rid]


def steps_ms(recording: Recording, rank: int = 0) -> list[float]:
    """Times between the beginnings of a rank's forward passes."""
    starts = [span.start_ns for span in recording.spans[rank] if span.stream == "forward"]
    return [(b - a) / MS for a, b in pairwise(starts)]


# --- chunk planning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ['cost.source="unit"', "cost.prefill_a_ms_per_token2=0.0"])
@pytest.mark.parametrize("chunk", [512, 1024, 4096, 16384])
def test_b94_a_profile_without_a_curve_runs_fixed_chunks_and_says_so(source: str, chunk: int) -> None:
    sets = ('cost.source="quadratic"', source, f"scheduler.chunked_prefill_size={chunk}")
    recording = passed("b94_flat_profile", *sets)
    whole, rest = divmod(20_000, chunk)
    assert [size for _, size in chunks(recording)] == [chunk] * whole + [rest]
    assert [iteration for iteration, _ in chunks(recording)] == list(range(whole + 1))
    (warning,) = [text for text in recording.warnings if " has no effect: cost.source is " not in text]
    assert warning.startswith(f"dynamic chunks are off, fixed ones of {chunk} tokens run: quadratic coefficient a")
    fixed = passed("b94_flat_profile", *sets, "scheduler.enable_dynamic_chunking=false")
    assert [text for text in fixed.warnings if " has no effect: cost.source is " not in text] == []
    assert fixed.decisions[0] == recording.decisions[0]


def test_b95_a_chunk_and_one_token_are_two_chunks_and_a_chunk_below_the_page_is_refused() -> None:
    assert chunks(passed("b95_one_token_more_than_a_chunk")) == [(0, 128), (1, 1)]
    with pytest.raises(ScenarioError, match=r"chunked_prefill_size: 100 is not a multiple of scheduler.page_size 256"):
        run("b95_one_token_more_than_a_chunk", "scheduler.page_size=256", "scheduler.chunked_prefill_size=100")


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_b97_merging_the_tail_pays_from_some_cost_of_a_pass_on(stages: int) -> None:
    """One pass less saves c / P and lengthens the longest chunk: at the break-even c, found by hand, the sign turns."""
    recording = passed("questions/p14_first_chunk_and_smoothing", f"cluster.pp_size={stages}", "cost.prefill_c_ms=0.0")
    sizes = [size for _, size in chunks(recording)]
    assert sizes[-1] == 192
    tail, merged = from_sizes("tail", sizes), treat_tail(from_sizes("tail", sizes), 1024)
    assert min(merged.sizes) >= 1024
    pipeline = Pipeline.of([1] * stages)

    def saved_ms(c_ms: float) -> float:
        cost = Coefficients(c_ms=c_ms, b_ms=0.02048, a_ms=1.024e-6)
        return pipeline.ttft_ms(tail, cost) - pipeline.ttft_ms(merged, cost)

    # By hand: TTFT is (sum + (P - 1) max) / P; merged, the sum is c less and the last chunk the longest.
    last = 0.02048 * merged.sizes[-1] + 1.024e-6 * (16384**2 - (16384 - merged.sizes[-1]) ** 2)
    at = [sum(sizes[:i]) for i in range(len(sizes))]
    longest = max(0.02048 * n + 1.024e-6 * ((a + n) ** 2 - a**2) for a, n in zip(at, sizes))
    even = (stages - 1) * (last - longest)
    assert even > 0
    assert saved_ms(even) == pytest.approx(0.0, abs=1e-9)
    assert saved_ms(0.5 * even) < 0 < saved_ms(1.5 * even)


def test_b98_only_the_first_sample_is_dropped() -> None:
    """A cold sample in second place is not: warm-up that is longer than one call must be dealt with before the fit."""
    lengths = profile_lengths(6144)
    times = [5.0 + 0.02 * n + 1e-6 * n * n for n in lengths]
    assert fit_profile(lengths, [7234.0, *times[1:]]).a == pytest.approx(1e-6)
    assert abs(fit_profile(lengths, [times[0], 7234.0, *times[2:]]).a - 1e-6) > 1e-5


def test_b100_a_chunk_without_memory_waits_a_visit_on_both_ranks() -> None:
    result = run("b100_parked_chunk")
    assert result.verdict.kind == "pass", result.verdict.message
    first, second = result.recording.decisions
    assert first == second
    at = {d.iteration: d.pieces for d in first}
    assert (at[18], at[19], at[20]) == ((("R1", 10, 1),), (), (("R2", 16, 2),))
    assert first[19].chunked_rid == "R2"
    assert [situations(rank.rank)["chunk parked"] for rank in result.setting.ranks] == [1, 1]
    assert result.recording.harvests[0][19].finished == ("R1",)
    assert sum(new for _, new in chunks(result.recording, "R2")) == 20
    roomy = run("b100_parked_chunk", "scheduler.max_total_tokens=64")
    assert [situations(rank.rank)["chunk parked"] for rank in roomy.setting.ranks] == [0, 0]


def test_b103_the_rest_of_a_pass_goes_to_the_longer_prompt() -> None:
    recording = passed("questions/p28_last_chunk_packing")
    passes = [[(rid, new) for rid, _, new in d.pieces] for d in recording.decisions[0] if d.pieces]
    assert passes == [[("R1", 8192)], [("R1", 508), ("R2", 7684)], [("R2", 1316)]]


# --- performance -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [4, 8])
def test_b105_ring_votes_cost_a_visit_a_stage_and_a_leader_does_not(stages: int) -> None:
    """Mean over R alone; the first prompt meets an idle pipeline. The control share is part of the summary."""
    control = {}
    for bootstrap in ("vote", "store"):
        result = run("b105_ring_votes", f"cluster.pp_size={stages}", f'disaggregation.bootstrap="{bootstrap}"')
        assert result.verdict.kind == "pass", result.verdict.message
        summary = summarize(result.recording, result.verdict)
        assert summary["admission_iterations"]["p50"] == (stages + 1 if bootstrap == "vote" else 1)
        control[bootstrap] = 1000 * summary["ttft_shares_s"]["control"]["p99"]
    assert control["vote"] - control["store"] == pytest.approx(stages, rel=0.05)


def test_b106_one_batch_keeps_one_stage_busy_at_the_same_throughput() -> None:
    spread, together = (passed("b106_depth_of_one", f"scheduler.pp_max_micro_batch_size={places}") for places in (1, 8))
    for recording, share in ((spread, 1.0), (together, 1 / 8)):
        for rank in range(8):
            begin, end = 80 * MS, 240 * MS  # whole rounds of the steady state
            spans = [s for s in recording.spans[rank] if begin <= s.start_ns < end]
            assert sum(s.end_ns - s.start_ns for s in spans) == share * (end - begin)
    per_request = [[r.time_ns for r in recording.replies if r.rid == "R3"] for recording in (spread, together)]
    for times in per_request:
        assert {b - a for a, b in pairwise(times[5:35])} == {8 * MS}


@pytest.mark.parametrize(
    ("overrides", "step_ms"),
    [((), 5.0), (("cluster.comm_overlap=true",), 4.0), (('bugs=["commit_after_launch"]',), 4.0)],
)
def test_b107_a_commit_before_the_launch_costs_the_send(overrides: tuple[str, ...], step_ms: float) -> None:
    assert set(steps_ms(passed("b107_commit_before_launch", *overrides))[9:45]) == {step_ms}


# --- crashes and bad input -------------------------------------------------------------------------------------


def test_b113_a_visit_without_work_while_a_batch_is_in_flight_is_ordinary() -> None:
    recording = passed("b113_nothing_to_queue")
    modes = [d.mode for d in recording.decisions[0]]
    assert modes[:6] == ["extend", "empty", "decode", "empty", "decode", "extend"]
    harvested = {h.iteration: h.harvested for h in recording.harvests[0]}
    assert (harvested[1], harvested[3]) == (0, 2)  # in flight while nothing was launched
    assert {reply.rid for reply in recording.replies if reply.status == "finished"} == {"R1", "R2"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.pp_async_batch_depth=-1", "cluster.pp_async_batch_depth: must be at least 0"),
        ("scheduler.chunked_prefill_size=0", "must be positive, or -1 for no chunking, got 0"),
        ("scheduler.chunked_prefill_size=-2", "must be positive, or -1 for no chunking, got -2"),
        ("cluster.pp_size=33", "33 stages, but the model has only 32 layers"),
        ("disaggregation.role='router'", "disaggregation.role: must be"),
        ("scheduler.max_running_requests=0", "scheduler.max_running_requests: must be more than 0"),
        ("model.layer_partition=[16, 17]", "model.layer_partition: sums to 33, but the model has 32 layers"),
    ],
)
def test_b114_an_impossible_configuration_is_refused_before_any_rank_begins(
    override: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sets = [word for pair in ('cost.source="quadratic"', "cluster.pp_size=2", override) for word in ("--set", pair)]
    result = CliRunner().invoke(app, ["run", "bugs_b94_b118/b117_one_chunk_on_eight_stages", *sets])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()


def test_b114_fewer_requests_than_stages_run_one_a_slot_with_a_warning() -> None:
    short = 'workload.output_length={kind="fixed", value=5}'
    few = ("scheduler.max_running_requests=3", "scheduler.pp_max_micro_batch_size=0", short)
    recording = passed("b106_depth_of_one", *few)
    assert {len(d.pieces) for d in recording.decisions[0]} == {0, 1}
    (warning,) = recording.warnings
    assert warning.startswith("scheduler.max_running_requests 3 is less than the 8 stages: a slot takes one request")
    assert passed("b106_depth_of_one", *few[:1], short).warnings == []  # the limit of a slot was given by hand


@pytest.mark.parametrize("role", ["plain", "prefill", "decode"])
def test_b114_a_decode_server_of_two_stages_has_a_loop(role: str) -> None:
    recording = passed("b117_one_chunk_on_eight_stages", "cluster.pp_size=2", f'disaggregation.role="{role}"')
    assert [r.status for r in recording.replies if r.status != "token"] == ["finished"]


def test_b117_one_chunk_on_eight_stages_uses_an_eighth_and_chunk_0_is_an_error() -> None:
    for chunk, prompt in ((64, 64), (-1, 64), (-1, 1000)):
        request = f'workload.requests=[{{rid="R1", at_iteration=0, prompt={prompt}, output=1}}]'
        result = run("b117_one_chunk_on_eight_stages", f"scheduler.chunked_prefill_size={chunk}", request)
        assert chunks(result.recording) == [(0, prompt)]
        assert summarize(result.recording, result.verdict)["bubble_ratio"] == 7 / 8
    with pytest.raises(ScenarioError, match=r"must be positive, or -1 for no chunking, got 0"):
        run("b117_one_chunk_on_eight_stages", "scheduler.chunked_prefill_size=0")


# --- divergence ------------------------------------------------------------------------------------------------

BLIND = ("run.invariants=false", "run.check=false")


def test_b118_a_lost_page_is_named_where_it_was_lost_and_not_where_it_hurts() -> None:
    assert run("b118_lost_page", *BLIND).verdict.kind == "pass"
    scenario = load_scenario("bugs_b94_b118/b118_lost_page", BLIND)
    late = simulate(scenario, change=load(["page_lost_at_finish"]).change).verdict
    assert (late.kind, late.invariant) == ("fail", "INV-32")
    assert late.iteration is not None
    for interval in (1, 7, 20):
        checked = load_scenario("bugs_b94_b118/b118_lost_page", (*BLIND, f"run.consensus_check_interval={interval}"))
        result = simulate(checked, change=load(["page_lost_at_finish"]).change)
        verdict = result.verdict
        assert (verdict.kind, verdict.invariant, verdict.rank, verdict.iteration) == ("fail", "INV-23", 1, 99)
        assert "Pool.alloc" in verdict.message
        assert late.iteration - 99 > 70
        last = max(d.iteration for d in result.recording.decisions[0])
        assert last - 99 <= interval + 1  # it did not run on until it hurt


# --- the table -------------------------------------------------------------------------------------------------

ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|")) for line in PAGE.splitlines() if line.startswith("| B")
]


def test_the_table_has_every_handed_entry_with_a_test_and_most_with_a_scenario() -> None:
    assert [row[0] for row in ROWS] == [f"B{n}" for n in HANDED]
    assert all("`" in tests for *_, tests in ROWS)
    assert sum("`" in scenario for *_, scenario, _ in ROWS) >= 12


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_scenarios_and_tests_of_an_entry_exist(row: tuple[str, ...]) -> None:
    *_, scenarios, tests = row
    for name in re.findall(r"`([^`]+)`", scenarios):
        assert load_scenario(name).name == name.rsplit("/", 1)[-1]
    for module, test in re.findall(r"`(\w+)::(\w+)`", tests):
        (path,) = (ROOT / "tests").rglob(f"{module}.py")
        functions = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
        assert test in functions, f"{path.name} has no {test}"


def test_every_scenario_of_the_folder_is_in_the_table_and_has_a_sentence_and_a_source() -> None:
    named = {name for *_, scenarios, _ in ROWS for name in re.findall(r"`([^`]+)`", scenarios)}
    for path in sorted((ROOT / "scenarios" / "bugs_b94_b118").glob("*.toml")):
        assert f"bugs_b94_b118/{path.stem}" in named
        scenario = load_scenario(str(path))
        assert scenario.name == path.stem
        assert scenario.description.endswith(".")
        text = path.read_text(encoding="utf-8")
        assert "# Source: " in text
        assert "Expected: " in text or "Planted " in text or "Expected by hand" in text
