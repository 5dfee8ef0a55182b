"""Law: ``first_difference`` names the earliest record in logical time in which two runs differ, and only if they do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ppsim.core.effects import Decision
from ppsim.recording import Recording
from ppsim.recording.diff import Difference, first_difference, first_in_batches
from tests.unit.handmade import decision, harvest, pipeline, two_requests


def changed(change: Callable[[Recording], object]) -> Difference:
    recording = two_requests()
    change(recording)
    found = first_difference(two_requests(), recording)
    assert found is not None
    return found


def test_equal_recordings_do_not_differ() -> None:
    assert first_difference(two_requests(), two_requests(), times=True) is None
    assert first_difference(Recording(4), Recording(4), times=True) is None


def test_a_piece_that_differs_is_named_by_its_place() -> None:
    def longer(r: Recording) -> None:
        r.decisions[1][1] = decision(1, 1, ("b", 0, 31))

    found = changed(longer)
    assert found == Difference("decision", 1, 1, 1, "pieces[0]", ("b", 0, 30), ("b", 0, 31))
    assert found.place() == "rank 1, iteration 1, slot 1"


@pytest.mark.parametrize(
    ("record", "field", "left", "right"),
    [
        (Decision(1, 1, "mixed", (("b", 0, 30),), (), None, "s"), "mode", "extend", "mixed"),
        (Decision(1, 1, "extend", (("b", 0, 30), ("c", 0, 1)), (), None, "s"), "pieces[1]", None, ("c", 0, 1)),
        (Decision(1, 1, "extend", (("b", 0, 30),), ("a",), None, "s"), "retracted[0]", None, "a"),
        (Decision(1, 1, "extend", (("b", 0, 30),), (), "b", "s"), "chunked_rid", None, "b"),
        (Decision(1, 1, "extend", (("b", 0, 30),), (), None, "t"), "state_digest", "s", "t"),
    ],
)
def test_each_field_of_a_decision_is_compared(record: Decision, field: str, left: object, right: object) -> None:
    found = changed(lambda r: r.decisions[0].__setitem__(1, record))
    assert (found.kind, found.rank, found.iteration) == ("decision", 0, 1)
    assert (found.field, found.left, found.right) == (field, left, right)


def test_the_earliest_iteration_wins_over_the_smaller_rank() -> None:
    def two_places(r: Recording) -> None:
        r.decisions[0][3] = decision(3, 1, ("late", 0, 1))
        r.decisions[1][1] = decision(1, 1, ("early", 0, 1))

    found = changed(two_places)
    assert (found.rank, found.iteration) == (1, 1)


def test_in_one_iteration_the_cause_is_named_before_its_consequence() -> None:
    def observed_and_decided(r: Recording) -> None:
        r.decisions[0][2] = decision(2, 0, ("other", 0, 1))
        r.observations[0][1] = r.observations[0][1]._replace(values=(5,))

    found = changed(observed_and_decided)
    assert (found.kind, found.iteration, found.field) == ("observed", 2, "values[0]")
    assert (found.left, found.right) == (2, 5)


def test_in_one_iteration_the_kind_counts_before_the_rank() -> None:
    """Rank 1 decided otherwise in iteration 2, rank 0 harvested otherwise in the same one. A visit decides before it
    harvests, so what rank 0 shows may follow from what rank 1 did; the other way round it cannot."""

    def decided_and_harvested(r: Recording) -> None:
        r.harvests[0][2] = harvest(2, 1, 1, free=99)
        r.decisions[1][2] = decision(2, 0, ("other", 0, 1))

    found = changed(decided_and_harvested)
    assert (found.kind, found.rank, found.iteration) == ("decision", 1, 2)


def test_of_two_ranks_that_differ_alike_the_smaller_is_named() -> None:
    def both(r: Recording) -> None:
        r.decisions[0][2] = decision(2, 0, ("other", 0, 1))
        r.decisions[1][2] = decision(2, 0, ("other", 0, 1))

    assert changed(both).rank == 0


@pytest.mark.parametrize(
    ("change", "kind", "rank"),
    [
        (lambda r: r.ingestions.pop(1), "ingested", 0),
        (lambda r: r.samples.__setitem__(0, r.samples[0]._replace(token_ids=(8,))), "sampled", 1),
        (lambda r: r.replies.__setitem__(0, r.replies[0]._replace(reason="other")), "reply", 0),
    ],
)
def test_only_the_first_rank_reads_and_replies_and_only_the_last_one_samples(
    change: Callable[[Recording], object], kind: str, rank: int
) -> None:
    found = changed(change)
    assert (found.kind, found.rank) == (kind, rank)


def test_records_of_two_iterations_at_one_place_part_in_the_earlier_one() -> None:
    """One run read its second input in iteration 1, the other read nothing before 2: they part in 1."""
    found = changed(lambda r: r.ingestions.pop(1))
    assert (found.iteration, found.field, found.left, found.right) == (1, "iteration", 1, 2)


def test_the_first_other_batch_is_that_of_the_earliest_iteration_and_digests_do_not_count() -> None:
    """The inner state may part long before a batch shows it: this is where a user sees the first other schedule."""
    other = two_requests()
    assert first_in_batches(two_requests(), other) is None
    other.decisions[0][0] = decision(0, 0, ("a", 16, 4), state="t")
    assert first_in_batches(two_requests(), other) is None
    other.decisions[0][3] = decision(3, 1, ("late", 0, 1))
    other.decisions[1][1] = decision(1, 1, ("early", 0, 1))
    found = first_in_batches(two_requests(), other)
    assert found is not None
    assert (found.rank, found.iteration, found.field) == (1, 1, "pieces[0]")


def test_a_record_that_only_one_run_has_is_a_difference() -> None:
    found = changed(lambda r: r.decisions[1].pop())
    assert (found.kind, found.rank, found.iteration, found.field) == ("decision", 1, 3, "")
    assert found.right is None
    back = first_difference(pipeline(2, 2), pipeline(2, 3))
    assert back is not None
    assert back.kind == "ingested"  # the longer prompt came in before anything else


@pytest.mark.parametrize(
    ("change", "kind", "iteration"),
    [
        (lambda r: r.harvests[0].pop(), "harvest", 2),
        (lambda r: r.samples.__setitem__(1, r.samples[1]._replace(token_ids=(8,))), "sampled", 2),
        (lambda r: r.replies.__setitem__(4, r.replies[4]._replace(status="aborted")), "reply", 3),
        (lambda r: r.ingestions.pop(), "ingested", 4),
    ],
)
def test_all_logical_kinds_are_compared(change: Callable[[Recording], object], kind: str, iteration: int) -> None:
    found = changed(change)
    assert (found.kind, found.iteration) == (kind, iteration)


def test_runs_of_different_size_differ_in_their_header() -> None:
    found = first_difference(Recording(2), Recording(4))
    assert found is not None
    assert (found.kind, found.left, found.right) == ("header", (2, 1), (4, 1))
    assert first_difference(Recording(4, tp_replicas=1), Recording(4, tp_replicas=2)) is not None


def pair() -> Recording:
    """Two pipelines: the prefill side is the recording's peer."""
    decode = two_requests()
    decode.peer = two_requests()
    return decode


