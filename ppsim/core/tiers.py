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
from ppsim.core.chain import Answer, Chain, Question, least
from ppsim.core.effects import Effects, await_local, observe
from ppsim.core.errors import InvariantViolation
from ppsim.core.memory.hicache import HiRadixCache
from ppsim.core.messages import Lane
from ppsim.core.observations import Copied, Copies, Hits
from ppsim.core.rank import Rank

Counts: TypeAlias = tuple[int, ...]
"""Finished writes, finished loads, then a hit length for each fetch."""


def agree_tiers(rank: Rank, chain: Chain) -> Effects[None]:
    """Which acknowledgements and hit lengths this iteration takes in: the same on all ranks."""
    tiers = rank.scheduler.kv.tiers
    if tiers is None or not tiers.outstanding:
        return
    answer = yield from chain.decide(rank, TIERS)
    yield from chain.hand_down(rank, TIERS, answer)
    yield from wait_for_own(rank, tiers, answer.counts)
    take_in(rank, tiers, answer.counts)


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


def view(rank: Rank) -> Effects[Answer]:
    """What of the copies under way is over here."""
    tiers = rank.scheduler.kv.tiers
    assert tiers is not None
    return Answer(counts=(yield from finished_here(rank, tiers)))


def with_hits(rank: Rank, answer: Answer) -> Effects[Answer]:
    """The leader adds the hit lengths that have been replicated to it."""
    tiers = rank.scheduler.kv.tiers
    assert tiers is not None
    keys = tuple(fetch.key for fetch in tiers.fetches)
    hits = (yield from observe(Hits(keys), rank.iteration)).value if keys else ()
    return Answer(counts=answer.counts + hits)


TIERS = Question(Lane.HICACHE, view, least, with_hits)
