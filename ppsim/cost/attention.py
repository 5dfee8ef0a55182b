"""Attention of one layer: what it computes, what it stores. Grouped queries (GQA) and latent attention (MLA).

    pair     one query at one key, all heads: 2 heads (qk + v) FLOPs
    causal   x new tokens after a prefix of L see L x + x^2 / 2 pairs, hence (2 L x + x^2) / 2
    expand   MLA keeps one latent a token; a prefill chunk makes keys and values of its *whole prefix* from it, again
             in every chunk (SGLang's chunked-prefix path): the gamma L of the stage cost
    absorbed MLA decode works on the latents themselves: no expansion, dearer pairs. So does sparse attention, in
             prefill too: what it picks differs from query to query

FLOPs count a multiply-add as two. How many keys a query sees is a ``Reach``; what a layer does with them a ``Scan``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a query looks back, in tokens, itself included.

    full     every token before it: ``size`` is 0
    window   the last ``size`` tokens (sliding window)
    chunk    the tokens since the last multiple of ``size`` (Llama 4's chunked attention)
    top_k    ``size`` tokens that an indexer picks
    """

    kind: Literal["full", "window", "chunk", "top_k"] = "full"
    size: int = 0

    def pairs(self, prefix_len: float, new_tokens: float) -> float:
        """(query, key) pairs of ``new_tokens`` queries after a prefix, in the continuum: the integral over the
        positions p of min(p, size), or of p mod size; s^2 / 2 where all is seen, s * size where s is much longer."""
        if self.kind == "full":
            return (2.0 * prefix_len * new_tokens + new_tokens * new_tokens) / 2.0
        return self._seen(prefix_len + new_tokens) - self._seen(prefix_len)

    def _seen(self, position: float) -> float:
        size = float(self.size)
        if self.kind == "chunk":
            whole = position // size
            return (whole * size * size + (position - whole * size) ** 2) / 2.0
        return position * position / 2.0 if position <= size else size * position - size * size / 2.0

    def read(self, prefix_len: int, new_tokens: int) -> int:
        """Tokens of the prefix whose cache a piece reads."""
        if self.kind == "full":
            return prefix_len
        if self.kind == "chunk":
            return prefix_len % self.size
        return min(prefix_len, self.size if self.kind == "window" else self.size * new_tokens)

    def kept(self, num_tokens: int) -> int:
        """Tokens that must be kept for the next query: a window of w needs w - 1 of them. What top_k picks from is
        kept whole."""
        return num_tokens if self.kind in ("full", "top_k") else min(num_tokens, self.size - 1)


FULL = Reach()


@dataclass(frozen=True, slots=True)
class Scan:
    """One pass of a layer's queries over keys: FLOPs of a pair in prefill and decode, elements that a key is."""

    reach: Reach
    pair_flops: int
    decode_pair_flops: int
    elements: int


@dataclass(frozen=True, slots=True)
class GroupedQuery:
    """Ordinary attention; ``num_kv_heads`` keys and values serve ``num_heads`` queries: 1 is multi-query.

    ``value_head_dim`` 0: as the keys'. ``gate_params``: a gate on the output. ``has_own_kv`` False: the layer makes no
    keys and values and reads those of an earlier one. ``values_are_keys``: one projection makes both.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int = 0
    reach: Reach = FULL
    gate_params: int = 0
    has_own_kv: bool = True
    values_are_keys: bool = False

    @property
    def value_dim(self) -> int:
        return self.value_head_dim or self.head_dim

    @property
    def kind(self) -> str:
        """Name for people."""
        return {"full": "full", "window": f"window {self.reach.size}", "chunk": f"chunks of {self.reach.size}"}.get(
            self.reach.kind, f"top {self.reach.size}"
        )

    def params(self, hidden_size: int) -> int:
        """Weights of the query, key, value and output projections, and of the gate."""
        query_and_output = hidden_size * self.num_heads * (self.head_dim + self.value_dim)
        value = 0 if self.values_are_keys else self.value_dim
        keys_and_values = hidden_size * self.num_kv_heads * (self.head_dim + value) if self.has_own_kv else 0
        return query_and_output + keys_and_values + self.gate_params

    @property
    def pair_flops(self) -> int:
        return 2 * self.num_heads * (self.head_dim + self.value_dim)

    @property
    def decode_pair_flops(self) -> int:
        return self.pair_flops

    @property
    def expand_flops_per_token(self) -> int:
        return 0

    @property
    def expand_elements_per_token(self) -> int:
        return 0

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that a token leaves in the cache of one layer."""
        return self.num_kv_heads * (self.head_dim + self.value_dim) if self.has_own_kv else 0

    @property
    def scans(self) -> tuple[Scan, ...]:
        elements = self.num_kv_heads * (self.head_dim + self.value_dim)
        return (Scan(self.reach, self.pair_flops, self.decode_pair_flops, elements),)

    def kv_shards(self, tp_size: int) -> int:
        """Over how many tensor-parallel ranks the cache of a layer is cut: heads are replicated beyond their number."""
        return min(tp_size, self.num_kv_heads)


