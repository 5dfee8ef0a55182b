"""The model families that the executor knows, and the transformers configuration of each.

A family is a row of ``FAMILIES``: where transformers keeps its classes. Everything else is the same for all of them: a
decoder layer takes and gives the whole hidden state, so one tensor [num_tokens, hidden_size] passes between stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from ppsim.errors import ScenarioError, UsageError
from ppsim.scenario.tree import Model

DTYPES = {4: torch.float32, 2: torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Family:
    """Names of a family's classes in ``transformers.models``."""

    prefix: str  # Llama -> LlamaConfig, LlamaDecoderLayer, ...
    module: str

    def cls(self, suffix: str) -> Any:
        """A class of the family. Looked up late: importing transformers' models takes seconds."""
        file = "configuration" if suffix == "Config" else "modeling"
        return getattr(import_module(f"transformers.models.{self.module}.{file}_{self.module}"), self.prefix + suffix)


FAMILIES = {"llama": Family("Llama", "llama"), "qwen3": Family("Qwen3", "qwen3")}


def dtype_of(model: Model) -> torch.dtype:
    """float32 or bfloat16, by ``model.dtype_bytes``. Raises ScenarioError for one byte."""
    if model.dtype_bytes not in DTYPES:
        raise ScenarioError(
            "model.dtype_bytes", f"{model.dtype_bytes}: the executor computes in 4 (float32) or 2 (bfloat16)"
        )
    return DTYPES[model.dtype_bytes]


def random_config(model: Model, context_length: int) -> Any:
    """The transformers configuration of a scenario's model section; no special token ever ends a generation."""
    return FAMILIES[model.architecture].cls("Config")(
        num_hidden_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        tie_word_embeddings=model.tie_word_embeddings,
        max_position_embeddings=context_length,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def checkpoint_config(folder: str, architecture: str) -> Any:
    """The configuration of a checkpoint folder. Raises UsageError for what the executor cannot run."""
    try:
        config = FAMILIES[architecture].cls("Config").from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever transformers raises comes of what the file says
        raise UsageError(
            f"{folder}/config.json: not a usable {architecture} configuration: {first_line(error)}"
        ) from None
    eps = config.rms_norm_eps
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
        raise UsageError(f"{folder}/config.json: rms_norm_eps: expected a number from 0 to 1, got {eps!r}")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise UsageError(f"{folder}/config.json: sliding window layers are not supported, only full attention")
    return config


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
