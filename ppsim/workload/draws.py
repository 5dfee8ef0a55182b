"""Random draws from named streams of one seed: a new draw in one stream shifts no other (design decision 6).

Only the raw bits of PCG64 are taken from numpy, because numpy promises to keep those and not its distributions;
everything else is an inverse distribution function over Python's own floats, one draw a value.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING
from zlib import crc32

from ppsim.scenario.workload_keys import Length

if TYPE_CHECKING:
    from numpy.random import PCG64

NS_PER_S = 1_000_000_000
NEVER = 2.0**53
"""A success that late is no success: no request has so many tokens."""


class Stream:
    """The stream ``name`` of ``seed``."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed, self.name = seed, name

    @cached_property
    def bits(self) -> PCG64:
        """Made with the first draw: a workload that draws nothing does without numpy, a good part of a start."""
        from numpy.random import PCG64, SeedSequence

        return PCG64(SeedSequence([self.seed, crc32(self.name.encode())]))

    def uniform(self) -> float:
        """In the open interval (0, 1); all values are exact multiples of 2**-53."""
        return ((int(self.bits.random_raw()) >> 12) + 0.5) * 2.0**-52

    def below(self, stop: int) -> int:
        """An integer in [0, stop)."""
        return min(int(self.uniform() * stop), stop - 1)

    def exponential_ns(self, rate_per_s: float) -> int:
        """A gap between two arrivals of a Poisson process, in whole nanoseconds."""
        return round(-math.log(self.uniform()) / rate_per_s * NS_PER_S)

    def geometric(self, probability: float) -> int:
        """Number of trials up to the first success, from 1; 0 for a probability of 0: it never comes."""
        if probability == 0.0:
            return 0
        if probability == 1.0:
            return 1
        trials = math.log(self.uniform()) / math.log1p(-probability)
        return max(1, math.ceil(trials)) if trials < NEVER else 0

    def length(self, dist: Length) -> int:
        """A length in tokens. ``lognormal``: its own mean is ``dist.mean`` before the bounds cut it."""
        if dist.kind == "fixed":
            return dist.value
        if dist.kind == "uniform":
            return dist.min + self.below(dist.max - dist.min + 1)
        mu = math.log(dist.mean) - dist.sigma**2 / 2
        log_tokens = mu + dist.sigma * NormalDist().inv_cdf(self.uniform())
        return max(dist.min, min(dist.max, round(math.exp(min(log_tokens, math.log(dist.max))))))


def exactly(value: float) -> Fraction:
    """The number as it was written in the scenario: 0.1 is a tenth, and not the nearest binary fraction."""
    return Fraction(repr(value))
