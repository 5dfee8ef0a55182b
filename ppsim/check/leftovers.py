"""What must hold once a run is over: all is given back, and everybody has been answered (invariants 23 to 61)."""

from __future__ import annotations

from collections.abc import Iterable

from ppsim.check.client_watch import Watch
from ppsim.core.rank import Rank


def rank_leftover(rank: Rank) -> tuple[str, str] | None:
    """Pools full, queues empty, every message used: the first rule that a rank breaks after its last iteration."""
    scheduler = rank.scheduler
    kv = scheduler.kv
    left = [*scheduler.requests, *(q.rid for q in scheduler.waiting)]
    left += [scheduler.chunked.rid] if scheduler.chunked else []
    if left:
        return "INV-46", f"requests are left in the queues: {list(dict.fromkeys(left))[:3]}"
    if rank.last_rank_comm_queue:
        return "INV-35", f"{len(rank.last_rank_comm_queue)} outputs were never released"
    if rank.link.inbox_size:
        return "INV-36", f"{rank.link.inbox_size} messages were received and never used"
    problem = kv.audit()
    if problem:
        return "INV-23", problem
    if kv.tree.protected_tokens:
        return "INV-25", f"{kv.tree.protected_tokens} cached tokens are still locked"
    if kv.outstanding:
        return "INV-28", f"copies between the tiers are still under way: {kv.outstanding[:3]}"
    kv.tree.reset()
    if kv.tree.leftover():
        return "INV-28", kv.tree.leftover()
    if kv.pool.free_tokens != kv.pool.capacity_tokens:
        return "INV-23", f"only {kv.pool.free_tokens} of {kv.pool.capacity_tokens} KV tokens are free at the end"
    if len(kv.free_rows) != scheduler.config.max_running_requests:
        return "INV-24", f"only {len(kv.free_rows)} of {scheduler.config.max_running_requests} request rows are free"
    if scheduler.role.num_buffers != scheduler.role.total_buffers:
        return "INV-24", f"{scheduler.role.num_buffers} of {scheduler.role.total_buffers} metadata buffers are free"
    return None


def unanswered(watch: Watch, arrived: Iterable[str]) -> tuple[str, str] | None:
    """Invariant 61: ids that got fewer terminal replies than were read of them, and arrivals that nobody has read."""
    missing = [rid for rid in arrived if rid not in watch.ended and rid not in watch.owed]
    missing += [rid for rid, num_owed in watch.owed.items() if num_owed]
    if not missing:
        return None
    return "INV-61", f"{len(missing)} requests or flushes got no terminal reply: {missing[:3]}"
