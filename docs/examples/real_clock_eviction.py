"""The same policy as an engine would have it: it asks the operating system for the time.

What it does depends on how fast this machine is just now, so no run of it can be repeated. The tool finds the
difference between the ranks, does not find the same one again, and names the plug-in nondeterministic: exit code 4.

    ppsim fuzz --plugin real_clock_eviction.py --profile plain
"""

import time

from ppsim.core.memory.prefix import RadixCache

TICK_NS = 100_000


class RealClockEviction(RadixCache):
    """Recency of a cached prefix is the time of its last use."""

    def stamp(self) -> int:
        return time.monotonic_ns() // TICK_NS % 256


CHANGES = [RealClockEviction]
