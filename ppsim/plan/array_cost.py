"""Stage costs of many configurations at once: the formulas of ``ppsim.cost`` on arrays.

A batch is described by features that add up over its pieces, so that a batch can be filled piece by piece with a
different content in every configuration. Features are (num_features, configurations), times (stages, configurations)
in whole nanoseconds. Equal to ``StageCost.batch_ns`` of each configuration; that is a property test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ppsim.cost.context_parallel import ContextParallelCost
from ppsim.cost.model import BF16_BYTES
from ppsim.cost.roofline import NS_PER_S, RooflineCost
from ppsim.cost.stage import NS_PER_MS, QuadraticCost, StageCost
from ppsim.errors import ScenarioError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class ArrayCost(Protocol):
    """Stage times of one batch in each configuration."""

    num_features: int

    def piece(self, prefix_len: Floats, new_tokens: Floats, is_first: Bools) -> Floats:
        """Features of a prefill piece, (num_features, configurations). ``is_first`` of its batch."""
        ...

    def stage_ns(self, features: Floats) -> Floats:
        """(stages, configurations) times of a batch with these summed features."""
        ...

    def take(self, index: npt.NDArray[np.int64]) -> ArrayCost:
        """The same for some of the configurations."""
        ...


def array_cost(costs: Sequence[StageCost]) -> ArrayCost:
    """Costs of one kind and one number of stages, beside each other. Raises ScenarioError for a kind without arrays."""
    shards = Shards.of(costs)
    inner = [cost.inner if isinstance(cost, ContextParallelCost) else cost for cost in costs]
    roofs = [cost for cost in inner if isinstance(cost, RooflineCost)]
    if len(roofs) == len(inner):
        return RooflineArrays(*roofline_terms(roofs), shards)
    quads = [cost for cost in inner if isinstance(cost, QuadraticCost)]
    if len(quads) == len(inner):
        return QuadraticArrays(quads, shards)
    kinds = sorted({type(cost).__name__ for cost in inner})
    raise ScenarioError("cost.source", f"no times over many configurations for {', '.join(kinds)}")


class Shards:
    """Context parallelism: which piece one rank computes, and what the exchange takes."""

    def __init__(self, cp_size: Floats, exchange_ns: Floats) -> None:
        self.cp_size, self.exchange_ns = cp_size, exchange_ns
        self.alone = bool(np.all(cp_size == 1.0))

    @staticmethod
    def of(costs: Sequence[StageCost]) -> Shards:
        sizes = [c.cp_size if isinstance(c, ContextParallelCost) else 1 for c in costs]
        stages = num_stages(costs[0])
        exchange = [c.exchange_ns_per_token if isinstance(c, ContextParallelCost) else (0.0,) * stages for c in costs]
        return Shards(np.array(sizes, dtype=np.float64), np.array(exchange, dtype=np.float64).T)

    def cut(self, prefix_len: Floats, new_tokens: Floats) -> tuple[Floats, Floats]:
        """As ``context_parallel.shard``."""
        if self.alone:
            return prefix_len, new_tokens
        mine = np.ceil(new_tokens / self.cp_size)
        return prefix_len + np.floor((new_tokens - mine) / 2.0), mine

    def exchange(self, new_tokens: Floats) -> Floats | float:
        """(stages, configurations) of whole nanoseconds."""
        return 0.0 if self.alone else np.asarray(np.rint(self.exchange_ns * new_tokens))

    def take(self, index: npt.NDArray[np.int64]) -> Shards:
        return Shards(self.cp_size[index], self.exchange_ns[:, index])


def num_stages(cost: StageCost) -> int:
    """Stages of a cost with arrays."""
    inner = cost.inner if isinstance(cost, ContextParallelCost) else cost
    if isinstance(inner, RooflineCost):
        return len(inner.partition)
    return len(inner.shares) if isinstance(inner, QuadraticCost) else 0


# --- roofline --------------------------------------------------------------------------------------------------

PER_CONFIG = ("weight_rate", "bf16_rate", "kv_rate", "hbm", "tp_size", "kv_shards", "expand_s", "comm_s")
PER_STAGE = ("num_layers", "num_moe_layers", "active_params", "fixed_bytes", "expert_bytes", "head_params")


def roofline_terms(costs: Sequence[RooflineCost]) -> tuple[RooflineCost, dict[str, Floats]]:
    """What differs between configurations: rates as (configurations), sums over layers as (stages, configurations).

    Model, GPU and constants are the same in all; the first cost stands for them.
    """
    one = costs[0]
    rows = []
    for cost in costs:
        reached = cost.rates.efficiency * cost.tp_size
        rows.append(
            (
                cost.gpu.flops(cost.shape.operand_bytes) * reached,
                cost.gpu.flops(BF16_BYTES) * reached,
                cost.gpu.flops(cost.shape.kv_bytes) * reached,
                cost.gpu.hbm_gb_per_s * 1e9 * cost.rates.hbm_fraction,
                float(cost.tp_size),
                float(cost.shape.attention.kv_shards(cost.tp_size)),
                cost.expand_s_per_token,
                cost.comm_s_per_token,
            )
        )
    terms = dict(zip(PER_CONFIG, np.array(rows, dtype=np.float64).T))
    for name in PER_STAGE:
        by_config = [[float(getattr(stage, name)) for stage in cost.stages] for cost in costs]
        terms[name] = np.array(by_config, dtype=np.float64).T
    return one, terms


class RooflineArrays:
    """``RooflineCost.breakdown`` on arrays. Features: tokens, pairs, prefix and rows of a rank, tokens of the stage."""

    num_features = 5

    def __init__(self, one: RooflineCost, terms: dict[str, Floats], shards: Shards) -> None:
        self.one, self.terms, self.shards = one, terms, shards
        shape, t = one.shape, terms
        self.pair_s = shape.attention.pair_flops * t["num_layers"] / t["kv_rate"]
        self.expand_s = t["expand_s"] * t["num_layers"]
        self.comm_s = t["comm_s"] * t["num_layers"]
        self.kv_s = shape.kv_bytes_per_token_per_layer * t["num_layers"] / t["kv_shards"] / t["hbm"]
        self.head_s = 2.0 * t["head_params"] / t["bf16_rate"]
        self.token_s = 2.0 * t["active_params"] / t["weight_rate"]
        weights = (t["fixed_bytes"] + t["head_params"] * BF16_BYTES) / t["tp_size"] / t["hbm"]
        self.weights_s = weights
        self.expert_s = t["expert_bytes"] / t["tp_size"] / t["hbm"]
        padding = one.rates.moe_tile_rows / 2.0 * shape.expert_params * t["num_moe_layers"]
        self.padding_s = 2.0 * padding / t["weight_rate"]

    def piece(self, prefix_len: Floats, new_tokens: Floats, is_first: Bools) -> Floats:
        prefix, new = self.shards.cut(prefix_len, new_tokens)
        features = np.empty((self.num_features, *new.shape))
        features[0] = new
        features[1] = (2.0 * prefix * new + new * new) / 2.0
        features[2], features[3], features[4] = prefix, 1.0, new_tokens
        return features

    def stage_ns(self, features: Floats) -> Floats:
        tokens, pairs, prefix, rows, all_tokens = features
        compute = self.token_s * tokens + self.pair_s * pairs + self.expand_s * prefix + self.head_s * rows
        memory = self.weights_s + self.kv_s * prefix
        moe = self.one.shape.moe
        if moe is not None:
            hit = moe.num_experts * (1.0 - (1.0 - moe.top_k / moe.num_experts) ** tokens)
            compute += self.padding_s * hit
            memory += self.expert_s * hit
        seconds = np.maximum(compute, memory) + self.comm_s * tokens
        return np.asarray(np.maximum(1.0, np.rint(seconds * NS_PER_S)) + self.shards.exchange(all_tokens))

    def take(self, index: npt.NDArray[np.int64]) -> RooflineArrays:
        terms = {name: values[..., index] for name, values in self.terms.items()}
        return RooflineArrays(self.one, terms, self.shards.take(index))


# --- quadratic -------------------------------------------------------------------------------------------------


class QuadraticArrays:
    """``QuadraticCost.batch_ns`` on arrays. Features: milliseconds of the pieces, tokens of a rank, of the stage."""

    num_features = 3

    def __init__(self, costs: Sequence[QuadraticCost], shards: Shards) -> None:
        self.costs, self.shards = list(costs), shards
        self.one = costs[0]
        self.shares = np.array([cost.shares for cost in costs], dtype=np.float64).T
        self.tp_size = np.array([cost.tp_size for cost in costs], dtype=np.float64)
        self.ring_ms = np.array([2 * (c.tp_size - 1) / c.tp_size * c.tp_comm_ms for c in costs], dtype=np.float64)

    def piece(self, prefix_len: Floats, new_tokens: Floats, is_first: Bools) -> Floats:
        prefix, new = self.shards.cut(prefix_len, new_tokens)
        one = self.one
        c_ms = one.c_ms if one.c_once == "piece" else np.where(is_first, one.c_ms, 0.0)
        attention = one.a_ms * (2.0 * prefix * new + new * new)
        piece_ms = c_ms + one.gamma_ms * prefix + one.b_ms * new + attention
        return np.stack([np.maximum(one.floor_ms, piece_ms), new, new_tokens])

    def stage_ns(self, features: Floats) -> Floats:
        compute, tokens, all_tokens = features
        whole_ms = compute / self.tp_size + self.ring_ms * tokens
        times = np.maximum(1.0, np.rint(whole_ms * self.shares * NS_PER_MS))
        return np.asarray(times + self.shards.exchange(all_tokens))

    def take(self, index: npt.NDArray[np.int64]) -> QuadraticArrays:
        return QuadraticArrays([self.costs[int(i)] for i in index], self.shards.take(index))
