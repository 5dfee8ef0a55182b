"""Chunk plans: exhaustive search for short prompts, laws for long ones."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.config_json import load_model
from ppsim.cost.gpu import load_gpu
from ppsim.cost.partition import even_partition
from ppsim.cost.plan import Pipeline, Plan, fixed, from_sizes, pack, sglang, treat_tail
from ppsim.cost.planners import FIXED_SIZES, best_fixed, equal_time, judge, optimal
from ppsim.cost.roofline import Rates, RooflineCost
from ppsim.cost.sglang_chunks import ChunkPredictor
from ppsim.cost.slot_loop import slot_loop
from ppsim.errors import ScenarioError
from ppsim.scenario import load_scenario
from ppsim.studies.paper import makespan_s

COSTS = [
    Coefficients(c_ms=2.0, b_ms=0.02, a_ms=2e-6),
    Coefficients(c_ms=5.0, gamma_ms=4e-3, b_ms=0.02, a_ms=1e-6),
    Coefficients(floor_ms=12.0, b_ms=0.02, a_ms=2e-6),
    Coefficients(c_ms=1.0, gamma_ms=1e-4, b_ms=0.0, a_ms=5e-6, floor_ms=3.0),
]


def h20(model: str, tp: int, pp: int) -> tuple[Coefficients, Pipeline]:
    shape = load_model(model)
    cost = RooflineCost(shape, load_gpu("h20"), tp, even_partition(shape.num_layers, pp), Rates(efficiency=0.9))
    return cost.coefficients(), Pipeline(cost.shares())


def compositions(num_units: int, tail: int, align: int) -> list[list[int]]:
    """Every way to cut num_units alignment units and a rest, at alignment boundaries."""
    edges_of = range(1, num_units + (1 if tail else 0))
    out = []
    for count in range(len(edges_of) + 1):
        for cuts in combinations(edges_of, count):
            edges = [0, *(c * align for c in cuts), num_units * align + tail]
            out.append([b - a for a, b in pairwise(edges)])
    return out


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(("num_units", "tail"), [(9, 0), (9, 17), (1, 0)])
@pytest.mark.parametrize("num_stages", [1, 2, 5])
def test_optimal_is_the_best_of_all_cuts_for_identical_stages(
    cost: Coefficients, num_units: int, tail: int, num_stages: int
) -> None:
    """Oracle: (sum t + (P-1) max t) / P over every composition, not the recurrence."""
    align, best = 64, float("inf")
    for sizes in compositions(num_units, tail, align):
        at, times = 0, []
        for size in sizes:
            smooth = cost.c_ms + cost.gamma_ms * at + cost.b_ms * size + cost.a_ms * ((at + size) ** 2 - at**2)
            times.append(max(cost.floor_ms, smooth))
            at += size
        best = min(best, (sum(times) + (num_stages - 1) * max(times)) / num_stages)
    pipeline = Pipeline.of([1] * num_stages)
    plan = optimal(num_units * align + tail, cost, pipeline, align=align)
    assert pipeline.ttft_ms(plan, cost) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("shares", [(0.2, 0.5, 0.3), (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)])
def test_optimal_is_close_to_the_best_of_all_cuts_for_unequal_stages(shares: tuple[float, ...]) -> None:
    cost, pipeline = COSTS[0], Pipeline(shares)
    plans = [from_sizes("all", sizes) for sizes in compositions(10, 0, 64)]
    best = float(pipeline.ttfts_ms(plans, cost).min())
    assert pipeline.ttft_ms(optimal(640, cost, pipeline, align=64), cost) <= 1.01 * best


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_optimal_is_the_best_of_all_cuts_in_sglangs_own_loop(cost: Coefficients, depth: int, num_stages: int) -> None:
    """Oracle: the loop's recurrence (cost/slot_loop.py), with its slots, over every composition. A dear chunk before
    cheap ones makes those wait for a slot, which a pipeline without slots does not know."""
    align, shares, best = 64, [1 / num_stages] * num_stages, float("inf")
    for sizes in compositions(9, 17, align):
        best = min(best, loop_ms(from_sizes("all", sizes), cost, shares, depth))
    plan = optimal(9 * align + 17, cost, Pipeline(tuple(shares), depth=depth), align=align)
    assert loop_ms(plan, cost, shares, depth) == pytest.approx(best, rel=1e-9)


def loop_ms(plan: Plan, cost: Coefficients, shares: list[float], depth: int) -> float:
    times = [[cost.chunk_ms(prefix, size) * share for share in shares] for prefix, size in plan.pieces]
    return float(slot_loop(times, depth)[-1])


@pytest.mark.parametrize("depth", [0, 1])
def test_no_planner_beats_the_optimal_one_in_the_event_simulation(depth: int) -> None:
    """DeepSeek on four stages, 128K: a free-running optimum has dear chunks early and loses 1.5 % to SGLang's rule."""
    sets = [f"cluster.pp_async_batch_depth={depth}"]

    def ttft_s(*more: str) -> float:
        return makespan_s(load_scenario("paper/deepseek_v31_h20_pp4", [*sets, *more]))

    optimum = ttft_s("scheduler.chunk_planner=optimal")
    assert optimum <= ttft_s("scheduler.chunk_planner=sglang")
    assert optimum <= ttft_s("scheduler.chunk_planner=equal_time")
    fixed_s = [
        ttft_s("scheduler.enable_dynamic_chunking=false", f"scheduler.chunked_prefill_size={size}")
        for size in (2048, 3072, 4096, 8192)
    ]
    assert optimum <= min(fixed_s)


