"""Time limits: the one place where a rank looks at a clock, and only the first rank does (protocol.md 7.3).

What it sees becomes AbortReq messages in the request list, so that a request ends in the same iteration everywhere. The
stamps below are local to the rank that watches; they are no part of the replicated state (invariant 58).
"""

from __future__ import annotations

from ppsim.core.effects import Effects, observe
from ppsim.core.messages import AbortReq
from ppsim.core.observations import Clock
from ppsim.core.rank import Rank
from ppsim.core.schedule.request import Request, State


def expired(rank: Rank) -> Effects[tuple[AbortReq, ...]]:
    """Aborts for requests that have waited or run for too long by this rank's clock."""
    if not rank.config.has_timeouts or not rank.watches_timeouts:
        return ()
    now_ms = (yield from observe(Clock(), rank.iteration)).value[0]
    stamp_all(rank, now_ms)
    found: list[AbortReq] = []
    for request in rank.scheduler.requests.values():
        last_ms = last_moment_ms(rank, request)
        if last_ms is not None and now_ms > last_ms:
            what = "running" if runs(request) else "waiting"
            found.append(AbortReq(request.rid, reason=f"{what} for more than {limit_ms(rank, request)} ms"))
    return tuple(found)


def runs(request: Request) -> bool:
    """Whether the running limit counts for it, and not the waiting limit."""
    return request.state in (State.PREFILL, State.DECODE)


def stamp_all(rank: Rank, now_ms: int) -> None:
    """Since when each live request runs, and waits. Waiting begins anew whenever it does not run any more.

    An id may come again: its stamps are those of this request only.
    """
    waits, running = rank.waits_since_ms, rank.runs_since_ms
    rank.waits_since_ms, rank.runs_since_ms = {}, {}
    for request in rank.scheduler.requests.values():
        key = stamp_key(request)
        if runs(request) or key in running:
            rank.runs_since_ms[key] = running.get(key, now_ms)
        if not runs(request):
            rank.waits_since_ms[key] = waits.get(key, now_ms)


def limit_ms(rank: Rank, request: Request) -> int:
    """How long it may do what it does; 0: for ever."""
    return rank.config.running_timeout_ms if runs(request) else rank.config.waiting_timeout_ms


def stamp_key(request: Request) -> str:
    return f"{request.rid} of {request.arrived}"


def last_moment_ms(rank: Rank, request: Request) -> int | None:
    """The last moment of this rank's clock at which a stamped request is within its limit; None without a limit."""
    limit, key = limit_ms(rank, request), stamp_key(request)
    stamps = rank.runs_since_ms if runs(request) else rank.waits_since_ms
    return stamps[key] + limit if limit and key in stamps and not request.to_abort else None
