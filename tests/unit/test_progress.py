"""Who is to blame when ranks stand still, and what a rank shows of itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.check.progress import Standing, first_without_progress, state_lines, wait_cycle
from ppsim.core.agreed import agree
from ppsim.core.config import RankConfig
from ppsim.core.messages import NewRequest
from ppsim.core.parts import build_rank
from ppsim.core.tokens import pack


def standing(
    rank: int, waits_for: int | None, since: int = 0, iteration: int = 50, runs: bool = True, done: bool = False
) -> Standing:
    return Standing(rank, iteration, "waits", waits_for, since, runs, done)


def test_a_rank_that_cannot_run_comes_first_even_if_others_stand_still_for_longer() -> None:
    ranks = [standing(0, 1, 40), standing(1, 2, 30), standing(2, None, 20, runs=False), standing(3, 2, 10)]
    assert first_without_progress(ranks) == (2, ())


def test_a_rank_that_cannot_run_comes_before_one_that_computes() -> None:
    ranks = [standing(0, None, 10), standing(1, None, 20, runs=False)]
    assert first_without_progress(ranks) == (1, ())


def test_of_two_ranks_that_cannot_run_the_one_that_stopped_earlier_comes_first() -> None:
    ranks = [standing(0, None, 40, runs=False), standing(1, 0, 30), standing(2, None, 20, runs=False)]
    assert first_without_progress(ranks) == (2, ())


def test_a_rank_that_waits_for_nobody_holds_the_others() -> None:
    ranks = [standing(0, 3, 5), standing(1, 0, 1), standing(2, None, 9), standing(3, 2, 2)]
    assert first_without_progress(ranks) == (2, ())


def test_a_rank_that_is_done_holds_nobody() -> None:
    ranks = [standing(0, None, 0, done=True), standing(1, 0, 7), standing(2, 1, 3)]
    assert first_without_progress(ranks) == (2, ())


def test_in_a_cycle_the_least_advanced_member_comes_first_and_the_cycle_is_shown() -> None:
    cycle = [standing(0, 1, iteration=9), standing(1, 2, iteration=8), standing(2, 1, iteration=7)]
    ranks = [*cycle, standing(3, 2, iteration=1)]
    assert first_without_progress(ranks) == (2, (1, 2))


def reachable(edges: dict[int, int | None], start: int) -> list[int]:
    """Where the edges lead from a rank, without it: one step at a time, as many steps as there are ranks."""
    found: list[int] = []
    at: int | None = start
    for _ in range(len(edges)):
        at = edges.get(at) if at is not None else None
        if at is not None:
            found.append(at)
    return found


@given(st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=6))
def test_a_cycle_is_found_exactly_where_a_rank_reaches_itself(targets: list[int | None]) -> None:
    edges = {rank: None if target is None or target >= len(targets) else target for rank, target in enumerate(targets)}
    on_cycles = {rank for rank in edges if rank in reachable(edges, rank)}
    cycle = wait_cycle(edges)
    assert bool(cycle) == bool(on_cycles)
    assert set(cycle) <= on_cycles
    for rank, following in zip(cycle, (*cycle[1:], *cycle[:1])):
        assert edges[rank] == following


def test_a_sentence_names_rank_place_peer_and_time() -> None:
    line = Standing(3, 50, "phase harvest, waits in a receive", 2, 7_000_000).sentence(107_500_000)
    assert line == "rank 3: iteration 50, phase harvest, waits in a receive for rank 2, no progress for 100.5 ms"


@pytest.mark.parametrize(("role", "queue"), [("plain", "waiting"), ("prefill", "bootstrap"), ("decode", "prealloc")])
def test_a_dump_shows_slots_queues_pool_and_decisions(role: str, queue: str) -> None:
    rank = build_rank(RankConfig(1, 2, pp_async_batch_depth=1, role=role, max_running_requests=7, page_size=4))
    assert state_lines(rank, []) == ["not started: the ranks have not agreed on the capacity"]
    rank.start(agree(1024, "test"))
    rank.iteration = 4
    rank.scheduler.apply([NewRequest(f"R{n}", pack([5] * 8), 3) for n in range(10)])
    lines = state_lines(rank, [])
    assert lines[:3] == [
        "slot 0: empty; running 0",
        "slot 1 (visited): empty; running 0",
        "slot 2: empty; running 0",
    ]
    assert f"queue {queue}: 10 (R0 R1 R2 R3 R4 R5 R6 R7 and 2 more)" in lines
    assert "pool: 1024 of 1024 tokens free, 0 evictable, 0 locked; 7 request rows free" in lines


def test_a_dump_shows_what_runs_and_the_last_decisions() -> None:
    rank = build_rank(RankConfig(0, 2, chunked_prefill_size=4, max_micro_batch_size=1))
    rank.start(agree(64, "test"))
    rank.scheduler.apply([NewRequest("R1", pack(range(8)), 3), NewRequest("R2", pack(range(20, 26)), 3)])
    decisions = [rank.scheduler.schedule(i)[1] for i in range(2)]
    rank.iteration = 2
    lines = state_lines(rank, decisions)
    assert "slot 0 (visited): extend of iteration 0, in flight; running 0" in lines
    assert "slot 1: extend of iteration 1, in flight; running 0, full" in lines  # R2 has found no place in it
    assert "queue waiting: 1 (R2)" in lines
    assert "pool: 56 of 64 tokens free, 0 evictable, 4 locked; 255 request rows free" in lines
    assert lines[-2] == "decided: iteration 0, slot 0: extend R1[0+4]"
    assert lines[-1] == "decided: iteration 1, slot 1: extend R1[4+4]"
