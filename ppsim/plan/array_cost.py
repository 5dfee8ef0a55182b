"""Stage costs of many configurations at once: the formulas of ``ppsim.cost`` on arrays.

A batch is described by features that add up over its pieces, so that a batch can be filled piece by piece with a
different content in every configuration. Features are (num_features, configurations), times (stages, configurations)
in whole nanoseconds. Equal to ``StageCost.batch_ns`` of each configuration (of a roofline within 2 ns, as its sums
stand in another order); that is a property test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ppsim.cost.attention import Reach
from ppsim.cost.context_parallel import ContextParallelCost
from ppsim.cost.model import BF16_BYTES, FeedForward
from ppsim.cost.roofline import NS_PER_S, RooflineCost, StageShape
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

PER_CONFIG = ("weight_rate", "bf16_rate", "kv_rate", "hbm", "tp_size", "comm_s")
PER_STAGE = ("num_blocks", "active_params", "fixed_bytes", "head_params", "state_flops", "state_bytes")


def roofline_terms(costs: Sequence[RooflineCost]) -> tuple[RooflineCost, dict[str, Floats]]:
    """What differs between configurations: rates as (configurations), sums over layers as (stages, configurations).

    Model, GPU and constants are the same in all; the first cost stands for them. ``pair_s.R`` and ``kv_s.R`` are the
    seconds of a pair and of a token that is read within the R-th reach, ``experts.E`` the layers with the E-th block.
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
                cost.comm_s_per_token,
            )
        )
    terms = dict(zip(PER_CONFIG, np.array(rows, dtype=np.float64).T))
    for name in PER_STAGE:
        terms[name] = by_stage(costs, lambda cost, at, name=name: float(getattr(at, name)))  # type: ignore[misc]
    terms["expand_s"] = by_stage(costs, lambda cost, at: cost.expand_s_per_token(at))
    terms["overhead_s"] = by_stage(costs, lambda cost, at: cost.overhead_s(at))
    for i, reach in enumerate(one.reaches):
        terms[f"pair_s.{i}"] = by_stage(costs, lambda cost, at, reach=reach: pair_s(cost, at, reach))  # type: ignore[misc]
        terms[f"kv_s.{i}"] = by_stage(costs, lambda cost, at, reach=reach: kv_s(cost, at, reach))  # type: ignore[misc]
    for i, block in enumerate(expert_blocks(one)):
        terms[f"experts.{i}"] = by_stage(costs, lambda cost, at, block=block: float(dict(at.experts).get(block, 0)))  # type: ignore[misc]
    return one, terms


def by_stage(costs: Sequence[RooflineCost], value: Callable[[RooflineCost, StageShape], float]) -> Floats:
    """(stages, configurations) of a figure of a stage."""
    return np.array([[value(cost, at) for at in cost.stages] for cost in costs], dtype=np.float64).T


def pair_s(cost: RooflineCost, at: StageShape, reach: Reach) -> float:
    """Seconds of a pair of prefill in the layers of a stage that have this reach."""
    rate = cost.gpu.flops(cost.shape.kv_bytes) * (cost.rates.efficiency * cost.tp_size)
    found = (s.pair_flops * n / rate for attention, n in at.attentions for s in attention.scans if s.reach == reach)
    return sum(found, 0.0)


def kv_s(cost: RooflineCost, at: StageShape, reach: Reach) -> float:
    """Seconds of reading a token of the cache in those layers."""
    hbm = cost.gpu.hbm_gb_per_s * 1e9 * cost.rates.hbm_fraction
    found = (
        cost.scan_bytes(scan) * count / attention.kv_shards(cost.tp_size) / hbm
        for attention, count in at.attentions
        for scan in attention.scans
        if scan.reach == reach
    )
    return sum(found, 0.0)


def expert_blocks(cost: RooflineCost) -> list[FeedForward]:
    """Blocks with experts in any stage, each once."""
    return list(dict.fromkeys(block for at in cost.stages for block, _ in at.experts))


