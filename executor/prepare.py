"""Everything that can be refused before a process starts: the shape, the checkpoint, the memory, the prompts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from executor.checkpoint import check_tensors, checkpoint_model
from executor.model import FAMILIES, dtype_of
from executor.shards import read_json
from ppsim.core.messages import Input, NewRequest
from ppsim.core.surroundings import ONLY_SIMULATED, Surroundings
from ppsim.core.tokens import count, unpack
from ppsim.cost.positions import positions
from ppsim.errors import ScenarioError, UsageError
from ppsim.recording import Recording
from ppsim.scenario import Scenario
from ppsim.scenario.check import check_scenario
from ppsim.scenario.layers import known_shape, kv_bytes_per_token_and_layer, partition_of
from ppsim.scenario.rank import local_capacity_tokens, stage_weight_bytes
from ppsim.scenario.tree import Chance, Model
from ppsim.scenario.warn import start_warnings, without_effect
from ppsim.scenario.worlds import not_on_processes
from ppsim.workload import Arrival, Workload, build_workload

GB = 10**9


def prepared(scenario: Scenario, model_dir: str | None, device: str) -> Scenario:
    """The scenario with the checkpoint's shape in it. Raises UsageError for what the executor cannot run."""
    if device not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r}: expected cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: torch finds no CUDA device here (use cpu)")
    check_types(scenario.model)
    folder = model_dir or scenario.model.path
    if folder is not None:
        model = checkpoint_model(folder, scenario.model, tuple(FAMILIES))
        scenario = scenario.model_copy(update={"model": model})
        check_scenario(scenario)
    check_key(scenario, folder)
    cluster, model = scenario.cluster, scenario.model
    if cluster.pp_size > model.num_hidden_layers:
        raise ScenarioError(
            "cluster.pp_size", f"{cluster.pp_size} stages for {model.num_hidden_layers} layers", "a stage needs a layer"
        )
    for key in ("tp_size", "tp_replicas"):
        if getattr(cluster, key) != 1:
            raise ScenarioError(
                f"cluster.{key}", f"{getattr(cluster, key)}: the executor runs one process a stage", "set it to 1"
            )
    if scenario.disaggregation.role not in ("plain", "prefill"):
        raise ScenarioError(
            "disaggregation.role",
            f"{scenario.disaggregation.role!r}: the executor has no KV transport between two servers",
            "'plain' and 'prefill' (against a modelled peer) run on real processes",
        )
    if scenario.hicache.enabled:
        raise ScenarioError("hicache.enabled", "the executor keeps KV on the device only", "switch it off")
    if scenario.chance != Chance():
        raise ScenarioError("chance", "is decided by the simulated world only", "leave the section out")
    dtype_of(model)
    if folder is not None:
        check_checkpoint(scenario, folder)
    if device == "cpu":
        check_memory(scenario)
    return scenario


ROUNDED = {torch.float32: ("F64",), torch.bfloat16: ("F64", "F32", "F16")}  # what loses digits in a type
KV_TYPES = {torch.float32: ("auto",), torch.bfloat16: ("auto", "bf16", "bfloat16")}


def check_types(model: Model) -> None:
    """Weights and cache have one type here, that of ``model.dtype_bytes``. Raises ScenarioError for any other wish."""
    dtype = dtype_of(model)
    if model.kv_cache_dtype not in KV_TYPES[dtype]:
        raise ScenarioError(
            "model.kv_cache_dtype",
            f"{model.kv_cache_dtype!r}: the executor keeps keys and values as it computes, in {str(dtype)[6:]}",
            f"possible with model.dtype_bytes {model.dtype_bytes}: {', '.join(KV_TYPES[dtype])}",
        )
    if model.quantization is not None:
        raise ScenarioError(
            "model.quantization", f"{model.quantization!r}: the executor quantises no weights", "leave it out"
        )


def check_key(scenario: Scenario, folder: str | None) -> None:
    """``model.key`` decides layers and memory of a rank, the fields of [model] or a checkpoint what is computed: they
    must be one model. Raises ScenarioError."""
    shape, model = known_shape(scenario), scenario.model
    if shape is None:
        return
    named = {
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "KV elements a token": sum(layer.kv_elements_per_token for layer in shape.layers),
    }
    kv = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim
    computed = {field: getattr(model, field, kv) for field in named}
    wrong = [f"{field} {named[field]}, not {computed[field]}" for field in named if named[field] != computed[field]]
    if wrong:
        raise ScenarioError(
            "model.key",
            f"{model.key!r} is another model than {folder or 'the fields of [model]'}, which the executor computes: "
            + "; ".join(wrong),
            "leave model.key out, or give the folder of its checkpoint",
        )