def test_of_two_pipelines_both_sides_are_compared_the_prefill_side_first() -> None:
    assert first_difference(pair(), pair(), times=True) is None
    other = pair()
    assert other.peer is not None
    other.peer.samples[1] = other.peer.samples[1]._replace(token_ids=(8,))
    other.decisions[0].pop()
    found = first_difference(pair(), other)
    assert found is not None
    assert (found.kind, found.side) == ("sampled", "prefill")
    assert found.place().startswith("side prefill, rank 1, ")
    decided = first_difference(pair(), other, decisions_only=True)
    assert decided is not None
    assert (decided.kind, decided.side) == ("decision", "decode")
    slower = pair()
    assert slower.peer is not None
    slower.peer.spans[1][0] = slower.peer.spans[1][0]._replace(end_ns=1)
    assert first_difference(pair(), slower) is None
    late = first_difference(pair(), slower, times=True)
    assert late is not None
    assert (late.kind, late.side) == ("time", "prefill")


def test_one_pipeline_and_two_differ_in_their_header() -> None:
    for left, right in ((pair(), two_requests()), (two_requests(), pair())):
        found = first_difference(left, right)
        assert found is not None
        assert (found.kind, found.side) == ("header", "prefill")


def test_times_count_only_when_asked_for_and_after_everything_else() -> None:
    slower = two_requests()
    slower.spans[1][0] = slower.spans[1][0]._replace(end_ns=1)
    assert first_difference(two_requests(), slower) is None
    found = first_difference(two_requests(), slower, times=True)
    assert found == Difference("time", 1, 0, 0, "span.end_ns", 8_000_000_000, 1)
    slower.decisions[0].pop()
    both = first_difference(two_requests(), slower, times=True)
    assert both is not None
    assert both.kind == "decision"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.arrivals.__setitem__(0, r.arrivals[0]._replace(at_ns=5)), "arrival.at_ns"),
        (lambda r: r.ingestions.__setitem__(0, r.ingestions[0]._replace(time_ns=5)), "ingested.time_ns"),
        (lambda r: r.replies.__setitem__(0, r.replies[0]._replace(time_ns=5)), "reply.time_ns"),
        (lambda r: r.spans[0].pop(), "span"),
    ],
)
def test_every_kind_of_time_is_compared(change: Callable[[Recording], object], field: str) -> None:
    slower = two_requests()
    change(slower)
    found = first_difference(two_requests(), slower, times=True)
    assert found is not None
    assert (found.kind, found.field) == ("time", field)
    assert found.rank == (None if field.startswith("arrival") else 0)


def test_two_worlds_with_their_own_tokens_are_compared_by_decisions_only() -> None:
    other = two_requests()
    other.samples.clear()
    other.replies = [reply._replace(token_ids=(9,) * len(reply.token_ids)) for reply in other.replies]
    assert first_difference(two_requests(), other) is not None
    assert first_difference(two_requests(), other, decisions_only=True) is None
    other.decisions[1].pop()
    found = first_difference(two_requests(), other, decisions_only=True)
    assert found is not None
    assert (found.kind, found.rank, found.iteration) == ("decision", 1, 3)
