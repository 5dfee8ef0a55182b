"""Public bugs of other engines as small stories for the scheduler (bugs.md; the numbers are those of its entries)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from ppsim.core.config import RankConfig
from ppsim.core.messages import AbortReq, NewRequest
from ppsim.core.parts import Change, parts_with
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import Slot
from ppsim.errors import ScenarioError
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import validate
from tests.interactions.experiment import Arrival, Experiment, request, sampled
from tests.interactions.one_rank import OneRank, Visit

ROOMY = 100_000


def prompt(rid: str, length: int) -> list[int]:
    return [10 + int(rid[1:])] * length


def made(rid: str, length: int, output: int) -> NewRequest:
    return request(rid, prompt(rid, length), output)


def run(config: RankConfig, capacity: int, *arrivals: tuple[int, NewRequest]) -> tuple[OneRank, list[Visit]]:
    """Run to the end; all visits."""
    rank = OneRank(Experiment(config, capacity, tuple(Arrival(*a) for a in arrivals)))
    return rank, list(rank.visits())


def launches(visits: list[Visit]) -> list[tuple[int, list[tuple[str, int]]]]:
    """(iteration, [(rid, new tokens)]) of every prefill."""
    return [
        (v.iteration, [(rid, new) for rid, _, new in v.decision.pieces])
        for v in visits
        if v.decision.mode in ("extend", "mixed")
    ]


def when(visits: list[Visit], holds: Callable[[Visit], bool]) -> list[int]:
    return [v.iteration for v in visits if holds(v)]


def statuses(rank: OneRank) -> dict[str, str]:
    return {r.rid: r.status for r in rank.replies if r.status != "token"}


def test_b16_arrival_order_is_batch_order() -> None:
    config = RankConfig(0, 2, max_micro_batch_size=2)
    _, visits = run(config, ROOMY, *((0, made(f"R{n}", 8, 1)) for n in (1, 2, 3, 4)))
    assert launches(visits) == [(0, [("R1", 8), ("R2", 8)]), (1, [("R3", 8), ("R4", 8)])]


B17 = RankConfig(0, 2, chunked_prefill_size=64, max_running_requests=1, max_micro_batch_size=1)


def test_b17_a_half_prefilled_request_that_holds_the_only_row_goes_on() -> None:
    """K = 2 chunks, L = 2 slots: launches at 0 and 1, first token at K + L - 2 = 2."""
    _, visits = run(B17, ROOMY, (0, made("R1", 100, 1)))
    assert launches(visits) == [(0, [("R1", 64)]), (1, [("R1", 36)])]
    assert when(visits, lambda v: ("R1", 1) in v.harvest.delivered) == [2]


def test_b17_with_the_free_place_test_in_front_nothing_is_launched_after_iteration_0() -> None:
    class PlaceFirst(Scheduler):
        def may_continue_chunk(self, slot: Slot, num_places: int) -> bool:
            return super().may_continue_chunk(slot, num_places) and num_places > 0

    rank = OneRank(Experiment(B17, ROOMY, (Arrival(0, made("R1", 100, 1)),)), change=Change(parts_with([PlaceFirst])))
    visits = [rank.visit() for _ in range(50)]
    assert launches(visits) == [(0, [("R1", 64)])]


def test_b48_retraction_frees_pages_at_once_and_both_requests_finish_with_the_tokens_of_a_roomy_pool() -> None:
    """Both grow past 50 of 100 tokens in one slot. R2 comes once R1 decodes; little is expected of R1 (ratio 1/10)."""
    config = RankConfig(
        0,
        2,
        enable_radix_cache=False,
        init_new_token_ratio=Fraction(1, 10),
        min_new_token_ratio=Fraction(1, 10),
    )
    arrivals = ((0, made("R1", 20, 40)), (2, made("R2", 20, 40)))
    rank = OneRank(Experiment(config, 100, tuple(Arrival(*a) for a in arrivals)))
    for visit in rank.visits():
        if visit.decision.retracted:
            assert visit.decision.retracted == ("R2",)
            r1, r2 = rank.scheduler.requests["R1"], rank.scheduler.requests["R2"]
            assert (r2.pages, r2.kv_len, r2.req_slot) == ([], 0, None)
            assert rank.scheduler.kv.pool.free_tokens == 100 - len(r1.pages)
    roomy, _ = run(config, ROOMY, *arrivals)
    assert rank.coverage.situations["retracted"] == 1
    assert roomy.coverage.situations["retracted"] == 0
    for rid in ("R1", "R2"):
        tokens = [[t for r in each.replies if r.rid == rid for t in r.token_ids] for each in (rank, roomy)]
        assert tokens[0] == tokens[1] == [sampled(rid, n) for n in range(1, 41)]


@pytest.mark.parametrize("pp_size", [2, 4])
def test_b65_abort_all_reaches_every_slot_within_one_sweep(pp_size: int) -> None:
    config = RankConfig(0, pp_size, max_micro_batch_size=1, chunked_prefill_size=100)
    arrivals = [Arrival(0, made(f"R{n}", 4, 100)) for n in range(1, pp_size + 1)]
    rank = OneRank(Experiment(config, 10_000, tuple(arrivals)))
    for _ in range(20):
        rank.visit()
    assert [len(slot.running) for slot in rank.scheduler.slots.slots] == [1] * pp_size
    ended = dict.fromkeys(rank.visit(AbortReq("", abort_all=True)).harvest.finished, 20)
    while not rank.over:
        visit = rank.visit()
        ended |= dict.fromkeys(visit.harvest.finished, visit.iteration)
    assert sorted(ended) == [a.request.rid for a in arrivals]
    assert max(ended.values()) <= 20 + pp_size - 1
    assert set(statuses(rank).values()) == {"aborted"}
    rank.scheduler.kv.tree.reset()
    assert rank.scheduler.kv.pool.free_tokens == 10_000


def test_b65_an_abort_in_the_middle_of_a_prompt_launches_no_further_chunk() -> None:
    config = RankConfig(0, 4, chunked_prefill_size=100)
    rank = OneRank(Experiment(config, 10_000, (Arrival(0, made("R5", 1000, 5)),)))
    visits = [rank.visit(), rank.visit(), rank.visit(AbortReq("R5"))]
    while not rank.over:
        visits.append(rank.visit())
    assert [i for i, _ in launches(visits)] == [0, 1]
    assert visits[-1].iteration <= 1 + 4 - 1, "ends with the harvest of its last chunk"
    assert visits[-1].harvest.finished == ("R5",)
    rank.scheduler.kv.tree.reset()
    assert rank.scheduler.kv.pool.free_tokens == 10_000


@pytest.mark.parametrize(("pp_size", "in_slot", "num_launches"), [(1, 4, 6), (2, 2, 7)])
def test_b86_the_last_prompt_joins_the_others_as_soon_as_it_is_in(
    pp_size: int, in_slot: int, num_launches: int
) -> None:
    """4 prompts of 3000 in chunks of 2048: 6 launches where one slot takes all, 7 where two share them."""
    config = RankConfig(
        0,
        pp_size,
        chunked_prefill_size=2048,
        max_running_requests=4,
        max_micro_batch_size=in_slot,
        chunk_counts_as_row=False,
    )
    _, visits = run(config, ROOMY, *((0, made(f"R{n}", 3000, 200)) for n in (1, 2, 3, 4)))
    prefills = [i for i, _ in launches(visits)]
    assert prefills == list(range(num_launches)), "one an iteration, none waits for a decode to end"
    decodes = [v for v in visits if v.decision.mode == "decode" and v.iteration < num_launches + 2 * pp_size]
    assert {rid for v in decodes for rid, _, _ in v.decision.pieces} == {"R1", "R2", "R3", "R4"}


def test_b86_as_sglang_counts_rows_the_last_prompt_waits_for_the_others_to_end() -> None:
    """The chunk in iteration 4 counts as a fourth row: R4 is left out, and the slot is full until R1's 200 tokens."""
    config = RankConfig(0, 1, chunked_prefill_size=2048, max_running_requests=4, max_micro_batch_size=4)
    _, visits = run(config, ROOMY, *((0, made(f"R{n}", 3000, 200)) for n in (1, 2, 3, 4)))
    assert [i for i, _ in launches(visits)] == [0, 1, 2, 3, 4, 205, 206]


