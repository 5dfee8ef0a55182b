"""SGLang's rules of scheduling, one story each (docs/batches.md). Expected values come from SGLang's own scheduler, run
beside ours, or are worked out by hand from the rule; never from a run of ours. Pages of 1, P = 2, D = 0 unless said.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ppsim.core.config import RankConfig
from ppsim.core.effects import CLOSED, DEFERRED
from ppsim.core.messages import NewRequest
from ppsim.core.schedule.foresight import Foresight
from ppsim.core.schedule.order import waiting_order
from ppsim.core.schedule.ratio import NewTokenRatio
from ppsim.core.schedule.request import Request
from ppsim.scenario.rank import RULE_SETS
from tests.interactions.experiment import Arrival, Experiment, request
from tests.interactions.one_rank import OneRank, Visit

SGLANG = RankConfig(0, 2, chunked_prefill_size=None)
MENDED = replace(SGLANG, **RULE_SETS["mended"])
BOTH = pytest.mark.parametrize("rules", [SGLANG, MENDED], ids=["sglang", "mended"])


def made(name: str, prompt: int, output: int, **more: bool) -> NewRequest:
    """A request of its own tokens: it shares no prefix with any other."""
    return request(name, [100 + ord(c) for c in name][-1:] * prompt, output, **more)


def run(config: RankConfig, capacity: int, *arrivals: tuple[int, NewRequest]) -> tuple[OneRank, list[Visit]]:
    rank = OneRank(Experiment(config, capacity, tuple(Arrival(*a) for a in arrivals)))
    return rank, list(rank.visits())


def first_launch(visits: list[Visit], rid: str) -> int:
    return next(v.iteration for v in visits if rid in [piece[0] for piece in v.decision.pieces])


def new_tokens(visits: list[Visit], rid: str) -> dict[int, int]:
    """Iteration -> new tokens of a request's prefill pieces."""
    found = {}
    for v in visits:
        for piece in v.batch.forward.pieces if v.batch else ():
            if piece.rid == rid and not piece.is_decode:
                found[v.iteration] = piece.new_tokens
    return found


# --- 1: batch_is_full is the running batch's ---------------------------------------------------------------------


@BOTH
def test_1a_a_harvested_batch_that_becomes_the_running_batch_brings_a_flag_of_its_own(rules: RankConfig) -> None:
    """C does not fit in iterations 0 and 1. At 2 [A] becomes slot 0's running batch: 800 - 399 x 0.7 = 520.7 > 501."""
    _, visits = run(rules, 1000, *((0, made(name, 100, 400)) for name in "ABC"))
    assert first_launch(visits, "C") == 2


def slot_closing() -> list[tuple[int, NewRequest]]:
    later = [(60 + 4 * n, made(f"R{n + 2}", 5, 5)) for n in range(8)]
    return [(0, made("R0", 10, 10)), (1, made("R1", 10, 10)), *later]


@pytest.mark.parametrize(("rules", "launches"), [(SGLANG, {0: 43}), (MENDED, {0: 25, 1: 22})], ids=["sglang", "mended"])
def test_1b_a_slot_that_got_no_token_while_it_was_empty_is_closed_for_ever(
    rules: RankConfig, launches: dict[int, int]
) -> None:
    """R1 does not fit beside R0 in iteration 1, where slot 1 is empty: nothing clears its flag."""
    rank, visits = run(rules, 30, *slot_closing())
    assert Counter(v.decision.slot for v in visits if v.batch) == launches
    closed = [v.iteration for v in visits if v.decision.stall == CLOSED]
    assert closed == ([v.iteration for v in visits if v.decision.slot == 1] if rules is SGLANG else [])
    assert rank.scheduler.slots.slots[1].closed_since == (1 if rules is SGLANG else -1)


