"""Who gets memory on a decode server and a buffer on a prefill server, by hand from protocol.md 6.5 and 6.6.

    need         max(prompt + reserve, prompt + expected output - retractable); alone on the server: prompt + a page
    allocatable  free - max(reserve x requests that hold memory here, largest expected output - retractable)

``retractable`` are the tokens of the visited slot's running requests. The first misfit stops the scan, and while a
retracted request waits nobody gets anything.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.core.actions import (
    AbortReceiver,
    AbortSender,
    Action,
    Admitted,
    Handshake,
    HandshakeAgreed,
    Refused,
    SendChunk,
    SendLast,
    SendMetadata,
)
from ppsim.core.agreed import Agreed, agree
from ppsim.core.config import RankConfig
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.messages import AbortReq, NewRequest
from ppsim.core.parts import build_rank
from ppsim.core.schedule.journal import Advanced, Delivered, Ended
from ppsim.core.schedule.request import Event, State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.tokens import pack

NOBODY: Agreed[tuple[str, ...]] = agree((), "test")
RESERVE = 10


def named(*rids: str) -> Agreed[tuple[str, ...]]:
    return agree(rids, "test")


def server(role: str, num_tokens: int, *rows: tuple[str, int, int], **changes: Any) -> Scheduler:
    """A rank's scheduler that has read requests of (rid, prompt, output) in iteration 0."""
    settings = {"num_reserved_decode_tokens": RESERVE, "max_running_requests": 8, "max_micro_batch_size": 8, **changes}
    rank = build_rank(RankConfig(0, 1, role=role, enable_radix_cache=role == "prefill", **settings))
    rank.start(agree(num_tokens, "test"))
    rank.scheduler.apply(NewRequest(rid, pack([1] * prompt), output, ignore_eos=True) for rid, prompt, output in rows)
    return rank.scheduler


def decode_role(scheduler: Scheduler) -> DecodeRole:
    assert isinstance(scheduler.role, DecodeRole)
    return scheduler.role


def give_memory(scheduler: Scheduler, *rids: str, bad: tuple[str, ...] = ()) -> list[str]:
    """Apply a conclusion on slot 0; who is waiting for its KV now."""
    decode_role(scheduler).apply_prealloc(named(*rids), named(*bad), scheduler.slots.current(0))
    return [r.rid for r in decode_role(scheduler).transfer]


def into_slot(scheduler: Scheduler, *rids: str) -> None:
    """Their KV has come with the first token, and the next visit takes them into the slot."""
    tokens: Agreed[dict[str, int]] = agree(dict.fromkeys(rids, 7), "test")
    decode_role(scheduler).apply_transferred(named(*rids), NOBODY, tokens)
    scheduler.role.before_schedule(scheduler.slots.current(0))


@pytest.mark.parametrize(("prompt", "fits"), [(98, True), (99, True), (100, False)])
def test_alone_a_request_needs_its_prompt_and_a_page(prompt: int, fits: bool) -> None:
    scheduler = server("decode", 100, ("A", 10, 1))
    del scheduler.requests["A"]  # a prompt this long is refused at its arrival; here only the rule is asked
    request = decode_role(scheduler).prealloc[0]
    request.spec = NewRequest("A", pack([1] * prompt), 1)
    scheduler.requests["A"] = request
    assert (give_memory(scheduler, "A") == ["A"]) is fits


@pytest.mark.parametrize(("prompt", "fits"), [(40, True), (41, False)])
def test_beside_a_request_in_transfer_both_reserves_are_set_aside(prompt: int, fits: bool) -> None:
    """T holds 40 of 100: 60 - max(10 x 1, 5) = 50 are left, and B needs max(prompt + 10, prompt + 8)."""
    scheduler = server("decode", 100, ("T", 40, 5), ("B", prompt, 8))
    assert (give_memory(scheduler, "T", "B") == ["T", "B"]) is fits


@pytest.mark.parametrize(("prompt", "fits"), [(20, True), (21, False)])
def test_a_long_output_of_somebody_here_counts_more_than_the_reserves(prompt: int, fits: bool) -> None:
    """60 - max(10 x 1, 30) = 30."""
    scheduler = server("decode", 100, ("T", 40, 30), ("B", prompt, 8))
    assert (give_memory(scheduler, "T", "B") == ["T", "B"]) is fits


