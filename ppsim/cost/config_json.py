"""From a config.json, a folder that holds one, or a known key to a ModelShape.

Words as the public configs use them: one spelling of a field per family, the known ones listed here. Weight type from
``quantization_config``, else from ``torch_dtype``. Nothing is guessed: a missing field is an error that names it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ppsim.cost.attention import GroupedQuery, Latent
from ppsim.cost.model import ModelShape, Moe
from ppsim.errors import ScenarioError
from ppsim.parsing import parse_json

TYPE_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp4": 0.5,
}
QUANT_BYTES = {
    "fp8": 1.0,
    "compressed-tensors": 1.0,
    "modelopt": 1.0,
    "modelopt_fp4": 0.5,
    "nvfp4": 0.5,
    "mxfp4": 0.5,
    "awq": 0.5,
    "gptq": 0.5,
}
MAX_LAYERS = 4096
MAX_SIZE = 2**24  # of a dimension, a number of heads or experts
STORED_ONLY = ("awq", "gptq")  # four bits in memory, multiplied in the model's own type


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """The shipped configs by key, ``like`` resolved."""
    table: dict[str, dict[str, Any]] = tomllib.loads((files("ppsim") / "data" / "models.toml").read_text("utf-8"))
    return {key: ({**table[entry["like"]], **entry} if "like" in entry else entry) for key, entry in table.items()}


def known_key(name_or_path: str) -> str | None:
    """Key of a known model under one of its names: the key itself, its checkpoint, either behind folders."""
    name = name_or_path.rstrip("/").rsplit("/", 1)[-1].lower()
    if name in known_models():
        return name
    names = {str(entry["checkpoint"]).rsplit("/", 1)[-1].lower(): key for key, entry in known_models().items()}
    return names.get(name)


def checkpoint_of(key: str) -> str | None:
    """Under which name the weights of a known model are published."""
    known = known_key(key)
    return None if known is None else str(known_models()[known]["checkpoint"])


def load_model(name_or_path: str, kv_dtype: str | None = None, weight_dtype: str | None = None) -> ModelShape:
    """Shape of a known model, of a config.json or of a folder with one; types override those of the config.

    Raises ScenarioError with the nearest known key, or with the field that is missing.
    """
    table, key = known_models(), known_key(name_or_path)
    path = Path(name_or_path)
    if key is not None and not (path / "config.json").is_file():  # a folder's own config tells more than its name
        shape = from_config(table[key], key)
    elif path.is_dir() or path.suffix == ".json":
        shape = from_config(read_config(path / "config.json" if path.is_dir() else path), str(path))
    else:
        near = get_close_matches(name_or_path.rsplit("/", 1)[-1].lower(), table, n=1, cutoff=0.3)
        raise ScenarioError(
            "model",
            f"no known model and no config.json: {name_or_path!r}",
            f"nearest: {near[0]}" if near else f"known: {', '.join(sorted(table))}",
        )
    if kv_dtype is not None:
        shape = replace(shape, kv_bytes=type_bytes("kv_cache_dtype", kv_dtype))
    if weight_dtype is not None:
        shape = replace(shape, weight_bytes=type_bytes("weight_dtype", weight_dtype), math_bytes=None)
    return shape


def read_config(path: Path) -> Mapping[str, Any]:
    """Raises ScenarioError if the file is missing, unreadable or not a JSON object."""
    try:
        data = parse_json(path.read_text("utf-8"))
    except OSError as error:
        raise ScenarioError(str(path), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ScenarioError(str(path), f"is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ScenarioError(str(path), f"must hold one JSON object, got {type(data).__name__}")
    text = data.get("text_config")  # multimodal configs keep the language model here
    return {**data, **text} if isinstance(text, dict) else data


def type_bytes(field: str, name: str) -> float:
    """Bytes of an element of a named type. Raises ScenarioError for an unknown name."""
    if name not in TYPE_BYTES:
        near = get_close_matches(name, TYPE_BYTES, n=1, cutoff=0.0)
        raise ScenarioError(field, f"unknown type {name!r}", f"nearest: {near[0]}" if near else "")
    return TYPE_BYTES[name]


def from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """Shape from the fields of a config.json. ``name`` is used in messages. Raises ScenarioError."""
    num_layers = _positive(config, name, "num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise ScenarioError(f"{name}: num_hidden_layers", f"must be at most {MAX_LAYERS}, got {num_layers}")
    moe, widths = _moe(config, name), _widths(config, name)
    return ModelShape(
        name=name,
        hidden_size=_positive(config, name, "hidden_size"),
        vocab_size=_positive(config, name, "vocab_size"),
        intermediate_size=_positive(config, name, "intermediate_size") if _has_dense_mlp(config, moe) else 0,
        attention=_attention(config, name),
        moe=moe,
        moe_layers=_moe_layers(config, name, num_layers) if moe else (False,) * num_layers,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        weight_bytes=widths[0],
        math_bytes=widths[1],
    )


def _attention(config: Mapping[str, Any], name: str) -> GroupedQuery | Latent:
    num_heads = _positive(config, name, "num_attention_heads")
    if config.get("kv_lora_rank"):
        return Latent(
            num_heads=num_heads,
            q_lora_rank=_positive(config, name, "q_lora_rank") if config.get("q_lora_rank") else 0,
            kv_lora_rank=_positive(config, name, "kv_lora_rank"),
            qk_nope_head_dim=_positive(config, name, "qk_nope_head_dim"),
            qk_rope_head_dim=_positive(config, name, "qk_rope_head_dim"),
            v_head_dim=_positive(config, name, "v_head_dim"),
        )
    kv_heads = _positive(config, name, "num_key_value_heads") if "num_key_value_heads" in config else num_heads
    if num_heads % kv_heads:
        raise ScenarioError(
            f"{name}: num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {num_heads}"
        )
    hidden = _positive(config, name, "hidden_size")
    if config.get("head_dim") is None and hidden % num_heads:
        raise ScenarioError(f"{name}: head_dim", f"is needed: {num_heads} heads do not divide hidden_size {hidden}")
    head_dim = _positive(config, name, "head_dim") if config.get("head_dim") is not None else hidden // num_heads
    return GroupedQuery(num_heads, kv_heads, head_dim)


def _moe(config: Mapping[str, Any], name: str) -> Moe | None:
    fields = ("num_experts", "n_routed_experts", "num_local_experts")
    field = next((f for f in fields if config.get(f)), None)
    if field is None:
        return None
    size = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    moe = Moe(
        num_experts=_positive(config, name, field),
        num_shared_experts=_count(config, name, "n_shared_experts", 0),
        top_k=_positive(config, name, "num_experts_per_tok"),
        intermediate_size=_positive(config, name, size),
    )
    if moe.top_k > moe.num_experts:
        raise ScenarioError(f"{name}: num_experts_per_tok", f"{moe.top_k} of {moe.num_experts} experts")
    return moe


def _moe_layers(config: Mapping[str, Any], name: str, num_layers: int) -> tuple[bool, ...]:
    """Which layers have experts, in the words of DeepSeek (first_k_dense_replace) and Qwen (mlp_only_layers)."""
    first = _count(config, name, "first_k_dense_replace", 0)
    step = _count(config, name, "moe_layer_freq" if config.get("moe_layer_freq") else "decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ScenarioError(f"{name}: mlp_only_layers", f"must be a list of layers, got {dense!r}")
    if first >= num_layers:
        raise ScenarioError(f"{name}: first_k_dense_replace", f"{first} leaves no expert layer of {num_layers}")
    offset = 0 if "moe_layer_freq" in config else 1  # DeepSeek counts from layer 0, Qwen from 1
    return tuple(i >= first and i not in dense and (i + offset) % step == 0 for i in range(num_layers))


def _has_dense_mlp(config: Mapping[str, Any], moe: Moe | None) -> bool:
    return moe is None or "intermediate_size" in config


def _widths(config: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    """Bytes of a stored weight, and of the operand that it is multiplied as where that is wider."""
    quantization, plain = config.get("quantization_config"), _torch_bytes(config, name)
    if not isinstance(quantization, dict):
        return plain, None
    method = str(quantization.get("quant_method", "fp8")).lower()
    if "fp4" in str(quantization.get("quant_algo", "")).lower():
        method = "nvfp4"
    if method not in QUANT_BYTES:
        raise ScenarioError(
            f"{name}: quantization_config.quant_method",
            f"unknown method {method!r}",
            f"known: {', '.join(sorted(QUANT_BYTES))}",
        )
    groups = quantization.get("config_groups")  # compressed-tensors says it there
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else None
    told = weights if isinstance(weights, dict) else quantization
    field = "num_bits" if told is weights else "bits"
    stored = _count(told, f"{name}: quantization_config", field, int(8 * QUANT_BYTES[method])) / 8
    only_stored = method in STORED_ONLY or (
        told is weights and isinstance(group, dict) and not group.get("input_activations")
    )
    return stored, plain if only_stored else None


def _torch_bytes(config: Mapping[str, Any], name: str) -> float:
    return type_bytes(f"{name}: torch_dtype", str(config.get("torch_dtype") or config.get("dtype") or "bfloat16"))


def _count(config: Mapping[str, Any], name: str, field: str, default: int) -> int:
    """A field that may be absent, null or 0, all of which mean the default."""
    return _positive(config, name, field) if config.get(field) else default


def _positive(config: Mapping[str, Any], name: str, field: str) -> int:
    value = config.get(field)
    if value is None:
        raise ScenarioError(f"{name}: {field}", "is missing", "the cost of a forward pass cannot be told without it")
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ScenarioError(f"{name}: {field}", f"must be a positive integer, got {str(value)[:60]!r}")
    if value > MAX_SIZE:
        raise ScenarioError(f"{name}: {field}", f"must be at most {MAX_SIZE}, got {str(value)[:30]}")
    return value
