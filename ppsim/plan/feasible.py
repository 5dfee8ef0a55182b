"""Whether a split can run at all, and if not, why: heads, layers, bandwidths that nobody gave, memory.

An impossible split stays in the table with its reason. The memory is that of the model and the GPU, also where a
scenario sets the pool by hand: a pool that no GPU could hold is no advice.
"""

from __future__ import annotations

from dataclasses import dataclass

from ppsim.cost.memory import Capacity, best_partition
from ppsim.cost.partition import check_partition, even_partition
from ppsim.errors import ScenarioError
from ppsim.plan.candidate import Candidate, Split, with_candidate
from ppsim.scenario.gpu import memory_gb
from ppsim.scenario.layers import known_shape, num_heads, num_layers
from ppsim.scenario.rank import given_pool, gpu_capacity, held_tokens, running_limit, state_pool
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Scenario


@dataclass(frozen=True, slots=True)
class Feasibility:
    """``why_not`` is empty for a split that can run; ``partition`` is then the layers of its stages."""

    split: Split
    partition: tuple[int, ...] = ()
    why_not: str = ""


def splits(num_gpus: int) -> list[Split]:
    """All pp x tp x cp with this product, pipelines first."""
    divisors = [n for n in range(1, num_gpus + 1) if num_gpus % n == 0]
    found = [Split(pp, num_gpus // pp // cp, cp) for pp in divisors for cp in divisors if (num_gpus // pp) % cp == 0]
    return sorted(found, key=lambda s: (s.cp_size, -s.pp_size))


def feasibility(s: Scenario, split: Split, need_tokens: int) -> Feasibility:
    """Even layers if they fit, else those that leave the most room. ``need_tokens`` of cache on every stage."""
    layers = num_layers(s)
    if split.pp_size > layers:
        return Feasibility(split, (), f"{split.pp_size} stages cannot be cut from {layers} layers")
    even = even_partition(layers, split.pp_size)
    reason = why_not(s, split, even, need_tokens)
    if not reason:
        return Feasibility(split, even)
    other = roomiest(s, split)
    if other is not None and other != even and not why_not(s, split, other, need_tokens):
        return Feasibility(split, other)
    return Feasibility(split, (), reason)


def why_not(s: Scenario, split: Split, partition: tuple[int, ...], need_tokens: int) -> str:
    """Why these layers cannot run, or nothing."""
    try:
        check_heads(s, split)
        check_free_lunch(s, split)
        check_partition(partition, num_layers(s), split.pp_size)
        stage_cost(placed(s, split, partition))
        capacity_of(s, split, partition).require(need_tokens)
        running_limit(placed(s, split, partition))
    except ScenarioError as error:
        return f"{error.problem} ({error.hint})" if error.hint else error.problem
    return ""


def placed(s: Scenario, split: Split, partition: tuple[int, ...]) -> Scenario:
    """The scenario with this split; only its costs and its memory are looked at."""
    return with_candidate(s, Candidate(split, 0, s.scheduler.chunked_prefill_size, 0.0, partition), None)


def check_heads(s: Scenario, split: Split) -> None:
    shape = known_shape(s)
    if shape is not None:
        shape.check_tp(split.tp_size)
    elif num_heads(s) % split.tp_size:
        raise ScenarioError("cluster.tp_size", f"{split.tp_size} does not divide the {num_heads(s)} attention heads")


def check_free_lunch(s: Scenario, split: Split) -> None:
    """Coefficients that were given for one tp_size say nothing about another one, unless the all-reduce has a price."""
    if s.cost.source == "quadratic" and split.tp_size != s.cluster.tp_size and not s.cost.tp_comm_ms_per_token:
        raise ScenarioError(
            "cluster.tp_size",
            f"the scenario has no price of an all-reduce, so tp {split.tp_size} would look free",
            "give cost.tp_comm_ms_per_token, or use cost.source 'roofline'",
        )


def capacity_of(s: Scenario, split: Split, partition: tuple[int, ...]) -> Capacity:
    """Memory of one GPU of each stage."""
    return gpu_capacity(placed(s, split, partition))


def roomiest(s: Scenario, split: Split) -> tuple[int, ...] | None:
    """The layers whose smallest stage holds most tokens; None where there is no such split."""
    shape = known_shape(s)
    if shape is None:
        return None
    room = memory_gb(s)
    try:
        return best_partition(shape, room, split.pp_size, split.tp_size, s.gpu.mem_fraction_static, pool=state_pool(s))
    except ScenarioError:
        return None


def pool_tokens(s: Scenario, split: Split, partition: tuple[int, ...]) -> int:
    """Tokens that the pipeline holds: what the memory leaves, or less if the scenario says so."""
    room = min(held_tokens(s, capacity_of(s, split, partition)))
    given = given_pool(s)
    return room if given is None else min(room, given)