@pytest.mark.parametrize(("output", "fits"), [(65, True), (66, False)])
def test_what_the_visited_slot_could_retract_pays_for_expected_output(output: int, fits: bool) -> None:
    """R decodes with 40 tokens of KV: 60 - max(10 x 1, 30 - 40) = 50; B needs max(25 + 10, 25 + output - 40)."""
    scheduler = server("decode", 100, ("R", 40, 30), ("B", 25, 25))
    assert give_memory(scheduler, "R") == ["R"]
    into_slot(scheduler, "R")
    decode_role(scheduler).prealloc[0].spec = NewRequest("B", pack([1] * 25), output)
    assert (give_memory(scheduler, "B") == ["B"]) is fits


def test_the_expected_output_is_clipped() -> None:
    scheduler = server("decode", 100, ("T", 40, 30), ("B", 40, 30), clip_max_new_tokens=10)
    assert give_memory(scheduler, "T", "B") == ["T", "B"]


def test_the_first_misfit_stops_those_behind_it() -> None:
    scheduler = server("decode", 100, ("T", 40, 5), ("big", 60, 5), ("small", 4, 5))
    assert give_memory(scheduler, "T", "big", "small") == ["T"]
    assert give_memory(scheduler, "small") == ["T", "small"], "only if the conclusion names the big one"


def test_without_a_free_row_nobody_gets_memory() -> None:
    scheduler = server("decode", 1000, ("A", 4, 5), ("B", 4, 5), max_running_requests=1)
    assert give_memory(scheduler, "A", "B") == ["A"]


def test_while_a_retracted_request_waits_nobody_gets_memory_but_failures_end() -> None:
    scheduler = server("decode", 200, ("R", 40, 30), ("B", 4, 5), ("F", 4, 5))
    role = decode_role(scheduler)
    assert give_memory(scheduler, "R") == ["R"]
    into_slot(scheduler, "R")
    request = scheduler.slots.current(0).running.pop()
    scheduler.kv.retract(request)
    role.retracted(request)
    assert give_memory(scheduler, "B", bad=("F",)) == []
    assert [r.rid for r in role.prealloc] == ["B"]
    assert "F" not in scheduler.requests
    role.bind_retracted(scheduler.slots.current(0))
    role.apply_retract(named("R"))
    assert (request.state, request.kv_len) == (State.WAITING, 40), "prompt and output but for the last token"
    assert give_memory(scheduler, "B") == ["B"]


@pytest.mark.parametrize(("prompt", "refused"), [(90, False), (91, True)])
def test_a_prompt_that_leaves_no_room_for_the_reserve_is_refused_at_its_arrival(prompt: int, refused: bool) -> None:
    """Its handshake would wait for ever: 100 tokens of pool, 10 of them for the decode of whoever is here (6.6)."""
    scheduler = server("decode", 100, ("A", prompt, 1))
    assert [r.status for r in scheduler.journal.due_replies] == (["refused"] if refused else [])
    assert scheduler.journal.due_actions == [Refused("A", None) if refused else Handshake("A", None)]


def test_a_handshake_is_agreed_once_however_often_it_is_concluded() -> None:
    """A has no room, and every conclusion names it again while it waits: the other side hears of it once."""
    scheduler = server("decode", 100, ("T", 40, 30), ("A", 40, 8), ("N", 1, 1))
    scheduler.journal.take_actions()
    assert give_memory(scheduler, "T", "A") == ["T"]
    assert give_memory(scheduler, "A") == ["T"]
    agreed = [act for act in scheduler.journal.due_actions if isinstance(act, HandshakeAgreed)]
    assert agreed == [HandshakeAgreed("T"), HandshakeAgreed("A")]
    assert [act for act in scheduler.journal.due_actions if isinstance(act, SendMetadata)] == [SendMetadata("T")]


def test_a_transfer_ends_as_the_conclusion_says_and_gives_back_what_does_not_go_on() -> None:
    """Four are received: A goes on, B failed somewhere, C was aborted meanwhile (also where it failed), D has all its
    tokens with the first one. E is not named. Only A and E hold memory afterwards (protocol.md 6.6)."""
    rows = (("A", 20, 5), ("B", 10, 5), ("C", 10, 5), ("D", 10, 1), ("E", 10, 5))
    scheduler = server("decode", 200, *rows)
    role = decode_role(scheduler)
    assert give_memory(scheduler, *"ABCDE") == list("ABCDE")
    scheduler.apply([AbortReq("C", reason="client left")])
    scheduler.journal.take_replies()
    scheduler.journal.take_actions()
    scheduler.journal.flush()
    tokens: Agreed[dict[str, int]] = agree(dict.fromkeys("AD", 7), "test")
    role.apply_transferred(named("D", "C", "B", "A"), named("B", "C"), tokens)
    assert [(r.rid, r.status, r.reason) for r in scheduler.journal.due_replies] == [
        ("A", "token", ""),
        ("B", "aborted", "the KV transfer from the prefill side failed"),
        ("C", "aborted", "client left"),
        ("D", "finished", "length"),
    ]
    assert ([r.rid for r in scheduler.waiting], [r.rid for r in role.transfer]) == (["A"], ["E"])
    assert scheduler.kv.pool.free_tokens == 200 - 20 - 10
    journal = scheduler.journal
    assert journal.of(Advanced) == [Advanced("A"), Advanced("D")]
    assert journal.of(Ended) == [Ended("B", Event.FAIL), Ended("C", Event.ABORT), Ended("D", Event.FINISH)]
    assert journal.of(Delivered) == [Delivered("A", 1, 7), Delivered("D", 1, 7)]