class NeverCleared(Scheduler):
    """The flag falls with nothing but the merge, as reported."""

    def reopen(self, slot: Slot) -> None:
        pass


def test_b86_a_flag_that_no_decode_clears_starves_the_next_request() -> None:
    config = RankConfig(0, 1, max_running_requests=2, max_micro_batch_size=2)
    arrivals = (Arrival(0, made("R1", 8, 60)), Arrival(0, made("R2", 8, 4)), Arrival(1, made("R3", 8, 2)))
    healthy = OneRank(Experiment(config, ROOMY, arrivals))
    starts = [i for i, batch in launches(list(healthy.visits())) if ("R3", 8) in batch]
    assert starts == [5], "R2 ends in the harvest of iteration 3, and the decode of iteration 4 drops it"
    faulty = OneRank(Experiment(config, ROOMY, arrivals), change=Change(parts_with([NeverCleared])))
    assert [i for i, batch in launches([faulty.visit() for _ in range(500)]) if ("R3", 8) in batch] == []


def gaps(visits: list[Visit]) -> int:
    """Longest run of iterations without a decode while something decodes."""
    decodes = when(visits, lambda v: v.decision.mode in ("decode", "mixed"))
    return max(b - a for a, b in pairwise(decodes))


def test_b87_forced_decode_rounds_bound_the_gap_between_tokens_whatever_the_stream() -> None:
    for stream in (20, 40):
        arrivals = [(0, made(f"R{n}", 4, 200)) for n in range(8)]
        arrivals += [(20 + n, made(f"R{n + 8}", 3000, 1)) for n in range(stream)]
        plain = RankConfig(0, 1, max_running_requests=512, max_micro_batch_size=512)
        _, greedy = run(plain, 10**6, *arrivals)
        _, fair = run(replace(plain, prefill_decode_interval=1), 10**6, *arrivals)
        assert gaps(greedy) >= stream, "prefill first: the gap grows with the stream"
        assert gaps(fair) == 2, "one prefill, one decode"


