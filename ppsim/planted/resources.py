"""Bugs of pools, rows and the radix cache. Invariants 23 to 25, 27, 29, 30 (22 and 26: ``cache.py``)."""

from __future__ import annotations

from collections.abc import Callable

from ppsim.core.hooks import Hooks
from ppsim.core.loop import Plan
from ppsim.core.prefix import Match
from ppsim.core.rank import Rank
from ppsim.core.request import Request
from ppsim.planted.plans import before, does, replaced
from ppsim.planted.registry import planted


@planted("page_lost_at_finish", breaks="INV-23", profile="plain", source="bugs.md I10, I11")
class PageLostAtFinish(Hooks):
    """Later ranks lose a page with each request that ends."""

    def plan(self, steps: Plan) -> Plan:
        def lose_pages(rank: Rank) -> None:
            kv = rank.scheduler.kv

            def finish(old: Callable[..., None], request: Request, *, insert: bool = True) -> None:
                old(request, insert=insert)
                kv.pool.alloc(min(1, kv.pool.num_free_pages))

            if not rank.config.is_first and rank.iteration == 0:
                replaced(kv, "finish", finish)

        return (does(lose_pages), *steps)


@planted("row_returned_late", breaks="INV-24", profile="plain", source="protocol.md 12, invariant 24")
class RowReturnedLate(Hooks):
    """Later ranks give a request's row back only when the next request ends."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.kept: list[int] = []

    def plan(self, steps: Plan) -> Plan:
        def keep_rows(rank: Rank) -> None:
            rows = rank.scheduler.kv.free_rows

            def finish(old: Callable[..., None], request: Request, *, insert: bool = True) -> None:
                old(request, insert=insert)
                self.kept.append(rows.pop())
                if len(self.kept) > 1:
                    rows.append(self.kept.pop(0))

            if not rank.config.is_first and rank.iteration == 0:
                replaced(rank.scheduler.kv, "finish", finish)

        return (does(keep_rows), *steps)


@planted("metrics_touch_the_cache", breaks="INV-25", profile="plain", source="protocol.md 4.10")
class MetricsTouchTheCache(Hooks):
    """Later ranks look every waiting request up in the radix tree to report a hit rate: recency moves."""

    def plan(self, steps: Plan) -> Plan:
        def report_hit_rate(rank: Rank) -> None:
            for request in rank.scheduler.waiting if not rank.config.is_first else ():
                rank.scheduler.kv.match(request)

        return before(steps, "schedule", does(report_hit_rate))


@planted("shorter_match", breaks="INV-27", profile="plain", source="protocol.md 12, invariant 27")
class ShorterMatch(Hooks):
    """Later ranks use one page less of a cached prefix than there is."""

    def plan(self, steps: Plan) -> Plan:
        def cut_matches(rank: Rank) -> None:
            kv = rank.scheduler.kv

            def match(old: Callable[[Request], Match], request: Request) -> Match:
                found = old(request)
                if found.num_tokens == 0:
                    return found
                return kv.tree.match(request.tokens(found.num_tokens - kv.pool.page_size))

            if not rank.config.is_first and rank.iteration == 0:
                replaced(kv, "match", match)

        return (does(cut_matches), *steps)


@planted("idle_reset_left_out", breaks="INV-29", profile="plain", source="protocol.md section 9")
class IdleResetLeftOut(Hooks):
    """Later ranks find themselves idle only after every second empty round."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.num_empty = 0

    def plan(self, steps: Plan) -> Plan:
        def look_busy(rank: Rank) -> None:
            ends = rank.slot == rank.config.num_slots - 1
            if ends and not rank.config.is_first and not rank.sweep_had_batch:
                self.num_empty += 1
                rank.sweep_had_batch = self.num_empty % 2 == 1

        return before(steps, "carry_over", does(look_busy))


@planted("session_reaper", breaks="INV-30", profile="plain", source="protocol.md 12, invariant 30")
class SessionReaper(Hooks):
    """Every rank frees an old cache entry now and then, by its own count of iterations, between two of them."""

    def plan(self, steps: Plan) -> Plan:
        def reap(rank: Rank) -> None:
            if (rank.iteration + self.pp_rank) % 5 == 4:
                rank.scheduler.kv.tree.evict(1)

        return (does(reap), *steps)