@pytest.mark.parametrize(("prompt", "fits"), [(96, True), (97, False)])
def test_alone_a_request_needs_a_whole_page_beside_its_prompt(prompt: int, fits: bool) -> None:
    """Pages of 4 and 100 tokens: 97 tokens and the next one would fit into 25 pages, 97 and a page do not (6.6)."""
    scheduler = server("decode", 100, ("A", 10, 1), page_size=4)
    decode_role(scheduler).prealloc[0].spec = NewRequest("A", pack([1] * prompt), 1)
    assert (give_memory(scheduler, "A") == ["A"]) is fits


@pytest.mark.parametrize(("prompt", "fits"), [(20, True), (21, False)])
def test_of_several_here_the_longest_output_counts(prompt: int, fits: bool) -> None:
    """70 - max(10 x 2, 40) = 30: who came first does not matter, nor who is shorter."""
    for outputs in ((40, 1), (1, 40)):
        scheduler = server("decode", 100, ("S", 15, outputs[0]), ("T", 15, outputs[1]), ("B", prompt, 8))
        assert (give_memory(scheduler, "S", "T", "B") == ["S", "T", "B"]) is fits


def test_where_an_abort_finds_a_request_decides_whether_it_may_end_now() -> None:
    """Received KV drains first: the other side may still write to its pages (7.4). All others end at once."""
    scheduler = server("decode", 100, ("R", 20, 5), ("T", 20, 5), ("P", 90, 5))
    role = retracted(scheduler, "R")
    role.put_out.clear()  # while one is put out nobody gets memory
    assert give_memory(scheduler, "T") == ["T"]
    role.put_out.append(scheduler.requests["R"])
    scheduler.journal.take_actions()
    scheduler.apply([AbortReq("", abort_all=True)])
    assert [r.rid for r in scheduler.journal.due_replies if r.status == "aborted"] == ["R", "P"]
    assert (role.put_out, role.prealloc, [r.rid for r in role.transfer]) == ([], [], ["T"])
    assert scheduler.journal.due_actions == [AbortReceiver(rid, None) for rid in ("R", "T", "P")]
    assert scheduler.kv.pool.free_tokens == 80


def retracted(scheduler: Scheduler, *rids: str) -> DecodeRole:
    """These have decoded one token and were put out of memory, in this order."""
    role = decode_role(scheduler)
    assert give_memory(scheduler, *rids) == list(rids)
    into_slot(scheduler, *rids)
    slot = scheduler.slots.current(0)
    for request in list(slot.running):
        slot.running.remove(request)
        scheduler.kv.retract(request)
        role.retracted(request)
    role.bind_retracted(slot)
    return role


@pytest.mark.parametrize(("taken", "resumed"), [(79, ["A"]), (80, []), (0, ["A", "B"])])
def test_the_first_retracted_request_that_does_not_fit_stops_those_behind_it(taken: int, resumed: list[str]) -> None:
    """A resumes with 20 tokens of KV and must be able to take its next one: 21 of 100 are left free, or 20. B is
    smaller and would fit in both cases but comes behind (6.3: queue order, stop at the first misfit)."""
    scheduler = server("decode", 100, ("A", 20, 5), ("B", 4, 5))
    role = retracted(scheduler, "A", "B")
    scheduler.kv.pool.alloc(taken)
    role.apply_retract(named("A", "B"))
    assert [r.rid for r in scheduler.waiting] == resumed
    assert [r.kv_len for r in scheduler.waiting] == [20, 4][: len(resumed)]