def test_b90_a_request_comes_back_only_when_its_whole_context_fits() -> None:
    config = RankConfig(0, 1, chunked_prefill_size=100, enable_radix_cache=False)
    rank, _ = run(config, 1000, (0, made("R1", 600, 300)), (0, made("R2", 600, 10)))
    assert rank.coverage.situations["retracted"] <= 1
    assert statuses(rank) == {"R1": "finished", "R2": "finished"}


@pytest.mark.parametrize(("page", "chunk"), [(256, 100), (16, 24), (16, 8)])
def test_b95_a_chunk_that_is_no_whole_number_of_pages_is_refused_at_the_start(page: int, chunk: int) -> None:
    with pytest.raises(ScenarioError, match=f"{chunk} is not a multiple of scheduler.page_size {page}"):
        check_scenario(validate({"scheduler": {"page_size": page, "chunked_prefill_size": chunk}}))


def test_b95_without_that_refusal_a_chunk_below_a_page_would_wait_for_ever() -> None:
    """A first chunk is cut down to whole pages: to nothing, visit after visit."""
    config = RankConfig(0, 1, page_size=256, chunked_prefill_size=100)
    rank = OneRank(Experiment(config, ROOMY, (Arrival(0, made("R1", 129, 1)),)))
    assert launches([rank.visit() for _ in range(50)]) == []


def test_b100_a_chunk_without_memory_is_parked_and_goes_on_later() -> None:
    """R1 decodes and R2's chunks run turn by turn, until R1 has the last free token: R2 waits one visit."""
    config = RankConfig(0, 2, chunked_prefill_size=8, enable_radix_cache=False, prefill_decode_interval=1)
    rank, visits = run(config, 3001, (0, made("R1", 993, 225)), (130, made("R2", 1900, 1)))
    assert rank.coverage.situations["chunk parked"] == 1
    assert statuses(rank) == {"R1": "finished", "R2": "finished"}
    pieces = [p for v in visits for p in v.decision.pieces if p[0] == "R2"]
    assert sum(new for _, _, new in pieces) == 1900
    assert [start for _, start, _ in pieces] == [sum(new for _, _, new in pieces[:i]) for i in range(len(pieces))]
    assert rank.scheduler.kv.pool.free_tokens == 3001


def test_b100_a_prompt_that_never_fits_is_refused_at_arrival() -> None:
    rank, visits = run(RankConfig(0, 2, chunked_prefill_size=2048), 3000, (0, made("R2", 6000, 1)))
    assert launches(visits) == []
    assert statuses(rank) == {"R2": "refused"}
    assert "6000 prompt + 1 new tokens" in rank.replies[0].reason
    assert "3000 tokens" in rank.replies[0].reason


def test_b103_prompts_are_packed_into_the_chunk_budget() -> None:
    config = RankConfig(0, 1, chunked_prefill_size=8192)
    _, visits = run(config, ROOMY, (0, made("R1", 8700, 1)), (0, made("R2", 9000, 1)))
    assert [batch for _, batch in launches(visits)] == [[("R1", 8192)], [("R1", 508), ("R2", 7684)], [("R2", 1316)]]
