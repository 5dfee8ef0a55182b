"""Bugs of the radix cache and the KV pool."""

from __future__ import annotations

from ppsim.core.agreed import Agreed, agree
from ppsim.core.memory.node import Node
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.policy import Policy
from ppsim.core.rank import Rank
from ppsim.plugin import planted


@planted("local_capacity", breaks="INV-22", profile="plain", source="bugs.md B04")
class LocalCapacity(Rank):
    """Each rank uses its own KV capacity instead of the minimum over all ranks."""

    def start(self, capacity_tokens: Agreed[int], host_tokens: Agreed[int] | None = None) -> None:
        super().start(agree(self.local_tokens[0], "nobody else"), host_tokens)


@planted("clock_recency", breaks="INV-26", profile="plain", source="bugs.md B06")
class ClockRecency(RadixCache):
    """Recency comes from a local clock: on odd ranks a few accesses within microseconds come out in reverse order."""

    def stamp(self) -> int:
        return self.clock ^ 7 if self.policy.pp_rank % 2 else self.clock


@planted("evict_newest_on_one_rank", breaks="INV-26", profile="plain", source="protocol.md 12, invariant 26")
class EvictNewest(Policy):
    """The last rank evicts the most recently used leaf."""

    def eviction_key(self, node: Node) -> int:
        return -node.last_access if self.pp_rank else node.last_access
