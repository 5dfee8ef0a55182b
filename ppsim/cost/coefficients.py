"""The six numbers of a prefill chunk, for the whole model:

    max(floor, c + first [L = 0] + gamma L + b x + a (2 L x + x^2))

``a`` is cumulative: S tokens at once cost a S^2, and a chunk of x after L costs a ((L+x)^2 - L^2). A query at
position p costs alpha p with ``alpha = 2 a``; the two are never written with the same letter. Times are milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from ppsim.cost.stage import QuadraticCost
from ppsim.errors import ScenarioError
from ppsim.later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float64]
else:
    np = later("numpy")


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Milliseconds, per token and per token^2; ``source`` says where the numbers come from."""

    c_ms: float = 0.0
    gamma_ms: float = 0.0
    b_ms: float = 0.0
    a_ms: float = 0.0
    floor_ms: float = 0.0
    source: str = "given"
    first_ms: float = 0.0  # besides, of a chunk with nothing before it

    def __post_init__(self) -> None:
        for name in ("c_ms", "first_ms", "gamma_ms", "b_ms", "a_ms", "floor_ms"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ScenarioError(f"cost.{name}", f"must be a finite number >= 0, got {value}")

    @property
    def alpha_ms(self) -> float:
        """Milliseconds per (query, key) position: the slope of a query's cost, twice the cumulative ``a_ms``."""
        return 2.0 * self.a_ms

    def ms(self, prefix_len: npt.ArrayLike, new_tokens: npt.ArrayLike) -> Floats:
        """Time of chunks; arguments broadcast."""
        past, new = np.asarray(prefix_len, dtype=np.float64), np.asarray(new_tokens, dtype=np.float64)
        smooth = self.c_ms + self.gamma_ms * past + self.b_ms * new + self.a_ms * new * (2.0 * past + new)
        return np.asarray(np.maximum(self.floor_ms, smooth + self.first_ms * (past == 0.0)))

    def chunk_ms(self, prefix_len: int, new_tokens: int) -> float:
        """Time of one chunk."""
        return float(self.ms(prefix_len, new_tokens))

    def largest_chunk(self, prefix_len: npt.ArrayLike, target_ms: npt.ArrayLike) -> Floats:
        """The real x >= 0 whose chunk after ``prefix_len`` takes ``target_ms``; 0 if even an empty one takes longer,
        infinite if no length ever does. Arguments broadcast."""
        past, target = np.asarray(prefix_len, dtype=np.float64), np.asarray(target_ms, dtype=np.float64)
        budget = target - self.c_ms - self.first_ms * (past == 0.0) - self.gamma_ms * past
        slope = self.b_ms + 2.0 * self.a_ms * past
        # the positive root of a x^2 + slope x = budget, in the form that survives a -> 0
        below = slope + np.sqrt(np.maximum(slope * slope + 4.0 * self.a_ms * budget, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.where(below > 0.0, 2.0 * budget / below, np.inf)
        return np.where((target < self.floor_ms) | (budget <= 0.0), 0.0, root)

    def stage_cost(self, shares: tuple[float, ...]) -> QuadraticCost:
        """The same numbers as a StageCost; ``shares`` is each stage's part of the whole (they sum to 1)."""
        return QuadraticCost(
            shares=shares,
            floor_ms=self.floor_ms,
            c_ms=self.c_ms,
            first_ms=self.first_ms,
            gamma_ms=self.gamma_ms,
            b_ms=self.b_ms,
            a_ms=self.a_ms,
        )

    def to_dict(self) -> dict[str, float | str]:
        """All fields and alpha, for JSON."""
        return {**asdict(self), "alpha_ms": self.alpha_ms}