def check_worlds(behaviour: type[Surroundings], names: Sequence[str]) -> None:
    """Raise ScenarioError for what ``names`` change of a world that real processes have no model of."""
    mine = [key for key in ONLY_SIMULATED if getattr(behaviour, key) is not getattr(Surroundings, key)]
    if mine:
        problem = f"{', '.join(map(repr, names))} changes {mine[0]}, which only the simulated world asks"
        raise ScenarioError("bugs", problem, "ppsim run has it; ppsim exec runs bugs of the ranks themselves")


def check_checkpoint(scenario: Scenario, folder: str) -> None:
    """The files hold every tensor of the unsplit model in its shape, nothing else, and numbers in all of them."""
    from executor.stage import Share, empty_stage
    from executor.weights import CheckpointWeights, check_values, expected_tensors

    weights = CheckpointWeights(folder)
    total = scenario.model.num_hidden_layers
    whole = empty_stage(scenario, Share(0, 0, total, total), torch.device("cpu"))
    expected = expected_tensors(whole, whole.tied)
    check_tensors(weights.index, expected, folder, weights.quantized, whole.tied)
    check_values(weights, expected, dtype_of(scenario.model))


def checkpoint_warnings(scenario: Scenario) -> list[str]:
    """What a checkpoint that runs is not computed as. ``scenario``: as ``prepared`` gave it."""
    from executor.weights import CheckpointWeights

    if scenario.model.path is None:
        return []
    weights = CheckpointWeights(scenario.model.path)
    type_, found = dtype_of(scenario.model), []
    known, length = positions(read_json(Path(scenario.model.path) / "config.json")), scenario.scheduler.context_length
    if known is not None and length > known:
        found.append(
            f"scheduler.context_length: {length} tokens, but the model of {scenario.model.path} was made for {known} "
            "positions: what it says of tokens behind them is worth nothing"
        )
    if weights.quantized is not None:
        blocks = " x ".join(map(str, weights.quantized.block))
        found.append(
            f"model.path: FP8 blocks of {blocks} are dequantised to {str(type_)[6:]} as they are read, and activations "
            "stay as they are: a server with FP8 kernels rounds those too, and may sample other tokens"
        )
    wider = sorted({e.dtype for e in weights.index.values() if e.dtype in ROUNDED[type_]})
    if wider:
        found.append(
            f"model.path: weights of {', '.join(wider)} are rounded to {str(type_)[6:]} (model.dtype_bytes "
            f"{scenario.model.dtype_bytes})"
        )
    return found


def check_memory(scenario: Scenario) -> None:
    """All stages share the memory of this machine; a process that is killed for memory tells nobody why."""
    layers = partition_of(scenario)
    weights = kv = 0.0
    for rank, num_layers in enumerate(layers):
        weights += stage_weight_bytes(scenario, rank)
        kv += local_capacity_tokens(scenario, rank) * num_layers * kv_bytes_per_token_and_layer(scenario)
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if weights + kv > have:
        raise ScenarioError(
            "scheduler.max_total_tokens",
            f"weights of {weights / GB:.2f} GB and KV of {kv / GB:.2f} GB exceed this machine's {have / GB:.2f} GB",
            "set a smaller pool, or a smaller model",
        )


def arrivals_of(
    scenario: Scenario,
    arrivals: Sequence[Arrival] | None,
    inputs: Mapping[int, tuple[Input, ...]] | None,
    recording: Recording,
) -> tuple[Arrival, ...]:
    """The live arrivals of a run, none in a replay; those that come at a time go into the recording now."""
    live: tuple[Arrival, ...] = ()
    if inputs is not None:
        for items in inputs.values():
            for item in items:
                if isinstance(item, NewRequest):
                    check_prompt(item, scenario.model.vocab_size)
    elif arrivals is not None:
        live = tuple(arrivals)
    else:
        workload = build_workload(scenario)
        live = workload.arrivals
        not_here = not_on_processes(scenario)
        told = {key for sentence in not_here for key in sentence.partition(" ha")[0].split(", ")}
        idle = [sentence for sentence in without_effect(scenario) if sentence.partition(" ")[0] not in told]
        for warning in (*not_here, *start_warnings(scenario), *idle, *workload.warnings):
            recording.warn(warning)
    for arrival in live:
        check_prompt(arrival.request, scenario.model.vocab_size)
    recording.concurrency = scenario.workload.concurrency
    for arrival in Workload(live, concurrency=scenario.workload.concurrency).opening:
        request = arrival.request
        if arrival.at_ns is not None:
            recording.arrival(request.rid, arrival.at_ns, count(request.prompt), request.max_new_tokens)
    return live


def check_prompt(request: NewRequest, vocab_size: int) -> None:
    """Every token of a prompt has a row in the embedding."""
    largest = max(unpack(request.prompt), default=0)
    if largest >= vocab_size:
        raise UsageError(f"request {request.rid}: token {largest} is outside the vocabulary of {vocab_size} tokens")
