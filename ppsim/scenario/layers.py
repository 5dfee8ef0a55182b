"""Which layers a stage owns, and of which model. ``model.key`` says it whatever the cost source, else the fields of
``[model]`` do."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ppsim.cost.config_json import load_model, type_bytes
from ppsim.cost.model import ModelShape
from ppsim.cost.partition import even_partition
from ppsim.scenario.tree import Scenario


def model_shape(s: Scenario) -> ModelShape:
    """Shape of the model that ``model.key`` names, with the scenario's cache type. Raises ScenarioError."""
    key = s.model.key or ""
    return cached_shape(key, s.model.kv_cache_dtype, s.model.quantization, changed_at(Path(key)))


def known_shape(s: Scenario) -> ModelShape | None:
    """Likewise, or None where the scenario gives the model by its fields."""
    return None if s.model.key is None else model_shape(s)


@lru_cache(maxsize=64)  # a tuner asks for it thousands of times
def cached_shape(key: str, kv_cache_dtype: str, quantization: str | None, changed_ns: int) -> ModelShape:
    return load_model(key, kv_dtype=kv_cache_dtype, quantization=quantization)


def changed_at(path: Path) -> int:
    """When a config was last written, so that a changed one is read again; 0 for a known key."""
    config = path / "config.json" if path.is_dir() else path
    return config.stat().st_mtime_ns if config.is_file() else 0


def exceeded_positions(s: Scenario) -> int | None:
    """Positions of the model where the context is longer than it was made for, else None."""
    shape = known_shape(s)
    most = None if shape is None else shape.positions
    return most if most is not None and s.scheduler.context_length > most else None


def num_layers(s: Scenario) -> int:
    """Layers of the model, however it is given."""
    shape = known_shape(s)
    return s.model.num_hidden_layers if shape is None else shape.num_layers


def num_heads(s: Scenario) -> int:
    """Heads that can be cut over tensor-parallel ranks."""
    shape = known_shape(s)
    return s.model.num_attention_heads if shape is None else shape.num_heads


def partition_of(s: Scenario) -> tuple[int, ...]:
    """Layers of each stage."""
    if s.model.layer_partition is not None:
        return s.model.layer_partition
    layers = num_layers(s)
    if s.cluster.pp_size > layers and s.cost.source == "unit":  # layers do not matter there
        return (1,) * s.cluster.pp_size
    return even_partition(layers, s.cluster.pp_size)


def hidden_bytes_per_token(s: Scenario) -> int:
    """Bytes of a token's hidden states between two stages."""
    shape = known_shape(s)
    if shape is not None:
        return round(shape.hidden_size * shape.activation_bytes)
    return s.model.hidden_size * s.model.dtype_bytes


def kv_element_bytes(s: Scenario) -> float:
    """Bytes of an element of the cache of a model that is given by its fields."""
    m = s.model
    return float(m.dtype_bytes) if m.kv_cache_dtype == "auto" else type_bytes("model.kv_cache_dtype", m.kv_cache_dtype)


def kv_bytes_per_token_and_layer(s: Scenario) -> float:
    """Keys and values of one token in one layer of such a model, all heads."""
    return 2 * s.model.num_key_value_heads * s.model.head_dim * kv_element_bytes(s)
