"""Comparing logs: framing, the reduction down the chain of ranks, and which call is named.

The oracle for the comparison is equality of the logs themselves; digests and MIN/MAX must find exactly that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.check.calls import after_a_crash, first_difference
from ppsim.check.calls import named as violation_of
from ppsim.core.agreed import agree
from ppsim.core.comparison import compare, conclude
from ppsim.core.config import RankConfig
from ppsim.core.digest import digest
from ppsim.core.effects import Commit, Recv, Send
from ppsim.core.errors import CallsDiffer, InvariantViolation
from ppsim.core.messages import Call, CallLog, Check, Lane
from ppsim.core.parts import build_rank
from ppsim.core.rank import Rank

NUM_SLOTS = 3


def call(iteration: int, name: str, text: str = "called()", invariant: str = "INV-23") -> Call:
    return Call(iteration, iteration % NUM_SLOTS, invariant, name, text)


def log(calls: Sequence[Call], *ranks: int) -> CallLog:
    return CallLog(ranks, digest(tuple(calls)), tuple(calls))


def named(*logs: CallLog) -> InvariantViolation:
    violation = first_difference(logs, "found")
    assert violation is not None
    return violation


# --- framing ---------------------------------------------------------------------------------------------------


def test_no_text_can_move_from_one_call_into_the_next_without_changing_the_digest() -> None:
    """SGLang hashes the joined text only: these all read alike there (protocol.md section 8)."""
    joined = [
        [call(1, "Pool.alloc", "called(1)"), call(1, "Pool.alloc", "called(2)")],
        [call(1, "Pool.alloc", "called(1)Pool.alloccalled(2)")],
        [call(1, "Pool.alloc", "called(1)Pool.alloc"), call(1, "", "called(2)")],
        [call(1, "Pool.alloc", "called(1)"), call(1, "", ""), call(1, "Pool.alloc", "called(2)")],
    ]
    assert len({"".join(c.name + c.text for c in calls) for calls in joined}) == 1
    for one, other in combinations(joined, 2):
        chain = Chain(2, 1)
        for rank, calls in zip(chain.ranks, (one, other), strict=True):
            assert rank.checker is not None
            rank.checker.window += calls
        with pytest.raises(CallsDiffer) as caught:
            chain.end_iteration()
        assert "differs between ranks" in str(violation_of(caught.value))


# --- which call is named ---------------------------------------------------------------------------------------


A, B, C, D = (call(100, f"Pool.{name}") for name in ("alloc", "share", "release", "alloc2"))


def test_a_different_parameter_is_named_with_both_renderings() -> None:
    other = call(100, "Pool.share", "called(2)")
    violation = named(log([A, B, C], 0), log([A, other, C], 1))
    assert (violation.invariant, violation.rank, violation.iteration, violation.slot) == ("INV-23", 1, 100, 1)
    assert violation.detail == "Pool.share differs between ranks: rank 0 called(); rank 1 called(2); found"


def test_a_missing_call_is_the_one_named() -> None:
    violation = named(log([A, B, C], 0), log([A, C], 1))
    assert violation.rank == 1
    assert violation.detail == (
        "Pool.share differs between ranks: rank 0 called(); rank 1 called() of Pool.release in iteration 100; found"
    )


def test_a_missing_last_call_is_found_too() -> None:
    violation = named(log([A, B, C], 0), log([A, B], 1))
    shown = "rank 0 called(); rank 1 makes no further call"
    assert violation.detail == f"Pool.release differs between ranks: {shown}; found"


def test_an_extra_call_is_the_one_named() -> None:
    violation = named(log([A, C], 0), log([A, B, C], 1))
    assert violation.detail.startswith("Pool.share differs between ranks: rank 0 called() of Pool.release")
    assert violation.rank == 1
    violation = named(log([A], 0), log([A, B], 1))
    assert violation.detail == "Pool.share differs between ranks: rank 0 makes no further call; rank 1 called(); found"


def test_the_iteration_is_the_earlier_one_where_a_rank_left_a_call_out() -> None:
    late = call(101, "Scheduler.apply", invariant="INV-01")
    violation = named(log([A, B, late], 0), log([A, late], 1))
    assert (violation.iteration, violation.slot, violation.invariant) == (100, 1, "INV-23")


def test_the_rank_that_is_alone_is_named_even_if_it_is_the_first() -> None:
    lonely = log([A, call(100, "Pool.share", "called(9)")], 0)
    violation = named(lonely, log([A, B], 1, 2, 3))
    assert violation.rank == 0
    assert "rank 0 called(9); ranks 1, 2, 3 called()" in violation.detail


def test_with_two_ranks_against_two_the_side_of_the_lowest_rank_is_taken_to_be_right() -> None:
    assert named(log([A, B], 0, 3), log([A, C], 1, 2)).rank == 1


def test_two_odd_ranks_are_both_shown_and_the_earliest_difference_counts() -> None:
    violation = named(log([A, B, C], 0, 1), log([A, B, D], 2), log([A, D, C], 3))
    assert violation.rank == 3
    assert violation.detail.startswith("Pool.share differs between ranks: ranks 0, 1, 2 called(); rank 3 ")


# --- the reduction down the chain ------------------------------------------------------------------------------


def started_rank(pp_rank: int, pp_size: int, interval: int) -> Rank:
    rank = build_rank(RankConfig(pp_rank, pp_size, consensus_check_interval=interval))
    rank.start(agree(64, "test"))
    return rank


class Chain:
    """Ranks whose checkers are driven by hand, in order; every message is kept."""

    def __init__(self, pp_size: int, interval: int) -> None:
        self.ranks = [started_rank(k, pp_size, interval) for k in range(pp_size)]
        self.queues: dict[tuple[int, int], list[Any]] = {}
        self.sent: list[Check] = []
        self.committed: list[int] = []

    def end_iteration(self, step: Any = compare) -> None:
        for rank in self.ranks:
            reply: Any = None
            loop = step(rank)
            while True:
                try:
                    effect = loop.send(reply)
                except StopIteration:
                    break
                reply = self.answer(rank.link.rank_id, effect)
            rank.iteration += 1

    def answer(self, me: int, effect: Any) -> Any:
        match effect:
            case Send():
                assert isinstance(effect.message, Check)
                assert effect.message.lane is Lane.CHECK
                self.queues.setdefault((me, effect.dst), []).append(effect.message)
                self.sent.append(effect.message)
                return len(self.sent)
            case Recv():
                return self.queues[effect.src, me].pop(0)
            case Commit():
                self.committed.append(effect.work)
                return None
        raise AssertionError(effect)


LOGS = st.lists(st.sampled_from([("Pool.alloc", "1"), ("Pool.alloc", "2"), ("Pool.share", "1")]), max_size=4)


@given(st.lists(LOGS, min_size=2, max_size=5))
def test_the_chain_fails_exactly_where_the_logs_differ_and_carries_true_minima_and_maxima(
    logs: list[list[tuple[str, str]]],
) -> None:
    chain = Chain(len(logs), 1)
    for rank, calls in zip(chain.ranks, logs, strict=True):
        assert rank.checker is not None
        for name, text in calls:
            rank.checker.record("INV-23", name, text)
    digests = [digest(tuple(Call(0, 0, "INV-23", n, t) for n, t in calls)) for calls in logs]
    differ = len({tuple(calls) for calls in logs}) > 1
    if differ:
        with pytest.raises(CallsDiffer) as caught:
            chain.end_iteration()
        assert "found when the calls up to iteration 0 were compared" in str(violation_of(caught.value))
    else:
        chain.end_iteration()
    for k, check in enumerate(chain.sent):
        assert (check.lowest, check.highest) == (min(digests[: k + 1]), max(digests[: k + 1]))
        assert sum(len(entry.ranks) for entry in check.logs) == k + 1
        assert len(check.logs) == len(set(digests[: k + 1]))


def test_calls_are_compared_every_n_iterations_and_the_rest_at_the_end() -> None:
    chain = Chain(3, 4)
    for iteration in range(10):
        for rank in chain.ranks:
            assert rank.checker is not None
            rank.checker.record("INV-23", "Pool.alloc", f"called({iteration})")
        chain.end_iteration()
    assert [check.iteration for check in chain.sent] == [3, 3, 7, 7]
    assert [[c.iteration for c in check.logs[0].calls] for check in chain.sent[::2]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    chain.end_iteration(conclude)
    assert [c.iteration for c in chain.sent[-1].logs[0].calls] == [8, 9]
    assert sorted(chain.committed) == [1, 2, 3, 4, 5, 6]


def test_a_send_is_committed_pp_size_iterations_later_when_it_was_taken_long_ago() -> None:
    chain = Chain(2, 1)
    seen = []
    for _ in range(5):
        chain.end_iteration()
        seen.append(list(chain.committed))
    assert seen == [[], [], [1], [1, 2], [1, 2, 3]]


# --- after a crash ---------------------------------------------------------------------------------------------


def test_ranks_that_stopped_at_different_places_do_not_differ_for_that() -> None:
    calls = tuple(call(i, "Pool.alloc", f"called({i})") for i in range(20))
    assert after_a_crash({0: calls, 1: calls[:11], 2: calls[3:17]}) is None
    assert after_a_crash({0: calls}) is None
    assert after_a_crash({0: calls, 1: ()}) is None


def test_what_differed_before_the_crash_is_named() -> None:
    calls = tuple(call(i, "Pool.alloc", f"called({i})") for i in range(20))
    other = (*calls[:9], call(9, "Pool.alloc", "called(8)"), *calls[10:12])
    violation = after_a_crash({0: calls[5:], 1: other, 2: calls})
    assert violation is not None
    assert (violation.rank, violation.iteration) == (1, 9)
    assert violation.detail.endswith("found when the run had failed")


def test_only_so_many_iterations_are_kept_as_the_ranks_can_be_apart() -> None:
    rank = started_rank(0, 2, 4)
    assert rank.checker is not None
    for iteration in range(100):
        rank.iteration = iteration
        rank.checker.record("INV-23", "Pool.alloc", "called()")
        if (iteration + 1) % 4 == 0:
            rank.checker.close()
    kept = [entry.iteration for entry in rank.checker.log]
    assert kept == list(range(99 - 4 - 2 * rank.config.num_slots, 100))
