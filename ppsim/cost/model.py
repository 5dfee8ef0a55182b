"""The shape of a model: how many weights a layer has, how many of them a token uses, what a token leaves in the cache.

Read from a config.json (or a known key) and never guessed: a field that is needed and absent is named in the error.
Embedding and head are kept apart from the layers, since they burden the first and the last stage only.
Quantised checkpoints quantise the layers' matrices; embedding, head and router stay in BF16 (numbers.md C).
"""

from __future__ import annotations

from dataclasses import dataclass

from ppsim.cost.attention import GroupedQuery, Latent
from ppsim.errors import ScenarioError

BF16_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts. ``intermediate_size`` is that of one expert, shared experts have the same."""

    num_experts: int
    num_shared_experts: int
    top_k: int
    intermediate_size: int

    def hit_experts(self, num_tokens: int) -> float:
        """Expected number of experts that at least one of ``num_tokens`` tokens uses, routing being uniform."""
        return float(self.num_experts * (1.0 - (1.0 - self.top_k / self.num_experts) ** num_tokens))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions and types. ``moe_layers[i]`` says whether layer i has experts. Bytes are per element."""

    name: str
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    attention: GroupedQuery | Latent
    moe: Moe | None
    moe_layers: tuple[bool, ...]
    tie_word_embeddings: bool = False
    weight_bytes: float = BF16_BYTES
    kv_bytes: float = BF16_BYTES
    activation_bytes: float = BF16_BYTES
    math_bytes: float | None = None  # of an operand, where weights are stored narrower than they are multiplied

    @property
    def operand_bytes(self) -> float:
        """Width at which weights are multiplied: it decides the peak rate."""
        return self.weight_bytes if self.math_bytes is None else self.math_bytes

    @property
    def num_layers(self) -> int:
        return len(self.moe_layers)

    @property
    def attention_params(self) -> int:
        return self.attention.params(self.hidden_size)

    @property
    def expert_params(self) -> int:
        """Gate, up and down projection of one expert; 0 for a dense model."""
        return 3 * self.hidden_size * self.moe.intermediate_size if self.moe else 0

    @property
    def router_params(self) -> int:
        return self.hidden_size * self.moe.num_experts if self.moe else 0

    @property
    def dense_mlp_params(self) -> int:
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def embedding_params(self) -> int:
        return self.vocab_size * self.hidden_size

    def layer_params(self, layer: int) -> int:
        """All weights of a layer, norms excepted (under 0.01 % of it)."""
        if self.moe is None or not self.moe_layers[layer]:
            return self.attention_params + self.dense_mlp_params
        experts = self.moe.num_experts + self.moe.num_shared_experts
        return self.attention_params + self.router_params + experts * self.expert_params

    def layer_active_params(self, layer: int) -> int:
        """Weights that one token is multiplied with in a layer."""
        if self.moe is None or not self.moe_layers[layer]:
            return self.attention_params + self.dense_mlp_params
        experts = self.moe.top_k + self.moe.num_shared_experts
        return self.attention_params + self.router_params + experts * self.expert_params

    def total_params(self) -> int:
        """Embedding, layers and, unless tied, the head."""
        ends = self.embedding_params * (1 if self.tie_word_embeddings else 2)
        return ends + sum(self.layer_params(i) for i in range(self.num_layers))

    def active_params(self) -> int:
        """Weights a token uses in all layers, embedding and head left out."""
        return sum(self.layer_active_params(i) for i in range(self.num_layers))

    def layer_weight_bytes(self, layer: int) -> float:
        """Bytes of a layer's weights; a router stays in BF16."""
        router = self.router_params if self.moe is not None and self.moe_layers[layer] else 0
        return (self.layer_params(layer) - router) * self.weight_bytes + router * BF16_BYTES

    @property
    def embedding_bytes(self) -> float:
        """Bytes of the embedding, and of the head: with more than one stage a tied head is a second copy."""
        return self.embedding_params * BF16_BYTES

    @property
    def kv_bytes_per_token_per_layer(self) -> float:
        return self.attention.kv_elements_per_token * self.kv_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that a token leaves in the caches of all layers, before tensor parallelism cuts them."""
        return self.kv_bytes_per_token_per_layer * self.num_layers

    def check_tp(self, tp_size: int) -> None:
        """Raise ScenarioError unless the heads can be cut over ``tp_size`` ranks."""
        if tp_size < 1 or self.attention.num_heads % tp_size:
            divisors = [n for n in range(1, self.attention.num_heads + 1) if self.attention.num_heads % n == 0]
            raise ScenarioError(
                "cluster.tp_size",
                f"{tp_size} does not divide the {self.attention.num_heads} attention heads of {self.name}",
                f"possible: {', '.join(map(str, divisors))}",
            )