def test_without_a_free_row_no_retracted_request_resumes() -> None:
    scheduler = server("decode", 100, ("A", 20, 5))
    role = retracted(scheduler, "A")
    scheduler.kv.free_rows.clear()
    role.apply_retract(named("A"))
    assert (scheduler.waiting, [r.rid for r in role.put_out]) == ([], ["A"])


def test_a_retracted_request_is_bound_to_the_first_slot_that_votes_and_to_no_other() -> None:
    """protocol.md 6.3: the next retract pass binds it, only that slot's passes consider it (invariant 53)."""
    scheduler = server("decode", 100, ("A", 20, 5), ("B", 4, 5), pp_async_batch_depth=1)
    role = retracted(scheduler, "A", "B")
    role.put_out[1].retraction_slot = None
    first, second = scheduler.slots.slots
    assert role.bind_retracted(second) == ("B",)
    assert role.bind_retracted(first) == ("A",)
    role.apply_retract(named("B"))
    assert [r.rid for r in role.put_out] == ["A"]


def prefilled(scheduler: Scheduler, *rids: str) -> PrefillRole:
    """These requests are computed and wait for their release, in this order."""
    role = scheduler.role
    assert isinstance(role, PrefillRole)
    role.apply_bootstrap(named(*rids), NOBODY)
    for iteration in range(2 * len(rids)):
        batch, _ = scheduler.schedule(iteration)
        scheduler.absorb(iteration, None if batch is None else (7,) * len(batch.requests))
    assert [r.rid for r in role.inflight] == list(rids)
    return role


def test_a_failed_transfer_leaves_the_cache_as_a_successful_one_does() -> None:
    """The engine releases in both cases with an insertion into the tree (protocol.md 6.3): "terminal" is all that the
    ranks agree on, and whose own transfer failed must not decide what is cached, nor how recent it is."""
    after: list[object] = []
    for failed in ((), ("A",), ("A", "B")):
        scheduler = server("prefill", 100, ("A", 20, 1), ("B", 10, 1), ("C", 15, 1))
        role = prefilled(scheduler, "A", "B", "C")
        role.apply_release(named("C"), NOBODY)
        role.apply_release(named("B", "A"), named(*failed))
        tree = scheduler.kv.tree
        victims = [n for _ in range(3) for n in tree.evict(1)]
        after.append((tree.clock, tree.num_nodes, victims, scheduler.kv.pool.free_tokens))
        replies = {r.rid: r.status for r in scheduler.journal.due_replies}
        assert replies == {rid: "aborted" if rid in failed else "finished" for rid in "ABC"}
    assert after[0] == after[1] == after[2]


def test_an_aborted_transfer_caches_nothing_at_its_release() -> None:
    """What the tree has of it comes from its chunks (4.6); its end touches nothing: no client asked for this prompt."""
    scheduler = server("prefill", 100, ("A", 20, 1))
    role = prefilled(scheduler, "A")
    scheduler.apply([AbortReq("A")])
    clock = scheduler.kv.tree.clock
    role.apply_release(named("A"), NOBODY)
    assert scheduler.kv.tree.clock == clock
    assert scheduler.journal.due_replies[-1].status == "aborted"


def test_a_prefill_server_admits_as_many_as_it_has_metadata_buffers() -> None:
    """Two for each request that may run (protocol.md 6.5); the third handshake waits for the next conclusion."""
    scheduler = server("prefill", 1000, ("A", 4, 1), ("B", 4, 1), ("C", 4, 1), max_running_requests=1)
    role = scheduler.role
    assert isinstance(role, PrefillRole)
    role.apply_bootstrap(named("A", "B", "C"), NOBODY)
    assert [r.rid for r in scheduler.waiting] == ["A", "B"]
    assert [r.rid for r in role.bootstrap] == ["C"]
    assert role.num_buffers == 0
    scheduler.apply([AbortReq("A")])
    assert role.num_buffers == 1
    role.apply_bootstrap(named("C"), NOBODY)
    assert [r.rid for r in scheduler.waiting] == ["B", "C"]


def prefill_role(scheduler: Scheduler) -> PrefillRole:
    assert isinstance(scheduler.role, PrefillRole)
    return scheduler.role


def test_a_prefill_server_computes_one_token_of_each_request() -> None:
    scheduler = server("prefill", 1000, ("A", 4, 500))
    assert scheduler.requests["A"].spec.max_new_tokens == 1, "the decode side computes the others (4.6)"


