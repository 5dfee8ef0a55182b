"""Which layers a stage owns: given by hand, even, balanced by cost, or by memory.

    even        sizes differ by at most one, the larger ones last (protocol.md 10.2). Late chunks of a long prompt are
                the dear ones, and a big first stage delays the drain: 15,15,15,16 beats 16,15,15,15 (published.md E1)
    by cost     the dearest stage is as cheap as can be; of all such splits the most even one, larger stages last
    by memory   the stage with the least room for the KV cache has as much as can be (bugs.md B109)

All splits are contiguous and leave no stage empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate

from ppsim.errors import ScenarioError


def even_partition(num_layers: int, pp_size: int) -> tuple[int, ...]:
    """Layers of each stage: sizes differ by at most one, larger ones last. Raises ValueError if a stage gets none."""
    if pp_size > num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut over {pp_size} stages")
    base, extra = divmod(num_layers, pp_size)
    return tuple(base + (1 if stage >= pp_size - extra else 0) for stage in range(pp_size))


def layer_offsets(partition: tuple[int, ...]) -> tuple[int, ...]:
    """First layer of each stage: a prefix sum, never rank times own size (bugs.md B64)."""
    return (0, *accumulate(partition))[:-1]


def parse_partition(text: str) -> tuple[int, ...]:
    """``"15,15,15,16"`` as SGLANG_PP_LAYER_PARTITION writes it. Raises ScenarioError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ScenarioError("model.layer_partition", f"must be numbers with commas between, got {text!r}") from None


def check_partition(partition: Sequence[int], num_layers: int, pp_size: int) -> None:
    """Raise ScenarioError unless the split has a positive entry for each stage and covers all layers."""
    given = ",".join(map(str, partition))
    if len(partition) != pp_size:
        raise ScenarioError("model.layer_partition", f"{given} has {len(partition)} entries for {pp_size} stages")
    for stage, n in enumerate(partition):
        if n < 1:
            raise ScenarioError("model.layer_partition", f"{given} gives stage {stage} {n} layers", "at least one each")
    if sum(partition) != num_layers:
        hint = ",".join(map(str, even_partition(num_layers, pp_size))) if pp_size <= num_layers else "fewer stages"
        raise ScenarioError(
            "model.layer_partition", f"{given} sums to {sum(partition)}, but there are {num_layers} layers", hint
        )


def partition_by_cost(
    layer_costs: Sequence[float], pp_size: int, first_extra: float = 0.0, last_extra: float = 0.0
) -> tuple[int, ...]:
    """Contiguous split whose dearest stage is cheapest. ``*_extra`` burdens the first and last stage (embedding, head).

    Exact: the smallest bound on a stage's cost that any split keeps is found first, then the most even split within it.
    O(P N^2). Raises ScenarioError if a stage would get no layer.
    """
    stage_cost = _stage_sums(layer_costs, pp_size, first_extra, last_extra)
    bounds = sorted({stage_cost(s, i, j) for s, i, j in _slices(len(layer_costs), pp_size)})
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if _greedy_fits(len(layer_costs), pp_size, lambda s, i, j: stage_cost(s, i, j) <= bounds[middle]):  # noqa: B023
            high = middle
        else:
            low = middle + 1
    return _most_even(len(layer_costs), pp_size, lambda s, i, j: stage_cost(s, i, j) <= bounds[low], stage_cost)


def partition_by_memory(
    memory: float,
    layer_weights: Sequence[float],
    kv_per_token: float | Sequence[float],
    pp_size: int,
    first_extra: float = 0.0,
    last_extra: float = 0.0,
) -> tuple[int, ...]:
    """Contiguous split whose smallest stage holds most KV tokens; of those the most even one. One unit throughout.

    ``memory`` is what a stage may use, weights and cache together; ``kv_per_token`` is the same for all layers, or each
    its own, 0 for one without a cache. Raises ScenarioError if the model does not fit.
    """
    num_layers = len(layer_weights)
    weights = _stage_sums(layer_weights, pp_size, first_extra, last_extra)
    room = Fraction(memory)
    each = [kv_per_token] * num_layers if isinstance(kv_per_token, int | float) else list(kv_per_token)
    caches = _stage_sums(each, pp_size, 0.0, 0.0)

    def holds(num_tokens: int) -> Fits:
        return lambda s, i, j: weights(s, i, j) + num_tokens * caches(s, i, j) <= room

    if not _greedy_fits(num_layers, pp_size, holds(0)):
        need = float(sum(map(Fraction, layer_weights)) + Fraction(first_extra) + Fraction(last_extra))
        raise ScenarioError(
            "gpu.memory_gb",
            f"weights of {need:g} fit in no way into {pp_size} stages of {memory:g}",
            "more stages or tp",
        )
    dearest = max(map(Fraction, each), default=Fraction(0))
    low, high = 0, int(room / dearest) + 1 if dearest else 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _greedy_fits(num_layers, pp_size, holds(middle)) else (low, middle)
    return _most_even(num_layers, pp_size, holds(low), lambda s, i, j: Fraction(j - i))


