"""The shape of a model: how many weights each layer has, how many of them a token uses, what it leaves in the cache.

Layers need not be alike: each has its own mixers (attention, or a state of fixed size) and its own feed-forward block
(dense, experts, or none). Read from a config.json (or a known key) and never guessed: a field that is needed and absent
is named in the error, and what was assumed is among the ``notes``.
Embedding and head are kept apart from the layers, since they burden the first and the last stage only.
Quantised checkpoints quantise the layers' matrices; embedding, head and router stay in BF16 (published.md C).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import TypeAlias

from ppsim.cost.attention import GroupedQuery, Latent
from ppsim.cost.state import FixedState
from ppsim.errors import ScenarioError

BF16_BYTES = 2.0
Attention: TypeAlias = GroupedQuery | Latent
Mixer: TypeAlias = GroupedQuery | Latent | FixedState


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The block behind the mixers. ``dense_params``: matrices that every token uses, shared experts included.
    ``expert_params``: of one routed expert; a token uses ``top_k`` of ``num_experts``, 0 where there are none."""

    dense_params: int = 0
    num_experts: int = 0
    top_k: int = 0
    expert_params: int = 0
    router_params: int = 0
    num_shared_experts: int = 0  # told apart for people; their weights are in dense_params

    @property
    def params(self) -> int:
        return self.dense_params + self.router_params + self.num_experts * self.expert_params

    @property
    def active_params(self) -> int:
        return self.dense_params + self.router_params + self.top_k * self.expert_params

    def hit_experts(self, num_tokens: float) -> float:
        """Expected number of experts that at least one of ``num_tokens`` tokens uses, routing being uniform."""
        return float(self.num_experts * (1.0 - (1.0 - self.top_k / self.num_experts) ** num_tokens))

    @property
    def kind(self) -> str:
        """Name for people."""
        if not self.num_experts:
            return "dense"
        shared = f" + {self.num_shared_experts} shared" if self.num_shared_experts else ""
        return f"{self.num_experts} experts, top {self.top_k}{shared}"


@dataclass(frozen=True, slots=True)
class Layer:
    """Mixers work side by side or one after the other; either part may be missing. ``vectors``: norms and biases, which
    are counted among the parameters but have no part in time and memory (under 0.1 % of them)."""

    mixers: tuple[Mixer, ...]
    feed_forward: FeedForward | None
    vectors: int = 0
    extra_params: int = 0  # matrices of neither part that every token is multiplied with

    @property
    def attentions(self) -> Iterator[Attention]:
        return (mixer for mixer in self.mixers if not isinstance(mixer, FixedState))

    @property
    def states(self) -> Iterator[FixedState]:
        return (mixer for mixer in self.mixers if isinstance(mixer, FixedState))

    @property
    def num_blocks(self) -> int:
        """Blocks that end in an all-reduce over the tensor-parallel ranks."""
        return (1 if self.mixers else 0) + (1 if self.feed_forward else 0)

    @property
    def kv_elements_per_token(self) -> int:
        return sum(mixer.kv_elements_per_token for mixer in self.attentions)

    @property
    def kind(self) -> str:
        """Name for people, without sizes that differ from layer to layer by nothing but their place."""
        parts = [mixer.kind for mixer in self.mixers]
        return " | ".join([" and ".join(parts) or "no mixer", self.feed_forward.kind if self.feed_forward else "-"])