def test_1b_a_closed_slot_opens_when_a_chunk_passes_through_it() -> None:
    """Nothing but the chunk, which asks no flag: its harvested batch loses it at the merge, and the flag falls."""
    config = replace(SGLANG, chunked_prefill_size=16)
    _, visits = run(config, 30, (0, made("R0", 8, 12)), (1, made("R1", 10, 12)), (60, made("R2", 20, 3)))
    stalls = {v.iteration: v.decision.stall for v in visits if v.decision.slot == 1}
    assert stalls[1] == stalls[59] == CLOSED
    assert stalls[61] == "", "the second chunk of R2"
    assert CLOSED not in [stall for iteration, stall in stalls.items() if iteration > 61]


# --- 2: prefill_decode_interval ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "launched"), [(SGLANG, 3), (MENDED, 1)], ids=["sglang", "mended"])
def test_2_while_prefills_are_deferred_an_empty_slot_stays_empty(rules: RankConfig, launched: int) -> None:
    config = replace(rules, prefill_decode_interval=2)
    _, visits = run(config, 1000, (0, made("A", 5, 5)), (1, made("B", 5, 5)))
    assert first_launch(visits, "B") == launched
    assert [v.iteration for v in visits if v.decision.stall == DEFERRED] == ([1] if rules is SGLANG else [])


def test_2_a_running_chunk_is_deferred_too() -> None:
    config = replace(SGLANG, prefill_decode_interval=1, chunked_prefill_size=8)
    _, visits = run(config, 1000, (0, made("A", 24, 1)))
    assert list(new_tokens(visits, "A")) == [0, 2, 4]
    assert [v.iteration for v in visits if v.decision.stall == DEFERRED] == [1, 3]


# --- 3: what allocations evict -----------------------------------------------------------------------------------


def evicted(rank: OneRank) -> int:
    return rank.scheduler.kv.tree.num_evicted


