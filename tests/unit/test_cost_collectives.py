"""Ring factors against a ring that is really run, and the three volumes of published.md A1 row 14."""

from __future__ import annotations

import numpy as np
import pytest

from ppsim.cost.collectives import (
    all_gather_factor,
    all_gather_s,
    all_reduce_factor,
    all_reduce_s,
    p2p_s,
    volumes,
)
from ppsim.cost.config_json import load_model
from ppsim.errors import ScenarioError


def ring_all_reduce(tensors: list[np.ndarray]) -> tuple[list[np.ndarray], list[int], int]:
    """Reduce-scatter, then all-gather, one neighbour at a time; results, elements sent by each rank, steps."""
    n = len(tensors)
    parts = [[p.copy() for p in np.array_split(t, n)] for t in tensors]
    sent, steps = [0] * n, 0
    for phase in ("reduce", "gather"):
        for step in range(n - 1):
            offset = 0 if phase == "reduce" else 1
            moves = [(r, (r + offset - step) % n) for r in range(n)]
            carried = [parts[r][piece].copy() for r, piece in moves]
            for (r, piece), payload in zip(moves, carried):
                peer = (r + 1) % n
                parts[peer][piece] = parts[peer][piece] + payload if phase == "reduce" else payload
                sent[r] += payload.size
            steps += 1
    return [np.concatenate(p) for p in parts], sent, steps


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_ring_all_reduce_sends_what_the_factor_says(num_ranks: int) -> None:
    size = 24 * num_ranks
    tensors = [np.arange(size, dtype=np.int64) * (r + 1) for r in range(num_ranks)]
    results, sent, steps = ring_all_reduce(tensors)
    assert all(np.array_equal(r, sum(tensors)) for r in results)
    assert set(sent) == {round(all_reduce_factor(num_ranks) * size)}
    assert steps == 2 * (num_ranks - 1)
    assert all_gather_factor(num_ranks) * 2 == all_reduce_factor(num_ranks)


def test_factors_saturate_at_two_and_one_and_never_reach_them() -> None:
    assert [all_reduce_factor(n) for n in (1, 2, 4)] == [0.0, 1.0, 1.5]
    assert 1.99 < all_reduce_factor(1000) < 2.0
    assert 0.99 < all_gather_factor(1000) < 1.0


def test_collective_time_is_steps_of_latency_and_bytes_over_bandwidth() -> None:
    assert all_reduce_s(8e9, 4, 100.0, latency_us=10.0) == pytest.approx(6 * 10e-6 + 12e9 / 100e9)
    assert all_gather_s(8e9, 4, 100.0, latency_us=10.0) == pytest.approx(3 * 10e-6 + 6e9 / 100e9)
    assert p2p_s(1e9, 50.0, 5.0) == pytest.approx(5e-6 + 0.02)
    assert p2p_s(1e9, 0.0, 5.0) == pytest.approx(5e-6)
    with pytest.raises(ScenarioError, match="must not be negative"):
        p2p_s(1.0, -1.0)


def test_volumes_of_the_post_for_deepseek() -> None:
    """4 B S H L, 2 B S H_kv L and B S H (P-1) at one byte an element."""
    v = volumes(load_model("deepseek-v3.1"), 131072, tp_size=8, cp_size=8, pp_size=4)
    assert v.tp_saturated_bytes == 4 * 131072 * 7168 * 61
    assert v.tp_exact_bytes == v.tp_saturated_bytes * 7 / 8
    assert v.cp_saturated_bytes == 131072 * 576 * 61  # the latent is the 2 H_kv of MLA
    assert v.cp_exact_bytes == v.cp_saturated_bytes * 7 / 8
    assert v.pp_bytes == 131072 * 7168 * 3
    assert v.tp_over_pp == pytest.approx(4 * 61 / 3)


def test_grouped_queries_make_context_parallelism_cheaper_than_tensor_parallelism() -> None:
    v = volumes(load_model("qwen3-235b-a22b"), 1000, batch=2, pp_size=8)
    assert v.cp_saturated_bytes == 2 * 2 * 1000 * (4 * 128) * 94
    assert v.tp_saturated_bytes / v.cp_saturated_bytes == pytest.approx(2 * 4096 / (4 * 128))
    assert v.tp_over_pp == pytest.approx(4 * 94 / 7)


def test_ratio_depends_on_layers_and_stages_alone() -> None:
    shape = load_model("llama-3.1-70b")
    for seq_len, element_bytes in ((17, 1.0), (100_000, 2.0)):
        v = volumes(shape, seq_len, pp_size=5, element_bytes=element_bytes)
        assert v.tp_over_pp == pytest.approx(4 * 80 / 4)
    assert volumes(shape, 10, pp_size=1).tp_over_pp == float("inf")


def test_bytes_of_a_real_seam_are_two_bf16_tensors() -> None:
    shape = load_model("qwen3-8b")
    assert volumes(shape, 10, pp_size=2, element_bytes=2, tensors_per_seam=2).pp_bytes == 10 * 4096 * 4


def test_sizes_below_one_are_refused_by_name() -> None:
    with pytest.raises(ScenarioError, match="pp_size: must be at least 1, got 0"):
        volumes(load_model("qwen3-8b"), 10, pp_size=0)
    for size in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ScenarioError, match="bytes: of an element must be more than 0"):
            volumes(load_model("qwen3-8b"), 10, element_bytes=size)
