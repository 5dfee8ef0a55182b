"""SGLang's dynamic chunking, exactly (protocol.md 5.1 to 5.3).

    profile   up to 128 prompts without a prefix, from 1.25 C downwards, timed on the first stage; the first is cold
    fit       f(l) = a l^2 + b l + c, least squares; at least 8 points; a <= 0 is an error; b < 0 becomes 0, no refit
    target    T = f(C) - f(0): the time of the first chunk
    next      positive root of a x^2 + (2 a L + b) x = T, blended towards C, not below C // 4, floored to the alignment,
              capped by the context and by max_prefill_tokens

The rule knows neither gamma nor a floor nor the length of the prompt. Whatever it cannot answer is None, and None means
the static chunk size for this step: scheduling never stops for a bad fit (bugs.md B94). Coefficients given by hand are
taken as they are: a negative b there is no fit of this module, and it is refused, not clamped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppsim.errors import ScenarioError
from ppsim.later import later

if TYPE_CHECKING:
    import numpy as np
else:
    np = later("numpy")

NUM_PROFILE_POINTS = 128
MIN_FIT_POINTS = 8
PROFILE_REACH = 1.25
ROUNDING = 1e-9  # share of a profiled time below which a term is an error of the arithmetic
ALIGN_TOKENS = 64
CONTEXT_MARGIN_TOKENS = 100
DEFAULT_SMOOTH_FACTOR = 0.75
DEFAULT_MAX_PREFILL_TOKENS = 16384


def profile_lengths(chunked_prefill_size: int) -> tuple[int, ...]:
    """Prompt lengths that the first stage times, longest first. Below 103 tokens the step is 0 and all are equal."""
    reach = PROFILE_REACH * chunked_prefill_size
    step = reach // NUM_PROFILE_POINTS
    lengths = []
    for i in range(NUM_PROFILE_POINTS):
        length = int(reach - i * step)
        if length <= 0:
            break
        lengths.append(length)
    return tuple(lengths)


@dataclass(frozen=True, slots=True)
class ChunkFit:
    """Coefficients of f(l) = a l^2 + b l + c in milliseconds. ``refused`` says why there are none to use."""

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    refused: str = ""
    warning: str = ""

    @property
    def ready(self) -> bool:
        return not self.refused


def fit_profile(lengths: Sequence[int], times_ms: Sequence[float]) -> ChunkFit:
    """Least squares over the samples, the first dropped. Never raises for bad figures: a refusal is a result."""
    if len(lengths) != len(times_ms):
        raise ScenarioError("chunk profile", f"{len(lengths)} lengths but {len(times_ms)} times")
    if any(not math.isfinite(t) or t < 0 for t in times_ms):
        return ChunkFit(refused="a profiled time is negative or not a number")
    x, y = np.asarray(lengths[1:], dtype=np.float64), np.asarray(times_ms[1:], dtype=np.float64)
    if len(x) < MIN_FIT_POINTS:
        return ChunkFit(refused=f"{len(x)} samples after the first, at least {MIN_FIT_POINTS} are needed")
    a, b, c = (float(v) for v in np.linalg.lstsq(np.stack([x * x, x, np.ones_like(x)], axis=1), y, rcond=None)[0])
    if abs(a) * float(x.max()) ** 2 <= ROUNDING * float(y.max()):
        return ChunkFit(a, b, c, refused="quadratic coefficient a is 0 but for rounding: the profile has no curve")
    if not a > 0:
        return ChunkFit(a, b, c, refused=f"quadratic coefficient a = {a:g} is not positive")
    if b < 0:
        return ChunkFit(a, 0.0, c, warning=f"linear coefficient b = {b:g} was negative and became 0")
    return ChunkFit(a, b, c)


@dataclass(frozen=True, slots=True)
class ChunkPredictor:
    """The next chunk of a prompt that is being continued. ``base`` is C, ``page_size`` and lengths are tokens.

    ``smooth_factor`` 0 switches dynamic chunking off, 1 follows the root. ``reason`` says why it is not ready.
    """

    a: float
    b: float
    base: int
    page_size: int = 1
    context_length: int = 131072
    max_prefill_tokens: int = DEFAULT_MAX_PREFILL_TOKENS
    smooth_factor: float = DEFAULT_SMOOTH_FACTOR
    fit_refused: str = ""

    def __post_init__(self) -> None:
        for name in ("base", "page_size", "context_length", "max_prefill_tokens"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"chunks.{name}", f"must be positive, got {getattr(self, name)}")
        if not 0.0 <= self.smooth_factor <= 1.0:
            raise ScenarioError("chunks.smooth_factor", f"must be between 0 and 1, got {self.smooth_factor}")
        check_alignment(self.base, self.page_size)

    @staticmethod
    def from_fit(
        fit: ChunkFit,
        base: int,
        *,
        page_size: int = 1,
        context_length: int = 131072,
        max_prefill_tokens: int = DEFAULT_MAX_PREFILL_TOKENS,
        smooth_factor: float = DEFAULT_SMOOTH_FACTOR,
    ) -> ChunkPredictor:
        """Predictor of a fit; a refused fit gives one that always answers None."""
        return ChunkPredictor(
            fit.a, fit.b, base, page_size, context_length, max_prefill_tokens, smooth_factor, fit.refused
        )

    @property
    def target_ms(self) -> float:
        """T: the time of the first chunk above f(0)."""
        return self.a * self.base * self.base + self.b * self.base

    @property
    def reason(self) -> str:
        """Why every answer is None, or nothing."""
        if self.fit_refused:
            return self.fit_refused
        if not (math.isfinite(self.a) and math.isfinite(self.b)):
            return f"coefficients a = {self.a}, b = {self.b} are not finite"
        if self.a <= 0:
            return f"quadratic coefficient a = {self.a:g} is not positive"
        if self.b < 0:
            return f"linear coefficient b = {self.b:g} is negative"
        if self.target_ms <= 0:
            return f"target time {self.target_ms:g} ms is not positive"
        return ""

    @property
    def align(self) -> int:
        return max(self.page_size, ALIGN_TOKENS)

    def root(self, prefix_len: int) -> float | None:
        """The x whose chunk after ``prefix_len`` takes as long as the first one; None if there is none."""
        slope = 2.0 * self.a * prefix_len + self.b
        discriminant = slope * slope + 4.0 * self.a * self.target_ms
        if discriminant < 0:
            return None
        x = (-slope + math.sqrt(discriminant)) / (2.0 * self.a)
        return x if x > 0 else None

    def next_chunk(self, prefix_len: int) -> int | None:
        """Tokens of the next chunk after ``prefix_len`` tokens, or None for the static size."""
        if self.reason:
            return None
        x = self.root(prefix_len)
        if x is None:
            return None
        smoothed = max(int(self.base + self.smooth_factor * (x - self.base)), self.base // 4)
        aligned = max(smoothed // self.align * self.align, self.align)
        room = min(self.context_length - prefix_len - CONTEXT_MARGIN_TOKENS, self.max_prefill_tokens)
        capped = min(aligned, room) // self.align * self.align
        return capped if capped >= self.align else None


def check_alignment(chunk: int, page_size: int, unit: int = 1) -> None:
    """Raise ScenarioError if a chunk cannot be cut at the page or another alignment unit (bugs.md B95).

    A chunk below the unit would be truncated to nothing in every step, and its request would wait for ever.
    """
    for name, step in (("page_size", page_size), ("alignment unit", unit)):
        if chunk < step:
            raise ScenarioError(
                "scheduler.chunked_prefill_size",
                f"{chunk} is smaller than the {name} {step}: a chunk would be rounded down to nothing",
                f"at least {step}",
            )
        if chunk % step:
            raise ScenarioError(
                "scheduler.chunked_prefill_size",
                f"{chunk} is not a multiple of the {name} {step}",
                f"nearest: {max(1, round(chunk / step)) * step}",
            )