def cached(rank: OneRank, name: str, num_tokens: int) -> None:
    """Tokens in the cache that nobody uses, as one leaf."""
    kv = rank.scheduler.kv
    pages = kv.pool.alloc(num_tokens // kv.pool.page_size)
    kv.tree.insert(made(name, num_tokens, 1).prompt, pages)
    kv.pool.release(pages)


@pytest.mark.parametrize(("ahead", "nodes"), [(True, 1), (False, 0)])
def test_3a_a_decode_step_makes_room_for_a_page_a_request_whether_or_not_one_is_due(ahead: bool, nodes: int) -> None:
    """12 pages of 4: six cached as two leaves, two with 5 prompt tokens, and the other four are taken away.

    The step writes token 6, so no page is due; none is free, and one request wants one.
    """
    config = replace(SGLANG, pp_size=1, page_size=4, evict_ahead=ahead)
    rank = OneRank(Experiment(config, 48, (Arrival(0, made("A", 5, 3)),)))
    cached(rank, "x", 12)
    cached(rank, "y", 12)
    rank.visit()
    before = evicted(rank)
    rank.scheduler.kv.pool.alloc(rank.scheduler.kv.pool.num_free_pages)
    rank.visit()
    assert evicted(rank) - before == nodes


def test_3a_nothing_is_evicted_ahead_where_a_request_asks_for_logprobs() -> None:
    config = replace(SGLANG, pp_size=1, page_size=4)
    rank = OneRank(Experiment(config, 48, (Arrival(0, made("A", 5, 3, return_logprob=True)),)))
    cached(rank, "x", 12)
    rank.visit()
    before = evicted(rank)
    rank.scheduler.kv.pool.alloc(rank.scheduler.kv.pool.num_free_pages)
    rank.visit()
    assert evicted(rank) == before


@pytest.mark.parametrize(("ahead", "nodes"), [(True, 1), (False, 0)])
def test_3b_a_prefill_makes_room_for_its_new_tokens_and_a_page_a_request(ahead: bool, nodes: int) -> None:
    """10 pages of 4, six of them cached as two leaves, four free. 13 tokens are four pages; one more is wanted."""
    config = replace(SGLANG, page_size=4, evict_ahead=ahead)
    rank = OneRank(Experiment(config, 40, (Arrival(0, made("A", 13, 1)),)))
    cached(rank, "x", 12)
    cached(rank, "y", 12)
    rank.visit()
    assert evicted(rank) == nodes


@pytest.mark.parametrize(("ahead", "nodes"), [(True, 2), (False, 1)])
def test_3c_behind_a_retraction_room_is_made_for_20_steps_of_those_that_stay(ahead: bool, nodes: int) -> None:
    """B stands on two nodes of 4 tokens. It is retracted for A's next token: one node would do, 20 tokens want both."""
    config = replace(SGLANG, pp_size=1, evict_ahead=ahead)
    rank = OneRank(Experiment(config, 200, (Arrival(0, made("A", 8, 30)), Arrival(0, made("B", 8, 30)))))
    cached(rank, "B", 4)
    rank.visit()
    before = evicted(rank)
    rank.scheduler.kv.pool.alloc(rank.scheduler.kv.pool.num_free_pages)
    assert rank.visit().decision.retracted == ("B",)
    assert evicted(rank) - before == nodes


# --- 4 and 5 -----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("capacity", "late", "iteration", "tokens"), [(40, 15, 3, 6), (50, 27, 5, 3)])
def test_4_what_remains_for_a_chunk_is_truncated_not_the_growth(
    rules: RankConfig, capacity: int, late: int, iteration: int, tokens: int
) -> None:
    """KV 40: SGLang takes 6 in iteration 3. KV 50: less than one token remains in iteration 5, so it takes all 3."""
    config = replace(rules, chunked_prefill_size=8)
    _, visits = run(config, capacity, (0, made("R0", 16, 14)), (0, made("R1", late, 4)))
    assert new_tokens(visits, "R1")[iteration] == tokens


@BOTH
def test_5_those_that_stay_after_a_retraction_are_in_the_order_of_preference(rules: RankConfig) -> None:
    """Equal outputs: the shorter prompt is preferred. C (12) is retracted; B (7) stands before A (9) from then on."""
    lengths = {"A": 9, "B": 7, "C": 12}
    arrivals = tuple(Arrival(0, made(name, length, 30)) for name, length in lengths.items())
    rank = OneRank(Experiment(replace(rules, pp_size=1), 300, arrivals))
    assert [piece[0] for piece in rank.visit().decision.pieces] == ["A", "B", "C"]
    rank.scheduler.kv.pool.alloc(rank.scheduler.kv.pool.num_free_pages)
    decision = rank.visit().decision
    assert decision.retracted == ("C",)
    assert [piece[0] for piece in decision.pieces] == ["B", "A"]


# --- 6: longest prefix match -------------------------------------------------------------------------------------


def test_6_sorting_looks_the_whole_prompt_up_and_leaves_the_last_token_out_of_the_key_only() -> None:
    """Six tokens are cached. B, first in line, shares five of them; A is just those six: both count as five."""
    config = replace(SGLANG, schedule_policy="lpm")
    rank = OneRank(Experiment(config, 1000, ()))
    cached(rank, "t", 6)
    t = 100 + ord("t")
    scheduler = rank.scheduler
    for spec in (request("B", [t] * 5 + [1] * 5, 3), request("A", [t] * 6, 3)):
        scheduler.waiting.append(Request(spec))
    assert [r.rid for r in waiting_order(config, scheduler.waiting, scheduler.kv)] == ["B", "A"]
    assert scheduler.kv.tree.num_splits == 1, "by B at five tokens; A finds all six of its own"


# --- 8: ignore_eos with the radix cache off ----------------------------------------------------------------------

FORESEEN = replace(SGLANG, pp_size=1, enable_radix_cache=False)


@BOTH
@pytest.mark.parametrize(
    ("capacity", "prompt", "output", "as_foreseen", "as_any_other"),
    [
        (40, 20, 2, True, False),  # it gives its 20 tokens back long before A needs them
        (42, 1, 17, False, True),  # it grows as long as A does: 34 tokens, not 17 x 0.698 + 17
    ],
)
def test_8_what_ignores_the_end_of_sequence_is_admitted_by_what_is_known_to_come(
    rules: RankConfig, capacity: int, prompt: int, output: int, as_foreseen: bool, as_any_other: bool
) -> None:
    """A (5, 20) has 3 tokens in iteration 3, holds 7 of the KV, and makes 17 more.

    (20, 2) at KV 40: free 33; foreseen 13 - 2 x 2 = 9 > 2, then 13 + 20 - 17 = 16 > 1; else 23 >= 33 - 11.9. (1, 17) at
    KV 42: free 35; foreseen 34 - 17 x 2 = 0; else 19 < 35 - 11.9.
    """
    for ignore_eos, admitted in ((True, as_foreseen), (False, as_any_other)):
        config = replace(rules, pp_size=1, enable_radix_cache=False)
        a, b = made("A", 5, 20, ignore_eos=True), made("B", prompt, output, ignore_eos=ignore_eos)
        _, visits = run(config, capacity, (0, a), (3, b))
        assert (first_launch(visits, "B") == 3) == admitted


def test_8_the_radix_cache_or_all_slots_reserved_leave_the_common_admission() -> None:
    for config in (replace(FORESEEN, enable_radix_cache=True), replace(FORESEEN, reserve_all_slots=True)):
        _, visits = run(config, 40, (0, made("A", 5, 20, ignore_eos=True)), (3, made("B", 20, 2, ignore_eos=True)))
        assert first_launch(visits, "B") > 3


def test_8_what_could_never_be_admitted_is_refused_at_arrival() -> None:
    """All its output counts, however the estimate of others is clipped."""
    config = replace(FORESEEN, clip_max_new_tokens=3)
    rank, _ = run(config, 30, (0, made("A", 5, 24, ignore_eos=True)), (0, made("B", 5, 23, ignore_eos=True)))
    statuses = {r.rid: r.status for r in rank.replies if r.status != "token"}
    assert statuses == {"A": "refused", "B": "finished"}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=6), st.integers(0, 120))
