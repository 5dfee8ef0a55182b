"""The roofline against FLOP and byte counts done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppsim.cost.config_json import load_model
from ppsim.cost.gpu import load_gpu
from ppsim.cost.partition import even_partition
from ppsim.cost.roofline import DECODE_LAYER_US, Rates, RooflineCost
from ppsim.errors import ScenarioError

IDEAL = Rates(efficiency=1.0, hbm_fraction=1.0, moe_tile_rows=0)


def dense(tp_size: int = 1, stages: int = 1, rates: Rates = IDEAL) -> RooflineCost:
    shape = load_model("llama-3.1-8b")
    return RooflineCost(shape, load_gpu("h100"), tp_size, even_partition(32, stages), rates)


def test_prefill_of_a_dense_model_is_its_flops_over_the_peak() -> None:
    """2 x parameters x tokens, 4 h d per causal pair, and the head for one row."""
    past, new = 6000, 2048
    linear = 2 * load_model("llama-3.1-8b").active_params() * new
    pairs = sum(past + q + 0.5 for q in range(new))  # half of the diagonal, as (2 L x + x^2) / 2 counts it
    attention = 4 * 32 * 128 * 32 * pairs
    head = 2 * 128256 * 4096
    expected_s = (linear + attention + head) / 989e12
    assert dense().batch_ns(0, 0, [(past, new, False)]) == pytest.approx(expected_s * 1e9, abs=1)


def test_coefficients_are_the_polynomial_of_the_batch_time() -> None:
    for key, gpu, tp in (("qwen3-235b-a22b-fp8", "h20", 4), ("deepseek-v3.1", "h200", 8), ("llama-3.1-70b", "h100", 8)):
        shape = load_model(key)
        cost = RooflineCost(shape, load_gpu(gpu), tp, (shape.num_layers,), Rates(efficiency=0.7))
        coefficients = cost.coefficients()
        for past, new in ((0, 8192), (65536, 8192), (500_000, 16384), (1000, 10240)):
            got = cost.batch_ns(0, 0, [(past, new, False)]) / 1e6
            assert coefficients.chunk_ms(past, new) == pytest.approx(got, rel=1e-6)
        assert f"tp {tp}" in coefficients.source
        assert coefficients.alpha_ms == 2 * coefficients.a_ms


def test_a_short_chunk_costs_the_floor_of_reading_all_weights() -> None:
    cost = dense(8)
    floor_ms = (load_model("llama-3.1-8b").active_params() + 128256 * 4096) * 2 / 8 / 3.35e12 * 1e3
    assert cost.coefficients().floor_ms == pytest.approx(floor_ms)
    short = cost.breakdown(0, [(0, 16, False)])
    assert short.bound == "memory"
    assert short.memory_s * 1e3 == pytest.approx(floor_ms)


def test_stages_add_up_to_the_whole_model() -> None:
    shape, work = load_model("deepseek-v3.1"), [(30_000, 4096, False)]
    whole = RooflineCost(shape, load_gpu("h20"), 8, (61,), Rates())
    cut = RooflineCost(shape, load_gpu("h20"), 8, (15, 15, 15, 16), Rates())
    total = sum(cut.batch_ns(s, 0, work) for s in range(4))
    assert total == pytest.approx(whole.batch_ns(0, 0, work), rel=1e-6)
    assert sum(cut.shares()) == pytest.approx(1.0)


def test_expansion_of_latents_is_paid_for_the_prefix_in_every_chunk() -> None:
    """gamma of MLA: 2 x 512 x 128 x 256 FLOPs a token and layer at the cache's rate, copies over the memory bus."""
    cost = RooflineCost(load_model("deepseek-v3.1"), load_gpu("h20"), 8, (61,), IDEAL)
    flops = 2 * 512 * 128 * (128 + 128) * 61
    moved = 2 * 128 * (192 + 128) * 2 * 61
    expected_ms = (flops / 148e12 + moved / 4e12) / 8 * 1e3
    assert cost.coefficients().gamma_ms == pytest.approx(expected_ms)
    assert dense().coefficients().gamma_ms == 0.0
    at_weights = RooflineCost(cost.shape, cost.gpu, 8, (61,), replace(IDEAL, expand_at="weight"))
    assert at_weights.coefficients().gamma_ms == pytest.approx((flops / 296e12 + moved / 4e12) / 8 * 1e3)


