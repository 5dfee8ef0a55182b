"""Models whose layers are not alike: sizes worked out by hand, times by kind of layer against sums over positions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppsim.cost.attention import FULL, GroupedQuery, Latent, Reach
from ppsim.cost.config_json import from_config, load_model
from ppsim.cost.gpu import load_gpu
from ppsim.cost.memory import StatePool, best_partition, model_capacity
from ppsim.cost.model import ModelShape
from ppsim.cost.roofline import Rates, RooflineCost
from ppsim.cost.state import FixedState
from ppsim.errors import ScenarioError

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"
IDEAL = Rates(efficiency=1.0, hbm_fraction=1.0, moe_tile_rows=0)
DENSE = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "vocab_size": 100,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def case(name: str) -> ModelShape:
    return load_model(str(MODELS / f"{name}.json"))


# --- sizes by hand ----------------------------------------------------------------------------------------------


def test_linear_layers_keep_a_state_and_full_ones_a_latent() -> None:
    shape = case("linear_and_full")
    assert shape.kv_bytes_per_token == 24 * (512 + 64) * 2 == 27_648
    state = 64 * 128 * 128 * 4 + 3 * 64 * 128 * 3 * 2
    held = [shape.layer_state_bytes(i) for i in range(93)]
    assert [size for size in held if size] == [4_341_760.0] * 69 == [state] * 69
    full = [4 * n - 1 for n in range(1, 24)] + [92]  # the config counts layers from 1
    assert [i for i, layer in enumerate(shape.layers) if any(layer.attentions)] == full
    assert shape.moe_layers == (False,) + (True,) * 92


def test_state_space_layers_stand_alone_and_leave_no_cache() -> None:
    shape = case("state_space_hybrid")
    assert shape.kv_bytes_per_token == 2 * 2 * 8 * 128 * 2 == 8_192
    state = 128 * 80 * 128 * 4 + (128 * 80 + 2 * 8 * 128) * 3 * 2
    assert shape.layer_state_bytes(0) == state == 5_316_608
    assert shape.state_bytes == 9 * state == 47_849_472
    parts = ["".join(("M", "*")[isinstance(m, GroupedQuery)] for m in layer.mixers) or "-" for layer in shape.layers]
    assert "".join(parts) == "M-M-M*-M-M-M*-M-M-M-"


def test_every_second_layer_has_experts_and_the_others_a_width_of_their_own() -> None:
    shape = case("alternate_moe")
    assert shape.moe_layers == (False, True) * 24
    attention = 2 * 5120 * 5120 + 2 * 5120 * 1024
    experts = 5120 * 128 + 129 * 3 * 5120 * 8192
    dense = 3 * 5120 * 16384
    ends = 2 * 202048 * 5120
    assert shape.total_params() == 48 * attention + 24 * (experts + dense) + ends
    assert shape.total_params() / 1e9 == pytest.approx(400.7, abs=0.05)
    assert shape.active_params() / 1e9 == pytest.approx(15.1, abs=0.05)
    assert (shape.active_params() + ends) / 1e9 == pytest.approx(17.2, abs=0.05)
    stages = model_capacity(shape, load_gpu("h100"), (24, 24), 8, 0.85).require(1).stages
    assert [s.weight_bytes / 1e9 for s in stages] == pytest.approx([50.1, 50.1], abs=0.05)


def test_a_shared_expert_may_be_wider_than_the_routed_ones() -> None:
    shape = case("shared_expert")
    shared = 28 * 3 * 3584 * 20480
    without = from_config(
        {**json.loads((MODELS / "shared_expert.json").read_text()), "shared_expert_intermediate_size": 0}, "m"
    )
    assert shape.total_params() - without.total_params() == shared
    assert shape.total_params() / 1e9 == pytest.approx(57.4, abs=0.05)
    assert shape.active_params() / 1e9 == pytest.approx(13.2, abs=0.05)
    assert (shape.active_params() + 2 * shape.embedding_params) / 1e9 == pytest.approx(14.2, abs=0.05)


def test_an_expert_that_no_key_names_is_known_by_the_family() -> None:
    """Llama 4 has one shared expert in each layer with experts; its config does not say so."""
    config = {**DENSE, "model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1}
    config |= {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 128}
    shape = from_config(config, "m")
    block = shape.layers[1].feed_forward
    assert block is not None
    assert (block.num_shared_experts, block.dense_params, block.num_experts) == (1, 3 * 64 * 96, 4)
    assert shape.layers[0].feed_forward is not None
    assert shape.layers[0].feed_forward.dense_params == 3 * 64 * 128


@pytest.mark.parametrize("how", ["text_config", "language_config", "llm_config", "thinker_config"])
def test_the_language_model_of_a_multimodal_config_is_found_and_what_is_left_out_is_said(how: str) -> None:
    inner: dict[str, Any] = {**DENSE, "model_type": "llama"}
    inner.pop("torch_dtype")
    outer = {"model_type": "many", "torch_dtype": "float16", "vision_config": {"hidden_size": 7}, "hidden_size": 3}
    config = {**outer, how: {"text_config": inner, "audio_config": {"a": 1}} if how == "thinker_config" else inner}
    shape = from_config(config, "m")
    assert (shape.num_layers, shape.hidden_size) == (6, 64)
    assert any("vision_config" in note for note in shape.notes)


# --- which layer is what ----------------------------------------------------------------------------------------------

WINDOW = {"sliding_window": 8}


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({**WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 3}, "WFWFWF"),
        ({**WINDOW, "sliding_window_pattern": 3}, "WWFWWF"),
        ({**WINDOW, "sliding_window_pattern": "LLG"}, "WWFWWF"),
        ({**WINDOW, "model_type": "gemma2"}, "WFWFWF"),
        ({**WINDOW, "model_type": "gemma3_text"}, "WWWWWF"),
        ({**WINDOW, "model_type": "cohere2"}, "WWWFWW"),
        ({**WINDOW, "model_type": "mistral"}, "WWWWWW"),
        ({**WINDOW, "model_type": "qwen2", "use_sliding_window": False}, "FFFFFF"),
        ({**WINDOW, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2}, "FFWWWW"),
        ({"sliding_window": None}, "FFFFFF"),
    ],
)
def test_layers_with_a_window(fields: dict[str, Any], windows: str) -> None:
    shape = from_config({**DENSE, **fields}, "m")
    kinds = [next(layer.attentions).reach.kind for layer in shape.layers]
    assert "".join("W" if kind == "window" else "F" for kind in kinds) == windows
    assert {next(layer.attentions).reach.size for layer in shape.layers} <= {0, 8}


@pytest.mark.parametrize(
    ("fields", "mixers"),
    [
        ({"model_type": "qwen3_next", "full_attention_interval": 3}, "LLFLLF"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"] * 5 + ["full_attention"]}, "LLLLLF"),
        ({"attn_type_list": [0, 0, 1, 0, 0, 1]}, "LLFLLF"),
        ({"model_type": "jamba", "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 4}, "LFLLFL"),
        ({"model_type": "bamba", "attn_layer_indices": [4], "mamba_d_state": 4, "mamba_n_heads": 4}, "LLLLFL"),
        ({"full_attn_idxs": [0, 5], "conv_L_cache": 3}, "FLLLLF"),
        ({"hybrid_override_pattern": "M*-E-M", "mamba_num_heads": 4, "ssm_state_size": 8}, "LF---L"),
        (
            {
                "layers_block_type": ["mamba", "attention", "moe", "mlp", "mamba", "attention"],
                "mamba_num_heads": 4,
                "ssm_state_size": 8,
                "mamba_head_dim": 8,
            },
            "LF--LF",
        ),
    ],
)
def test_layers_with_a_state(fields: dict[str, Any], mixers: str) -> None:
    delta = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shape = from_config(
        {**DENSE, **experts, **(delta if fields.get("model_type") == "qwen3_next" else {}), **fields}, "m"
    )
    found = "".join("L" if any(layer.states) else "F" if any(layer.attentions) else "-" for layer in shape.layers)
    assert found == mixers


@pytest.mark.parametrize(
    ("fields", "experts"),
    [
        ({"first_k_dense_replace": 2}, "--EEEE"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "--E-E-"),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, "-EE-EE"),
        ({"decoder_sparse_step": 2}, "-E-E-E"),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0, 5]}, "-EEEE-"),
        ({"interleave_moe_layer_step": 3}, "--E--E"),
        ({"moe_layers": [1, 4]}, "-E--E-"),
        ({"moe_layers_enum": "2,3"}, "--EE--"),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense", "dense", "sparse"]}, "-EE--E"),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, "-E-E-E"),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 4, "moe_layer_interval": 1}, "-EEEE-"),
        ({"num_dense_layers": 3}, "---EEE"),
    ],
)
def test_layers_with_experts(fields: dict[str, Any], experts: str) -> None:
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shape = from_config({**DENSE, **moe, **fields}, "m")
    assert "".join("E" if has else "-" for has in shape.moe_layers) == experts


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [({"multi_query": True, "num_key_value_heads": None}, 1), ({"num_key_value_heads": None}, 8), ({}, 2)],
)
def test_multi_query_is_one_head_of_keys_and_values(fields: dict[str, Any], kv_heads: int) -> None:
    shape = from_config({**DENSE, **fields}, "m")
    assert shape.kv_bytes_per_token == 6 * 2 * kv_heads * 16 * 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"layer_types": ["sliding_attention"] * 6}, "sliding_window"),
        ({"layer_types": ["full_attention"] * 5}, "has 5 entries for 6 layers"),
        ({"layer_types": ["warp_attention"] * 6}, "'warp_attention' is no kind of layer"),
        ({"layer_types": "full"}, "must be a list"),
        ({"layer_types": ["linear_attention"] * 6}, "linear layers of a kind that no field describes"),
        ({"hybrid_override_pattern": "M*X---"}, "has 'X'"),
        ({"hybrid_override_pattern": "M*"}, "a letter for each of 6 layers"),
        ({"attn_type_list": [1, 0]}, "has 2 entries for 6 layers"),
        (
            {"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [2, 3]}},
            "do not name each of the layers 1 to 6",
        ),
        ({"sliding_window": 8, "sliding_window_pattern": "XY"}, "must be a period or letters L and G"),
        ({"num_experts": 4, "num_experts_per_tok": 2, "moe_layers": [9]}, "must name layers 0 to 5"),
        ({"model_type": "zamba2"}, "'zamba2' cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        from_config({**DENSE, **fields}, "m")


def test_what_was_not_read_is_told() -> None:
    shape = from_config(
        {**DENSE, "model_type": "llama", "warp_layers": [1, 2], "rope_theta": 1.0, "num_mtp_layers": 2}, "m"
    )
    assert any("warp_layers" in note for note in shape.notes)
    assert any("num_mtp_layers 2" in note for note in shape.notes)
    assert not any("rope_theta" in note for note in shape.notes)
    assert from_config({**DENSE, "model_type": "llama"}, "m").notes == ()
    assert any(
        "'new_thing' is not known" in note for note in from_config({**DENSE, "model_type": "new_thing"}, "m").notes
    )


# --- time by kind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reach", "sees"),
    [
        (FULL, lambda p: p),
        (Reach("window", 64), lambda p: min(p, 64)),
        (Reach("top_k", 64), lambda p: min(p, 64)),
        (Reach("chunk", 64), lambda p: p % 64),
    ],
)
@pytest.mark.parametrize(("prefix", "new"), [(0, 10), (0, 200), (50, 30), (128, 64), (1000, 1), (64, 4096)])
def test_pairs_are_the_sum_over_positions(reach: Reach, sees: Any, prefix: int, new: int) -> None:
    """Oracle: the queries one by one; the integral differs from the sum by half a key a query at most."""
    summed = sum(sees(p) for p in range(prefix, prefix + new))
    assert reach.pairs(prefix, new) == pytest.approx(summed, abs=new / 2 + 64)
    fine = sum(sees(prefix + (i + 0.5) / 100) / 100 for i in range(100 * new))
    assert reach.pairs(prefix, new) == pytest.approx(fine, rel=1e-3)


def only(shape: ModelShape, layer: int) -> RooflineCost:
    """A layer twice, a stage each: the first has no head."""
    return RooflineCost(replace(shape, layers=(shape.layers[layer],) * 2), load_gpu("h100"), 1, (1, 1), IDEAL)


def test_a_window_makes_long_prompts_linear_and_full_attention_quadratic() -> None:
    shape = from_config({**DENSE, **WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 3}, "m")
    rate = 989e12
    for layer, pairs in ((0, 8 * 100_000 - 8 * 8 / 2), (1, 100_000**2 / 2)):
        spent = only(shape, layer).breakdown(0, [(0, 100_000, False)])
        assert spent.attention_s == pytest.approx(4 * 8 * 16 * pairs / rate)
    decode = only(shape, 0).breakdown(0, [(100_000, 1, True)]), only(shape, 1).breakdown(0, [(100_000, 1, True)])
    read = (decode[1].memory_s - decode[0].memory_s) * 3350e9
    assert read == pytest.approx((100_000 - 8) * 2 * 2 * 16 * 2)


def test_a_state_costs_a_token_the_same_whatever_is_before_it() -> None:
    shape = case("linear_and_full")
    cost = only(shape, 0)
    state = next(shape.layers[0].states)
    near, far = cost.breakdown(0, [(0, 1000, False)]), cost.breakdown(0, [(100_000, 1000, False)])
    assert near == far
    flops = 2 * 3 * 64 * 128 * 128 + 2 * 4 * 3 * 64 * 128  # three passes of the delta rule, a convolution of width 4
    assert state.token_flops == flops
    assert near.attention_s == pytest.approx(1000 * flops / 989e12)
    one, two = (cost.breakdown(0, [(9, 1, True)] * n).memory_s for n in (1, 2))
    assert two - one == pytest.approx(2 * 4_341_760 / 3350e9)  # read and written


def test_sparse_attention_scores_all_tokens_with_the_indexer_and_attends_to_few() -> None:
    base = json.loads((MODELS / "linear_and_full.json").read_text())["text_config"]
    base.pop("linear_attn_config")
    config = {**base, "model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
    sparse, dense = from_config(config, "m"), from_config({**base, "model_type": "deepseek_v3"}, "m")
    attention = sparse.attention
    assert isinstance(attention, Latent)
    assert sparse.kv_bytes_per_token == 93 * (512 + 64 + 128) * 2
    added = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64
    assert sparse.layer_params(0) - dense.layer_params(0) == added
    absorbed = 2 * 64 * (2 * 512 + 64)
    tokens = 100_000
    spent = only(sparse, 0).breakdown(0, [(0, tokens, False)])
    pairs = 2048 * tokens - 2048**2 / 2
    flops = absorbed * pairs + 2 * 64 * 128 * tokens**2 / 2
    assert spent.attention_s == pytest.approx(flops / 989e12)
    assert spent.expand_s == 0.0  # it works on the latents
    assert only(dense, 0).breakdown(0, [(tokens, 1, False)]).expand_s > 0.0
    read = (
        only(sparse, 0).breakdown(0, [(tokens, 1, True)]).memory_s
        - only(sparse, 0).breakdown(0, [(0, 1, True)]).memory_s
    )
    assert read == pytest.approx((2048 * 576 + tokens * 128) * 2 / 3350e9)


def test_a_layer_of_one_block_has_one_all_reduce() -> None:
    shape = case("state_space_hybrid")
    whole = RooflineCost(shape, load_gpu("h100"), 8, (20,), IDEAL).breakdown(0, [(0, 100, False)])
    assert whole.comm_s == pytest.approx(20 * 100 * 2 * 7 / 8 * 4480 * 2 / 450e9)


@pytest.mark.parametrize("name", ["linear_and_full", "state_space_hybrid", "alternate_moe", "shared_expert"])
def test_stages_add_up_to_the_whole(name: str) -> None:
    shape = case(name)
    cut = tuple(shape.num_layers // 4 for _ in range(3))
    cut += (shape.num_layers - sum(cut),)
    work = [(30_000, 512, False), (5_000, 1, True)]
    whole = RooflineCost(shape, load_gpu("b200"), 4, (shape.num_layers,), IDEAL).breakdown(0, work)
    parts = [RooflineCost(shape, load_gpu("b200"), 4, cut, IDEAL).breakdown(k, work) for k in range(4)]
    for name_of in ("linear_s", "attention_s", "expand_s", "memory_s", "comm_s"):
        assert sum(getattr(p, name_of) for p in parts) == pytest.approx(getattr(whole, name_of)), name_of


# --- memory ----------------------------------------------------------------------------------------------


def test_states_get_their_share_of_the_memory_or_the_slots_that_were_asked_for() -> None:
    shape, gpu = case("state_space_hybrid"), load_gpu("h100")
    usable = 80e9 * 0.8
    weights = (shape.active_params() + 2 * shape.embedding_params) * 2
    (by_ratio,) = model_capacity(shape, gpu, (20,), 1).stages
    assert by_ratio.weight_bytes == weights
    assert by_ratio.num_slots == int((usable - weights) * 0.9 / 1.9 / 47_849_472)
    (given,) = model_capacity(shape, gpu, (20,), 1, pool=StatePool(num_slots=100)).stages
    assert given.num_slots == 100
    assert given.num_tokens == int((usable - weights - 100 * 47_849_472) / 8_192)
    (cut,) = model_capacity(shape, gpu, (20,), 8).stages
    assert cut.state_bytes == 47_849_472 / 8


def test_the_split_by_memory_is_the_best_of_all_with_states_too() -> None:
    from itertools import combinations, pairwise

    shape, gpu = case("state_space_hybrid"), 4.0
    for pool in (StatePool(), StatePool(num_slots=20)):
        found = best_partition(shape, gpu, 3, 1, pool=pool)
        most = max(
            model_capacity(shape, gpu, tuple(b - a for a, b in pairwise((0, *cut, 20))), 1, pool=pool).num_tokens
            for cut in combinations(range(1, 20), 2)
        )
        assert model_capacity(shape, gpu, found, 1, pool=pool).num_tokens == most


def test_a_window_bounds_what_a_request_needs() -> None:
    shape = from_config({**DENSE, **WINDOW, "layer_types": ["sliding_attention"] * 4 + ["full_attention"] * 2}, "m")
    one = 2 * 2 * 16 * 2
    assert shape.kv_bytes_per_token == 6 * one
    assert shape.kv_bytes_of(5) == 6 * 5 * one
    assert shape.kv_bytes_of(1000) == (2 * 1000 + 4 * 7) * one


def test_states_are_cut_by_tensor_parallelism_only_where_their_heads_can_be() -> None:
    shape = case("state_space_hybrid")
    assert isinstance(next(shape.layers[0].states), FixedState)
    shape.check_tp(8)
    with pytest.raises(ScenarioError, match="16 does not divide the 8 attention heads"):
        shape.check_tp(16)


# --- published sizes ------------------------------------------------------------------------------------------------

GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}


@pytest.mark.parametrize(
    ("layers", "experts", "total", "active", "gib"), [(36, 128, 116.83, 5.13, 60.8), (24, 32, 20.91, 3.61, 12.8)]
)
def test_a_checkpoint_of_four_bits_has_its_published_size(
    layers: int, experts: int, total: float, active: float, gib: float
) -> None:
    """gpt-oss model card (arXiv 2508.10925, table 1): parameters, active ones with the head, size of the checkpoint."""
    kinds = GPT_OSS["layer_types"]
    assert isinstance(kinds, list)
    own = {"num_hidden_layers": layers, "num_local_experts": experts, "layer_types": kinds[:layers]}
    shape = from_config({**GPT_OSS, **own}, "m")
    assert shape.total_params() / 1e9 == pytest.approx(total, abs=0.005)
    assert (shape.active_params() + shape.embedding_params) / 1e9 == pytest.approx(active, abs=0.01)
    weights = sum(shape.layer_weight_bytes(i) for i in range(layers)) + 2 * shape.embedding_bytes
    assert weights / 2**30 == pytest.approx(gib, rel=0.005)
    assert shape.kv_bytes_of(100_000) == layers // 2 * (100_000 + 127) * 2 * 8 * 64 * 2


def test_a_config_inside_another_one_leaves_out_what_its_class_has_by_default() -> None:
    """Gemma 3 4B as it is published: heads, their width and the vocabulary are not there. 3.88 B parameters of text."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    config = {"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}, "vision_config": {"a": 1}}
    shape = from_config(config, "m")
    assert shape.total_params() / 1e9 == pytest.approx(3.88, abs=0.005)
    assert shape.tie_word_embeddings
    told = "by default: _sliding_window_pattern 6, head_dim 256, num_attention_heads 8"
    assert sum(told in note for note in shape.notes) == 1
    with pytest.raises(ScenarioError, match="num_attention_heads: is missing"):  # a file of its own says all
        from_config(text, "m")
