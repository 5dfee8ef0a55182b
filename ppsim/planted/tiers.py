"""Bugs of the cache tiers: what one rank alone has seen of a copy steers its tree (protocol.md 6.2, HiCache rows)."""

from __future__ import annotations

from ppsim.core.effects import Effects, observe
from ppsim.core.hicache import HiRadixCache
from ppsim.core.hooks import Hooks
from ppsim.core.loop import Plan
from ppsim.core.rank import Rank
from ppsim.core.tiers import agree_tiers, exchange, finished_here, hand_down, take_in
from ppsim.planted.plans import instead
from ppsim.planted.registry import planted


def own_hits(rank: Rank, tiers: HiRadixCache) -> Effects[tuple[int, ...]]:
    """Of each fetch what this rank alone has seen: -1, or its own hit length."""
    keys = tuple(fetch.key for fetch in tiers.fetches)
    return (yield from observe("own_prefetch", keys, rank.iteration)).value if keys else ()


@planted("acks_counted_locally", breaks="INV-28", profile="hicache", source="bugs.md B07")
class AcksCountedLocally(Hooks):
    """Each rank consumes as many acknowledgements of writes and loads as it has seen itself."""

    def plan(self, steps: Plan) -> Plan:
        def agree_tiers(rank: Rank) -> Effects[None]:
            tiers = rank.scheduler.kv.tiers
            if tiers is None or not tiers.outstanding:
                return
            counts = yield from exchange(rank, tiers)
            own = yield from finished_here(rank, tiers)
            take_in(rank, tiers, own + counts[2:])

        return instead(steps, "agree_tiers", agree_tiers)


@planted("own_storage_hits", breaks="INV-28", profile="hicache", source="bugs.md B08")
class OwnStorageHits(Hooks):
    """The end of a fetch is agreed, but each rank then takes the hit length that its own storage has."""

    def plan(self, steps: Plan) -> Plan:
        def agree_tiers(rank: Rank) -> Effects[None]:
            tiers = rank.scheduler.kv.tiers
            if tiers is None or not tiers.outstanding:
                return
            counts = yield from exchange(rank, tiers)
            own = yield from own_hits(rank, tiers)
            hits = tuple(mine if agreed >= 0 else agreed for mine, agreed in zip(own, counts[2:], strict=True))
            take_in(rank, tiers, counts[:2] + hits)

        return instead(steps, "agree_tiers", agree_tiers)


@planted("own_storage_readiness", breaks="INV-28", profile="hicache", source="sglang issue #34568")
class OwnStorageReadiness(Hooks):
    """Each rank ends a fetch as soon as its own part of it is over."""

    def plan(self, steps: Plan) -> Plan:
        def agree_tiers(rank: Rank) -> Effects[None]:
            tiers = rank.scheduler.kv.tiers
            if tiers is None or not tiers.outstanding:
                return
            counts = yield from exchange(rank, tiers)
            own = yield from own_hits(rank, tiers)
            take_in(rank, tiers, counts[:2] + own)

        return instead(steps, "agree_tiers", agree_tiers)


@planted("silent_without_acks", breaks="INV-28", profile="hicache", source="bugs.md B24")
class SilentWithoutAcks(Hooks):
    """A replica of the first stage that has seen no copy end skips the exchange; the others wait for its word."""

    def plan(self, steps: Plan) -> Plan:
        right = agree_tiers

        def silent(rank: Rank) -> Effects[None]:
            tiers = rank.scheduler.kv.tiers
            if tiers is None or not tiers.outstanding:
                return
            if rank.config.is_first and not tiers.fetches and not any((yield from finished_here(rank, tiers))):
                yield from hand_down(rank, (0, 0))
                return
            yield from right(rank)

        return instead(steps, "agree_tiers", silent)


@planted("local_host_capacity", breaks="INV-22", profile="hicache", source="sglang issue #29054")
class LocalHostCapacity(Hooks):
    """Each rank uses its own host capacity instead of the minimum over all ranks."""

    def host_capacity(self, agreed_tokens: int, local_tokens: int) -> int:
        return local_tokens
