"""KV capacity of each stage, and which stage limits the pipeline.

    tokens(stage) = (memory * fraction - weights(stage)) / (KV bytes of one token in the layers of the stage)

All stages hold the same requests, so the pipeline holds as many tokens as its smallest stage. That is not the stage
with the least free memory but the one with the least free memory *per layer* (bugs.md B111), and it is often an end
stage: the embedding burdens the first, the head the last (bugs.md B109).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppsim.cost.gpu import Gpu
from ppsim.cost.model import ModelShape
from ppsim.cost.partition import check_partition, partition_by_memory
from ppsim.errors import ScenarioError

GB = 1e9


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One GPU of a stage. ``num_tokens`` is 0 where nothing is left, and negative memory is never shown as room."""

    stage: int
    num_layers: int
    usable_bytes: float
    weight_bytes: float
    kv_bytes_per_token: float

    @property
    def free_bytes(self) -> float:
        return self.usable_bytes - self.weight_bytes

    @property
    def num_tokens(self) -> int:
        return max(0, int(self.free_bytes / self.kv_bytes_per_token))


@dataclass(frozen=True, slots=True)
class Capacity:
    """Memory of all stages; ``limiting`` is the stage that holds fewest tokens, the first of equals."""

    stages: tuple[StageMemory, ...]

    @property
    def limiting(self) -> StageMemory:
        return min(self.stages, key=lambda s: (s.num_tokens, s.stage))

    @property
    def num_tokens(self) -> int:
        return self.limiting.num_tokens

    def require(self, num_tokens: int = 1) -> Capacity:
        """Self, or ScenarioError that says which stage lacks how many GB for ``num_tokens`` tokens of cache."""
        lacking = [(s.stage, s.weight_bytes + num_tokens * s.kv_bytes_per_token - s.usable_bytes) for s in self.stages]
        missing = [(stage, lack) for stage, lack in lacking if lack > 0]
        if missing:
            stage, lack = max(missing, key=lambda m: (m[1], -m[0]))
            at = self.stages[stage]
            raise ScenarioError(
                "gpu.memory_gb",
                f"stage {stage} lacks {lack / GB:.2f} GB: {at.num_layers} layers need {at.weight_bytes / GB:.2f} GB of "
                f"weights and {num_tokens * at.kv_bytes_per_token / GB:.2f} GB of cache for {num_tokens} tokens, "
                f"{at.usable_bytes / GB:.2f} GB are usable"
                + (f"; {len(missing) - 1} more stages lack memory" if len(missing) > 1 else ""),
                "more stages, a larger tp_size, a narrower type, or fewer layers on that stage",
            )
        return self


def capacities(
    usable: Sequence[float], weights: Sequence[float], kv_per_token: Sequence[float], layers: Sequence[int]
) -> Capacity:
    """Capacity from plain figures, one a stage and all in one unit of memory."""
    return Capacity(
        tuple(StageMemory(i, n, u, w, kv) for i, (n, u, w, kv) in enumerate(zip(layers, usable, weights, kv_per_token)))
    )


def model_capacity(
    shape: ModelShape,
    gpu: Gpu,
    partition: Sequence[int],
    tp_size: int,
    mem_fraction: float = 0.8,
    reserved_gb: float = 0.0,
) -> Capacity:
    """Memory of one GPU of each stage. ``mem_fraction`` of the memory holds weights and cache; ``reserved_gb`` is taken
    off that. Weights are cut by ``tp_size``; the cache is cut by its heads, and an MLA latent not at all."""
    shape.check_tp(tp_size)
    check_partition(partition, shape.num_layers, len(partition))
    usable = gpu.memory_gb * GB * mem_fraction - reserved_gb * GB
    kv_per_layer = shape.kv_bytes_per_token_per_layer / shape.attention.kv_shards(tp_size)
    weights, first, last_stage = [], 0, len(partition) - 1
    for stage, n in enumerate(partition):
        total = sum(shape.layer_weight_bytes(i) for i in range(first, first + n))
        total += shape.embedding_bytes * ((stage == 0) + (stage == last_stage and not _tied_copy(shape, last_stage)))
        weights.append(total / tp_size)
        first += n
    return capacities([usable] * len(weights), weights, [kv_per_layer * n for n in partition], list(partition))


def best_partition(
    shape: ModelShape, gpu: Gpu, pp_size: int, tp_size: int, mem_fraction: float = 0.8, reserved_gb: float = 0.0
) -> tuple[int, ...]:
    """The split whose limiting stage holds most tokens. Raises ScenarioError if no split fits."""
    head = 0.0 if _tied_copy(shape, pp_size - 1) else shape.embedding_bytes
    return partition_by_memory(
        gpu.memory_gb * GB * mem_fraction - reserved_gb * GB,
        [shape.layer_weight_bytes(i) / tp_size for i in range(shape.num_layers)],
        shape.kv_bytes_per_token_per_layer / shape.attention.kv_shards(tp_size),
        pp_size,
        first_extra=shape.embedding_bytes / tp_size,
        last_extra=head / tp_size,
    )


def _tied_copy(shape: ModelShape, last_stage: int) -> bool:
    """Whether the head costs nothing: it is the embedding, and both are on the only stage."""
    return shape.tie_word_embeddings and last_stage == 0
