"""Time limits: the one place where a rank looks at a clock, and only the first rank does (protocol.md 7.3).

What it sees becomes AbortReq messages in the request list, so that a request ends in the same iteration everywhere. The
stamps below are local to the rank that watches; they are no part of the replicated state (invariant 58).
"""

from __future__ import annotations

from ppsim.core.effects import Effects, observe
from ppsim.core.messages import AbortReq
from ppsim.core.rank import Rank
from ppsim.core.request import Request, State


def expired(rank: Rank) -> Effects[tuple[AbortReq, ...]]:
    """Aborts for requests that have waited or run for too long by this rank's clock."""
    config = rank.config
    if not (config.waiting_timeout_ms or config.running_timeout_ms):
        return ()
    if not rank.hooks.watches_timeouts(config.is_first and rank.link.is_leader):
        return ()
    now_ms = (yield from observe("clock_ms", (), rank.iteration)).value[0]
    found: list[AbortReq] = []
    for request in rank.scheduler.requests.values():
        reason = _overdue(rank, request, now_ms)
        if reason and not request.to_abort:
            found.append(AbortReq(request.rid, reason=reason))
    return tuple(found)


def _overdue(rank: Rank, request: Request, now_ms: int) -> str:
    config = rank.config
    if request.state in (State.PREFILL, State.DECODE):
        since = rank.runs_since_ms.setdefault(request.rid, now_ms)
        limit, what = config.running_timeout_ms, "running"
    else:
        since = rank.waits_since_ms.setdefault(request.rid, now_ms)
        limit, what = config.waiting_timeout_ms, "waiting"
    return f"{what} for more than {limit} ms" if limit and now_ms - since > limit else ""