def test_a_handshake_that_failed_anywhere_fails_also_where_it_is_good_elsewhere() -> None:
    """Bad wins (6.3), takes no buffer, and the client and the other side are told."""
    scheduler = server("prefill", 1000, ("A", 4, 1), ("B", 4, 1))
    role = prefill_role(scheduler)
    scheduler.journal.take_actions()
    role.apply_bootstrap(named("B", "A"), named("A"))
    assert [(r.rid, r.status) for r in scheduler.journal.due_replies] == [("A", "aborted")]
    assert scheduler.journal.due_actions == [AbortSender("A", None), Admitted("B")]
    assert scheduler.journal.of(Ended) == [Ended("A", Event.FAIL)]
    assert (scheduler.journal.of(Advanced), role.num_buffers) == ([Advanced("B")], role.total_buffers - 1)


def computing(*, page_size: int, chunk: int, prompt: int) -> Scheduler:
    """A prefill server of two slots whose request A has been admitted."""
    sizes = {"page_size": page_size, "chunked_prefill_size": chunk, "pp_async_batch_depth": 1}
    scheduler = server("prefill", 400, ("A", prompt, 1), **sizes)
    prefill_role(scheduler).apply_bootstrap(named("A"), NOBODY)
    scheduler.journal.take_actions()
    return scheduler


def visit(scheduler: Scheduler, iteration: int) -> list[Action]:
    """One iteration of the loop of a single stage; what it asks to be sent."""
    scheduler.schedule(iteration)
    due = scheduler.slots.to_harvest(iteration)
    rows = len(due.launched.requests) if due.in_flight and due.launched else 0
    scheduler.absorb(iteration, (7,) * rows if rows else None)
    sent = [act for act in scheduler.journal.due_actions if isinstance(act, SendChunk | SendLast)]
    scheduler.journal.take_actions()
    return sent


def test_a_chunk_is_sent_when_the_next_one_is_scheduled_and_the_rest_with_the_last() -> None:
    """A budget of 10 and pages of 4 cut 25 tokens into 8, 8 and 9; nothing is sent twice or left out (4.6)."""
    scheduler = computing(page_size=4, chunk=10, prompt=25)
    assert [visit(scheduler, i) for i in range(4)] == [
        [],
        [SendChunk("A", 0, 8)],
        [SendChunk("A", 8, 16)],
        [SendLast("A", 16, 25)],
    ]
    assert [r.rid for r in prefill_role(scheduler).inflight] == ["A"]


@pytest.mark.parametrize(("visits", "drains"), [(1, False), (2, True), (3, True)])
def test_an_aborted_prompt_drains_if_any_of_it_was_sent(visits: int, drains: bool) -> None:
    """The other side may be reading: KV and buffer stay until the release vote (invariant 52). Before the first chunk
    is sent nobody reads, and it ends with its last launched chunk."""
    scheduler = computing(page_size=1, chunk=10, prompt=45)
    role = prefill_role(scheduler)
    for i in range(visits):
        visit(scheduler, i)
    scheduler.apply([AbortReq("A", reason="client left")])
    for i in range(visits, visits + 2):
        assert visit(scheduler, i) == [], "no further chunk is sent"
    assert [r.rid for r in role.inflight] == (["A"] if drains else [])
    assert role.num_buffers == role.total_buffers - drains
    assert [r.status for r in scheduler.journal.due_replies] == ([] if drains else ["aborted"])
    if drains:
        role.apply_release(named("A"), NOBODY)
        assert [(r.status, r.reason) for r in scheduler.journal.due_replies] == [("aborted", "client left")]
        assert role.num_buffers == role.total_buffers


def test_an_abort_before_the_handshake_gives_no_buffer_back() -> None:
    """It has taken none: one given back too many would admit a request that the transfer has no place for."""
    scheduler = server("prefill", 1000, ("A", 4, 1), ("B", 4, 1))
    role = prefill_role(scheduler)
    role.apply_bootstrap(named("B"), NOBODY)
    scheduler.apply([AbortReq("A")])
    assert (role.num_buffers, role.bootstrap) == (role.total_buffers - 1, [])


def test_the_release_names_who_leaves_and_the_bad_set_alone_names_nobody() -> None:
    """ "Terminal everywhere" is the intersection; a rank that failed while another still sends must wait (6.3)."""
    scheduler = server("prefill", 100, ("A", 20, 1), ("B", 10, 1))
    role = prefilled(scheduler, "A", "B")
    role.apply_release(named("B"), named("A"))
    assert [r.rid for r in role.inflight] == ["A"]
    assert role.num_buffers == role.total_buffers - 1
    assert [(r.rid, r.status, r.num_output_tokens) for r in scheduler.journal.due_replies] == [("B", "finished", 1)]
