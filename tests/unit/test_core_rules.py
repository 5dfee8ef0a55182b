"""Rules of the scheduler that are easy to get wrong, one small story each (protocol.md 4.1 to 4.8)."""

from __future__ import annotations

from fractions import Fraction

from ppsim.core.config import RankConfig
from ppsim.core.messages import NewRequest
from ppsim.core.schedule.request import Request
from ppsim.core.tokens import pack
from tests.interactions.experiment import STOP, Arrival, Experiment, request, sampled
from tests.interactions.one_rank import OneRank, Visit
from tests.interactions.walk import nodes


def run(config: RankConfig, capacity: int, *arrivals: tuple[int, NewRequest]) -> OneRank:
    return OneRank(Experiment(config, capacity, tuple(Arrival(at, spec) for at, spec in arrivals)))


def until(rank: OneRank, iteration: int) -> Visit:
    """Visit up to and including this iteration."""
    while True:
        visit = rank.visit()
        if visit.iteration == iteration:
            return visit


def pieces(visit: Visit) -> list[tuple[str, int, int]]:
    return list(visit.decision.pieces)


def named(rank: OneRank, rid: str) -> Request:
    return rank.scheduler.requests[rid]


def test_a_waiting_request_is_looked_up_even_if_a_chunk_has_used_the_budget_up() -> None:
    """4.2 step 8: the lookup comes before the budgets, and it makes the prefix recent."""
    config = RankConfig(0, 1, chunked_prefill_size=4)
    old, young = [1, 1, 1, 1, 9], [2, 2, 2, 2, 9]
    rank = run(
        config,
        200,
        (0, request("OLD", old, 1)),
        (1, request("YOUNG", young, 1)),
        (8, request("LONG", [3] * 14, 1)),
        (8, request("NEXT", [*old, 5, 5], 1)),
    )
    until(rank, 7)
    stamps = {path: node.last_access for node, path in nodes(rank.scheduler.kv.tree)}
    assert stamps[tuple(old)] < stamps[tuple(young)]
    assert pieces(until(rank, 8)) == [("LONG", 0, 4)]
    assert pieces(rank.visit()) == [("LONG", 4, 4)]
    stamps = {path: node.last_access for node, path in nodes(rank.scheduler.kv.tree)}
    assert stamps[tuple(old)] > stamps[tuple(young)], "NEXT waits for the budget, but was looked up"


def test_eviction_comes_before_retraction() -> None:
    """4.5: the cache gives what it has; only if that is still short is a request put back."""
    rank = run(RankConfig(0, 1), 100, (0, request("A", [1] * 4, 30)), (0, request("B", [2] * 5, 30)))
    until(rank, 3)
    kv = rank.scheduler.kv
    junk = kv.pool.alloc(1)
    kv.tree.insert(pack([8]), junk)
    kv.pool.release(junk)
    ballast = kv.pool.alloc(kv.pool.num_free_pages)
    visit = until(rank, 4)
    assert visit.decision.retracted == ("B",)
    assert kv.tree.match(pack([8])).num_tokens == 0, "the unused token was evicted first"
    kv.pool.release(ballast)


def test_several_retracted_requests_go_back_in_the_order_in_which_they_were_popped() -> None:
    """4.5: of equals the later first. Four need a page each, none is free, and each that goes gives one."""
    specs = [(0, request(f"R{n}", [n], 30)) for n in range(4)]
    rank = run(RankConfig(0, 1, enable_radix_cache=False), 200, *specs)
    until(rank, 0)
    pool = rank.scheduler.kv.pool
    ballast = pool.alloc(pool.num_free_pages)
    visit = rank.visit()
    assert visit.decision.retracted == ("R3", "R2")
    assert [rid for rid, _, _ in visit.decision.pieces] == ["R0", "R1"]
    assert [r.rid for r in rank.scheduler.waiting] == ["R3", "R2"]
    pool.release(ballast)


def test_a_finished_request_that_wants_logprobs_still_keeps_a_slot_from_mixing() -> None:
    """4.8: the conditions are looked at first, the finished are filtered afterwards."""
    config = RankConfig(0, 1, enable_mixed_chunk=True)
    rank = run(
        config,
        200,
        (0, request("A", [1] * 4, 9)),
        (0, request("L", [2] * 4, 3, return_logprob=True)),
        (3, request("N", [3] * 4, 2)),
        (4, request("M", [4] * 4, 2)),
    )
    visit = until(rank, 2)
    assert visit.harvest.finished == ("L",)
    visit = rank.visit()
    assert (visit.decision.mode, pieces(visit)) == ("extend", [("N", 0, 4)])
    visit = rank.visit()
    assert (visit.decision.mode, visit.decision.pieces[0]) == ("extend", ("M", 0, 4)), "no visit has filtered L yet"
    assert rank.visit().decision.mode == "decode"


def test_filtering_for_a_mixed_batch_counts_as_shrinking() -> None:
    """W does not fit beside A's growth. A is found finished in the visit that mixes N in, so W is tried in the next."""
    config = RankConfig(
        0, 1, enable_mixed_chunk=True, init_new_token_ratio=Fraction(1), min_new_token_ratio=Fraction(1)
    )
    stop = next(n for n in range(1, 50) if sampled("A", n) == STOP)
    rank = run(
        config,
        200,
        (0, request("A", [1] * 4, 50, stops=True)),
        (0, request("B", [2] * 4, 60)),
        (stop, request("N", [3] * 4, 30)),
        (stop, request("W", [4] * 20, 70)),
    )
    assert until(rank, stop - 1).harvest.finished == ("A",)
    visit = rank.visit()
    assert visit.decision.mode == "mixed"
    assert [rid for rid, _, _ in visit.decision.pieces] == ["N", "B"]
    assert [rid for rid, _, _ in rank.visit().decision.pieces] == ["W", "N", "B"]


def test_put_back_and_prefilled_again_a_request_is_in_no_batch_twice() -> None:
    """1.4: a harvested extend batch is merged once only."""
    config = RankConfig(0, 1, init_new_token_ratio=Fraction(1, 100), min_new_token_ratio=Fraction(1, 100))
    rank = run(config, 24, (0, request("A", [1] * 2, 12)), (1, request("B", [2] * 2, 12)))
    retracted: list[str] = []
    for visit in rank.visits():
        retracted += visit.decision.retracted
        rids = [p[0] for p in visit.decision.pieces]
        assert len(set(rids)) == len(rids)
    assert retracted == ["B"]
    assert sorted(r.rid for r in rank.replies if r.status == "finished") == ["A", "B"]
