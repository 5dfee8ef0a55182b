"""Context parallelism of a stage, as an estimate: the tokens of a chunk are dealt over cp ranks that hold all weights.

    work      x new tokens after a prefix of L cost a rank what x / cp tokens after L + x (cp - 1) / 2cp would: the
              causal triangle is shared evenly (zig-zag order), so each rank sees the mean of the others' keys
    weights   every rank reads all of its layers, and pays the constant of a chunk: neither is divided
    cache     every rank keeps the keys and values of all tokens, so that only what is new is exchanged, once: over a
              prompt of S tokens 2 B S H_kv L, times (cp - 1) / cp (``collectives``). Memory is not divided either
    exchange  is not hidden behind compute, as the all-reduce of tensor parallelism is not

An estimate, because nothing measured stands behind it: no cost of the ring's steps, of uneven lengths, of a chunk too
short to be dealt. Decode gains nothing and is left as it is. Two neighbours of the estimate: ring attention keeps a
part of the cache on each rank and sends the prefix again for every chunk; an engine may cut the weights over the cp
ranks, too, and pay an all-gather of activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.collectives import all_gather_factor
from ppsim.cost.gpu import Gpu
from ppsim.cost.network import GPUS_PER_NODE, Network
from ppsim.cost.stage import NS_PER_MS, QuadraticCost, StageCost, Work
from ppsim.errors import ScenarioError

NODE_GPUS = GPUS_PER_NODE


@dataclass(frozen=True, slots=True)
class ContextParallelCost:
    """A StageCost around another one. ``exchange_ns_per_token``: of each stage, for every token of a prefill piece."""

    inner: StageCost
    cp_size: int
    exchange_ns_per_token: tuple[float, ...]

    def batch_ns(self, stage: int, slot: int, work: Sequence[Work]) -> int:
        """Nanoseconds of one forward pass on the rank with most tokens."""
        exchanged = sum(new_tokens for _, new_tokens, is_decode in work if not is_decode)
        shards = [piece if piece[2] else (*shard(piece[0], piece[1], self.cp_size), False) for piece in work]
        if isinstance(self.inner, QuadraticCost):  # a share of a prompt's first chunk is of its first chunk
            inner_ns = self.inner.pieces_ns(stage, shards, [prefix_len == 0 for prefix_len, _, _ in work])
        else:
            inner_ns = self.inner.batch_ns(stage, slot, shards)
        return inner_ns + round(self.exchange_ns_per_token[stage] * exchanged)

    def coefficients(self, inner: Coefficients) -> Coefficients:
        """The six numbers of a chunk that is dealt over the ranks, from those of one that is not."""
        n, exchange_ms = self.cp_size, sum(self.exchange_ns_per_token) / NS_PER_MS
        return Coefficients(
            c_ms=inner.c_ms,
            first_ms=inner.first_ms,
            gamma_ms=inner.gamma_ms,
            b_ms=inner.b_ms / n + inner.gamma_ms * (n - 1) / (2 * n) + exchange_ms,
            a_ms=inner.a_ms / n,
            floor_ms=inner.floor_ms,
            source=f"{inner.source}; cp {n}, estimated",
        )


def shard(prefix_len: int, new_tokens: int, cp_size: int) -> tuple[int, int]:
    """(prefix, tokens) that stand for one rank's share of a piece."""
    mine = -(-new_tokens // cp_size)
    return prefix_len + (new_tokens - mine) // 2, mine


def exchange_ns(kv_bytes_per_token: Sequence[float], cp_size: int, gb_per_s: float) -> tuple[float, ...]:
    """Nanoseconds a token of the all-gather over each stage. ``kv_bytes_per_token``: of a stage, on one of its GPUs."""
    factor = all_gather_factor(cp_size)
    return tuple(factor * size / gb_per_s for size in kv_bytes_per_token)  # GB/s is bytes a nanosecond


def ring_gb_per_s(gpu: Gpu, num_gpus: int, node_gpus: int = NODE_GPUS, nics_per_node: int | None = None) -> float:
    """Bandwidth of a ring through ``num_gpus`` neighbours, tensor-parallel ranks innermost: each of them has a ring of
    its own, which leaves the node over its GPU's share of the NICs.

    Raises ScenarioError if the ring leaves the node and the network of the GPU is unknown.
    """
    if num_gpus <= node_gpus:
        return gpu.link_gb_per_s
    if gpu.nic_gb_per_s is None:
        raise ScenarioError(
            "cluster.cp_size",
            f"{num_gpus} GPUs of tp and cp leave the node of {node_gpus}; {gpu.key} has no known NIC bandwidth",
            "give gpu.nic_gb_per_s",
        )
    return Network(gpu.link_gb_per_s, gpu.nic_gb_per_s, nics_per_node, node_gpus).share_gb_per_s
