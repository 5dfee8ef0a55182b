"""Mean and percentiles of values that are seen once and not kept: exact of a few, within a stated error of many.

Rule: integers only, so the same values give the same answer on any machine, in whatever order they come.

Up to ``MAX_EXACT`` values all are kept, and the percentiles are those of ``summary.statistics``. Beyond it each falls
into a bucket of the layout that HdrHistogram has (Gil Tene, hdrhistogram.org): the highest bits of a value name its
bucket, so buckets grow with the values and each is at most 2**-BITS of its lower edge wide. A value is told as the
middle of its bucket, at most half of that away: ``MAX_RELATIVE_ERROR``. Values below 2**(BITS + 1) units have a bucket
each. A percentile lies between two neighbours in order, both told so, and has the same bound. (DDSketch, Masson, Rim
and Lee, VLDB 2019, promises the same with logarithms, whose last bit is the machine's.)

The number of buckets follows from the greatest value and not from how many there are: 256 for each doubling.
"""

from __future__ import annotations

from array import array
from fractions import Fraction

NS_PER_S = 1_000_000_000
MAX_EXACT = 10_000  # values, of 16 bytes each
BITS = 8
MAX_RELATIVE_ERROR = 2.0 ** -(BITS + 1)
FRACTION_BITS = 10  # a bucket's unit is 2**-10 ns: intervals of a token are quotients
PERCENTILES = (50, 90, 99)


class Buckets:
    """Counts of non-negative integers by bucket."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.num = 0

    def add(self, value: int) -> None:
        """Raises ValueError for a negative value: times do not go back."""
        if value < 0:
            raise ValueError(f"a time of {value} cannot be counted")
        shift = max(value.bit_length() - BITS - 1, 0)
        place = (shift << (BITS + 1)) + (value >> shift)
        self.counts[place] = self.counts.get(place, 0) + 1
        self.num += 1

    def percentile(self, q: int) -> float:
        """As ``summary.percentile``: position q/100 * (num - 1), linear between the two values around it."""
        low, rest = divmod(q * (self.num - 1), 100)
        below, above = self._at(low), self._at(min(low + 1, self.num - 1))
        return below + (above - below) * rest / 100

    def _at(self, place: int) -> float:
        """The value at a place in ascending order, from 0: the middle of its bucket."""
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen > place:
                shift, head = bucket >> (BITS + 1), bucket & ((1 << (BITS + 1)) - 1)
                return (head << shift) + ((1 << shift) - 1) / 2
        raise ValueError(f"there are {self.num} values, none at {place}")


class Quantiles:
    """Statistics of elapsed[i] / divisors[i], in ns; both are kept while it is exact. The mean always is."""

    def __init__(self, max_exact: int = MAX_EXACT) -> None:
        self.max_exact = max_exact
        self.num = 0
        self.elapsed, self.divisors = array("q"), array("q")
        self.totals: dict[int, int] = {}  # by divisor: the sum of what it divides
        self.buckets: Buckets | None = None  # there are more than ``max_exact``

    def add(self, elapsed_ns: int, divisor: int = 1) -> None:
        self.num += 1
        self.totals[divisor] = self.totals.get(divisor, 0) + elapsed_ns
        if self.buckets is not None:
            self.buckets.add((elapsed_ns << FRACTION_BITS) // divisor)
            return
        self.elapsed.append(elapsed_ns)
        self.divisors.append(divisor)
        if self.num > self.max_exact:
            self.buckets = Buckets()
            for kept, by in zip(self.elapsed, self.divisors, strict=True):
                self.buckets.add((kept << FRACTION_BITS) // by)
            self.elapsed, self.divisors = array("q"), array("q")

    @property
    def is_exact(self) -> bool:
        return self.buckets is None

    def statistics(self) -> dict[str, float | None]:
        """Mean and percentiles in seconds, where it is no longer exact."""
        assert self.buckets is not None
        mean = sum((Fraction(total, by) for by, total in sorted(self.totals.items())), Fraction(0)) / self.num
        unit = NS_PER_S << FRACTION_BITS
        found: dict[str, float | None] = {"mean": float(mean / NS_PER_S)}
        return found | {f"p{q}": self.buckets.percentile(q) / unit for q in PERCENTILES}
