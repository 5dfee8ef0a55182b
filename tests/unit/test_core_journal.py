"""What a rank did in an iteration: handed out once, summed up in one record, told to listeners, then forgotten."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ppsim.core.actions import AbortSender, Compile
from ppsim.core.config import RankConfig
from ppsim.core.digest import digest
from ppsim.core.effects import Harvest, Reply
from ppsim.core.messages import AbortReq
from ppsim.core.schedule.journal import (
    Absorbed,
    Advanced,
    Delivered,
    Ended,
    Entry,
    Journal,
    Launched,
    NotTaken,
    Retracted,
    Why,
)
from ppsim.core.schedule.request import Event, Moved, State
from tests.interactions.experiment import Arrival, Experiment, request
from tests.interactions.one_rank import OneRank, sample
from tests.interactions.ring import Ring


def written(*entries: Entry) -> Journal:
    journal = Journal()
    for entry in entries:
        journal.add(entry)
    return journal


def test_acts_and_replies_are_handed_out_once_each_in_their_own_order() -> None:
    first, second = Reply("A", "token", (7,), 1), Reply("B", "refused")
    journal = written(Compile("A", "json"), first, AbortSender("B", 3), Advanced("A"), second)
    assert journal.take_actions() == [Compile("A", "json"), AbortSender("B", 3)]
    assert journal.take_actions() == []
    assert journal.take_replies() == [first, second]
    journal.add(first)
    assert (journal.due_replies, journal.take_replies(), journal.take_replies()) == ([first], [first], [])
    assert journal.of(Reply) == [first, second, first], "what is handed out can still be looked at"


def test_a_flush_forgets_all_but_what_is_still_to_be_handed_out() -> None:
    late = Reply("B", "aborted")
    journal = written(Advanced("A"), Reply("A", "token", (7,), 1), Compile("A", "json"))
    journal.take_replies()
    journal.add(late)
    journal.flush()
    assert journal.entries == [Compile("A", "json"), late]
    assert (journal.take_actions(), journal.take_replies()) == ([Compile("A", "json")], [late])
    journal.flush()
    assert journal.entries == []


def test_the_harvest_names_who_ended_at_rest_then_whom_a_token_ended_then_whoever_ended_behind_it() -> None:
    """Early: what a conclusion delivered or ended before the rows were absorbed. Behind: a release vote's."""
    journal = written(
        Delivered("T", 1, 70),
        Ended("T", Event.FINISH),
        Delivered("A", 5, 71),
        Ended("A", Event.FINISH, by_token=True),
        Ended("X", Event.ABORT),
        Delivered("B", 2, 72),
        Absorbed(14),
        Ended("R", Event.FINISH),
    )
    expected = Harvest(17, 2, 14, (("T", 1), ("A", 5), ("B", 2)), ("T", "X", "A", "R"), (70, 71, 72), 90, 8)
    assert journal.harvest(17, 2, 90, 8) == expected


def test_a_slot_that_held_nothing_is_harvested_as_nothing() -> None:
    at_rest = written(Ended("A", Event.ABORT), Ended("B", Event.FINISH))
    assert at_rest.harvest(3, 1, 10, 0) == Harvest(3, 1, None, (), ("A", "B"), (), 10, 0)


def test_a_listener_hears_every_entry_when_it_is_made_and_every_move_which_nobody_keeps() -> None:
    rank = OneRank(Experiment(RankConfig(0, 1), 100, (Arrival(0, request("R", [1] * 4, 1, ignore_eos=True)),)))
    heard: list[Entry | Moved] = []
    rank.scheduler.journal.listeners.append(heard.append)
    rank.visit()
    moves = [(entry.before, entry.event) for entry in heard if isinstance(entry, Moved)]
    assert moves == [
        (State.ARRIVED, Event.ACCEPT),
        (State.WAITING, Event.LAUNCH_CHUNK),
        (State.PREFILL, Event.FIRST_TOKEN),
        (State.DECODE, Event.FINISH),
    ]
    assert [type(entry) for entry in heard if not isinstance(entry, Moved)] == [
        Launched,
        Delivered,
        Ended,
        Reply,
        Absorbed,
    ]
    before = [type(entry) for entry in heard[: heard.index(Delivered("R", 1, rank.replies[0].token_ids[0]))]]
    assert before == [Moved, Moved, Launched, Moved], "in the order in which it happened"