def test_8_foresight_is_a_simulation_of_the_slot_step_by_step(sizes: list[tuple[int, int]], free: int) -> None:
    """(tokens left, prompt) of each: one token a step; who ends gives all back. Short by one a request: refused."""
    requests = [Request(made(f"R{n}", prompt, left, ignore_eos=True)) for n, (left, prompt) in enumerate(sizes)]
    ratio = NewTokenRatio(Fraction(7, 10), Fraction(98, 1000), 600)
    running = [{"left": left, "held": prompt} for left, prompt in sizes]
    left_over, fits = free, True
    for _ in range(12):
        for one in running:
            one["left"] -= 1
            one["held"] += 1
            left_over -= 1
        for one in [r for r in running if r["left"] == 0]:
            fits &= left_over > len(running)
            running.remove(one)
            left_over += one["held"]
    assert Foresight(ratio, requests[1:]).fits(requests[0], [], free) == fits


# --- 9: a continued chunk beside others --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "pieces"),
    [(SGLANG, {2: 4, 3: 0, 4: 4, 5: 0, 6: 4}), (MENDED, {2: 4, 4: 4, 6: 4})],
    ids=["sglang", "mended"],
)
def test_9b_a_chunk_beside_decodes_that_use_up_the_budget_is_launched_with_no_token(
    rules: RankConfig, pieces: dict[int, int]
) -> None:
    """Four requests decode in slot 1 and the chunk budget is 4: nothing is left there for L, cut in slot 0."""
    config = replace(rules, chunked_prefill_size=4, enable_mixed_chunk=True)
    decodes = [(1, made(f"R{n}", 1, 20)) for n in range(4)]
    rank, visits = run(config, 1000, *decodes, (2, made("L", 12, 1)))
    assert new_tokens(visits, "L") == pieces
    assert {r.rid: r.status for r in rank.replies}["L"] == "finished"
    assert rank.scheduler.kv.tree.protected_tokens == 0