class RooflineArrays:
    """``RooflineCost.breakdown`` on arrays. Features: tokens and rows of a rank, its prefix, tokens of the stage, then
    pairs and tokens read of each reach."""

    def __init__(self, one: RooflineCost, terms: dict[str, Floats], shards: Shards) -> None:
        self.one, self.terms, self.shards = one, terms, shards
        t = terms
        self.num_features = 4 + 2 * len(one.reaches)
        self.comm_s = t["comm_s"] * t["num_blocks"]
        self.head_s = 2.0 * t["head_params"] / t["bf16_rate"]
        self.token_s = 2.0 * t["active_params"] / t["weight_rate"] + t["state_flops"] / t["bf16_rate"]
        self.weights_s = (t["fixed_bytes"] + t["head_params"] * BF16_BYTES) / t["tp_size"] / t["hbm"]
        self.state_s = 2.0 * t["state_bytes"] / t["tp_size"] / t["hbm"]
        self.experts = expert_blocks(one)

    def piece(self, prefix_len: Floats, new_tokens: Floats, is_first: Bools) -> Floats:
        prefix, new = self.shards.cut(prefix_len, new_tokens)
        features = np.empty((self.num_features, *new.shape))
        features[0], features[1], features[2], features[3] = new, 1.0, prefix, new_tokens
        for i, reach in enumerate(self.one.reaches):
            features[4 + 2 * i], features[5 + 2 * i] = reach_features(reach, prefix, new)
        return features

    def stage_ns(self, features: Floats) -> Floats:
        tokens, rows, prefix, all_tokens = features[:4]
        t = self.terms
        compute = self.token_s * tokens + t["expand_s"] * prefix + self.head_s * rows
        memory = self.weights_s + self.state_s * rows
        for i in range(len(self.one.reaches)):
            compute = compute + t[f"pair_s.{i}"] * features[4 + 2 * i]
            memory = memory + t[f"kv_s.{i}"] * features[5 + 2 * i]
        for i, block in enumerate(self.experts):
            layers = t[f"experts.{i}"]
            hit = block.num_experts * (1.0 - (1.0 - block.top_k / block.num_experts) ** tokens)
            padding = self.one.rates.moe_tile_rows / 2.0 * block.expert_params * layers
            compute = compute + 2.0 * padding / t["weight_rate"] * hit
            memory = memory + self.one.expert_bytes(block, 1) * layers / t["tp_size"] / t["hbm"] * hit
        seconds = np.maximum(compute, memory) + self.comm_s * tokens + t["overhead_s"]
        return np.asarray(np.maximum(1.0, np.rint(seconds * NS_PER_S)) + self.shards.exchange(all_tokens))

    def take(self, index: npt.NDArray[np.int64]) -> RooflineArrays:
        terms = {name: values[..., index] for name, values in self.terms.items()}
        return RooflineArrays(self.one, terms, self.shards.take(index))


def reach_features(reach: Reach, prefix: Floats, new: Floats) -> tuple[Floats, Floats]:
    """``Reach.pairs`` and ``Reach.read`` on arrays."""
    if reach.kind == "full":
        return (2.0 * prefix * new + new * new) / 2.0, prefix
    size = float(reach.size)
    if reach.kind == "chunk":

        def seen(position: Floats) -> Floats:
            whole = np.floor(position / size)
            return np.asarray((whole * size * size + (position - whole * size) ** 2) / 2.0)

        return seen(prefix + new) - seen(prefix), prefix % size

    def within(position: Floats) -> Floats:
        near = np.minimum(position, size)
        return np.asarray(near * position - near * near / 2.0)

    read = np.minimum(prefix, size if reach.kind == "window" else size * new)
    return within(prefix + new) - within(prefix), read


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
        c_ms = c_ms + np.where(prefix_len == 0.0, one.first_ms, 0.0)  # of the chunk, not of a rank's share
        # Summed in the order of ``pieces_ns``: in another one the last bit may round to another nanosecond.
        piece_ms = c_ms + (one.gamma_ms * prefix + one.b_ms * new + attention)
        return np.stack([np.maximum(one.floor_ms, piece_ms), new, new_tokens])

    def stage_ns(self, features: Floats) -> Floats:
        compute, tokens, all_tokens = features
        whole_ms = compute / self.tp_size + self.ring_ms * tokens
        times = np.maximum(1.0, np.rint(whole_ms * self.shares * NS_PER_MS))
        return np.asarray(times + self.shards.exchange(all_tokens))

    def take(self, index: npt.NDArray[np.int64]) -> QuadraticArrays:
        return QuadraticArrays([self.costs[int(i)] for i in index], self.shards.take(index))
