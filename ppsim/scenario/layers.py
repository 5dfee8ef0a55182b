"""Which layers a stage owns, and of which model."""

from __future__ import annotations

from ppsim.cost.config_json import load_model
from ppsim.cost.model import ModelShape
from ppsim.cost.partition import even_partition
from ppsim.scenario.tree import Scenario


def model_shape(s: Scenario) -> ModelShape:
    """Shape of the model that ``model.key`` names; checked once, cached by key."""
    return load_model(s.model.key or "")


def partition_of(s: Scenario) -> tuple[int, ...]:
    """Layers of each stage."""
    if s.model.layer_partition is not None:
        return s.model.layer_partition
    if s.cost.source == "roofline":
        return even_partition(model_shape(s).num_layers, s.cluster.pp_size)
    if s.cluster.pp_size > s.model.num_hidden_layers:  # only the unit cost allows it: layers do not matter there
        return (1,) * s.cluster.pp_size
    return even_partition(s.model.num_hidden_layers, s.cluster.pp_size)


def hidden_bytes_per_token(s: Scenario) -> int:
    """Bytes of a token's hidden states between two stages."""
    if s.cost.source == "roofline":
        shape = model_shape(s)
        return round(shape.hidden_size * shape.activation_bytes)
    return s.model.hidden_size * s.model.dtype_bytes