def test_decode_with_latents_works_on_the_latents_and_expands_nothing() -> None:
    """2 heads (2 x 512 + 64) FLOPs a pair; the cache read is the latent, whole on every rank."""
    cost = RooflineCost(load_model("deepseek-v3.1"), load_gpu("h20"), 8, (61,), IDEAL)
    got = cost.breakdown(0, [(100_000, 1, True)])
    pairs = 100_000 + 0.5
    assert got.attention_s == pytest.approx(pairs * 2 * 128 * (2 * 512 + 64) * 61 / (148e12 * 8))
    assert got.expand_s == 0.0
    without = cost.breakdown(0, [(0, 1, True)])
    assert got.memory_s - without.memory_s == pytest.approx(100_000 * 576 * 2 * 61 / 4e12)


def test_padding_of_expert_tiles_is_a_constant_of_each_chunk() -> None:
    """Half a tile for each of 128 experts in 94 layers."""
    rates = replace(IDEAL, moe_tile_rows=64)
    cost = RooflineCost(load_model("qwen3-235b-a22b-fp8"), load_gpu("h20"), 4, (94,), rates)
    padded_rows = 128 * 32
    expected_s = 2 * padded_rows * 3 * 4096 * 1536 * 94 / (296e12 * 4)
    head_s = 2 * 151936 * 4096 / (148e12 * 4)
    assert cost.coefficients().c_ms == pytest.approx((expected_s + head_s) * 1e3)
    one = cost.breakdown(0, [(0, 1, False)])
    many = cost.breakdown(0, [(0, 4096, False)])
    assert one.linear_s < many.linear_s / 20  # one token pads eight experts, not all of them


def test_decode_reads_weights_and_cache_once_and_is_bound_by_memory() -> None:
    rows = [(8000, 1, True)] * 16
    got = dense().breakdown(0, rows)
    weights = load_model("llama-3.1-8b").active_params() * 2 + 128256 * 4096 * 2
    kv = 16 * 8000 * 131072
    assert got.bound == "memory"
    assert got.memory_s == pytest.approx((weights + kv) / 3.35e12)
    assert dense().batch_ns(0, 0, rows) == pytest.approx(got.memory_s * 1e9, abs=1)


def test_a_huge_decode_batch_meets_the_compute_ceiling() -> None:
    short, wide = dense().breakdown(0, [(1, 1, True)] * 8), dense().breakdown(0, [(1, 1, True)] * 4096)
    assert (short.bound, wide.bound) == ("memory", "compute")


def test_all_reduce_is_added_with_the_ring_factor_and_not_hidden() -> None:
    tokens = 4096
    one, eight = dense(1), dense(8)
    comm = 2 * 32 * (2 * 7 / 8) * tokens * 4096 * 2 / 450e9
    assert eight.breakdown(0, [(0, tokens, False)]).comm_s == pytest.approx(comm)
    assert one.breakdown(0, [(0, tokens, False)]).comm_s == 0.0
    compute = one.batch_ns(0, 0, [(0, tokens, False)]) / 1e9 / 8
    assert eight.batch_ns(0, 0, [(0, tokens, False)]) == pytest.approx((compute + comm) * 1e9, rel=1e-6)


def test_an_all_reduce_that_leaves_the_node_takes_all_of_its_nics_or_says_that_their_speed_is_unknown() -> None:
    """16 ranks in two nodes: 7/8 twice over NVLink, and half of the tensor twice over eight NICs of 50 GB/s."""
    shape, tokens = load_model("llama-3.1-405b"), 4096
    wide = RooflineCost(shape, load_gpu("h100"), 16, (126,), IDEAL)
    one = tokens * 16384 * 2.0
    expected = 126 * 2 * (2 * 7 / 8 * one / 450e9 + 2 * (1 / 2) * (one / 8) / 50e9)
    assert wide.breakdown(0, [(0, tokens, False)]).comm_s == pytest.approx(expected)
    single = RooflineCost(shape, load_gpu("h100"), 16, (126,), replace(IDEAL, nics_per_node=1))
    expected = 126 * 2 * (2 * 7 / 8 * one / 450e9 + 2 * (1 / 2) * one / 50e9)
    assert single.breakdown(0, [(0, tokens, False)]).comm_s == pytest.approx(expected)
    with pytest.raises(ScenarioError, match="16 leaves the node of 8; h20 has no known NIC bandwidth"):
        RooflineCost(shape, load_gpu("h20"), 16, (126,), IDEAL)
    given = RooflineCost(shape, load_gpu("h20"), 16, (126,), replace(IDEAL, tp_gb_per_s=25.0))
    assert given.breakdown(0, [(0, tokens, False)]).comm_s == pytest.approx(126 * 2 * (2 * 15 / 16 * one) / 25e9)


