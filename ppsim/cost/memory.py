"""KV capacity of each stage, and which stage limits the pipeline.

    tokens(stage) = (memory * fraction - weights(stage)) / (KV bytes of one token in the layers of the stage)

This is the one place that computes it: a scenario's pool (``ppsim.scenario.rank.gpu_capacity``), the tuner, the
comparison, the layer reports and the questions all ask here, and the host tier divides with ``tokens_in``.

All stages hold the same requests, so the pipeline holds as many tokens as its smallest stage. That is not the stage
with the least free memory but the one with the least free memory *per layer* (bugs.md B111), and it is often an end
stage: the embedding burdens the first, the head the last (bugs.md B109).

Layers with a state of fixed size a request (``state``) have a pool of their own beside the cache, a slot a request. As
in SGLang, what is left after the weights is divided between the two,

    slots = left * r / (1 + r) / (state bytes of a request in the layers of the stage)    r: mamba_full_memory_ratio

or the number of slots is given; the cache has the rest. A layer with a window needs no more than the window of each
request, but a server keeps tokens: where SGLang has a pool of its own for such layers (``swa_full_tokens_ratio``, 0.8
of the tokens), a token costs that share there, elsewhere all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppsim.cost.gpu import Gpu
from ppsim.cost.model import ModelShape
from ppsim.cost.partition import check_partition, partition_by_memory, partition_by_tokens
from ppsim.errors import ScenarioError

GB = 1e9
MAMBA_FULL_MEMORY_RATIO = 0.9  # SGLang's default of --mamba-full-memory-ratio
SLOTS_PER_RUNNING = 3  # MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO: with a radix cache states are kept for later hits
SWA_FULL_TOKENS_RATIO = 0.8  # SGLang's default of --swa-full-tokens-ratio
NO_LIMIT = 1 << 40  # tokens of a stage that has no cache at all


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One GPU of a stage. ``num_tokens`` is 0 where nothing is left, and negative memory is never shown as room.
    ``num_slots``: states of requests that it holds, None where no layer has one."""

    stage: int
    num_layers: int
    usable_bytes: float
    weight_bytes: float
    kv_bytes_per_token: float
    state_bytes: float = 0.0  # of a request
    num_slots: int | None = None

    @property
    def free_bytes(self) -> float:
        """What the cache has: weights and states are taken off."""
        return self.usable_bytes - self.weight_bytes - self.state_bytes * (self.num_slots or 0)

    @property
    def num_tokens(self) -> int:
        return tokens_in(self.free_bytes, self.kv_bytes_per_token)


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

    def num_requests(self, num_tokens: int) -> int | None:
        """Requests of so many tokens each whose cache and states are held at once, no prefix kept; None: any number,
        because no layer keeps anything."""
        limits = [s.num_slots for s in self.stages if s.num_slots is not None]
        if self.num_tokens < NO_LIMIT:
            limits.append(max(0, self.num_tokens // num_tokens))
        return min(limits, default=None)

    def require(self, num_tokens: int = 1) -> Capacity:
        """Self, or ScenarioError that says which stage lacks how many GB for ``num_tokens`` tokens of cache."""
        lacking = [(s.stage, num_tokens * s.kv_bytes_per_token - s.free_bytes) for s in self.stages]
        missing = [(stage, lack) for stage, lack in lacking if lack > 0]
        if missing:
            stage, lack = max(missing, key=lambda m: (m[1], -m[0]))
            at = self.stages[stage]
            raise ScenarioError(
                "gpu.memory_gb",
                f"stage {stage} lacks {lack / GB:.2f} GB: {at.num_layers} layers need {at.weight_bytes / GB:.2f} GB of "
                f"weights and {num_tokens * at.kv_bytes_per_token / GB:.2f} GB of cache for {num_tokens} tokens, "
                + (f"{at.state_bytes * at.num_slots / GB:.2f} GB of states, " if at.num_slots else "")
                + f"{at.usable_bytes / GB:.2f} GB are usable"
                + (f"; {len(missing) - 1} more stages lack memory" if len(missing) > 1 else ""),
                "more stages, a larger tp_size, a narrower type, or fewer layers on that stage",
            )
        return self


def tokens_in(room_bytes: float, bytes_per_token: float) -> int:
    """Tokens that so much memory holds; 0 where nothing is left, NO_LIMIT where a token takes none."""
    if room_bytes <= 0:
        return 0
    return int(room_bytes / bytes_per_token) if bytes_per_token else NO_LIMIT


def usable_bytes(gpu: Gpu | float, mem_fraction: float, reserved_gb: float = 0.0) -> float:
    """Memory of one GPU for weights, states and cache, in whole bytes: what a product of floats leaves behind the point
    must not cost a token."""
    return float(round(memory_of(gpu) * GB * mem_fraction - reserved_gb * GB))


def capacities(
    usable: Sequence[float], weights: Sequence[float], kv_per_token: Sequence[float], layers: Sequence[int]
) -> Capacity:
    """Capacity from plain figures, one a stage and all in one unit of memory."""
    return Capacity(
        tuple(StageMemory(i, n, u, w, kv) for i, (n, u, w, kv) in enumerate(zip(layers, usable, weights, kv_per_token)))
    )


def model_capacity(
    shape: ModelShape,
    gpu: Gpu | float,
    partition: Sequence[int],
    tp_size: int,
    mem_fraction: float = 0.8,
    reserved_gb: float = 0.0,
    pool: StatePool | None = None,
) -> Capacity:
    """Memory of one GPU of each stage; ``gpu`` may be its memory in GB. ``mem_fraction`` of it holds weights, states
    and cache; ``reserved_gb`` is taken off that. Weights are cut by ``tp_size``; the cache is cut by its heads, and
    an MLA latent not at all."""
    shape.check_tp(tp_size)
    check_partition(partition, shape.num_layers, len(partition))
    usable = usable_bytes(gpu, mem_fraction, reserved_gb)
    stages, first = [], 0
    for stage, n in enumerate(partition):
        span = (first, first + n)
        stages.append(stage_memory(shape, stage, span, len(partition), tp_size, usable, pool or StatePool()))
        first += n
    return Capacity(tuple(stages))


def stage_memory(
    shape: ModelShape,
    stage: int,
    span: tuple[int, int],
    pp_size: int,
    tp_size: int,
    usable_bytes: float,
    pool: StatePool,
) -> StageMemory:
    """One stage of ``pp_size``, with the layers [start, stop) of ``span``."""
    layers, last = range(*span), pp_size - 1
    total = sum(shape.layer_weight_bytes(i) for i in layers)
    total += shape.embedding_bytes * ((stage == 0) + (stage == last and not _tied_copy(shape, last)))
    total += shape.front_bytes * (stage == 0)
    kv = sum((layer_pool_bytes(shape, i, tp_size) for i in layers), 0.0)
    state = sum((shape.layer_state_bytes(i, tp_size) for i in layers), 0.0)
    slots = pool.slots(usable_bytes - total / tp_size, state)
    return StageMemory(stage, len(layers), usable_bytes, total / tp_size, kv, state, slots)


def memory_of(gpu: Gpu | float) -> float:
    """GB of a GPU."""
    return gpu.memory_gb if isinstance(gpu, Gpu) else gpu


@dataclass(frozen=True, slots=True)
class StatePool:
    """How much of the memory the states of requests get: so many slots, or a share in the ratio to the cache."""

    num_slots: int | None = None
    full_memory_ratio: float = MAMBA_FULL_MEMORY_RATIO

    def slots(self, free_bytes: float, state_bytes: float) -> int | None:
        """Slots of a stage whose states take ``state_bytes`` a request; None where they take none."""
        if not state_bytes:
            return None
        if self.num_slots is not None:
            return self.num_slots
        share = self.full_memory_ratio / (1.0 + self.full_memory_ratio)
        return max(0, int(free_bytes * share / state_bytes))


def stage_kv_bytes(shape: ModelShape, partition: Sequence[int], tp_size: int) -> list[float]:
    """Bytes that a token of the pool takes on one GPU of each stage."""
    found, first = [], 0
    for n in partition:
        found.append(sum((layer_pool_bytes(shape, i, tp_size) for i in range(first, first + n)), 0.0))
        first += n
    return found


def layer_pool_bytes(shape: ModelShape, layer: int, tp_size: int) -> float:
    """Bytes of a token of the pool in a layer: less than its keys and values where the server has a smaller pool for
    layers with a window."""
    if not shape.has_window_pool or all(a.reach.kind == "full" for a in shape.layers[layer].attentions):
        return shape.layer_kv_bytes(layer, tp_size)
    return shape.layer_kv_bytes(layer, tp_size) * SWA_FULL_TOKENS_RATIO


def best_partition(
    shape: ModelShape,
    gpu: Gpu | float,
    pp_size: int,
    tp_size: int,
    mem_fraction: float = 0.8,
    reserved_gb: float = 0.0,
    pool: StatePool | None = None,
) -> tuple[int, ...]:
    """The split whose limiting stage holds most tokens. Raises ScenarioError if no split fits."""
    head = 0.0 if _tied_copy(shape, pp_size - 1) else shape.embedding_bytes
    usable = usable_bytes(gpu, mem_fraction, reserved_gb)
    layers = range(shape.num_layers)
    split = partition_by_memory(
        usable,
        [shape.layer_weight_bytes(i) / tp_size for i in layers],
        [layer_pool_bytes(shape, i, tp_size) for i in layers],
        pp_size,
        first_extra=(shape.embedding_bytes + shape.front_bytes) / tp_size,
        last_extra=head / tp_size,
    )
    if not shape.state_bytes:
        return split

    def tokens(stage: int, start: int, stop: int) -> int:
        return stage_memory(shape, stage, (start, stop), pp_size, tp_size, usable, pool or StatePool()).num_tokens

    return partition_by_tokens(shape.num_layers, pp_size, tokens)


def _tied_copy(shape: ModelShape, last_stage: int) -> bool:
    """Whether the head costs nothing: it is the embedding, and both are on the only stage."""
    return shape.tie_word_embeddings and last_stage == 0