def test_a_rival_that_no_grid_contains_is_still_not_lost_to() -> None:
    """A plan cut to the token, where ours are cut to 64."""
    cost, pipeline = COSTS[0], Pipeline.of([1] * 4)
    fine = optimal(1000, cost, pipeline, align=1)
    coarse = optimal(1000, cost, pipeline)
    assert pipeline.ttft_ms(fine, cost) < pipeline.ttft_ms(coarse, cost)
    with_rival = optimal(1000, cost, pipeline, rivals=[fine])
    assert pipeline.ttft_ms(with_rival, cost) <= pipeline.ttft_ms(fine, cost)


costs = st.builds(
    Coefficients,
    c_ms=st.floats(0.0, 50.0),
    gamma_ms=st.floats(0.0, 1e-3),
    b_ms=st.floats(1e-3, 0.1),
    a_ms=st.floats(1e-8, 1e-5),
    floor_ms=st.floats(0.0, 200.0),
)


@given(costs, st.integers(1, 60_000), st.integers(1, 8), st.floats(0.0, 20.0))
@settings(max_examples=25, deadline=None)
def test_optimal_is_never_worse_than_any_other_planner(
    cost: Coefficients, num_tokens: int, num_stages: int, host_ms: float
) -> None:
    pipeline = Pipeline.of([1] * num_stages, host_ms=host_ms, link_ms=host_ms / 10)
    predictor = ChunkPredictor(cost.a_ms, cost.b_ms, 4096, context_length=10**6)
    rivals = [sglang(num_tokens, predictor), fixed(num_tokens, -1)]
    rivals += [fixed(num_tokens, size) for size in FIXED_SIZES]
    rivals.append(equal_time(num_tokens, cost, pipeline))
    plan = optimal(num_tokens, cost, pipeline, rivals=rivals)
    assert plan.num_tokens == num_tokens
    assert pipeline.ttft_ms(plan, cost) <= pipeline.ttfts_ms(rivals, cost).min() * (1 + 1e-12)


