"""The steps of the search: chunk sizes, smooth factors, depths, and ways to cut the layers."""

from __future__ import annotations

from math import lcm

from ppsim.cost.layer_report import partition_by_time
from ppsim.cost.partition import even_partition
from ppsim.cost.sglang_chunks import ALIGN_TOKENS
from ppsim.plan.candidate import Split
from ppsim.plan.feasible import roomiest
from ppsim.scenario.gpu import scenario_gpu
from ppsim.scenario.layers import model_shape
from ppsim.scenario.stagecost import roofline_cost
from ppsim.scenario.tree import Scenario

SMALLEST_CHUNK = 2048  # where the published sweeps begin; a prompt too short for it gets sixteen chunks or fewer
LARGEST_CHUNK = 65536  # activations of a larger forward pass are in no memory model here
MAX_CHUNKS = 256
DEPTHS = (0, 1, 2)
SWEPT_FACTORS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85)  # the range that is said to be useful
SMOOTH_FACTORS = (*SWEPT_FACTORS, 0.9, 0.95, 1.0)
FACTOR_STEP = 0.05
INITIAL_MULTIPLES = (2, 3, 4)


def alignment(s: Scenario) -> int:
    """Chunks are multiples of the page and of 64 tokens."""
    return lcm(s.scheduler.page_size, ALIGN_TOKENS)


def aligned(s: Scenario, tokens: float) -> int:
    """The nearest chunk size, at least one unit."""
    unit = alignment(s)
    return max(1, round(tokens / unit)) * unit


def chunk_sizes(s: Scenario, longest_prompt: int) -> tuple[int, ...]:
    """Powers of two and their halves again, from small to the whole prompt; with the scenario's own size."""
    top = min(longest_prompt, LARGEST_CHUNK)
    bottom = max(min(SMALLEST_CHUNK, longest_prompt / 16), longest_prompt / MAX_CHUNKS, alignment(s))
    sizes = {aligned(s, size) for k in range(5, 25) for size in (2**k, 3 * 2 ** (k - 1)) if bottom <= size <= top}
    own = s.scheduler.chunked_prefill_size
    if 0 < own <= top:
        sizes.add(own)
    if longest_prompt <= LARGEST_CHUNK:
        sizes.add(-(-longest_prompt // alignment(s)) * alignment(s))
    return tuple(sorted(sizes))


def partitions(s: Scenario, split: Split, even: tuple[int, ...], longest_prompt: int) -> tuple[tuple[int, ...], ...]:
    """``even`` first (or whatever fits), then: larger stages first, balanced by time, by memory, one layer moved."""
    found = [even, tuple(reversed(even_partition(sum(even), split.pp_size)))]
    balanced = by_time(s, split, longest_prompt)
    found += [p for p in (balanced, roomiest(s, split)) if p is not None]
    found += [p for p in (moved(even, 0, -1), moved(even, -1, 0)) if p is not None]
    return tuple(dict.fromkeys(found))


def moved(partition: tuple[int, ...], source: int, target: int) -> tuple[int, ...] | None:
    """The same with one layer moved between two stages; None if the source would be empty."""
    if len(partition) < 2 or partition[source] < 2:
        return None
    layers = list(partition)
    layers[source] -= 1
    layers[target] += 1
    return tuple(layers)


def by_time(s: Scenario, split: Split, longest_prompt: int) -> tuple[int, ...] | None:
    """The layers whose slowest stage is fastest, for a middle chunk of the prompt; None where all cost alike."""
    if s.cost.source != "roofline":
        return None
    rates = roofline_cost(s).rates
    return partition_by_time(model_shape(s), scenario_gpu(s), split.tp_size, rates, split.pp_size, longest_prompt)
