"""Attention of one layer: what it computes, what it stores. Grouped queries (GQA) and latent attention (MLA).

    pair     one query at one key, all heads: 2 heads (qk + v) FLOPs
    causal   x new tokens after a prefix of L see L x + x^2 / 2 pairs, hence (2 L x + x^2) / 2
    expand   MLA keeps one latent a token; a prefill chunk makes keys and values of its *whole prefix* from it, again
             in every chunk (SGLang's chunked-prefix path): the gamma L of the stage cost
    absorbed MLA decode works on the latents themselves: no expansion, dearer pairs

FLOPs count a multiply-add as two.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupedQuery:
    """Ordinary attention; ``num_kv_heads`` keys and values serve ``num_heads`` queries."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def params(self, hidden_size: int) -> int:
        """Weights of the query, key, value and output projections."""
        query_and_output = 2 * hidden_size * self.num_heads * self.head_dim
        return query_and_output + 2 * hidden_size * self.num_kv_heads * self.head_dim

    @property
    def pair_flops(self) -> int:
        return 4 * self.num_heads * self.head_dim

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
        return 2 * self.num_kv_heads * self.head_dim

    def kv_shards(self, tp_size: int) -> int:
        """Over how many tensor-parallel ranks the cache of a layer is cut: heads are replicated beyond their number."""
        return min(tp_size, self.num_kv_heads)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2 and later). ``q_lora_rank`` 0: the query has no low-rank form."""

    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def params(self, hidden_size: int) -> int:
        """Weights of all projections, the latents' included."""
        query_dim = self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        query = (hidden_size + query_dim) * self.q_lora_rank if self.q_lora_rank else hidden_size * query_dim
        latent = hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim)
        expand = self.kv_lora_rank * self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)
        return query + latent + expand + self.num_heads * self.v_head_dim * hidden_size

    @property
    def pair_flops(self) -> int:
        return 2 * self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    @property
    def decode_pair_flops(self) -> int:
        return 2 * self.num_heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)

    @property
    def expand_flops_per_token(self) -> int:
        return 2 * self.kv_lora_rank * self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)

    @property
    def expand_elements_per_token(self) -> int:
        """Elements of the keys and values that the expansion of one token makes."""
        return self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that a token leaves in the cache of one layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def kv_shards(self, tp_size: int) -> int:
        """The latent has no heads: every tensor-parallel rank keeps all of it."""
        return 1
