"""Bugs of the cache tiers: what one rank alone has seen of a copy steers its tree (protocol.md 6.2, HiCache rows)."""

from __future__ import annotations

from ppsim.core.agreed import Agreed, agree
from ppsim.core.chain import Answer, Chain, Question
from ppsim.core.effects import Effects, observe
from ppsim.core.loop import Loop
from ppsim.core.memory.hicache import HiRadixCache
from ppsim.core.observations import OwnHits
from ppsim.core.rank import Plan, Rank
from ppsim.core.tiers import TIERS, Counts, finished_here, take_in
from ppsim.plugin import planted
from ppsim.plugin.plans import instead


def own_hits(rank: Rank, tiers: HiRadixCache) -> Effects[tuple[int, ...]]:
    """Of each fetch what this rank alone has seen: -1, or its own hit length."""
    keys = tuple(fetch.key for fetch in tiers.fetches)
    return (yield from observe(OwnHits(keys), rank.iteration)).value if keys else ()


class OwnTiers(Loop):
    """The exchange takes place, and each rank then goes by what it has seen itself."""

    def plan(self) -> Plan:
        return instead(super().plan(), "agree_tiers", self.agree_tiers)

    def agree_tiers(self, rank: Rank) -> Effects[None]:
        tiers = rank.scheduler.kv.tiers
        if tiers is None or not tiers.outstanding:
            return
        answer = yield from self.chain.decide(rank, TIERS)
        yield from self.chain.hand_down(rank, TIERS, answer)
        take_in(rank, tiers, (yield from self.own(rank, tiers, answer.counts)))

    def own(self, rank: Rank, tiers: HiRadixCache, counts: Counts) -> Effects[Counts]:
        """What this rank makes of the counts that were agreed."""
        yield from ()
        return counts


@planted("acks_counted_locally", breaks="INV-28", profile="hicache", source="bugs.md B07")
class AcksCountedLocally(OwnTiers):
    """Each rank consumes as many acknowledgements of writes and loads as it has seen itself."""

    def own(self, rank: Rank, tiers: HiRadixCache, counts: Counts) -> Effects[Counts]:
        return (yield from finished_here(rank, tiers)) + counts[2:]


@planted("own_storage_hits", breaks="INV-81", profile="hicache", source="bugs.md B08")
class OwnStorageHits(OwnTiers):
    """The end of a fetch is agreed, but each rank then takes the hit length that its own storage has."""

    def own(self, rank: Rank, tiers: HiRadixCache, counts: Counts) -> Effects[Counts]:
        own = yield from own_hits(rank, tiers)
        return counts[:2] + tuple(mine if agreed >= 0 else agreed for mine, agreed in zip(own, counts[2:], strict=True))


@planted("own_storage_readiness", breaks="INV-81", profile="hicache", source="sglang issue #34568")
class OwnStorageReadiness(OwnTiers):
    """Each rank ends a fetch as soon as its own part of it is over."""

    def own(self, rank: Rank, tiers: HiRadixCache, counts: Counts) -> Effects[Counts]:
        return counts[:2] + (yield from own_hits(rank, tiers))


@planted("silent_without_acks", breaks="INV-40", profile="hicache", source="bugs.md B24")
class SilentWithoutAcks(Chain):
    """A replica of the first stage that has seen no copy end skips the exchange; the others wait for its word."""

    def stage_view(self, rank: Rank, question: Question, mine: Answer) -> Effects[Answer]:
        tiers = rank.scheduler.kv.tiers
        if question is TIERS and tiers is not None and not tiers.fetches and not any(mine.counts):
            return mine
        return (yield from super().stage_view(rank, question, mine))


@planted("local_host_capacity", breaks="INV-22", profile="hicache", source="sglang issue #29054")
class LocalHostCapacity(Rank):
    """Each rank uses its own host capacity instead of the minimum over all ranks."""

    def start(self, capacity_tokens: Agreed[int], host_tokens: Agreed[int] | None = None) -> None:
        super().start(capacity_tokens, agree(self.local_tokens[1], "nobody else"))
