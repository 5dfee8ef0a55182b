"""How many positions a model was made for, as SGLang derives it from a config.json.

Rule: the first of ``NAMES`` that the config gives, times the factor of its rope scaling; the factor is in the number
already where the scaling names the length before it, and for Llama 3 (SGLang's function ``get_context_length``). A
server refuses a longer ``--context-length``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
IN_THE_NUMBER = ("llama3",)  # rope types whose factor is not applied once more


def positions(config: Mapping[str, Any]) -> int | None:
    """Positions of a language model; None where its config does not say it in a number."""
    found = next((config[name] for name in NAMES if is_count(config.get(name))), None)
    if found is None:
        return None
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, Mapping) or scaling.get("original_max_position_embeddings") is not None:
        return int(found)
    factor = scaling.get("factor")
    is_applied = scaling.get("rope_type", scaling.get("type")) not in IN_THE_NUMBER
    return int(found * factor) if is_applied and is_count(factor) else int(found)


def is_count(value: Any) -> bool:
    """A number more than 0 that a length can be made of."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**40
