"""Model shapes against published parameter counts and KV sizes (published.md C), and configs that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppsim.cost.attention import GroupedQuery, Latent
from ppsim.cost.config_json import checkpoint_of, from_config, known_key, known_models, load_model
from ppsim.cost.gpu import known_gpus, load_gpu
from ppsim.errors import ScenarioError

DENSE = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "vocab_size": 100,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("key", "total_billions", "active_billions"),
    [
        ("deepseek-v3.1", 671.0, 35.7),
        ("qwen3-235b-a22b", 235.1, 20.9),
        ("qwen3-8b", 8.19, 6.95),
        ("qwen3-30b-a3b", 30.5, 2.73),
        ("llama-3.1-8b", 8.03, 6.98),
        ("llama-3.1-70b", 70.55, 68.45),
        ("llama-3.1-405b", 405.85, 401.6),
        ("kimi-k2", 1026.4, 30.5),
    ],
)
def test_parameter_counts_are_the_published_ones(key: str, total_billions: float, active_billions: float) -> None:
    shape = load_model(key)
    assert shape.total_params() / 1e9 == pytest.approx(total_billions, rel=2e-3)
    assert shape.active_params() / 1e9 == pytest.approx(active_billions, rel=5e-3)


@pytest.mark.parametrize(
    ("key", "bytes_per_token"),
    [
        ("qwen3-235b-a22b", 192_512),
        ("deepseek-v3.1", 70_272),
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-8b", 131_072),
        ("qwen3-8b", 147_456),
    ],
)
def test_kv_bytes_of_a_token_are_the_published_ones(key: str, bytes_per_token: int) -> None:
    assert load_model(key).kv_bytes_per_token == bytes_per_token
    assert load_model(key, kv_dtype="fp8").kv_bytes_per_token == bytes_per_token / 2


def test_layers_embedding_and_head_add_up_to_the_whole_model() -> None:
    for key in sorted(known_models()):
        shape = load_model(key)
        layers = sum(shape.layer_params(i) for i in range(shape.num_layers))
        vectors = shape.vectors + sum(layer.vectors for layer in shape.layers)  # norms and biases
        assert layers + 2 * shape.embedding_params + vectors == shape.total_params()
        assert 0 < vectors < shape.total_params() / 1000
        assert shape.active_params() <= layers


def test_deepseek_has_three_dense_layers_first_and_they_are_the_small_ones() -> None:
    shape = load_model("deepseek-v3.1")
    assert shape.moe_layers == (False,) * 3 + (True,) * 58
    assert shape.layer_params(0) * 15 < shape.layer_params(3)


def test_which_layers_have_experts_in_the_words_of_both_families() -> None:
    experts = {**DENSE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    qwen = from_config({**experts, "decoder_sparse_step": 2, "mlp_only_layers": []}, "m")
    assert qwen.moe_layers == (False, True, False, True)  # every second layer, counted from one
    listed = from_config({**experts, "decoder_sparse_step": 1, "mlp_only_layers": [0, 2]}, "m")
    assert listed.moe_layers == (False, True, False, True)
    deepseek = from_config({**experts, "moe_layer_freq": 2, "first_k_dense_replace": 1}, "m")
    assert deepseek.moe_layers == (False, False, True, False)  # multiples of two, counted from zero


@pytest.mark.parametrize(("method", "width"), [("fp8", 1.0), ("mxfp4", 4.25 / 8), ("nvfp4", 4.5 / 8)])
def test_quantised_checkpoints_shrink_the_layers_but_not_router_and_embedding(method: str, width: float) -> None:
    plain = from_config({**DENSE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, "m")
    small = from_config(
        {
            **DENSE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "quantization_config": {"quant_method": method},
        },
        "m",
    )
    router = 64 * 4 * 2.0
    assert small.layer_weight_bytes(0) - router == (plain.layer_weight_bytes(0) - router) * width / 2
    assert small.embedding_bytes == plain.embedding_bytes == 100 * 64 * 2


@pytest.mark.parametrize(
    ("quantization", "stored", "multiplied"),
    [
        ({"quant_method": "fp8"}, 1.0, 1.0),
        ({"quant_method": "nvfp4"}, (4 + 8 / 16) / 8, 0.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, (4 + 8 / 16) / 8, 0.5),
        ({"quant_method": "mxfp4"}, (4 + 8 / 32) / 8, 0.5),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, (4 + 20 / 128) / 8, 2.0),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, (8 + 20 / 32) / 8, 2.0),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 0.5, 2.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, (4 + 32 / 64) / 8, 2.0),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0, 2.0),
        ({"quant_method": "compressed-tensors"}, 1.0, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}, "input_activations": None}},
            },
            0.5,
            2.0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            (4 + 16 / 32) / 8,
            2.0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}},
            },
            1.0,
            1.0,
        ),
    ],
)
def test_four_bits_in_memory_are_not_always_four_bits_in_the_tensor_cores(
    quantization: dict[str, object], stored: float, multiplied: float
) -> None:
    """AWQ, GPTQ and weight-only checkpoints are widened before they are multiplied; FP8 and FP4 ones are not."""
    shape = from_config({**DENSE, "quantization_config": quantization}, "m")
    assert (shape.weight_bytes, shape.operand_bytes) == (stored, multiplied)


def test_a_four_bit_rate_is_used_where_the_gpu_has_one() -> None:
    assert load_gpu("b200").flops(0.5) == 2 * load_gpu("b200").flops(1.0)
    assert load_gpu("h100").flops(0.5) == load_gpu("h100").flops(1.0)


def test_a_known_model_goes_by_its_key_or_by_its_checkpoint(tmp_path: Path) -> None:
    for key in known_models():
        checkpoint = checkpoint_of(key)
        assert checkpoint is not None
        assert known_key(checkpoint) == known_key(key) == known_key(f"/data/{key}/") == key
        assert load_model(checkpoint) == load_model(key)
    assert known_key("foo/bar") is None
    folder = tmp_path / "qwen3-8b"  # a folder's own config tells more than its name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    assert load_model(str(folder)).num_layers == DENSE["num_hidden_layers"]


def test_expected_number_of_hit_experts_goes_from_top_k_to_all_of_them() -> None:
    moe = load_model("deepseek-v3.1").moe
    assert moe is not None
    assert moe.hit_experts(1) == pytest.approx(8)
    assert moe.hit_experts(2) == pytest.approx(8 + 8 * 248 / 256)
    assert moe.hit_experts(4096) == pytest.approx(256)


def test_a_latent_cache_is_not_cut_by_tensor_parallelism_and_heads_are_cut_up_to_their_number() -> None:
    assert isinstance(load_model("deepseek-v3.1").attention, Latent)
    assert load_model("deepseek-v3.1").attention.kv_shards(8) == 1
    assert isinstance(load_model("qwen3-235b-a22b").attention, GroupedQuery)
    assert [load_model("qwen3-235b-a22b").attention.kv_shards(n) for n in (1, 4, 8)] == [1, 4, 4]


def test_config_json_of_a_folder_is_read_with_its_quantisation(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "quantization_config": {"quant_method": "fp8"}}))
    for path in (tmp_path, tmp_path / "config.json"):
        shape = load_model(str(path))
        attention = 2 * 64 * 8 * 16 + 2 * 64 * 2 * 16
        assert shape.layer_params(0) == attention + 3 * 64 * 96
        assert shape.weight_bytes == 1.0


def test_multimodal_configs_keep_the_language_model_in_text_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": DENSE, "vision_config": {}}))
    assert load_model(str(tmp_path)).num_layers == 4


def test_head_dim_comes_from_the_hidden_size_where_a_config_leaves_it_out() -> None:
    config = {k: v for k, v in DENSE.items() if k != "head_dim"}
    attention = from_config(config, "m").attention
    assert isinstance(attention, GroupedQuery)
    assert attention.head_dim == 8


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"])
def test_a_missing_field_is_named(field: str) -> None:
    config = {k: v for k, v in DENSE.items() if k != field}
    with pytest.raises(ScenarioError, match=f"m: {field}: is missing"):
        from_config(config, "m")


@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True])
def test_a_field_that_is_no_positive_integer_is_named_with_what_came(value: object) -> None:
    with pytest.raises(ScenarioError, match="hidden_size: must be a positive integer, got"):
        from_config({**DENSE, "hidden_size": value}, "m")


def test_key_value_heads_must_divide_the_heads() -> None:
    with pytest.raises(ScenarioError, match="3 does not divide num_attention_heads 8"):
        from_config({**DENSE, "num_key_value_heads": 3}, "m")


def test_unknown_model_and_gpu_name_the_nearest_key() -> None:
    with pytest.raises(ScenarioError, match="nearest: qwen3-235b-a22b"):
        load_model("qwen3-235b")
    with pytest.raises(ScenarioError, match="nearest: mi300x"):
        load_gpu("mi300")
    with pytest.raises(ScenarioError, match="unknown method 'int3'"):
        from_config({**DENSE, "quantization_config": {"quant_method": "int3"}}, "m")
    with pytest.raises(ScenarioError, match=r"unknown type 'fp9'.*nearest: fp8"):
        load_model("qwen3-8b", kv_dtype="fp9")


def test_a_config_that_is_no_json_or_not_there_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ScenarioError, match="is not JSON"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ScenarioError, match="one JSON object, got list"):
        load_model(str(tmp_path))


def test_tp_that_does_not_divide_the_heads_lists_what_does() -> None:
    load_model("qwen3-235b-a22b").check_tp(64)
    with pytest.raises(ScenarioError, match=r"6 does not divide the 64 attention heads.*1, 2, 4, 8, 16, 32, 64"):
        load_model("qwen3-235b-a22b").check_tp(6)


def test_every_gpu_has_a_source_and_a_type_without_a_rate_runs_at_the_next_wider_one() -> None:
    for gpu in known_gpus().values():
        assert gpu.source
        assert gpu.flops(2.0) == gpu.bf16_tflops * 1e12
    assert load_gpu("h20").flops(1.0) == 296e12
    assert load_gpu("a100").flops(1.0) == load_gpu("a100").flops(2.0) == 312e12
    assert load_gpu("h100").flops(0.5) == 1978e12


ODD = [None, 0, -1, 2.5, "x", True, [], {}, [1], {"a": None}, {"a": {"weights": 3}}, float("nan"), 10**12]


@pytest.mark.parametrize("key", ["deepseek-v3.1", "qwen3-235b-a22b-fp8", "llama-3.1-8b"])
def test_no_value_of_any_field_gives_a_traceback(key: str) -> None:
    """Every field of a real config, and those that other families have, replaced by what nobody expects there."""
    extra = ["mlp_only_layers", "n_shared_experts", "first_k_dense_replace", "decoder_sparse_step", "dtype"]
    quantization = [{"quant_method": "awq", "bits": v} for v in ODD] + [{"config_groups": v} for v in ODD]
    for field in dict.fromkeys([*known_models()[key], "moe_layer_freq", "quantization_config", *extra]):
        for value in [*ODD, *(quantization if field == "quantization_config" else ())]:
            error = refusal({**known_models()[key], field: value})
            assert error is None or error.field.startswith("m: ")


def refusal(config: dict[str, object]) -> ScenarioError | None:
    try:
        from_config(config, "m")
    except ScenarioError as error:
        return error
    return None
