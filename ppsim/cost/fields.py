"""Fields of a config.json, read once and remembered: a field that nobody read can be told.

One thing has several spellings; the first of them is ours and stands in messages. A family's own row of
``families.toml`` may say what a spelling is called there, and what an absent field means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ppsim.errors import ScenarioError

MAX_SIZE = 2**24  # of a dimension, a number of heads or experts
SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "decoder_layers"),
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim_model", "hidden_dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "kv_n_heads", "num_attention_groups"),
    "head_dim": ("attention_head_dim",),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "dim_ff", "decoder_ffn_dim", "inner_dim"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts"),
    "num_experts_per_tok": (
        "moe_top_k",
        "moe_topk",
        "moe_k",
        "num_experts_per_token",
        "top_k_experts",
        "moe_router_topk",
    ),
    "moe_intermediate_size": ("expert_ffn_hidden_size", "expert_intermediate_size", "moe_ffn_hidden_size"),
    "n_shared_experts": ("num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": (
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    ),
    "vocab_size": ("padded_vocab_size",),
    "tie_word_embeddings": (),
    "torch_dtype": ("dtype",),
}


class Fields:
    """A config, with the name of the model for messages. Raises ScenarioError for a value that cannot be."""

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str,
        defaults: Mapping[str, Any] | None = None,
        class_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.name, self.defaults = config, name, dict(defaults or {})
        self.class_defaults = dict(class_defaults or {})
        self.used: set[str] = set()
        self.taken: dict[str, Any] = {}  # of the class's defaults, because the config leaves them out

    def spelled(self, field: str) -> str | None:
        """Under which name the config gives a field that is not null, if at all."""
        for spelling in (field, *SPELLINGS.get(field, ())):
            if self.config.get(spelling) is not None:
                return spelling
        return None

    def get(self, field: str, default: Any = None) -> Any:
        """The value as it is; a family's default stands in for an absent one."""
        spelling = self.spelled(field)
        self.used.update((field, *SPELLINGS.get(field, ())))
        if spelling is not None:
            return self.config[spelling]
        for spelling in (field, *SPELLINGS.get(field, ())):
            if spelling in self.class_defaults and spelling not in self.config:
                self.taken[spelling] = self.class_defaults[spelling]
                return self.class_defaults[spelling]
        return self.defaults.get(field, default)

    def __contains__(self, field: str) -> bool:
        """Whether there is a value that says something: null, 0, false and an empty list do not."""
        return bool(self.get(field))

    def positive(self, field: str) -> int:
        """A positive integer that must be there."""
        value = self.get(field)
        spelling = self.spelled(field) or field
        if value is None:
            raise ScenarioError(
                f"{self.name}: {spelling}", "is missing", "the cost of a forward pass cannot be told without it"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ScenarioError(f"{self.name}: {spelling}", f"must be a positive integer, got {str(value)[:60]!r}")
        if value > MAX_SIZE:
            raise ScenarioError(f"{self.name}: {spelling}", f"must be at most {MAX_SIZE}, got {str(value)[:30]}")
        return value

    def count(self, field: str, default: int = 0) -> int:
        """A field that may be absent, null or 0, all of which mean the default."""
        return self.positive(field) if self.get(field) else default

    def flag(self, field: str, default: bool = False) -> bool:
        value = self.get(field, default)
        if not isinstance(value, bool | int):
            raise ScenarioError(f"{self.name}: {self.spelled(field) or field}", f"must be true or false, got {value!r}")
        return bool(value)

    def items(self, field: str) -> list[Any] | None:
        """A list, or None where there is none."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise ScenarioError(f"{self.name}: {field}", f"must be a list with an entry a layer, got {value!r}")
        return list(value)

    def inner(self, field: str) -> Fields | None:
        """A nested table."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ScenarioError(f"{self.name}: {field}", f"must be a table, got {value!r}")
        return Fields(value, f"{self.name}: {field}", {})

    def unread(self) -> Iterator[str]:
        """Fields with a value that nobody asked for."""
        return (field for field, value in self.config.items() if field not in self.used and says_something(value))


def says_something(value: Any) -> bool:
    return value not in (None, False, 0, "", [], {})
