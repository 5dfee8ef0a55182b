"""What a rank refuses at its arrival, and what an abort leaves of a request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppsim.core.actions import CancelCompile, Compile, Refused
from ppsim.core.agreed import agree
from ppsim.core.config import RankConfig
from ppsim.core.effects import Reply
from ppsim.core.messages import AbortReq
from ppsim.core.parts import build_rank
from ppsim.core.schedule.scheduler import Scheduler
from tests.interactions.experiment import Arrival, Experiment, request
from tests.interactions.one_rank import OneRank

CLIPPED = RankConfig(0, 1, clip_max_new_tokens=4)
"""Admission expects four tokens of output at most, so a long output is bounded by the pool alone."""


def alone(capacity: int, prompt: int, output: int) -> list[Reply]:
    """The last replies of a request that has the pool to itself."""
    rank = OneRank(Experiment(CLIPPED, capacity, (Arrival(0, request("R", [1] * prompt, output, ignore_eos=True)),)))
    list(rank.visits())
    return [reply for reply in rank.replies if reply.status != "token"]


@pytest.mark.parametrize("prompt", [1, 10, 60])
def test_a_request_is_refused_exactly_where_it_could_not_run_to_its_end_alone(
    prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV is written for the prompt and for each output but the last, whose successor nobody computes: p + n - 1 tokens.

    The second source is the run itself: one token more, let in all the same, ends without memory for its last step.
    """
    most = 101 - prompt
    (last,) = alone(100, prompt, most)
    assert (last.status, last.num_output_tokens) == ("finished", most)
    (refused,) = alone(100, prompt, most + 1)
    assert refused.status == "refused"
    assert refused.reason.endswith("never fit the KV pool of 100 tokens")
    monkeypatch.setattr(Scheduler, "_why_never", lambda self, item: "")
    (unfit,) = alone(100, prompt, most + 1)
    assert (unfit.status, unfit.num_output_tokens) == ("aborted", most)
    assert unfit.reason.startswith("out of KV memory")


def test_the_reason_of_an_abort_is_that_of_the_first_one() -> None:
    """The client's first abort ended the request; one of a time limit that comes while its last row drains did not."""
    rank = OneRank(Experiment(RankConfig(0, 3), 1000, (Arrival(0, request("R", [1] * 4, 50, ignore_eos=True)),)))
    rank.visit()
    rank.visit(AbortReq("R", reason="client left"))
    assert not [r for r in rank.replies if r.status == "aborted"], "its row is in flight: it ends at the harvest"
    rank.visit(AbortReq("R", reason="running for more than 5 ms"))
    (last,) = [r for r in rank.replies if r.status == "aborted"]
    assert last.reason == "client left"


def served(config: RankConfig, *arrivals: Arrival) -> OneRank:
    return OneRank(Experiment(config, 1000, arrivals))


def test_an_abort_that_finds_nobody_is_counted_and_one_of_everybody_is_not() -> None:
    """The user is told of ids that nobody knows (a typing error, a request that ended); abort_all may find nobody."""
    rank = served(RankConfig(0, 1), Arrival(0, request("R", [1] * 4, 3, ignore_eos=True)))
    rank.visit(AbortReq("X"), AbortReq("", abort_all=True))
    assert rank.scheduler.num_ignored_aborts == 1
    assert [(r.rid, r.status) for r in rank.replies] == [("R", "aborted")]
    rank.visit(AbortReq("R"), AbortReq("", abort_all=True))
    assert rank.scheduler.num_ignored_aborts == 2
    assert len(rank.replies) == 1


CUT = RankConfig(0, 3, chunked_prefill_size=4)


def test_an_abort_stops_the_prompt_that_is_being_cut_and_no_other() -> None:
    """Invariant 60: the aborted prompt launches no further chunk. One that is cut goes on beside another's abort."""
    rank = served(CUT, Arrival(0, request("R", [1] * 12, 1)), Arrival(0, request("W", [2] * 4, 1)))
    rank.visit()
    second = rank.visit(AbortReq("W"))
    assert second.decision.pieces == (("R", 4, 4),)
    assert rank.scheduler.chunked is not None
    third = rank.visit(AbortReq("R"))
    assert third.decision.pieces == ()
    assert rank.scheduler.chunked is None


def met(rank: OneRank) -> set[str]:
    return {situation for situation in rank.coverage.situations if situation.startswith("abort")}


def test_the_situation_in_which_an_abort_finds_its_request_is_noted() -> None:
    """The adversary steers by these: what it has not met yet is what it has not tested (docs of the probes)."""
    rank = served(CUT, Arrival(0, request("R", [1] * 20, 1)), Arrival(0, request("W", [2] * 4, 1)))
    rank.visit()
    rank.visit()
    rank.visit(AbortReq("W"), AbortReq("R"), AbortReq("R"))
    assert met(rank) == {
        "abort waiting at rest",
        "abort chunked in flight",
        "abort several chunks in flight",
        "abort last chunk in flight",
        "abort twice",
    }


def test_a_last_chunk_and_a_decode_are_situations_of_their_own() -> None:
    last = served(CUT, Arrival(0, request("R", [1] * 4, 2, ignore_eos=True)))
    last.visit()
    last.visit(AbortReq("R"))
    assert met(last) == {"abort last chunk in flight"}
    decode = served(CUT, Arrival(0, request("R", [1] * 4, 9, ignore_eos=True)))
    for _ in range(4):
        decode.visit()
    decode.visit(AbortReq("R"))
    assert met(decode) == {"abort decode in flight"}


def test_a_grammar_is_compiled_before_its_request_waits_and_given_up_with_it() -> None:
    spec = replace(request("G", [1] * 4, 2, ignore_eos=True), grammar="digits")
    rank = served(RankConfig(0, 1), Arrival(0, spec), Arrival(0, request("R", [2] * 4, 1)))
    first = rank.visit()
    assert first.decision.pieces == (("R", 0, 4),)
    assert rank.scheduler.journal.take_actions() == [Compile("G", "digits")]
    rank.visit(AbortReq("G"))
    assert rank.scheduler.journal.take_actions() == [CancelCompile("G")]
    assert [(r.rid, r.status) for r in rank.replies] == [("R", "finished"), ("G", "aborted")]
    assert rank.scheduler.grammar_queue == []


def test_what_a_decode_server_refuses_is_told_to_its_other_side() -> None:
    """The prefill side has the prompt too and waits for a handshake (bugs.md B40)."""
    rank = build_rank(RankConfig(0, 1, role="decode", enable_radix_cache=False, num_reserved_decode_tokens=4))
    rank.start(agree(100, "test"))
    rank.scheduler.apply([replace(request("R", [1] * 200, 2), room=7)])
    assert rank.journal.due_actions == [Refused("R", 7)]
    assert [r.status for r in rank.journal.due_replies] == ["refused"]
