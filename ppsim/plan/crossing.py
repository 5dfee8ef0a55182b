"""The bandwidth at which one way overtakes another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

REACH_GB_PER_S = (0.1, 1e4)
SECTIONS = (24, 12)  # points of each round of the search for a crossover

Gains: TypeAlias = Callable[[Sequence[float]], list[float]]
"""Of each bandwidth: how far one way is ahead; rising with the bandwidth."""


def crossing(gains: Gains) -> float | None:
    """The bandwidth at which ``gains`` become positive; None without a change of sign.

    A bisection with many points at a time, on a logarithmic scale: each round looks at a row of them and keeps the
    interval where the sign changes; between the last two points the gain is a straight line.
    """
    low, high = REACH_GB_PER_S
    before = after = 0.0
    for num_points in SECTIONS:
        links = [float(b) for b in np.geomspace(low, high, num_points)]
        values = gains(links)
        above = next((i for i, value in enumerate(values) if value > 0.0), None)
        if not above:  # never, or from the first point on
            return None
        low, high, before, after = links[above - 1], links[above], values[above - 1], values[above]
    return float(low * (high / low) ** (-before / (after - before)))
