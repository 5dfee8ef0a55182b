"""The published H20 figures: one constant fitted on one of them, the rest predicted (published.md E1, issue 5)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest

from ppsim.cost.published import (
    DEEPSEEK_PP1,
    DEEPSEEK_PP4,
    QWEN_PP1,
    QWEN_PP8,
    K,
    Row,
    Setup,
    figures,
    fit_efficiency,
    h20_rates,
    h20_table,
    ring_gb_per_s_for,
    seconds_per_request,
    speedup,
    ttft_s,
)
from ppsim.errors import ScenarioError

LIMITS = {  # (what must hold, what is aimed for), in per cent
    "qwen_pp8_ttft_128k": (5.0, 2.5),
    "qwen_pp8_ttft_256k": (5.0, 2.5),
    "qwen_pp8_ttft_512k": (5.0, 2.5),
    "qwen_pp8_ttft_1m": (5.0, 2.5),
    "deepseek_pp1_ttft_128k": (5.0, 2.5),
    "deepseek_pp4_ttft_128k": (10.0, 5.0),
    "deepseek_pp4_speedup_dynamic": (10.0, 5.0),
    "deepseek_pp4_speedup_4096": (10.0, 5.0),
    "deepseek_pp4_speedup_12288": (10.0, 5.0),
    "qwen_pp8_speedup_dynamic": (10.0, 5.0),
    "qwen_pp8_speedup_6144": (10.0, 5.0),
}


@cache
def rows(expand_at: str = "kv", tile: int = 64) -> dict[str, Row]:
    return dict(zip(figures(), h20_table(h20_rates(expand_at, tile))))


@pytest.mark.parametrize("key", LIMITS)
def test_predictions_are_within_half_of_the_errors_that_must_hold(key: str) -> None:
    row = rows()[key]
    assert row.error is not None
    assert not row.used_to_fit
    assert abs(row.error) * 100 < LIMITS[key][1], f"{row.name}: {row.ours:.3f} for {row.published}"


@pytest.mark.parametrize(("expand_at", "tile"), [("weight", 64), ("weight", 0), ("kv", 128)])
def test_other_choices_of_the_unfitted_constants_keep_the_errors_that_must_hold(expand_at: str, tile: int) -> None:
    for key, (limit, _) in LIMITS.items():
        error = rows(expand_at, tile)[key].error
        assert error is not None
        assert abs(error) * 100 < limit, key


def test_only_qwen_pp1_is_fitted_and_it_is_met_exactly() -> None:
    used = [r for r in rows().values() if r.used_to_fit]
    assert [r.published for r in used] == [55.5, 2.54]
    assert used[0].error == pytest.approx(0.0, abs=1e-9)
    assert used[1].error is None  # a bandwidth is shown, not a prediction
    assert h20_rates().efficiency == pytest.approx(0.90, abs=0.01)


def test_tp32_needs_about_63_gb_per_s_of_ring_bandwidth_for_the_published_figure() -> None:
    """Not a prediction: the link speed was not published."""
    rates = h20_rates()
    found = ring_gb_per_s_for(2.54, rates)
    assert found == pytest.approx(63, rel=0.05)
    assert ring_gb_per_s_for(2.31, rates) < found < ring_gb_per_s_for(2.96, rates)


def with_partition(setup: Setup, *layers: int) -> float:
    return ttft_s(replace(setup, partition=layers), 128 * K, h20_rates())


@pytest.mark.parametrize(("chunk", "smooth"), [(4096, None), (12288, 0.65)])
def test_the_larger_stage_belongs_last_15_15_15_16_beats_16_15_15_15(chunk: int, smooth: float | None) -> None:
    setup = replace(DEEPSEEK_PP4, chunk=chunk, smooth_factor=smooth)
    last, first = with_partition(setup, 15, 15, 15, 16), with_partition(setup, 16, 15, 15, 15)
    assert last < 0.97 * first


def test_p05_splits_with_the_remainder_later_are_no_slower_for_fixed_chunks() -> None:
    deepseek = replace(DEEPSEEK_PP4, chunk=4096, smooth_factor=None)
    assert with_partition(deepseek, 15, 15, 15, 16) < with_partition(deepseek, 15, 15, 16, 15)
    qwen = replace(QWEN_PP8, pp_size=4, chunk=4096, smooth_factor=None)
    assert with_partition(qwen, 23, 23, 24, 24) <= with_partition(qwen, 23, 24, 24, 23)


def test_fixed_12288_is_the_worst_of_the_published_pp4_settings() -> None:
    settings = [(12288, 0.65), (4096, None), (12288, None)]
    seconds = [
        seconds_per_request(replace(DEEPSEEK_PP4, chunk=c, smooth_factor=s), 128 * K, h20_rates()) for c, s in settings
    ]
    assert max(seconds) == seconds[2]
    assert seconds[0] < seconds[1] < seconds[2]  # 3.31, 3.20, 3.01


def test_the_best_fixed_chunk_of_deepseek_lies_between_2048_and_6144_as_published() -> None:
    sizes = (2048, 3072, 4096, 6144, 8192, 12288, 16384)
    ttfts = {c: ttft_s(replace(DEEPSEEK_PP4, chunk=c, smooth_factor=None), 128 * K, h20_rates()) for c in sizes}
    assert min(ttfts, key=lambda c: ttfts[c]) in (3072, 4096)
    assert ttfts[4096] < 1.005 * min(ttfts.values())


def test_efficiency_falls_as_stages_are_added() -> None:
    base = seconds_per_request(QWEN_PP1, 128 * K, h20_rates(), 1)
    efficiency = [
        base / seconds_per_request(replace(QWEN_PP8, pp_size=p), 128 * K, h20_rates()) / p for p in (1, 2, 4, 8)
    ]
    assert efficiency == sorted(efficiency, reverse=True)
    assert efficiency[2] > 0.8  # "over 80 % to PP4"


def test_ttft_more_than_triples_with_each_doubling_and_tends_to_four() -> None:
    ttfts = [ttft_s(QWEN_PP8, n * K, h20_rates()) for n in (128, 256, 512, 1024)]
    ratios = [b / a for a, b in itertools.pairwise(ttfts)]
    assert ratios == sorted(ratios)
    assert 3.0 < ratios[0] < ratios[2] < 4.0


def test_a_fit_outside_reach_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"1000.0 s lies outside 6.67 to 200 s"):
        fit_efficiency(lambda e: 10.0 / e, 1000.0)
    assert fit_efficiency(lambda e: 10.0 / e, 20.0) == pytest.approx(0.5)


def test_speedup_divided_by_the_gpu_multiple_is_below_one() -> None:
    for setup, baseline in ((DEEPSEEK_PP4, DEEPSEEK_PP1), (QWEN_PP8, QWEN_PP1)):
        multiple = setup.pp_size * setup.tp_size / (baseline.pp_size * baseline.tp_size)
        assert 0.7 < speedup(setup, baseline, h20_rates()) / multiple < 1.0
