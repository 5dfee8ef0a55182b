"""Bad input is refused before a process starts, in one sentence that names the place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.launch import execute
from executor.oracle import Oracle
from executor.prepare import prepared
from ppsim.core.messages import NewRequest
from ppsim.core.tokens import pack
from ppsim.errors import PpsimError
from ppsim.workload import Arrival
from tests.executor.folders import edit_config, refused, with_path
from tests.executor.small import prompt_ids, small_scenario


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 checkpoint in three shards, with tied embeddings, as transformers itself writes it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    shape = {"num_hidden_layers": 4, "head_dim": 24, "tie_word_embeddings": True}
    Oracle(small_scenario("qwen3", model=shape)).model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def test_a_sharded_checkpoint_gives_the_tokens_of_transformers_own_loading_and_generate(saved: Path) -> None:
    scenario = with_path(saved, cluster={"pp_size": 3})  # the scenario's own shape, five llama layers, gives way
    shape = prepared(scenario, None, "cpu")
    oracle = Oracle(shape)
    prompts = [prompt_ids(1, 30), prompt_ids(2, 9)]
    arrivals = [Arrival(NewRequest(f"R{i}", pack(p), 6), None, i, 6) for i, p in enumerate(prompts)]
    real = execute(scenario, arrivals=arrivals, start_method="forkserver")
    assert real.verdict.kind == "pass", real.verdict.message
    assert real.tokens == {f"R{i}": tuple(oracle.generate(p, 6)) for i, p in enumerate(prompts)}
    assert (shape.model.architecture, shape.model.num_hidden_layers, shape.model.head_dim) == ("qwen3", 4, 24)


def test_a_folder_or_file_that_is_not_there() -> None:
    assert refused(small_scenario(), model_dir="/no/such") == (
        "checkpoint folder /no/such does not exist (expected config.json and *.safetensors in it)"
    )


def test_a_checkpoint_without_its_parts(copy: Path) -> None:
    for path in [*copy.glob("*.safetensors"), copy / "model.safetensors.index.json"]:
        path.unlink()
    assert refused(with_path(copy)) == f"{copy}: no *.safetensors file (other weight formats are not read)"
    (copy / "config.json").unlink()
    assert refused(with_path(copy)) == f"{copy}/config.json does not exist"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "unknown architecture 'mamba'; the executor runs llama, qwen3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a positive integer, got 0"),
        ({"vocab_size": "many"}, "vocab_size: expected a positive integer, got 'many'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope type 'dynamic' is not"),
        ({"layer_types": ["sliding_attention"] * 4, "use_sliding_window": True, "sliding_window": 8}, "sliding window"),
    ],
)
def test_a_configuration_that_the_executor_cannot_run(copy: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(copy, **changes)
    assert refused(with_path(copy)).startswith(f"{copy}/config.json: {message}")


def test_a_configuration_that_is_no_json(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    assert refused(with_path(copy)).startswith(f"{copy}/config.json: cannot be read: Expecting property name")
    (copy / "config.json").write_text("[]")
    assert refused(with_path(copy)) == f"{copy}/config.json: expected a JSON object, got list"


def test_a_weight_file_that_is_damaged_names_the_file(copy: Path) -> None:
    path = sorted(copy.glob("*.safetensors"))[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    size = len(whole)
    assert refused(with_path(copy)) == (
        f"{path}: not a readable safetensors file: expected {size} bytes, got {size - 1}: the file is cut off"
    )
    path.write_bytes(whole[:20])
    assert refused(with_path(copy)).startswith(f"{path}: not a readable safetensors file: ")
    path.write_bytes(b"\xff" * 40)
    assert "header length 18446744073709551615 is impossible" in refused(with_path(copy))
    path.write_bytes(b"")
    assert refused(with_path(copy)).startswith(f"{path}: not a readable safetensors file: ")


def test_a_tensor_that_is_missing_or_has_another_shape_is_named(copy: Path) -> None:
    edit_config(copy, intermediate_size=95)
    assert "model.layers.0.mlp.gate_proj.weight has shape [96, 48], expected [95, 48]" in refused(with_path(copy))
    edit_config(copy, intermediate_size=96, num_hidden_layers=5, layer_types=["full_attention"] * 5)
    assert "tensor model.layers.4." in (message := refused(with_path(copy)))
    assert message.endswith(" is missing; config.json asks for it")


@pytest.mark.parametrize(
    ("sections", "device", "message"),
    [
        ({"cluster": {"pp_size": 6}}, "cpu", "cluster.pp_size: 6 stages for 5 layers"),
        ({"cluster": {"tp_size": 2}}, "cpu", "cluster.tp_size: 2: the executor runs one process a stage"),
        ({"model": {"dtype_bytes": 1}}, "cpu", "model.dtype_bytes: 1: the executor computes in 4 (float32)"),
        (
            {"scheduler": {"max_total_tokens": 2**31 - 1}},
            "cpu",
            "scheduler.max_total_tokens: weights of 0.00 GB and",
        ),
        ({"model": {"kv_cache_dtype": "fp8"}}, "cpu", "model.kv_cache_dtype: 'fp8': the executor keeps keys"),
        ({"model": {"quantization": "fp8"}}, "cpu", "model.quantization: 'fp8': the executor quantises no weights"),
        (
            {"model": {"key": "qwen3-8b"}},
            "cpu",
            "model.key: 'qwen3-8b' is another model than the fields of [model], which the executor computes: "
            "num_hidden_layers 36, not 5; hidden_size 4096, not ",
        ),
        ({"chance": {"stops": True}}, "cpu", "chance: is decided by the simulated world only"),
        ({}, "tpu", "device 'tpu': expected cpu or cuda"),
    ],
)
def test_a_scenario_that_the_executor_cannot_run(sections: dict[str, Any], device: str, message: str) -> None:
    assert refused(small_scenario(**sections), device=device).startswith(message)


def test_a_key_that_names_the_checkpoint_that_runs_is_as_good_as_none(copy: Path) -> None:
    plain = prepared(with_path(copy), None, "cpu")
    keyed = with_path(copy).model_copy(update={"model": with_path(copy).model.model_copy(update={"key": str(copy)})})
    assert prepared(keyed, None, "cpu").model.model_copy(update={"key": None}) == plain.model
    edit_config(copy, vocab_size=212)
    other = keyed.model_copy(update={"model": keyed.model.model_copy(update={"key": "llama-3.1-8b"})})
    assert refused(other).startswith(f"model.key: 'llama-3.1-8b' is another model than {copy}, which the executor")


def test_a_prompt_outside_the_vocabulary_is_refused() -> None:
    request = NewRequest("R9", pack([5, 211]), 3)
    with pytest.raises(PpsimError, match="request R9: token 211 is outside the vocabulary of 211 tokens"):
        execute(small_scenario(), arrivals=[Arrival(request, None, 0, 3)])
    with pytest.raises(PpsimError, match="request R9: token 211"):
        execute(small_scenario(), inputs_by_iteration={0: (request,)})