def partition_by_tokens(num_layers: int, pp_size: int, tokens: Callable[[int, int, int], int]) -> tuple[int, ...]:
    """Likewise, where ``tokens`` says how many a stage with the layers [start, stop) holds: fewer with each layer more.

    Raises ScenarioError if every split has a stage that holds none.
    """
    low, high = 0, max(tokens(s, i, i + 1) for s in range(pp_size) for i in range(num_layers)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = _greedy_fits(num_layers, pp_size, lambda s, i, j: tokens(s, i, j) >= middle)  # noqa: B023
        low, high = (middle, high) if fits else (low, middle)
    if low == 0:
        raise ScenarioError("gpu.memory_gb", f"no split into {pp_size} stages leaves room for a token on each")
    return _most_even(num_layers, pp_size, lambda s, i, j: tokens(s, i, j) >= low, lambda s, i, j: Fraction(j - i))


Fits = Callable[[int, int, int], bool]
"""Whether a stage can own the layers [start, stop)."""


def _stage_sums(
    values: Sequence[float], pp_size: int, first_extra: float, last_extra: float
) -> Callable[[int, int, int], Fraction]:
    """Exact sum over the layers [start, stop) of a stage, its extra included."""
    if pp_size < 1 or pp_size > len(values):
        raise ScenarioError("cluster.pp_size", f"{pp_size} stages cannot be cut from {len(values)} layers")
    sums = (Fraction(0), *accumulate(Fraction(v) for v in values))
    first, last = Fraction(first_extra), Fraction(last_extra)

    def total(stage: int, start: int, stop: int) -> Fraction:
        extra = (first if stage == 0 else 0) + (last if stage == pp_size - 1 else 0)
        return sums[stop] - sums[start] + extra

    return total


def _slices(num_layers: int, pp_size: int) -> Iterator[tuple[int, int, int]]:
    """(stage, start, stop) that some split with no empty stage contains; of the inner stages one stands for all."""
    for stage in sorted({0, min(1, pp_size - 1), pp_size - 1}):
        for start in range(num_layers) if stage else (0,):
            stops = (num_layers,) if stage == pp_size - 1 else range(start + 1, num_layers)
            yield from ((stage, start, stop) for stop in stops if stop > start)


def _greedy_fits(num_layers: int, pp_size: int, fits: Fits) -> bool:
    """Whether a split exists: each stage takes all it can, but leaves a layer for each later one."""
    start = 0
    for stage in range(pp_size):
        stop, limit = start, num_layers - (pp_size - stage - 1)
        while stop < limit and fits(stage, start, stop + 1):
            stop += 1
        if stop == start:
            return False
        start = stop
    return start == num_layers


def _most_even(num_layers: int, pp_size: int, fits: Fits, load: Callable[[int, int, int], Fraction]) -> tuple[int, ...]:
    """The split with the least sum of squared loads among those where every stage fits; ties: larger stages last."""
    best: list[dict[int, tuple[Fraction, int]]] = [{} for _ in range(pp_size)]
    for stage in reversed(range(pp_size)):
        left = pp_size - stage - 1
        for start in range(stage, num_layers - left):
            stops = range(start + 1, num_layers - left + 1) if left else (num_layers,)
            options = [
                (load(stage, start, stop) ** 2 + (best[stage + 1][stop][0] if left else 0), stop)
                for stop in stops
                if fits(stage, start, stop) and (not left or stop in best[stage + 1])
            ]
            if options:
                best[stage][start] = min(options)
    split, start = [], 0
    for stage in range(pp_size):
        stop = best[stage][start][1]
        split.append(stop - start)
        start = stop
    return tuple(split)
