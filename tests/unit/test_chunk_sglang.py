"""SGLang's dynamic chunking: the test vectors of protocol.md 5.3, the profile, the fit and every way to fall back."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.cost.plan import fixed, sglang
from ppsim.cost.sglang_chunks import (
    ChunkPredictor,
    check_alignment,
    fit_profile,
    profile_lengths,
)
from ppsim.errors import ScenarioError
from ppsim.scenario import chunks, load_scenario
from ppsim.scenario.rank import rank_config

VECTORS = [  # L, C, page, context, cap, s, root, int(y), result; a = 1e-6, b = 1e-3 ms
    (0, 8192, 1, 131072, 16384, 0.75, 8192.0, 8192, 8192),
    (8192, 8192, 1, 131072, 16384, 0.75, 3590.171, 4740, 4736),
    (16384, 8192, 1, 131072, 16384, 0.75, 2099.422, 3622, 3584),
    (65536, 8192, 1, 131072, 16384, 0.75, 567.710, 2473, 2432),
    (65536, 8192, 1, 131072, 16384, 1.0, 567.710, 567, 2048),
    (65536, 8192, 1, 131072, 16384, 0.0, 567.710, 8192, 8192),
    (130900, 8192, 1, 131072, 16384, 0.75, 286.221, 2262, 64),
    (4096, 18432, 64, 1048576, 16384, 0.8, 14879.468, 15589, 15552),
    (900000, 12288, 128, 1048576, 16384, 1.0, 90.658, 90, 3072),
]


@pytest.mark.parametrize("vector", VECTORS)
def test_vectors_of_the_protocol(vector: tuple[int, int, int, int, int, float, float, int, int]) -> None:
    past, base, page, context, cap, smooth, root, blended, result = vector
    predictor = ChunkPredictor(1e-6, 1e-3, base, page, context, cap, smooth)
    found = predictor.root(past)
    assert found == pytest.approx(root, abs=6e-4)
    assert found is not None
    assert int(base + smooth * (found - base)) == blended
    assert predictor.next_chunk(past) == result


@given(
    st.floats(1e-9, 1e-5),
    st.floats(0.0, 1e-1),
    st.integers(1, 400),
    st.integers(0, 10**6),
    st.sampled_from([1, 16, 64, 128]),
    st.floats(0.0, 1.0),
)
def test_the_root_gives_the_time_of_the_first_chunk_and_the_answer_keeps_its_bounds(
    a: float, b: float, units: int, past: int, page: int, smooth: float
) -> None:
    base = units * max(page, 64)
    predictor = ChunkPredictor(a, b, base, page, 2 * 10**6, 10**6, smooth)
    x = predictor.root(past)
    assert x is not None
    assert a * x * x + (2 * a * past + b) * x == pytest.approx(predictor.target_ms, rel=1e-6)
    assert x <= base * (1 + 1e-9)  # convex: never above the base
    size = predictor.next_chunk(past)
    assert size is not None
    assert size % max(page, 64) == 0
    assert base // 4 - max(page, 64) < size <= base


def test_profile_lengths_go_from_a_quarter_above_the_chunk_down() -> None:
    assert profile_lengths(8192)[:3] == (10240, 10160, 10080)
    assert profile_lengths(8192)[-1] == 80
    assert (profile_lengths(4096)[0], profile_lengths(4096)[-1], len(profile_lengths(4096))) == (5120, 40, 128)
    assert profile_lengths(6144)[:4] == (7680, 7620, 7560, 7500)  # as logged in sglang PR 17198
    assert len(set(profile_lengths(100))) == 1  # step 0: the fit degenerates


def times(lengths: tuple[int, ...], a: float, b: float, c: float) -> list[float]:
    return [a * n * n + b * n + c for n in lengths]


def test_fit_recovers_the_curve_and_needs_eight_points_after_the_first() -> None:
    lengths = profile_lengths(8192)
    fit = fit_profile(lengths, times(lengths, 1e-6, 0.02, 5.0))
    assert fit.ready
    assert [fit.a, fit.b, fit.c] == pytest.approx([1e-6, 0.02, 5.0])
    assert fit_profile(lengths[:9], times(lengths[:9], 1e-6, 0.02, 5.0)).ready
    short = fit_profile(lengths[:8], times(lengths[:8], 1e-6, 0.02, 5.0))
    assert short.refused == "7 samples after the first, at least 8 are needed"


def test_a_negative_linear_term_becomes_zero_without_a_refit() -> None:
    lengths = profile_lengths(8192)
    fit = fit_profile(lengths, times(lengths, 2e-6, -1e-3, 9.0))
    assert fit.ready
    assert fit.b == 0.0
    assert fit.a == pytest.approx(2e-6)  # that of the fit with b, not of one without
    assert "became 0" in fit.warning


def test_a_concave_profile_is_refused() -> None:
    lengths = profile_lengths(8192)
    fit = fit_profile(lengths, times(lengths, -1e-6, 0.1, 5.0))
    assert "is not positive" in fit.refused
    assert ChunkPredictor.from_fit(fit, 8192).next_chunk(8192) is None


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_a_bad_profile_time_is_refused(bad: float) -> None:
    lengths = profile_lengths(8192)
    data = times(lengths, 1e-6, 0.02, 5.0)
    data[17] = bad
    assert fit_profile(lengths, data).refused == "a profiled time is negative or not a number"


def test_smooth_factor_zero_is_off_and_the_first_chunk_is_never_predicted() -> None:
    off = ChunkPredictor(1e-6, 1e-3, 8192, smooth_factor=0.0)
    assert sglang(100_000, off).pieces == fixed(100_000, 8192).pieces
    on = ChunkPredictor(1e-6, 1e-3, 18432, max_prefill_tokens=16384)
    sizes = sglang(100_000, on).sizes
    assert sizes[0] == 18432  # above max_prefill_tokens, as protocol.md 5.3 says
    assert max(sizes[1:]) <= 16384


def test_near_the_end_of_the_context_the_chunk_shrinks_and_then_falls_back() -> None:
    predictor = ChunkPredictor(1e-6, 1e-3, 8192, context_length=131072)
    assert predictor.next_chunk(130_908) == 64
    assert predictor.next_chunk(130_909) is None
    plan = sglang(131_072, predictor)
    assert plan.num_tokens == 131_072
    assert plan.sizes[-1] <= 8192


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (-1e-6, 1e-3, "a = -1e-06 is not positive"),
        (0.0, 0.0, "a = 0 is not positive"),
        (math.nan, 1e-3, "not finite"),
        (1e-6, math.nan, "not finite"),
        (1e-9, -1e-3, "b = -0.001 is negative"),
    ],
)
def test_b94_a_useless_fit_falls_back_to_fixed_chunks_and_never_stops(a: float, b: float, why: str) -> None:
    predictor = ChunkPredictor(a, b, 4096)
    plan = sglang(20_000, predictor)
    assert plan.sizes == (4096,) * 4 + (3616,)
    assert why in plan.note
    assert plan.digest == fixed(20_000, 4096).digest  # every rank that falls back has the same table


def test_b95_a_chunk_below_the_alignment_is_refused_at_the_start_with_both_values() -> None:
    with pytest.raises(ScenarioError, match="128 is smaller than the alignment unit 4096"):
        check_alignment(128, 1, 4096)
    with pytest.raises(ScenarioError, match="100 is smaller than the page_size 256"):
        ChunkPredictor(1e-6, 1e-3, 100, page_size=256)
    with pytest.raises(ScenarioError, match=r"1000 is not a multiple of the page_size 256.*nearest: 1024"):
        ChunkPredictor(1e-6, 1e-3, 1000, page_size=256)
    check_alignment(4096, 256, 4096)


def test_b98_a_cold_first_sample_changes_no_planned_chunk_by_five_per_cent() -> None:
    lengths = profile_lengths(6144)
    clean = times(lengths, 1e-6, 0.02, 5.0)
    cold = [7234.0, *clean[1:]]
    plans = [
        sglang(100_000, ChunkPredictor.from_fit(fit_profile(lengths, data), 6144, smooth_factor=1.0))
        for data in (clean, cold)
    ]
    assert plans[0].pieces == plans[1].pieces
    assert len(set(plans[0].sizes)) > 5
    kept = fit_profile((lengths[0], *lengths), (clean[0], *cold))  # what dropping nothing would have given
    assert abs(kept.b - 0.02) > 0.01


@pytest.mark.parametrize(
    ("name", "value"), [("base", 0), ("page_size", 0), ("context_length", -1), ("max_prefill_tokens", 0)]
)
def test_impossible_limits_are_refused_by_name(name: str, value: int) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(ScenarioError, match=f"chunks.{name}: must be positive, got {value}"):
        replace(ChunkPredictor(1e-6, 1e-3, 4096), **changed)
    with pytest.raises(ScenarioError, match=r"smooth_factor: must be between 0 and 1, got 1.5"):
        ChunkPredictor(1e-6, 1e-3, 4096, smooth_factor=1.5)


# --- the table of a scenario ---------------------------------------------------------------------------------------


def test_the_ranks_have_one_table_that_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def profiled(s: Any) -> ChunkPredictor:
        made.append(s.name)
        return ChunkPredictor(1e-6, 1e-3, s.scheduler.chunked_prefill_size)

    monkeypatch.setattr(chunks, "sglang_predictor", profiled)
    s = load_scenario("paper/qwen3_235b_h20_pp8", ["seed=90417"])  # a scenario that no other test has
    tables = {rank_config(s, rank).chunk_table for rank in range(8)}
    assert len(tables) == 1
    assert len(made) == 1


def test_a_config_that_was_written_again_gives_another_table(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    model = json.loads((Path(__file__).parents[1] / "data" / "models" / "shared_expert.json").read_text())
    sets = [f"model.key={json.dumps(str(path))}", "cluster.pp_size=2", "cluster.tp_size=1"]
    tables = []
    for second, hidden_size in enumerate((model["hidden_size"], 2 * model["hidden_size"]), 1):
        path.write_text(json.dumps({**model, "hidden_size": hidden_size}))
        os.utime(path, (second, second))
        tables.append(chunks.chunk_table(load_scenario("paper/qwen3_235b_h20_pp8", sets)))
    assert tables[0] != tables[1]
