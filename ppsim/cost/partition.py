"""Which layers a stage owns (protocol.md 10.2: even split, the remainder goes one each to the last ranks)."""

from __future__ import annotations

from itertools import accumulate


def even_partition(num_layers: int, pp_size: int) -> tuple[int, ...]:
    """Layers of each stage: sizes differ by at most one, larger ones last. Raises ValueError if a stage gets none."""
    if pp_size > num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut over {pp_size} stages")
    base, extra = divmod(num_layers, pp_size)
    return tuple(base + (1 if stage >= pp_size - extra else 0) for stage in range(pp_size))


def layer_offsets(partition: tuple[int, ...]) -> tuple[int, ...]:
    """First layer of each stage: a prefix sum, never rank times own size (bugs.md B64)."""
    return (0, *accumulate(partition))[:-1]
