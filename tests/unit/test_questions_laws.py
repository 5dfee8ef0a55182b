"""Runs of the questions against arithmetic by hand, and the rule that makes a verdict of figures."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.plan import Pipeline, from_sizes, pack
from ppsim.plugin import load
from ppsim.scenario import load_scenario
from ppsim.scenario.rank import gpu_capacity
from ppsim.studies.questions import QUESTIONS, Runs
from ppsim.studies.questions.asked import Figure, compare, holds, verdict_of
from ppsim.world import simulate

RUNS = Runs()


# --- the verdict -----------------------------------------------------------------------------------------------


def figure(reported: float | None, sign: tuple[str, float] | None, tolerance: float | None, fitted: str = "") -> Figure:
    return Figure("x", lambda _: 0.0, reported, sign, tolerance, "", fitted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (1.2, "sign and size"),
        (1.31, "sign and size"),
        (1.33, "sign only"),
        (1.01, "sign only"),
        (0.99, "not reproduced"),
    ],
)
def test_a_gain_of_a_fifth_is_met_within_a_tenth_of_what_was_reported(ours: float, verdict: str) -> None:
    assert verdict_of((compare(figure(1.2, (">", 1.0), 0.1), ours),)) == verdict


def test_one_wrong_sign_outweighs_any_number_of_sizes_and_a_fitted_figure_counts_for_nothing() -> None:
    good = compare(figure(2.0, (">", 1.0), 0.1), 2.0)
    wrong = compare(figure(None, ("<", 1.0), None), 1.5)
    missed = compare(figure(2.0, (">", 1.0), 0.1), 3.0)
    fit = compare(figure(2.0, (">", 1.0), 0.1, "b"), 0.5)
    assert verdict_of((good, wrong)) == "not reproduced"
    assert verdict_of((good, missed)) == "sign only"
    assert verdict_of((good, fit)) == "sign and size"
    assert verdict_of((fit,)) == "sign only"
    assert (fit.sign_ok, fit.size_ok) == (None, None)


def test_equality_is_up_to_rounding() -> None:
    assert holds(0.1 + 0.2, "=", 0.3)
    assert not holds(0.3001, "=", 0.3)
    assert not holds(1.0, "<", 1.0)
    assert not holds(1.0, ">", 1.0)


# --- runs against arithmetic -----------------------------------------------------------------------------------


def test_p08_one_batch_in_flight_is_the_sum_of_its_chunks() -> None:
    outcome = RUNS.outcome(
        "questions/p08_chunks_without_microbatches", ("cluster.pp_size=1", "scheduler.chunked_prefill_size=16384")
    )
    cost = outcome.scenario.cost
    n = 131072
    prompt_ms = 8 * cost.prefill_c_ms + cost.prefill_b_ms_per_token * n + cost.prefill_a_ms_per_token2 * n * n
    assert outcome.makespan_s == pytest.approx(4 * prompt_ms / 1000, rel=1e-9)


@pytest.mark.parametrize("overrides", [(), ("scheduler.enable_dynamic_chunking=true",)])
def test_p12_equal_stages_take_the_sum_and_the_longest_chunk_once_more_for_each_further_stage(
    overrides: tuple[str, ...],
) -> None:
    outcome = RUNS.outcome("questions/p12_dynamic_chunks", overrides)
    cost, at, times = outcome.scenario.cost, 0, []
    for size in outcome.chunk_sizes("R1"):
        pairs = (at + size) ** 2 - at**2
        times.append(cost.prefill_c_ms + cost.prefill_b_ms_per_token * size + cost.prefill_a_ms_per_token2 * pairs)
        at += size
    assert at == 262144
    assert outcome.ttft_s("R1") == pytest.approx((sum(times) + max(times)) / 2 / 1000, rel=1e-6)


def test_p14_the_recurrence_that_judges_a_merged_tail_equals_the_run() -> None:
    outcome = RUNS.outcome("questions/p14_first_chunk_and_smoothing", ())
    c = outcome.scenario.cost
    cost = Coefficients(c_ms=c.prefill_c_ms, b_ms=c.prefill_b_ms_per_token, a_ms=c.prefill_a_ms_per_token2)
    plan = from_sizes("run", outcome.chunk_sizes("R1"))
    assert outcome.ttft_s("R1") == pytest.approx(Pipeline.of([1] * 4).ttft_ms(plan, cost) / 1000, rel=1e-6)


def test_p15_flat_chunks_and_then_linear_ones_add_up() -> None:
    outcome = RUNS.outcome("questions/p15_prefix_cost_floor", ())
    total = sum(max(124.54, 42.459 + 0.0020111 * 1024 * i) for i in range(128))
    assert outcome.ttft_s("R1") == pytest.approx(total / 1000, rel=1e-6)


def test_p04_blocks_are_what_weights_leave_on_the_end_stage() -> None:
    """Llama 70B: attention 8192 x (8192 x 2 + 1024 x 2) and MLP 3 x 8192 x 28672 in FP8, embedding and head in BF16."""
    layer = 8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28672
    usable = 24e9 * 0.4843766
    kv = 2 * 8 * 128 * 2
    ends = 2 * 128256 * 8192
    by_hand = {layers: (usable - layers * layer - ends) / (layers * kv) / 16 for layers in (9, 10)}
    middle = (usable - 11 * layer) / (11 * kv) / 16
    question = QUESTIONS["P04"]
    scenarios = {v.label: load_scenario(question.scenario, v.overrides) for v in question.variants}
    assert by_hand[10] == pytest.approx(1476, abs=0.1)
    assert gpu_capacity(scenarios["even"]).num_tokens / 16 == pytest.approx(by_hand[10], abs=0.1)
    assert gpu_capacity(scenarios["balanced"]).num_tokens / 16 == pytest.approx(min(by_hand[9], middle), abs=0.1)


def test_p10_a_step_takes_its_stage_and_a_share_of_the_host_or_the_other_way_round() -> None:
    for host_ms in (2.0, 5.64, 20.0):
        half = f"{500 * host_ms}"
        outcome = RUNS.outcome(
            "questions/p10_async_scheduling", (f"host.schedule_us={half}", f"host.process_us={half}")
        )
        step_ms = 1000 * outcome.token_gap_s("R1") / 4
        assert step_ms == pytest.approx(max(5.33 + host_ms / 4, host_ms + 5.33 / 4), rel=1e-6)


def test_p23_strict_order_takes_every_chunk_of_the_long_prompt_first() -> None:
    outcome = RUNS.outcome("questions/p23_short_behind_giant", ())
    cost = outcome.scenario.cost
    n, short = 600_104, 101
    long_ms = cost.prefill_b_ms_per_token * n + cost.prefill_a_ms_per_token2 * n * n
    short_ms = cost.prefill_b_ms_per_token * short + cost.prefill_a_ms_per_token2 * short * short
    assert outcome.ttft_s("S1") == pytest.approx((long_ms + short_ms) / 1000 - 2.0, rel=1e-6)
    assert len(outcome.launches("L1")) == math.ceil(n / 16384)


@pytest.mark.parametrize("split", [4, 2])
@pytest.mark.parametrize("row_ms", [0.0, 2.0])
def test_p26_a_round_is_the_sum_over_the_slots_or_the_stages_times_the_longest(split: int, row_ms: float) -> None:
    outcome = RUNS.outcome(
        "questions/p26_split_decode_batch",
        (f"scheduler.pp_max_micro_batch_size={split}", f"cost.decode_row_ms={row_ms}"),
    )
    stage_ms = (8.0 + row_ms * split) / 2
    assert outcome.token_gap_s("R1") == pytest.approx(2 * stage_ms / 1000, rel=1e-9)


@pytest.mark.parametrize("lengths", [(8700, 9000), (8192, 4, 8188), (20000, 300, 300)])
def test_p28_passes_are_those_of_filling_a_budget_by_hand(lengths: tuple[int, ...]) -> None:
    rows = ", ".join(f'{{rid="R{i}", at_iteration=0, prompt={n}}}' for i, n in enumerate(lengths))
    outcome = RUNS.outcome("questions/p28_last_chunk_packing", (f"workload.requests=[{rows}]",))
    assert outcome.num_batches("extend") == len(pack(lengths, 8192))


# --- P21: what stands for a barrier ----------------------------------------------------------------------------

BARRIER = ("barrier_in_each_iteration",)  # the planted bug of B83


@pytest.mark.parametrize("role", ["plain", "prefill"])
def test_p21_a_barrier_in_every_iteration_is_a_deadlock_where_outputs_go_round(role: str) -> None:
    """A rank passes the outputs of iteration i on in iteration i + 1, so it must be ahead of the one behind it."""
    scenario = load_scenario("questions/p21_blocking_agreement", (f'disaggregation.role="{role}"',))
    result = simulate(scenario, change=load(BARRIER).change)
    assert result.verdict.kind == "fail"
    for words in ("deadlock", "phase barrier", "wait-for cycle"):
        assert words in result.verdict.message


def test_p21_a_barrier_between_middle_chunks_lets_one_stage_work_at_a_time() -> None:
    """Chunks whose outputs are not exchanged: a visit then takes four stage times, as the single stage does."""
    scenario = load_scenario("bugs/b83_barrier", ("run.max_agreement_wait_ms=0.0",))
    stage_ms = scenario.host.process_us / 1000
    periods = {}
    for bugs in ((), BARRIER):
        spans = simulate(scenario, change=load(bugs).change).recording.spans[0]
        starts = [span.start_ns / 1e6 for span in spans if span.stream == "forward"]
        periods[bugs] = {round(b - a, 6) for a, b in pairwise(starts[8:30])}
    assert periods == {(): {stage_ms}, BARRIER: {4 * stage_ms}}
