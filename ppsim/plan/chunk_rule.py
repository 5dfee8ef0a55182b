"""SGLang's rule for the next chunk in many configurations at once (``ppsim.cost.sglang_chunks`` on arrays).

A configuration without a usable predictor, or with a smooth factor of 0, gets its static size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ppsim.cost.sglang_chunks import CONTEXT_MARGIN_TOKENS, ChunkPredictor

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """One entry a configuration; ``ready`` is false where chunks are static."""

    base: Floats
    a: Floats
    b: Floats
    target: Floats
    smooth: Floats
    align: Floats
    context_length: Floats
    max_prefill: Floats
    ready: npt.NDArray[np.bool_]

    @staticmethod
    def of(predictors: Sequence[ChunkPredictor | None], bases: Sequence[int]) -> ChunkRule:
        """None: static chunks of that base."""
        ready = [p is not None and not p.reason and p.smooth_factor > 0 for p in predictors]
        known = [
            (p.a, p.b, p.target_ms, p.smooth_factor, p.align, p.context_length, p.max_prefill_tokens)
            if p is not None and ok
            else (1.0, 0.0, 1.0, 0.0, 64, 1, 1)
            for p, ok in zip(predictors, ready)
        ]
        columns = np.array(known, dtype=np.float64).T
        a, b, target, smooth, align, context_length, max_prefill = columns
        base, usable = np.array(bases, dtype=np.float64), np.array(ready, dtype=np.bool_)
        return ChunkRule(base, a, b, target, smooth, align, context_length, max_prefill, usable)

    def take(self, index: npt.NDArray[np.int64]) -> ChunkRule:
        """The same for some of the configurations."""
        return ChunkRule(*(getattr(self, f.name)[index] for f in fields(self)))

    def next_chunk(self, prefix_len: Floats) -> Floats:
        """Tokens of a continued prompt's next chunk after ``prefix_len`` tokens."""
        if not self.ready.any():
            return self.base
        slope = 2.0 * self.a * prefix_len + self.b
        x = (-slope + np.sqrt(slope * slope + 4.0 * self.a * self.target)) / (2.0 * self.a)
        smoothed = np.trunc(self.base + self.smooth * (x - self.base))
        smoothed = np.maximum(smoothed, np.floor(self.base / 4.0))
        aligned = np.maximum(np.floor(smoothed / self.align) * self.align, self.align)
        room = np.minimum(self.context_length - prefix_len - CONTEXT_MARGIN_TOKENS, self.max_prefill)
        capped = np.floor(np.minimum(aligned, room) / self.align) * self.align
        answered = self.ready & (x > 0.0) & (capped >= self.align)
        return np.where(answered, capped, self.base)