@dataclass(frozen=True)
class ModelShape:
    """All layers in order, and types: bytes are per element. ``front_params``: tables on the first stage beside the
    embedding (learned positions). ``vectors``: norms outside the layers, bias of the head."""

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tie_word_embeddings: bool = False
    weight_bytes: float = BF16_BYTES
    kv_bytes: float = BF16_BYTES
    activation_bytes: float = BF16_BYTES
    math_bytes: float | None = None  # of an operand, where weights are stored narrower than they are multiplied
    mixer_bytes: float | None = None  # of the mixers' weights, where a checkpoint leaves them as they were
    dense_bytes: float | None = None  # likewise of dense blocks and shared experts
    front_params: int = 0
    vectors: int = 0
    positions: int | None = field(default=None, compare=False)  # that it was made for; None: the config does not say
    has_window_pool: bool = False  # the server keeps layers with a window in a smaller pool of their own
    notes: tuple[str, ...] = field(default=(), compare=False)  # what was assumed, what was not read

    @property
    def operand_bytes(self) -> float:
        """Width at which weights are multiplied: it decides the peak rate."""
        return self.weight_bytes if self.math_bytes is None else self.math_bytes

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def moe_layers(self) -> tuple[bool, ...]:
        """Whether each layer has experts."""
        return tuple(bool(layer.feed_forward and layer.feed_forward.num_experts) for layer in self.layers)

    @property
    def moe(self) -> FeedForward | None:
        """Experts of the first layer that has some."""
        found = (layer.feed_forward for layer in self.layers)
        return next((block for block in found if block is not None and block.num_experts), None)

    @property
    def attention(self) -> Attention | None:
        """Attention of the first layer that has one."""
        return next((mixer for layer in self.layers for mixer in layer.attentions), None)

    @property
    def num_heads(self) -> int:
        """Heads that can be cut over tensor-parallel ranks: a common divisor over all layers' heads."""
        heads = (mixer.num_heads for layer in self.layers for mixer in layer.mixers)
        return gcd(*heads) or self.hidden_size

    @property
    def embedding_params(self) -> int:
        return self.vocab_size * self.hidden_size

    def layer_params(self, layer: int) -> int:
        """All weights of a layer, norms and biases excepted."""
        at = self.layers[layer]
        mixers = sum(mixer.params(self.hidden_size) for mixer in at.mixers)
        return mixers + at.extra_params + (at.feed_forward.params if at.feed_forward else 0)

    def layer_active_params(self, layer: int) -> int:
        """Weights that one token is multiplied with in a layer."""
        at = self.layers[layer]
        mixers = sum(mixer.params(self.hidden_size) for mixer in at.mixers)
        return mixers + at.extra_params + (at.feed_forward.active_params if at.feed_forward else 0)

    def total_params(self) -> int:
        """Everything: embedding, layers, norms and biases, and the head unless tied."""
        ends = self.embedding_params * (1 if self.tie_word_embeddings else 2) + self.front_params + self.vectors
        return ends + sum(self.layer_params(i) + self.layers[i].vectors for i in range(self.num_layers))

    def active_params(self) -> int:
        """Weights a token uses in all layers, embedding and head left out."""
        return sum(self.layer_active_params(i) for i in range(self.num_layers))

    def layer_weight_bytes(self, layer: int) -> float:
        """Bytes of a layer's weights; a router stays in BF16."""
        at, block = self.layers[layer], self.layers[layer].feed_forward
        router = block.router_params if block else 0
        if self.mixer_bytes is None and self.dense_bytes is None:
            return (self.layer_params(layer) - router) * self.weight_bytes + router * BF16_BYTES
        width = self.weight_bytes
        mixers = sum(mixer.params(self.hidden_size) for mixer in at.mixers) + at.extra_params
        total = mixers * (width if self.mixer_bytes is None else self.mixer_bytes) + router * BF16_BYTES
        if block is not None:
            total += block.dense_params * (width if self.dense_bytes is None else self.dense_bytes)
            total += block.num_experts * block.expert_params * width
        return total

    @property
    def embedding_bytes(self) -> float:
        """Bytes of the embedding, and of the head: with more than one stage a tied head is a second copy."""
        return self.embedding_params * BF16_BYTES

    @property
    def front_bytes(self) -> float:
        return self.front_params * BF16_BYTES

    def layer_kv_bytes(self, layer: int, tp_size: int = 1) -> float:
        """Bytes that a token leaves on one GPU in the cache of a layer, within the reach of its queries."""
        found = (m.kv_elements_per_token * self.kv_bytes / m.kv_shards(tp_size) for m in self.layers[layer].attentions)
        return sum(found, 0.0)

    def layer_state_bytes(self, layer: int, tp_size: int = 1) -> float:
        """Bytes of a request's state on one GPU in a layer, whatever its length. Heads are cut over the ranks."""
        return sum((s.bytes_of(self.activation_bytes) / tp_size for s in self.layers[layer].states), 0.0)

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """Bytes that a token leaves in the caches of all layers, before tensor parallelism cuts them."""
        return sum((self.layer_kv_bytes(i) for i in range(self.num_layers)), 0.0)

    @cached_property
    def state_bytes(self) -> float:
        """Bytes of a request's state in all layers, whatever its length."""
        return sum((self.layer_state_bytes(i) for i in range(self.num_layers)), 0.0)

    def kv_bytes_of(self, num_tokens: int) -> float:
        """Bytes of the keys and values that a request of ``num_tokens`` needs for its next token: a layer with a window
        needs those inside it."""
        found = (
            m.scans[0].reach.kept(num_tokens) * m.kv_elements_per_token
            for layer in self.layers
            for m in layer.attentions
        )
        return sum(found) * self.kv_bytes

    def kinds(self) -> dict[str, int]:
        """Number of layers of each kind, in order of appearance."""
        return dict(Counter(layer.kind for layer in self.layers))

    def check_tp(self, tp_size: int) -> None:
        """Raise ScenarioError unless the heads can be cut over ``tp_size`` ranks."""
        num_heads = self.num_heads
        if tp_size < 1 or num_heads % tp_size:
            divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
            raise ScenarioError(
                "cluster.tp_size",
                f"{tp_size} does not divide the {num_heads} attention heads of {self.name}",
                f"possible: {', '.join(map(str, divisors))}",
            )