def test_overheads_are_paid_by_every_layer_and_every_all_reduce_whatever_the_batch() -> None:
    rates = replace(IDEAL, layer_overhead_us=35.0, link_latency_us=0.6, nic_latency_us=5.0, all_reduce_us=6.8)
    shape = load_model("llama-3.1-405b")
    for tp, reduce_us in ((8, 6.8 + 14 * 0.6), (16, 6.8 + 14 * 0.6 + 2 * 5.0)):
        for work in ([(0, 4096, False)], [(500, 1, True)] * 7):
            plain = RooflineCost(shape, load_gpu("h100"), tp, (60, 66), IDEAL).breakdown(1, work)
            found = RooflineCost(shape, load_gpu("h100"), tp, (60, 66), rates).breakdown(1, work)
            assert found.overhead_s == pytest.approx(66 * (35.0 + 2 * reduce_us) * 1e-6)
            assert found.total_s - plain.total_s == pytest.approx(found.overhead_s)
    alone = RooflineCost(load_model("llama-3.1-8b"), load_gpu("h100"), 1, (32,), rates)
    assert alone.breakdown(0, [(500, 1, True)]).overhead_s == pytest.approx(32 * 35e-6)  # nobody to reduce with
    assert alone.coefficients().floor_ms - dense().coefficients().floor_ms == pytest.approx(32 * 0.035)


def test_half_the_bandwidth_of_an_h100_is_what_the_published_overhead_stands_for() -> None:
    """Llama-3.2-1B, one row: vLLM and SGLang reach half of 3.35 TB/s; 16 layers, 1.24e9 weights of two bytes."""
    measured_s, reached_s = 1.24e9 * 2 / (0.5 * 3.35e12), 1.24e9 * 2 / (Rates().hbm_fraction * 3.35e12)
    assert pytest.approx((measured_s - reached_s) / 16 * 1e6, rel=0.02) == DECODE_LAYER_US


def test_half_the_efficiency_doubles_the_arithmetic_and_nothing_else() -> None:
    work = [(100_000, 4096, False)]
    full, half = dense(8).breakdown(0, work), dense(8, rates=replace(IDEAL, efficiency=0.5)).breakdown(0, work)
    assert half.linear_s == pytest.approx(2 * full.linear_s)
    assert half.attention_s == pytest.approx(2 * full.attention_s)
    assert half.memory_s == full.memory_s
    assert half.comm_s == full.comm_s


def test_narrow_types_run_and_load_faster() -> None:
    work = [(0, 8192, False)]
    wide = RooflineCost(load_model("qwen3-235b-a22b"), load_gpu("h20"), 8, (94,), IDEAL).breakdown(0, work)
    fp8 = RooflineCost(load_model("qwen3-235b-a22b-fp8"), load_gpu("h20"), 8, (94,), IDEAL).breakdown(0, work)
    assert fp8.linear_s == pytest.approx(wide.linear_s / 2, rel=1e-3)
    assert fp8.memory_s < 0.51 * wide.memory_s
    assert fp8.attention_s == wide.attention_s  # the cache is BF16 in both


def test_impossible_settings_are_refused_by_name() -> None:
    shape, gpu = load_model("llama-3.1-8b"), load_gpu("h100")
    with pytest.raises(ScenarioError, match="5 does not divide the 32"):
        RooflineCost(shape, gpu, 5, (32,))
    with pytest.raises(ScenarioError, match="10,10 sums to 20"):
        RooflineCost(shape, gpu, 1, (10, 10))
    with pytest.raises(ScenarioError, match=r"cost.efficiency: must be positive"):
        Rates(efficiency=0.0)
    with pytest.raises(ScenarioError, match="hbm_fraction"):
        Rates(hbm_fraction=1.5)
    for name in ("link_latency_us", "nic_latency_us", "all_reduce_us", "layer_overhead_us"):
        for value in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ScenarioError, match=f"cost.{name}"):
                replace(Rates(), **{name: value})
    with pytest.raises(ScenarioError, match="expand_at"):
        Rates(expand_at="fp8")
