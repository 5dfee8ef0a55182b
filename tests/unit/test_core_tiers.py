"""Which acknowledgements a rank consumes: finished ones in the order of their starts, the fewest of its stage (6.2)."""

from __future__ import annotations

from itertools import product

import pytest

from ppsim.core import effects as fx
from ppsim.core.agreed import Local, agree
from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.errors import InvariantViolation
from ppsim.core.memory.hicache import HiRadixCache
from ppsim.core.messages import Lane, Side
from ppsim.core.observations import Copies
from ppsim.core.parts import build_rank
from ppsim.core.rank import Rank
from ppsim.core.tiers import agree_tiers, consecutive
from ppsim.core.tokens import pack


def rank_with_writes(num_writes: int, pp_rank: int = 0, pp_size: int = 1, tp_replicas: int = 1) -> Rank:
    """A rank that copies so many prefixes to host memory; R0 first."""
    config = RankConfig(pp_rank, pp_size, tp_replicas=tp_replicas, hicache_write_policy="write_through")
    rank = build_rank(config)
    rank.start(agree(100, "test"), agree(100, "test"))
    cache = tiers_of(rank)
    for n in range(num_writes):
        own = cache.pool.alloc(3)
        cache.owner = f"R{n}"
        cache.insert(pack([n, 1, 2]), own)
        cache.pool.release(own)
    assert [op.key for op in cache.writes] == [f"write:R{n}#{n + 1}" for n in range(num_writes)]
    return rank


def tiers_of(rank: Rank) -> HiRadixCache:
    assert rank.scheduler.kv.tiers is not None
    return rank.scheduler.kv.tiers


def exchanged(rank: Rank, done: tuple[int, ...], *others: tuple[int, ...]) -> list[Side]:
    """One exchange: ``done`` is what this rank sees, ``others`` the counts that come in. What it sent."""
    loop, reply, incoming = agree_tiers(rank, Chain()), None, list(others)
    sent: list[Side] = []
    while True:
        try:
            effect = loop.send(reply)
        except StopIteration:
            assert not incoming
            return sent
        match effect:
            case fx.Observe(Copies()):
                reply = Local(done, rank.link.rank_id, 0)
            case fx.Recv(src, lane):
                reply = Side(src, lane, 0, 0, counts=incoming.pop(0))
            case fx.Send():
                assert isinstance(effect.message, Side)
                sent.append(effect.message)
                reply = len(sent)
            case fx.AwaitLocal():
                reply = None
            case _:
                raise AssertionError(effect)


@pytest.mark.parametrize("done", list(product((0, 1), repeat=3)))
def test_the_oldest_acknowledgements_are_consumed_and_none_behind_one_that_is_missing(done: tuple[int, ...]) -> None:
    """Acks leave a queue from its head (6.2: "consecutive finished acks"). One counted from behind would unlock the
    pages of the oldest write while it still reads them."""
    rank = rank_with_writes(3)
    exchanged(rank, done)
    left = [op.key for op in tiers_of(rank).writes]
    num_in_order = (*done, 0).index(0)
    assert left == [f"write:R{n}#{n + 1}" for n in range(num_in_order, 3)]
    assert consecutive(done) == num_in_order


@pytest.mark.parametrize(("mine", "theirs", "expected"), [((1, 1, 0), 1, 1), ((1, 0, 0), 3, 1), ((1, 1, 1), 0, 0)])
def test_a_stage_consumes_what_all_its_replicas_have_finished(
    mine: tuple[int, ...], theirs: int, expected: int
) -> None:
    """The minimum over the replicas (6.2: MIN over TP): each has a copy of its own cut of the heads, and its pages may
    be reused only when that copy is over. The maximum would make the slower one wait on the host or reuse them."""
    rank = rank_with_writes(3, tp_replicas=2)
    sent = exchanged(rank, mine, (theirs, 0))
    assert [(m.lane, m.counts) for m in sent] == [(Lane.TP, (expected, 0))]
    assert len(tiers_of(rank).writes) == 3 - expected


def test_a_later_rank_takes_the_number_that_it_is_told_and_waits_for_its_own_copies() -> None:
    rank = rank_with_writes(3, pp_rank=1, pp_size=2)
    assert exchanged(rank, (), (2, 0)) == []
    assert [op.key for op in tiers_of(rank).writes] == ["write:R2#3"]


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((3, 0), "3 writes are consumed, 2 are under way"),
        ((0, 1), "1 loads are consumed, 0 are under way"),
        ((1, 0, 5), "1 hit lengths for 0 fetches"),
    ],
)
def test_counts_that_do_not_fit_what_is_under_way_stop_the_run(counts: tuple[int, ...], text: str) -> None:
    """Who has fewer copies under way than the first rank consumes is another replica: named, not an empty queue."""
    rank = rank_with_writes(2, pp_rank=1, pp_size=2)
    with pytest.raises(InvariantViolation, match=text) as caught:
        exchanged(rank, (), counts)
    assert caught.value.invariant == "INV-28"
    assert len(tiers_of(rank).writes) == 2
