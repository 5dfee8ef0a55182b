"""A checkpoint folder (config.json and safetensors), read with the standard library alone.

Rule: whatever is wrong with a folder is found by the launcher, before a process starts, and named: the file, the
tensor, what was expected, what came. The shape of the model comes from config.json and replaces the scenario's. Every
tensor of the folder is used or known to be of no use; one that nobody asks for means that the folder is another model.

Here: what config.json says, and the tensors that it asks for. The files are ``shards.py``'s, quantised weights
``quantized.py``'s, and the values (``check_values`` in ``weights.py``) need torch.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from executor.quantized import FP8, SCALE, Quantized, quantized_of, scale_shape
from executor.shards import Entry, read_json
from ppsim.errors import UsageError
from ppsim.scenario.tree import Model

SHAPE_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
FLOATS = ("F64", "F32", "F16", "BF16")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
ROPE_NUMBERS = (
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
)
COMPUTED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # old files have what follows from config
QWEN3_HEAD_DIM = 128  # transformers' default where config.json has none


def checkpoint_model(folder: str, model: Model, known: tuple[str, ...]) -> Model:
    """``model`` with the shape of the checkpoint in ``folder``. Raises UsageError."""
    place = Path(folder)
    if not place.is_dir():
        raise UsageError(f"checkpoint folder {folder} does not exist (expected config.json and *.safetensors in it)")
    path = place / "config.json"
    config = read_json(path)
    architecture = config.get("model_type")
    if architecture not in known:
        raise UsageError(f"{path}: unknown architecture {architecture!r}; the executor runs {', '.join(known)}")
    quantized_of(folder, config)
    check_rope(path, config)
    shape = {key: positive(path, config, key) for key in SHAPE_KEYS if key != "num_key_value_heads"}
    heads = "num_attention_heads" if config.get("num_key_value_heads") is None else "num_key_value_heads"
    shape["num_key_value_heads"] = positive(path, config, heads)
    shape["head_dim"] = head_dim(path, config, shape)
    tied = config.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise UsageError(f"{path}: tie_word_embeddings: expected true or false, got {tied!r}")
    update = {**shape, "architecture": architecture, "tie_word_embeddings": tied, "path": str(place)}
    try:
        return Model.model_validate({**model.model_dump(), **update})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def positive(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UsageError(f"{path}: {key}: expected a positive integer, got {value!r}")
    return value


def head_dim(path: Path, config: dict[str, Any], shape: dict[str, int]) -> int:
    """Elements of a head: config.json's, or what the hidden size leaves each. Raises UsageError for heads that do not
    divide: the hidden size into heads, query heads into those of keys, a head into the two halves of a rotation."""
    hidden, heads, kv_heads = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    if heads % kv_heads:
        raise UsageError(f"{path}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if config.get("head_dim") is not None:
        each = positive(path, config, "head_dim")
    elif config["model_type"] == "qwen3":
        each = QWEN3_HEAD_DIM
    else:
        if hidden % heads:
            raise UsageError(
                f"{path}: hidden_size {hidden} is no multiple of num_attention_heads {heads}, and there is no head_dim"
            )
        each = hidden // heads
    if each % 2:
        raise UsageError(f"{path}: head_dim {each} is odd: rotary positions turn pairs of elements")
    return each


def check_rope(path: Path, config: dict[str, Any]) -> None:
    """Only what turns a position by an angle of its own, by numbers. Raises UsageError for any other rope scaling."""
    check_number(path, "rope_theta", config.get("rope_theta"))
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise UsageError(f"{path}: {key}: expected an object or null, got {rope!r}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ROPE_TYPES:
            raise UsageError(
                f"{path}: rope type {kind!r} is not supported (dynamic ones let positions of a batch interact); "
                f"the executor has {', '.join(ROPE_TYPES)}"
            )
        for name in ROPE_NUMBERS:
            check_number(path, f"{key}.{name}", rope.get(name), above=0.0 if name == "factor" else None)
        layers = [name for name, value in rope.items() if isinstance(value, dict)]
        if layers:
            raise UsageError(f"{path}: {key}.{layers[0]}: rope parameters of single kinds of layers are not supported")


def check_number(path: Path, name: str, value: object, above: float | None = None) -> None:
    """Raises UsageError for what is there and no finite number, or not above a bound."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if value is not None and not (is_number and (above is None or value > above)):  # type: ignore[operator]
        wanted = "a finite number" if above is None else f"a finite number above {above:g}"
        raise UsageError(f"{path}: {name}: expected {wanted}, got {value!r}")


def check_tensors(
    index: dict[str, Entry], expected: dict[str, tuple[int, ...]], folder: str, quantized: Quantized | None, tied: bool
) -> None:
    """Every tensor that the model needs is there, in its shape and in numbers that are read, and no other.

    Raises UsageError for the first that is not.
    """
    used = {"lm_head.weight"} if tied else set()
    for name, shape in expected.items():
        entry = index.get(name)
        if entry is None:
            raise UsageError(f"{folder}: tensor {name} is missing; config.json asks for it")
        if entry.shape != shape:
            raise UsageError(f"{entry.path}: tensor {name} has shape {list(entry.shape)}, expected {list(shape)}")
        used.add(name)
        if entry.dtype == FP8 and quantized is not None:
            used.add(check_scale(name, entry, index, quantized))
        elif entry.dtype not in FLOATS:
            but = ", which config.json does not announce (quantization_config)" if entry.dtype.startswith("F8") else ""
            raise UsageError(
                f"{entry.path}: tensor {name} is of type {entry.dtype}{but}; weights are read as {', '.join(FLOATS)}"
            )
    for name, entry in index.items():
        if name not in used and not COMPUTED.fullmatch(name):
            raise UsageError(
                f"{entry.path}: tensor {name} is used by nothing: config.json describes a model without it"
                f" ({len(expected)} tensors)"
            )


def check_scale(name: str, entry: Entry, index: dict[str, Entry], quantized: Quantized) -> str:
    """The name of the tensor of scales of a weight of FP8 blocks. Raises UsageError."""
    scale = name + SCALE
    found = index.get(scale)
    if found is None:
        raise UsageError(f"{entry.path}: tensor {name} is of type {FP8}, and its scales {scale} are missing")
    if len(entry.shape) != 2:
        raise UsageError(f"{entry.path}: tensor {name} is of type {FP8} and has shape {list(entry.shape)}: no matrix")
    wanted = scale_shape(entry.shape, quantized)
    if found.shape != wanted:
        blocks = " x ".join(map(str, quantized.block))
        raise UsageError(
            f"{found.path}: tensor {scale} has shape {list(found.shape)}, expected {list(wanted)}: a scale for each "
            f"block of {blocks} of {list(entry.shape)}"
        )
    if found.dtype not in FLOATS:
        raise UsageError(
            f"{found.path}: tensor {scale} is of type {found.dtype}; scales are read as {', '.join(FLOATS)}"
        )
    return scale
