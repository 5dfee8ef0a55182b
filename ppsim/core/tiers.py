"""Progress between the tiers of the cache, once an iteration: the first rank leads (protocol.md 6.2, HiCache rows).

    writes, loads   how many acknowledgements are consumed: consecutive finished ones, MIN over the replicas of the
                    first stage. Every later rank consumes exactly as many, and waits for its own (bugs.md B07)
    fetches         the hit length of each: the minimum over all ranks, as it has been replicated to the first rank;
                    -1 while any rank is not done (bugs.md B08)

Whether the exchange takes place depends on what is outstanding, which is replicated, and not on what has finished here:
who has nothing to report takes part with zero (bugs.md B24).
"""

from __future__ import annotations

from typing import TypeAlias

from ppsim.core.agreed import agree
from ppsim.core.channels import commit_all
from ppsim.core.effects import Effects, await_local, observe
from ppsim.core.errors import InvariantViolation
from ppsim.core.hicache import HiRadixCache
from ppsim.core.messages import Lane, Side
from ppsim.core.observations import Copied, Copies, Hits
from ppsim.core.rank import Rank

Counts: TypeAlias = tuple[int, ...]
"""Finished writes, finished loads, then a hit length for each fetch."""


def agree_tiers(rank: Rank) -> Effects[None]:
    """Which acknowledgements and hit lengths this iteration takes in: the same on all ranks."""
    tiers = rank.scheduler.kv.tiers
    if tiers is None or not tiers.outstanding:
        return
    counts = yield from exchange(rank, tiers)
    yield from wait_for_own(rank, tiers, counts)
    take_in(rank, tiers, counts)


def exchange(rank: Rank, tiers: HiRadixCache) -> Effects[Counts]:
    """The counts of this iteration, from the first stage down the chain."""
    yield from commit_all(rank.side_work.setdefault(Lane.TP, []))
    if rank.config.is_first:
        counts = yield from _stage_counts(rank, tiers)
    else:
        counts = yield from _take(rank, rank.link.prev, Lane.HICACHE)
    yield from hand_down(rank, counts)
    return counts


def hand_down(rank: Rank, counts: Counts) -> Effects[None]:
    """Pass the counts of this iteration on to the next stage."""
    if not rank.config.is_last:
        yield from commit_all(rank.side_work.setdefault(Lane.HICACHE, []))
        yield from _send(rank, rank.link.next, Lane.HICACHE, counts)


def wait_for_own(rank: Rank, tiers: HiRadixCache, counts: Counts) -> Effects[None]:
    """Block until this rank's own copies of what is consumed are over."""
    if rank.config.is_first and rank.link.is_leader:
        return
    for queue, number in ((tiers.writes, counts[0]), (tiers.loads, counts[1])):
        for op in list(queue)[:number]:
            yield from await_local(Copied(op.key), rank.iteration)


def take_in(rank: Rank, tiers: HiRadixCache, counts: Counts) -> None:
    """Apply the counts. Raises InvariantViolation where fewer operations are under way than are consumed."""
    for name, queue, number in (("writes", tiers.writes, counts[0]), ("loads", tiers.loads, counts[1])):
        if number > len(queue):
            text = f"{number} {name} are consumed, {len(queue)} are under way"
            raise InvariantViolation("INV-28", rank.link.rank_id, rank.iteration, rank.slot, "", text)
    if len(counts) - 2 != len(tiers.fetches):
        text = f"{len(counts) - 2} hit lengths for {len(tiers.fetches)} fetches"
        raise InvariantViolation("INV-28", rank.link.rank_id, rank.iteration, rank.slot, "", text)
    origin = "tier chain"
    rank.scheduler.advance_tiers(agree((counts[0], counts[1]), origin), agree(counts[2:], origin))


def finished_here(rank: Rank, tiers: HiRadixCache) -> Effects[Counts]:
    """Consecutive finished writes and loads of this rank alone, oldest first."""
    keys = tuple(op.key for op in (*tiers.writes, *tiers.loads))
    done = (yield from observe(Copies(keys), rank.iteration)).value if keys else ()
    return consecutive(done[: len(tiers.writes)]), consecutive(done[len(tiers.writes) :])


def consecutive(done: tuple[int, ...]) -> int:
    """Length of the leading run of ones."""
    return next((i for i, is_done in enumerate(done) if not is_done), len(done))


def _stage_counts(rank: Rank, tiers: HiRadixCache) -> Effects[Counts]:
    """The first stage's view: every replica counts, the leader takes the minimum and hands it out with the hits."""
    link = rank.link
    counts = yield from finished_here(rank, tiers)
    if not link.is_leader:
        yield from _send(rank, link.leader, Lane.TP, counts)
        return (yield from _take(rank, link.leader, Lane.TP))
    for replica in link.replicas:
        theirs = yield from _take(rank, replica, Lane.TP)
        counts = tuple(min(pair) for pair in zip(counts, theirs, strict=True))
    keys = tuple(fetch.key for fetch in tiers.fetches)
    if keys:
        counts += (yield from observe(Hits(keys), rank.iteration)).value
    for replica in link.replicas:
        yield from _send(rank, replica, Lane.TP, counts)
    return counts


def _send(rank: Rank, dst: int, lane: Lane, counts: Counts) -> Effects[None]:
    message = Side(rank.link.rank_id, lane, rank.iteration, rank.slot, counts=counts)
    rank.side_work.setdefault(lane, []).append((yield from rank.link.send(dst, message)))


def _take(rank: Rank, src: int, lane: Lane) -> Effects[Counts]:
    return (yield from rank.link.receive(Side, src, lane, rank.iteration, rank.slot)).counts