@dataclass(frozen=True, slots=True)
class Indexer:
    """Picks the ``top_k`` tokens that sparse attention looks at: a small attention of its own over *all* tokens.

    Its key is one head of ``head_dim``, kept for each token beside the cache. ``params``: its projections.
    Source: DeepSeek-V3.2-Exp, "DSA"; SGLang keeps the key in FP8 with a scale of 4 bytes whatever the cache's type.
    """

    num_heads: int
    head_dim: int
    top_k: int
    params: int
    has_own_keys: bool = True  # False: the picks of an earlier layer are used again

    @property
    def pair_flops(self) -> int:
        return 2 * self.num_heads * self.head_dim if self.has_own_keys else 0

    @property
    def elements(self) -> int:
        return self.head_dim if self.has_own_keys else 0


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2 and later). ``q_lora_rank`` 0: the query has no low-rank form."""

    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    reach: Reach = FULL
    indexer: Indexer | None = None
    gate_params: int = 0

    @property
    def kind(self) -> str:
        """Name for people."""
        name = "MLA" if self.indexer is None else f"MLA, top {self.indexer.top_k}"
        return f"{name}, window {self.reach.size}" if self.reach.kind == "window" else name

    def params(self, hidden_size: int) -> int:
        """Weights of all projections, the latents' and the indexer's included."""
        query_dim = self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        query = (hidden_size + query_dim) * self.q_lora_rank if self.q_lora_rank else hidden_size * query_dim
        latent = hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim)
        expand = self.kv_lora_rank * self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        index = self.indexer.params if self.indexer else 0
        return query + latent + expand + self.num_heads * self.v_head_dim * hidden_size + index + self.gate_params

    @property
    def pair_flops(self) -> int:
        if self.indexer is not None:
            return self.decode_pair_flops
        return 2 * self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    @property
    def decode_pair_flops(self) -> int:
        return 2 * self.num_heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)

    @property
    def expand_flops_per_token(self) -> int:
        if self.indexer is not None:
            return 0
        return 2 * self.kv_lora_rank * self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)

    @property
    def expand_elements_per_token(self) -> int:
        """Elements of the keys and values that the expansion of one token makes."""
        if self.indexer is not None:
            return 0
        return self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that a token leaves in the cache of one layer, the indexer's key included."""
        return self.kv_lora_rank + self.qk_rope_head_dim + (self.indexer.elements if self.indexer else 0)

    @property
    def scans(self) -> tuple[Scan, ...]:
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        if self.indexer is None:
            return (Scan(self.reach, self.pair_flops, self.decode_pair_flops, latent),)
        i = self.indexer
        picked = Scan(Reach("top_k", i.top_k), self.pair_flops, self.decode_pair_flops, latent)
        return (picked, Scan(FULL, i.pair_flops, i.pair_flops, i.elements)) if i.has_own_keys else (picked,)

    def kv_shards(self, tp_size: int) -> int:
        """The latent has no heads: every tensor-parallel rank keeps all of it."""
        return 1