@given(costs, st.integers(1, 200_000), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_equal_time_covers_the_prompt_with_aligned_chunks_above_the_minimum(
    cost: Coefficients, num_tokens: int, num_stages: int
) -> None:
    plan = equal_time(num_tokens, cost, Pipeline.of([1] * num_stages))
    assert plan.num_tokens == num_tokens
    assert all(size % 64 == 0 for size in plan.sizes[:-1])
    assert all(size >= 24 * 64 for size in plan.sizes[:-1])  # it cannot shrink to 32-token chunks and lose


@pytest.mark.parametrize(("model", "tp", "pp"), [("qwen3-235b-a22b-fp8", 4, 8), ("deepseek-v3.1", 8, 4)])
def test_equal_time_chunks_of_a_million_tokens_differ_by_less_than_five_per_cent(model: str, tp: int, pp: int) -> None:
    cost, pipeline = h20(model, tp, pp)
    plan = equal_time(1_048_576, cost, pipeline)
    beat = pipeline.chunk_ms(plan, cost)[:-1]
    assert beat.max() / beat.min() < 1.05
    assert len(plan.sizes) > 50
    assert plan.sizes[0] > 10 * plan.sizes[-2]


def test_equal_time_uses_gamma_and_floor() -> None:
    """Under the full model the times are equal; by a and b alone they would not be."""
    cost = Coefficients(c_ms=5.0, gamma_ms=2e-3, b_ms=0.04, a_ms=1e-6)
    pipeline = Pipeline.of([1] * 4)
    plan = equal_time(262_144, cost, pipeline)
    full = pipeline.chunk_ms(plan, cost)[:-1]
    blind = pipeline.chunk_ms(plan, Coefficients(b_ms=cost.b_ms, a_ms=cost.a_ms))[:-1]
    assert full.max() / full.min() < 1.05 < 1.15 < blind.max() / blind.min()
    floored = Coefficients(floor_ms=400.0, b_ms=0.04, a_ms=1e-6)
    assert pipeline.chunk_ms(equal_time(100_000, floored, pipeline), floored).min() >= 100.0


def test_a_cap_on_a_chunk_is_kept_and_told() -> None:
    cost, pipeline = h20("qwen3-235b-a22b-fp8", 4, 8)
    plan = equal_time(524_288, cost, pipeline, max_chunk=16_384)
    assert max(plan.sizes) == 16_384
    assert plan.note == "early chunks are capped at 16384 and take less time"
    assert max(optimal(524_288, cost, pipeline, max_chunk=16_384).sizes) <= 16_384
    with pytest.raises(ScenarioError, match="640 is below the smallest chunk 1536"):
        equal_time(524_288, cost, pipeline, max_chunk=640)


def test_of_equal_fixed_sizes_the_largest_is_the_best() -> None:
    """On one stage without attention and constants every cut costs the same; the largest needs the fewest passes, and
    each pass has a price that the model leaves out (launches, messages). Sums of halves are exact."""
    linear = Coefficients(b_ms=0.5)
    sizes = (1024, 4096, 2048)
    assert best_fixed(8192, linear, Pipeline((1.0,)), sizes).sizes == (4096, 4096)
    assert best_fixed(8192, linear, Pipeline((1.0,)), tuple(reversed(sizes))).sizes == (4096, 4096)


@pytest.mark.parametrize(("model", "tp", "pp"), [("qwen3-235b-a22b-fp8", 4, 8), ("deepseek-v3.1", 8, 4)])
@pytest.mark.parametrize("num_tokens", [16_384, 131_072, 1_048_576])
def test_a_planner_that_loses_to_the_best_fixed_size_is_reported_as_losing(
    model: str, tp: int, pp: int, num_tokens: int
) -> None:
    cost, pipeline = h20(model, tp, pp)
    predictor = ChunkPredictor(cost.a_ms, cost.b_ms, 12288, context_length=2 * num_tokens, smooth_factor=0.65)
    rivals = [sglang(num_tokens, predictor), best_fixed(num_tokens, cost, pipeline)]
    plans = [*rivals, equal_time(num_tokens, cost, pipeline), optimal(num_tokens, cost, pipeline, rivals=rivals)]
    verdicts = judge(plans, cost, pipeline)
    fixed_ms = verdicts[1].ttft_ms
    for verdict in verdicts:
        loses = verdict.ttft_ms > fixed_ms * (1 + 1e-9)
        assert ("loses" in verdict.remark) == loses
        assert verdict.over_optimum >= 0
    assert verdicts[3].over_optimum == 0.0
    assert verdicts[0].over_optimum > 0.005  # how far SGLang's rule is from the optimum


def test_dynamic_chunking_loses_where_the_prefix_costs_much_in_each_chunk() -> None:
    """MLA at a million tokens: small late chunks expand the prefix too often (published.md E4: it must be able to)."""
    cost, pipeline = h20("deepseek-v3.1", 8, 4)
    equal, sizes = judge([equal_time(1_048_576, cost, pipeline), best_fixed(1_048_576, cost, pipeline)], cost, pipeline)
    assert equal.over_fixed > 0.01
    assert "loses" in equal.remark
    assert sizes.remark == ""


def test_b97_a_tiny_last_chunk_is_merged_and_that_is_faster_when_a_pass_costs_more_than_it_saves() -> None:
    """p = 16384, C0 = 4096, smoothing 0.65, alignment 64 (sglang PR 23621)."""
    cost = Coefficients(c_ms=60.0, b_ms=0.02, a_ms=1e-6)
    plan = sglang(16_384, ChunkPredictor(cost.a_ms, cost.b_ms, 4096, smooth_factor=0.65))
    assert plan.num_tokens == 16_384
    assert plan.sizes[-1] == 192
    merged = treat_tail(plan, 1024)
    assert merged.num_tokens == 16_384
    assert len(merged.sizes) == len(plan.sizes) - 1
    assert min(merged.sizes) >= 1024
    assert merged.note == "tail merged"
    pipeline = Pipeline.of([1] * 4)
    assert pipeline.ttft_ms(merged, cost) < pipeline.ttft_ms(plan, cost)
    free = Coefficients(b_ms=0.02, a_ms=1e-6)  # without a constant the shorter chunks win
    assert pipeline.ttft_ms(merged, free) > pipeline.ttft_ms(plan, free)


def test_b97_a_tail_that_does_not_fit_the_last_chunk_is_spread_over_the_earlier_ones() -> None:
    plan = from_sizes("p", [4096, 4096, 4032, 200])
    spread = treat_tail(plan, 1024, max_chunk=4224)
    assert spread.num_tokens == plan.num_tokens
    assert spread.sizes == (4096 + 128, 4096, 4032 + 72) or spread.sizes == (4160, 4160, 4104)
    assert spread.note == "tail spread"
    assert treat_tail(plan, 1024, max_chunk=4096) == plan  # no room anywhere: left as it is
    assert treat_tail(plan, 128) == plan


def test_b103_the_rest_of_a_pass_is_used_by_a_longer_request() -> None:
    """8700 and 9000 tokens at 8192: three passes instead of four; P28."""
    assert pack([8700, 9000], 8192) == (((0, 8192),), ((0, 508), (1, 7684)), ((1, 1316),))
    assert pack([8700, 9000], 8192, cut=False) == (((0, 8192),), ((0, 508),), ((1, 8192),), ((1, 808),))


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=12), st.integers(100, 900))
def test_packed_passes_compute_every_token_once_in_order_and_all_but_the_last_are_full(
    lengths: list[int], budget: int
) -> None:
    for cut in (True, False):
        passes = pack(lengths, budget, cut)
        flat = [piece for p in passes for piece in p]
        assert [prompt for prompt, _ in flat] == sorted(prompt for prompt, _ in flat)
        assert [sum(n for prompt, n in flat if prompt == i) for i in range(len(lengths))] == lengths
        assert all(sum(n for _, n in p) <= budget for p in passes)
    assert all(sum(n for _, n in p) == budget for p in pack(lengths, budget)[:-1])


