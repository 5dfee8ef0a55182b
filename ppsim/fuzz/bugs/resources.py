"""Bugs of pools, rows and the radix cache. Invariants 23 to 25, 27, 29, 30 (22 and 26: ``cache.py``)."""

from __future__ import annotations

from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.memory.kv import KVCache
from ppsim.core.memory.node import Match
from ppsim.core.memory.pool import Pool
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import Request
from ppsim.core.votes import Voting
from ppsim.plugin import planted
from ppsim.plugin.plans import before, does


class LaterRanksCache(KVCache):
    """KV that knows whether it is a later rank's."""

    def __init__(self, config: RankConfig, pool: Pool, tree: RadixCache) -> None:
        super().__init__(config, pool, tree)
        self.is_first = config.is_first


@planted("page_lost_at_finish", breaks="INV-23", profile="plain", source="bugs.md I10, I11")
class PageLostAtFinish(LaterRanksCache):
    """Later ranks lose a page with each request that ends."""

    def finish(self, request: Request, *, insert: bool = True) -> None:
        super().finish(request, insert=insert)
        if not self.is_first:
            self.pool.alloc(min(1, self.pool.num_free_pages))


@planted("row_returned_late", breaks="INV-24", profile="plain", source="protocol.md 12, invariant 24")
class RowReturnedLate(LaterRanksCache):
    """Later ranks give a request's row back only when the next request ends."""

    def __init__(self, config: RankConfig, pool: Pool, tree: RadixCache) -> None:
        super().__init__(config, pool, tree)
        self.kept: list[int] = []

    def finish(self, request: Request, *, insert: bool = True) -> None:
        super().finish(request, insert=insert)
        if self.is_first:
            return
        self.kept.append(self.free_rows.pop())
        if len(self.kept) > 1:
            self.free_rows.append(self.kept.pop(0))


@planted("metrics_touch_the_cache", breaks="INV-25", profile="plain", source="protocol.md 4.10")
class MetricsTouchTheCache(Loop):
    """Later ranks look every waiting request up in the radix tree to report a hit rate: recency moves."""

    def plan(self) -> Plan:
        steps = super().plan()

        def report_hit_rate(rank: Rank) -> None:
            for request in rank.scheduler.waiting if not rank.config.is_first else ():
                rank.scheduler.kv.match(request)

        return before(steps, "schedule", does(report_hit_rate))


@planted("shorter_match", breaks="INV-27", profile="plain", source="protocol.md 12, invariant 27")
class ShorterMatch(LaterRanksCache):
    """Later ranks use one page less of a cached prefix than there is."""

    def match(self, request: Request) -> Match:
        found = super().match(request)
        if self.is_first or found.num_tokens == 0:
            return found
        return self.tree.match(request.tokens(found.num_tokens - self.pool.page_size))


@planted("idle_reset_left_out", breaks="INV-29", profile="plain", source="protocol.md section 9")
class IdleResetLeftOut(Loop):
    """Later ranks find themselves idle only after every second empty round."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.num_empty = 0

    def plan(self) -> Plan:
        steps = super().plan()

        def look_busy(rank: Rank) -> None:
            ends = rank.slot == rank.config.num_slots - 1
            if ends and not rank.config.is_first and not rank.sweep_had_batch:
                self.num_empty += 1
                rank.sweep_had_batch = self.num_empty % 2 == 1

        return before(steps, "carry_over", does(look_busy))


@planted("session_reaper", breaks="INV-30", profile="plain", source="protocol.md 12, invariant 30")
class SessionReaper(Loop):
    """Every rank frees an old cache entry now and then, by its own count of iterations, between two of them."""

    def plan(self) -> Plan:
        steps = super().plan()

        def reap(rank: Rank) -> None:
            if (rank.iteration + self.config.pp_rank) % 5 == 4:
                rank.scheduler.kv.tree.evict(1)

        return (does(reap), *steps)
