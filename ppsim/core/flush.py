"""A flush is answered when the last rank has done it (protocol.md section 9).

    iteration i            every rank empties its cache when it applies the list; then a word goes down the chain: "all
                           ranks up to me have". Inside a stage the replicas tell their leader first
    iteration i + P - 1    the first rank takes the word of the last one, which was in iteration i, and answers

That is when conclusions of votes arrive too (``votes.py``), so nobody runs further ahead than the protocol lets it.
Whether the exchange takes place depends on replicated state only: on whether the flush was granted.
"""

from __future__ import annotations

from ppsim.core.channels import commit_all
from ppsim.core.effects import Effects, Reply, reply
from ppsim.core.messages import Lane, Side
from ppsim.core.rank import Rank
from ppsim.core.schedule.journal import Flushed

FLUSHED = "flushed"


def acknowledge_flush(rank: Rank) -> Effects[None]:
    """The caches of this rank, of its replicas and of all ranks before it are empty: tell the next one."""
    flushed, link, config = rank.journal.of(Flushed), rank.link, rank.config
    if not flushed:
        return
    works = rank.side_work.setdefault(Lane.FLUSH, [])
    yield from commit_all(works)
    if not link.is_leader:
        works.append((yield from link.send(link.leader, word(rank))))
        return
    for replica in link.replicas:
        yield from link.receive(Side, replica, Lane.FLUSH, rank.iteration, rank.slot)
    if not config.is_first:
        yield from link.receive(Side, link.prev, Lane.FLUSH, rank.iteration, rank.slot)
    if config.pp_size > 1:
        works.append((yield from link.send(link.next, word(rank))))
    if config.is_first:
        rank.flushes.append((rank.iteration, tuple(entry.rid for entry in flushed)))


def answer_flush(rank: Rank) -> Effects[None]:
    """First rank: the answers to a flush that every rank has done by now."""
    config, link = rank.config, rank.link
    while rank.flushes and rank.flushes[0][0] + config.pp_size - 1 <= rank.iteration:
        at, rids = rank.flushes.popleft()
        if config.pp_size > 1:
            yield from link.receive(Side, link.prev, Lane.FLUSH, at, at % config.num_slots)
        for rid in rids:
            yield from reply(Reply(rid, "finished", reason=FLUSHED))


def word(rank: Rank) -> Side:
    return Side(rank.link.rank_id, Lane.FLUSH, rank.iteration, rank.slot)
