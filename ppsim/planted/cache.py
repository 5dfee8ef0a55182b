"""Bugs of the radix cache and the KV pool."""

from __future__ import annotations

from ppsim.core.hooks import Hooks
from ppsim.core.prefix import Node
from ppsim.planted.registry import planted


@planted("local_capacity", breaks="INV-22", profile="plain", source="bugs.md B04")
class LocalCapacity(Hooks):
    """Each rank uses its own KV capacity instead of the minimum over all ranks."""

    def capacity(self, agreed_tokens: int, local_tokens: int) -> int:
        return local_tokens


@planted("clock_recency", breaks="INV-26", profile="plain", source="bugs.md B06")
class ClockRecency(Hooks):
    """Recency comes from a local clock: on odd ranks a few accesses within microseconds come out in reverse order."""

    def access_stamp(self, clock: int) -> int:
        return clock ^ 7 if self.pp_rank % 2 else clock


@planted("evict_newest_on_one_rank", breaks="INV-26", profile="plain", source="protocol.md 12, invariant 26")
class EvictNewest(Hooks):
    """The last rank evicts the most recently used leaf."""

    def eviction_key(self, node: Node) -> int:
        return -node.last_access if self.pp_rank else node.last_access