def test_who_is_not_taken_is_named_with_the_reason() -> None:
    """Two rows for three requests; then 20 tokens of memory for two prompts of 12."""
    arrivals = tuple(Arrival(0, request(rid, [n] * 4, 9, ignore_eos=True)) for n, rid in enumerate("ABC"))
    rows = OneRank(Experiment(RankConfig(0, 1, max_running_requests=2), 1000, arrivals))
    big = tuple(Arrival(0, request(rid, [n] * 12, 2, ignore_eos=True)) for n, rid in enumerate("AB"))
    memory = OneRank(Experiment(RankConfig(0, 1), 20, big))
    for rank, expected in ((rows, NotTaken("C", Why.NO_ROW)), (memory, NotTaken("B", Why.NO_TOKEN))):
        heard: list[Entry | Moved] = []
        rank.scheduler.journal.listeners.append(heard.append)
        rank.visit()
        assert [entry for entry in heard if isinstance(entry, NotTaken)] == [expected]


@pytest.mark.parametrize("pp_size", [1, 3])
def test_every_iteration_begins_with_an_empty_journal(pp_size: int) -> None:
    """Nothing of an iteration is summed up, handed out or compared in the next one."""
    arrivals = {0: (request("A", [1] * 9, 4), request("B", [2] * 5, 3)), 2: (AbortReq("B"), AbortReq("nobody"))}
    ring = Ring(RankConfig(0, pp_size, chunked_prefill_size=4), arrivals)
    num_entries: list[int] = []
    iterations = [-1] * pp_size
    for node in ring.steps():
        if node.rank.iteration > iterations[node.rank_id]:
            iterations[node.rank_id] = node.rank.iteration
            num_entries.append(len(node.rank.journal.entries))
    assert sum(iterations) > 3 * pp_size
    assert set(num_entries) == {0}
    assert ring.last_replies == {"A": "finished", "B": "aborted"}


def test_a_retraction_is_in_the_decision_of_its_own_iteration_alone() -> None:
    """Both grow past 50 of 100 tokens; little is expected of A, so B is admitted beside it (bugs.md B48)."""
    ratio = Fraction(1, 10)
    config = RankConfig(0, 2, enable_radix_cache=False, init_new_token_ratio=ratio, min_new_token_ratio=ratio)
    arrivals = (Arrival(0, request("A", [1] * 20, 40)), Arrival(2, request("B", [2] * 20, 40)))
    rank = OneRank(Experiment(config, 100, arrivals))
    heard: list[tuple[int, Entry | Moved]] = []
    rank.scheduler.journal.listeners.append(lambda entry: heard.append((rank.iteration, entry)))
    decided = {visit.iteration: visit.decision.retracted for visit in rank.visits() if visit.decision.retracted}
    told = [(iteration, entry.rid) for iteration, entry in heard if isinstance(entry, Retracted)]
    assert told, "else this shows nothing"
    assert [(iteration, rid) for iteration, rids in decided.items() for rid in rids] == told


def test_the_digest_of_a_decision_is_that_of_the_state_behind_it_whether_it_changed_or_not() -> None:
    """Written down here once more, field by field; an idle rank's is the same visit after visit."""
    arrivals = (
        Arrival(0, request("A", [1] * 9, 4)),
        Arrival(1, request("B", [1] * 9, 3)),
        Arrival(30, request("C", [2] * 5, 3)),
    )
    rank = OneRank(Experiment(RankConfig(0, 2, chunked_prefill_size=4), 100, arrivals))
    s, seen = rank.scheduler, set[str]()
    for _ in range(60):
        s.apply(rank.experiment.due(rank.iteration))
        slot = s.slots.current(rank.iteration)
        batch, decision = s.schedule(rank.iteration)
        queues = (
            [r.rid for r in s.waiting],
            [r.rid for r in s.grammar_queue],
            s.role.key(),
            [r.rid for r in slot.running],
        )
        kv, tree = s.kv, s.kv.tree
        numbers = kv.pool.free_tokens, tree.evictable_tokens, tree.clock, tree.num_nodes, len(kv.free_rows)
        assert decision.state_digest == digest(*queues, slot.batch_is_full, *numbers, s.ratio.key())
        seen.add(decision.state_digest)
        if batch is not None:
            rank.tokens[rank.iteration] = sample(batch)
        due = s.slots.to_harvest(rank.iteration)
        s.absorb(rank.iteration, rank.tokens[due.launched.iteration] if due.in_flight and due.launched else None)
        s.journal.flush()
        rank.iteration += 1
    assert 10 < len(seen) < 40
