"""A checkpoint is read as it is meant, or refused before a process starts: values, files, quantisation, shape."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

import torch
from safetensors.torch import load_file, save_file

from executor.launch import execute
from executor.oracle import Oracle
from executor.prepare import checkpoint_warnings, prepared
from executor.quantized import Quantized
from executor.weights import dequantized
from ppsim.core.messages import NewRequest
from ppsim.core.tokens import pack
from ppsim.workload import Arrival
from tests.executor.folders import Tensors, e4m3, edit_config, edit_tensors, quantise, refused, with_path, write_model
from tests.executor.small import prompt_ids

GATE = "model.layers.1.mlp.gate_proj.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("made"))


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "whole"))


@pytest.fixture
def shards(whole: Path) -> Path:
    """The same model in two files with an index."""
    tensors = load_file(whole / "model.safetensors")
    (whole / "model.safetensors").unlink()
    first = {name: tensor for name, tensor in tensors.items() if ".layers.0." in name}
    rest = {name: tensor for name, tensor in tensors.items() if name not in first}
    named = {}
    for number, part in enumerate((first, rest), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file(part, whole / file)
        named |= dict.fromkeys(part, file)
    (whole / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": named}))
    return whole


def tokens_of(folder: Path, oracle: Oracle, **sections: Any) -> None:
    """The executor samples what transformers samples of the model of the oracle."""
    prompts = [prompt_ids(1, 30), prompt_ids(2, 9)]
    arrivals = [Arrival(NewRequest(f"R{i}", pack(p), 8), None, i, 8) for i, p in enumerate(prompts)]
    real = execute(with_path(folder, **sections), arrivals=arrivals, start_method="forkserver")
    assert real.verdict.kind == "pass", real.verdict.message
    assert real.tokens == {f"R{i}": tuple(oracle.generate(p, 8)) for i, p in enumerate(prompts)}


# --- FP8 blocks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_fp8_blocks_give_the_tokens_of_the_same_model_in_full(tmp_path: Path, architecture: str) -> None:
    """Blocks of 20 x 32 divide neither 96 nor 48: the last ones are not full. The full twin, made by the formula, is
    loaded by transformers."""
    folder, twin = (write_model(tmp_path / name, architecture) for name in ("fp8", "full"))
    quantise(folder, twin, (20, 32))
    oracle = Oracle(prepared(with_path(twin), None, "cpu"))
    tokens_of(folder, oracle)
    (warning,) = checkpoint_warnings(prepared(with_path(folder), None, "cpu"))
    assert warning.startswith("model.path: FP8 blocks of 20 x 32 are dequantised to float32")


def test_every_number_of_fp8_is_dequantised_by_the_formula_and_by_transformers() -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    codes = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    weight = codes.view(torch.float8_e4m3fn)
    scale = torch.tensor([[0.5, 3.0], [0.125, 1e-3]], dtype=torch.bfloat16)
    found = dequantized(weight, scale, Quantized((8, 8)))
    each = torch.kron(scale.float(), torch.ones(8, 8))
    assert torch.equal(found.nan_to_num(9e9), (torch.from_numpy(e4m3(codes.numpy())).float() * each).nan_to_num(9e9))
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
    assert torch.equal(found.nan_to_num(9e9), theirs.nan_to_num(9e9))


def test_scales_that_are_missing_of_another_shape_or_not_announced(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "fp8")
    quantise(folder, write_model(tmp_path / "full"), (128, 128), torch.bfloat16)
    good = (folder / "model.safetensors").read_bytes()
    prepared(with_path(folder), None, "cpu")

    def spoilt(edit: Callable[[Tensors], object]) -> str:
        (folder / "model.safetensors").write_bytes(good)
        edit_tensors(folder, edit)
        return refused(with_path(folder)).removeprefix(f"{folder}/model.safetensors: tensor ")

    scale = GATE + "_scale_inv"
    assert spoilt(lambda t: t.pop(scale)) == f"{GATE} is of type F8_E4M3, and its scales {scale} are missing"
    assert spoilt(lambda t: t.update({scale: torch.ones(2, 1)})).startswith(
        f"{scale} has shape [2, 1], expected [1, 1]: a scale for each block of 128 x 128 of [96, 48]"
    )
    assert spoilt(lambda t: t.update({scale: torch.ones(1, 1, dtype=torch.int32)})).startswith(
        f"{scale} is of type I32; scales are read as F64"
    )
    assert spoilt(lambda t: t.update({scale: torch.full((1, 1), torch.nan)})).startswith(
        f"{GATE} has 4608 elements that are no numbers: nan at [0, 0]"
    )
    assert spoilt(lambda t: t.update({GATE: t[GATE].float()})).startswith(f"{scale} is used by nothing")
    (folder / "model.safetensors").write_bytes(good)
    edit_config(folder, quantization_config=None)
    assert "is of type F8_E4M3, which config.json does not announce (quantization_config)" in refused(with_path(folder))


@pytest.mark.parametrize(
    ("key", "said", "named"),
    [
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "quantised by 'gptq'"),
        ("quantization_config", {"quant_method": "awq"}, "quantised by 'awq'"),
        ("quantization_config", {"quant_method": "mxfp4"}, "quantised by 'mxfp4'"),
        ("quantization_config", {"quant_method": "compressed-tensors", "format": "x"}, "by 'compressed-tensors'"),
        ("quantization_config", {"load_in_4bit": True}, "quantised by 'bitsandbytes'"),
        ("quantization_config", {"bits": 3}, "quantised by a method without a name, 3 bits"),
        ("quantization_config", {}, "quantised by a method without a name"),
        ("quantization_config", "int8", "expected an object, got 'int8'"),
        ("compression_config", {"format": "float-quantized"}, "quantised by 'float-quantized'"),
        ("quantization_config", {"quant_method": "fp8"}, "'fp8' without weight_block_size"),
        ("quantization_config", {"quant_method": "fp8", "weight_block_size": [128]}, "expected two positive integers"),
        (
            "quantization_config",
            {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "static"},
            "activation_scheme: 'static' is not read",
        ),
        (
            "quantization_config",
            {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"},
            "fmt: 'e5m2' is not read",
        ),
    ],
)
def test_any_other_quantisation_is_refused_by_name(whole: Path, key: str, said: Any, named: str) -> None:
    edit_config(whole, **{key: said})
    message = refused(with_path(whole))
    assert message.startswith(f"{whole}/config.json: {key}")
    assert named in message


@pytest.mark.parametrize(
    ("file", "said", "named"),
    [
        ("hf_quant_config.json", {"producer": {}, "quantization": {"quant_algo": "NVFP4"}}, "'NVFP4'"),
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "a method without a name, 4 bits"),
    ],
)
def test_a_quantisation_that_a_file_of_its_own_tells_of(whole: Path, file: str, said: Any, named: str) -> None:
    (whole / file).write_text(json.dumps(said))
    assert refused(with_path(whole)).startswith(f"{whole / file}: weights quantised by {named}: the executor reads")


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "dtype_bytes"), [(float("nan"), 4), (float("-inf"), 2), (3.4028e38, 2)])
def test_a_weight_that_is_no_number_is_named_and_not_blamed_on_kv(whole: Path, value: float, dtype_bytes: int) -> None:
    """The last one is a number in float32, and none in bfloat16."""
    edit_tensors(whole, lambda t: t[GATE].__setitem__((7, 40), value))
    message = refused(with_path(whole, model={"dtype_bytes": dtype_bytes}))
    assert message.startswith(
        f"{whole}/model.safetensors: tensor {GATE} has 1 elements that are no numbers: {value:g} at [7, 40]"
    )
    assert message.endswith("too large for bfloat16") == (value == 3.4028e38)


def test_what_bfloat16_rounds_is_told(whole: Path) -> None:
    (told,) = checkpoint_warnings(prepared(with_path(whole, model={"dtype_bytes": 2}), None, "cpu"))
    assert told == "model.path: weights of F32 are rounded to bfloat16 (model.dtype_bytes 2)"
    assert checkpoint_warnings(prepared(with_path(whole), None, "cpu")) == []


def test_a_context_longer_than_the_model_has_positions_is_told(whole: Path) -> None:
    edit_config(whole, max_position_embeddings=100)
    (told,) = checkpoint_warnings(prepared(with_path(whole), None, "cpu"))
    assert told.startswith(f"scheduler.context_length: 512 tokens, but the model of {whole} was made for 100 positions")
    edit_config(whole, rope_parameters={"rope_type": "linear", "factor": 6.0, "rope_theta": 1e4})
    assert checkpoint_warnings(prepared(with_path(whole), None, "cpu")) == []


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.bool, torch.float8_e5m2])
def test_weights_that_are_no_floats(whole: Path, dtype: torch.dtype) -> None:
    edit_tensors(whole, lambda t: t.update({GATE: torch.ones(96, 48).to(dtype)}))
    message = refused(with_path(whole))
    assert message.startswith(f"{whole}/model.safetensors: tensor {GATE} is of type ")
    assert message.endswith("; weights are read as F64, F32, F16, BF16")


# --- tensors and files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.5.mlp.gate_proj.weight",  # a layer more than config.json has
        "model.layers.0.self_attn.q_proj.bias",  # biases, and attention_bias is not set
        "model.layers.0.self_attn.q_norm.weight",
        "score.weight",
    ],
)
def test_a_tensor_that_nothing_uses(whole: Path, name: str) -> None:
    edit_tensors(whole, lambda t: t.update({name: torch.ones(3)}))
    assert refused(with_path(whole)).startswith(f"{whole}/model.safetensors: tensor {name} is used by nothing: config")


def test_angles_that_follow_from_the_config_may_be_there(whole: Path) -> None:
    edit_tensors(whole, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    prepared(with_path(whole), None, "cpu")


def test_a_tied_head_may_be_there_if_it_is_the_embedding(whole: Path) -> None:
    edit_config(whole, tie_word_embeddings=True)
    message = refused(with_path(whole))
    assert message.endswith("lm_head.weight is not model.embed_tokens.weight, although config.json has "
                            "tie_word_embeddings true")  # fmt: skip
    edit_tensors(whole, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    tokens_of(whole, Oracle(prepared(with_path(whole), None, "cpu")))
    edit_tensors(whole, lambda t: t.pop("lm_head.weight"))
    prepared(with_path(whole), None, "cpu")
    edit_config(whole, tie_word_embeddings=False)
    assert refused(with_path(whole)).endswith("tensor lm_head.weight is missing; config.json asks for it")


def test_a_shard_that_is_missing_is_named_by_its_file(shards: Path) -> None:
    prepared(with_path(shards), None, "cpu")
    second = shards / "model-00002-of-00002.safetensors"
    second.rename(shards / "elsewhere")
    message = refused(with_path(shards))
    assert message.startswith(f"{second} is missing; {INDEX} has 39 tensors in it, ")
    (shards / INDEX).unlink()
    assert refused(with_path(shards)) == f"{second} is missing; model-00001-of-00002.safetensors is one of 2 shards"


def test_an_index_that_its_shards_do_not_bear_out(shards: Path) -> None:
    first, second = (shards / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    index = json.loads((shards / INDEX).read_text())

    def told(**changes: Any) -> str:
        (shards / INDEX).write_text(json.dumps({**index, "weight_map": {**index["weight_map"], **changes}}))
        return refused(with_path(shards))

    assert told(**{GATE: first.name}) == f"{first}: tensor {GATE} is missing; {INDEX} says that it is here"
    assert told(other=second.name) == f"{second}: tensor other is missing; {INDEX} says that it is here"
    assert told(**{GATE: "../x.safetensors"}).endswith("'../x.safetensors' is no name of a file in this folder")
    assert told(**{GATE: 3}).endswith("weight_map: expected an object that names a file for each tensor")
    del index["weight_map"][GATE]
    assert told() == f"{second}: tensor {GATE} is here, and {INDEX} does not name it"
    (shards / INDEX).unlink()
    tensors = load_file(first)
    save_file({**tensors, GATE: torch.ones(96, 48)}, first)
    assert f"tensor {GATE} is also in {first.name}; which one is meant?" in refused(with_path(shards))


def test_other_files_beside_the_model_are_none_of_it(whole: Path) -> None:
    """Some publish a second copy under another naming."""
    save_file({"layers.0.attention.wq.weight": torch.ones(3)}, whole / "consolidated.safetensors")
    prepared(with_path(whole), None, "cpu")
    (whole / "adapter_config.json").write_text("{}")
    assert "adapters are not applied" in refused(with_path(whole))


def header_of(**entries: Any) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "it is a Git LFS pointer"),
        (b"\x10\0\0\0\0\0\0\0{}", "expected a header of 16 bytes, got 2: the file is cut off"),
        (b"\x02\0\0\0\0\0\0\0[]", "the header is no object but list"),
        (b"\x02\0\0\0\0\0\0\0{\xff", "byte 0xff at offset 1 is not UTF-8"),
        (header_of(a=3), "tensor a: expected an object, got 3"),
        (header_of(a={"dtype": "F32"}), "tensor a: shape: expected integers from 0 on, got None"),
        (header_of(a=entry([1], 0, 4, 7)), "tensor a: dtype: expected a name, got 7"),
        (header_of(a=entry([-1], 0, 4)), "tensor a: shape: expected integers from 0 on, got [-1]"),
        (header_of(a=entry([2], 0, 4)) + b"\0" * 4, "tensor a: 4 bytes for the shape [2] of F32, expected 8"),
        (header_of(a=entry([1], 0, 4)) + b"\0" * 9, "got 78: there is more than the header says"),
        (header_of(a=entry([1], 0, 4), b=entry([1], 8, 12)) + b"\0" * 12, "tensor b begins at byte 8 of the data, a"),
        (header_of(a=entry([1], 0, 4), b=entry([1], 0, 4)) + b"\0" * 4, "tensor b begins at byte 0 of the data, a"),
        (header_of(a=entry([1], 4, 8)) + b"\0" * 8, "the first tensor, a, begins at byte 4 of the data, not at 0"),
    ],
)
def test_a_safetensors_file_that_is_none(whole: Path, content: bytes, told: str) -> None:
    (whole / "model.safetensors").write_bytes(content)
    message = refused(with_path(whole))
    assert message.startswith(f"{whole}/model.safetensors: not a readable safetensors file: ")
    assert told in message


# --- config.json -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"head_dim": None, "num_attention_heads": 5, "num_key_value_heads": 5},
            "hidden_size 48 is no multiple of num",
        ),
        ({"num_key_value_heads": 4}, "num_attention_heads 6 is no multiple of num_key_value_heads 4"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"head_dim": 0}, "head_dim: expected a positive integer, got 0"),
        ({"head_dim": "16"}, "head_dim: expected a positive integer, got '16'"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: expected a positive integer, got 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: Input should be less than or equal to 4096"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings: expected true or false, got 'false'"),
        ({"rope_scaling": {"type": "longrope"}, "rope_parameters": None}, "rope type 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "mrope"}}, "rope type 'mrope' is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention: rope par"),
        ({"rope_parameters": 3}, "rope_parameters: expected an object or null, got 3"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}, "rope_theta and rope scaling give an angle"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ""),  # no factor
        ({"rope_theta": True}, "rope_theta: expected a finite number, got True"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": float("inf")}},
            "rope_parameters.rope_theta: expected a finite number, got inf",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": -1.0, "rope_theta": 1e4}},
            "rope_parameters.factor: expected a finite number above 0, got -1.0",
        ),
        ({"hidden_act": "swishh"}, "transformers makes no llama layer of it: KeyError"),
        ({"rms_norm_eps": "small"}, ""),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: expected a number from 0 to 1, got -1.0"),
        ({"vocab_size": True}, "vocab_size: expected a positive integer, got True"),
    ],
)
def test_a_configuration_that_makes_no_model(whole: Path, changes: dict[str, Any], told: str) -> None:
    edit_config(whole, **changes)
    message = refused(with_path(whole))
    assert message.startswith(f"{whole}/config.json: {told}")
    assert "\n" not in message


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
)
def test_rope_scalings_that_are_taken_give_transformers_tokens(whole: Path, rope: dict[str, Any]) -> None:
    unscaled = Oracle(prepared(with_path(whole), None, "cpu"))
    edit_config(whole, rope_parameters={**rope, "rope_theta": 1e4})
    scaled = Oracle(prepared(with_path(whole), None, "cpu"))
    assert scaled.generate(prompt_ids(1, 30), 8) != unscaled.generate(prompt_ids(1, 30), 8)  # else it proves nothing
    tokens_of(whole, scaled)


def test_the_command_says_it_in_one_line(whole: Path) -> None:
    edit_config(whole, quantization_config={"quant_method": "gptq", "bits": 4})
    command = "import sys; from ppsim.cli.entry import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", command, "exec", "tiny", "--model", str(whole)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith(f"ppsim: {whole}/config.json: quantization_config: weights quantised by 'gptq'")
