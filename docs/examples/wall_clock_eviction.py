"""A planted bug of our own: the radix cache forgets what a wall clock says was used longest ago.

It looks harmless: every rank has the same cache and sees the same accesses in the same order. But the stages of a
pipeline do the same thing at different instants. Here a cache node keeps one byte of the time, in ticks of 0.1 ms, and
where that byte wraps between two accesses depends on the rank: then the ranks forget different prefixes.

    ppsim fuzz --plugin wall_clock_eviction.py --bug wall_clock_eviction
"""

from ppsim.core.memory.prefix import RadixCache
from ppsim.plugin import planted

TICK_NS = 100_000


@planted("wall_clock_eviction", breaks="INV-26", profile="plain", source="docs/plugins.md")
class WallClockEviction(RadixCache):
    """Recency of a cached prefix is the time of its last use, by the rank's own clock."""

    def stamp(self) -> int:
        return self.policy.wall_clock_ns() // TICK_NS % 256