def test_b117_chunk_zero_is_an_error_and_minus_one_is_no_chunking() -> None:
    with pytest.raises(ScenarioError, match=r"must be positive, or -1 for no chunking, got 0"):
        fixed(100, 0)
    assert fixed(100, -1).sizes == (100,)
    assert fixed(100, 30).sizes == (30, 30, 30, 10)
    with pytest.raises(ScenarioError, match="at least one token"):
        fixed(0, 10)


def test_a_plan_is_an_integer_table_with_a_digest_of_the_table_alone() -> None:
    one, same = fixed(10_000, 4096), from_sizes("other", [4096, 4096, 1808])
    assert one.digest == same.digest
    assert one.digest != from_sizes("other", [4096, 4096, 1807]).digest
    assert one.digest != fixed(10_000, 4096, start=64).digest
    assert all(isinstance(v, int) for piece in one.pieces for v in piece)
    assert fixed(10_000, 4096, start=64).pieces[0] == (64, 4096)
    for pieces in ((), ((0, 5), (6, 5)), ((0, 0),)):
        with pytest.raises(ScenarioError, match="chunk plan"):
            Plan("broken", pieces)


def test_largest_chunk_inverts_the_cost() -> None:
    cost = Coefficients(c_ms=2.0, gamma_ms=1e-4, b_ms=0.02, a_ms=2e-7)
    for past in (0, 5_000, 300_000):
        target = cost.chunk_ms(past, 3_000)
        assert float(cost.largest_chunk(past, target)) == pytest.approx(3_000, rel=1e-9)
    linear = Coefficients(b_ms=0.5)
    assert float(linear.largest_chunk(10, 100.0)) == pytest.approx(200.0)
    assert float(cost.largest_chunk(0, 1.0)) == 0.0
    assert np.isinf(Coefficients(c_ms=1.0).largest_chunk(0, 2.0))
