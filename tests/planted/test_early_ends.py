"""INV-88 to INV-90, and the partners of INV-48, 67, 69 and 79: a cause is looked at, not what is said of it.

What each bug does is alike on all ranks, and everybody is answered: so no rule that compares ranks, or counts replies,
sees it. Where it strikes follows from the scenario and is written beside each; without the bug each scenario passes.
"""

from __future__ import annotations

import pytest

from ppsim.check.invariants import BY_NAME
from ppsim.core.agreed import Agreed, agree
from ppsim.core.chain import Answer, Chain, Question
from ppsim.core.consensus import Rids
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.effects import Effects, Reply
from ppsim.core.leader import GRAMMAR, agree_grammar
from ppsim.core.loop import Loop, Plan
from ppsim.core.messages import AbortReq, FlushCache
from ppsim.core.policy import Policy
from ppsim.core.rank import Rank
from ppsim.core.schedule.request import Event, Request, State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import LaunchedBatch, Slot
from ppsim.plugin import all_bugs, load
from ppsim.plugin.plans import behind, does, instead
from tests.planted.test_facts import Changes, outcome, place
from tests.planted.test_invariants import DECODE, PREFILL, TIGHT, WIDE, aborts, fact, row, work
from tests.worlds.making import changed, run

GRAMMARS: Changes = {**work(row("R1", 0, grammar="json"), row("R2", 0, output=5)), **fact("grammar", 9, 3)}
FAILED_TRANSFER: Changes = {**work(row("R1", 0, output=4)), **fact("transfer", 5, 5, failed=True)}
FLUSH: Changes = {**work(row("R1", 0)), "workload.flushes": [{"rid": "F", "at_iteration": 12}]}
TWO: Changes = {**WIDE, **work(row("R1", 0, output=9), row("R2", 0, output=9))}
LONG = work(row("R1", 0, output=9))
ONE_BY_ONE: Changes = {
    "scheduler.max_running_requests": 1,
    "timeouts.running_ms": 19,
    **work(row("R1", 0, output=9), row("R2", 0, output=9)),
}

TABLE: dict[str, tuple[Changes, int, int, str]] = {
    # the second half of the pool of 4096 is not counted
    "refused_although_it_fits": (work(row("R1", 0, prompt=2100)), 0, 0, "R1"),
    # two stages: token n is harvested in iteration 2 n - 1, the third in 5, and the visit behind it is that of 6
    "ends_as_unfit": (LONG, 0, 6, "R1"),
    # both have their second token in iteration 3; the visit behind it is that of 4, the later one of equals goes
    "retracts_without_need": (TWO, 0, 4, "R2"),
    "middle_chunk_counts_as_last": (work(row("R1", 0, prompt=12, output=4)), 0, 0, "R1"),
    # two stages of 1 ms: R1 runs for 18 ms, and R2 as long behind it. The clock of iteration i shows i - 2 ms, and its
    # first look at R2, in iteration 1, 0 ms: 20 is the first beyond 19
    "limit_counts_the_queue": (ONE_BY_ONE, 0, 22, "R2"),
    "one_place_too_many": ({**TWO, "scheduler.pp_max_micro_batch_size": 1}, 0, 0, "R2"),
    # its compile is over in iteration 9 of the first rank
    "pending_counts_as_compiled": (GRAMMARS, 0, 0, "R1"),
    # the vote of iteration 5 is applied in that of 5 + P - 1
    "failure_counts_as_success": ({**PREFILL, **FAILED_TRANSFER}, 0, 6, "R1"),
}


@pytest.mark.parametrize("bug", TABLE)
def test_a_bug_that_says_a_cause_is_found_where_there_is_none(bug: str) -> None:
    case, *where = TABLE[bug]
    assert outcome(case).kind == "pass"
    verdict = outcome(case, load([bug]).change)
    assert place(verdict) == (all_bugs()[bug].breaks, *where), verdict.message
    assert verdict.slot is not None
    assert verdict.phase
    assert verdict.expected == BY_NAME[all_bugs()[bug].breaks].statement
    assert verdict.came


def test_every_new_rule_has_a_bug_and_names_its_fact() -> None:
    for number in (88, 89, 90):
        assert f"INV-{number}" in {bug.breaks for bug in all_bugs().values()}
        assert BY_NAME[f"INV-{number}"].fact


def test_who_leaves_the_retracted_queue_without_a_conclusion_is_named() -> None:
    case = {**DECODE, **TIGHT, **work(row("R1", 0, prompt=8, output=12), row("R2", 0, prompt=8, output=12))}
    assert outcome(case).kind == "pass"
    verdict = outcome(case, load(["resumes_without_a_vote"]).change)
    assert (verdict.invariant, verdict.rank, verdict.rid) == ("INV-79", 0, "R2"), verdict.message
    assert "it has left the retracted queue, but no conclusion was applied" in verdict.message


# --- others of each kind --------------------------------------------------------------------------------------------


class FlushRefused(Scheduler):
    def _flush(self, item: FlushCache) -> None:
        self.journal.add(Reply(item.rid, "refused", reason="busy"))


def test_a_flush_that_is_refused_at_rest_is_told() -> None:
    assert outcome(FLUSH).kind == "pass"
    assert place(outcome(FLUSH, changed(FlushRefused))) == ("INV-88", 0, 12, "F")


def test_a_flush_that_is_refused_under_load_is_as_it_should_be() -> None:
    verdict = outcome({**LONG, "workload.flushes": [{"rid": "F", "at_iteration": 4}]})
    assert verdict.kind == "pass", verdict.message


class EndsForNothing(Scheduler):
    """A request that decodes ends as aborted, with no word of memory."""

    def _decode(self, slot: Slot, iteration: int) -> LaunchedBatch | None:
        for request in [r for r in slot.running if r.state is State.DECODE and len(r.output_ids) == 3]:
            slot.running.remove(request)
            self.end(request, Event.ABORT, "tired")
        return super()._decode(slot, iteration)


def test_a_request_that_nobody_aborted_does_not_end_as_aborted() -> None:
    verdict = outcome(LONG, changed(EndsForNothing))
    assert place(verdict) == ("INV-88", 0, 6, "R1"), verdict.message
    assert "no abort that this rank has read names it" in verdict.message


def test_a_request_ends_for_want_of_memory_where_there_is_want() -> None:
    """Two that grow to 20 tokens each, in slots of their own, in 28: neither slot has anybody else to put out."""
    pair = work(row("R1", 0, prompt=8, output=12), row("R2", 1, prompt=8, output=12))
    case = {**TIGHT, **pair, "scheduler.disable_radix_cache": False, "scheduler.pp_max_micro_batch_size": 1}
    result = run({"run.invariants": True, **case})
    assert result.verdict.kind == "pass", result.verdict.message
    assert any(reply.reason.startswith("out of KV memory") for reply in result.recording.replies)


class AbortComesTooLate(Scheduler):
    """An abort passes over requests whose last token is on its way."""

    def named_by(self, item: AbortReq) -> list[Request]:
        found = super().named_by(item)
        return [r for r in found if not (r.num_inflight and len(r.output_ids) + 1 >= r.spec.max_new_tokens)]


def test_a_request_that_an_abort_names_delivers_nothing_more_whether_it_is_marked_or_not() -> None:
    """Token 4 is launched in iteration 6 and harvested in 7, where the abort is read."""
    case = {**work(row("R1", 0, output=4)), **aborts("R1", 7)}
    assert outcome(case).kind == "pass"
    verdict = outcome(case, changed(AbortComesTooLate))
    assert place(verdict) == ("INV-67", 0, 7, "R1"), verdict.message


class GrammarWord(Chain):
    """``swapped``: what has failed counts as compiled, what is compiled as failed."""

    def stage_view(self, rank: Rank, question: Question, mine: Answer) -> Effects[Answer]:
        if question is GRAMMAR:
            mine = Answer((mine.values[1], mine.values[0]))
        return (yield from super().stage_view(rank, question, mine))


@pytest.mark.parametrize("fails", [True, False])
def test_a_compile_counts_as_what_it_was(fails: bool) -> None:
    case = {**work(row("R1", 0, grammar="json")), **fact("grammar", 3, 3, failed=fails)}
    assert outcome(case).kind == "pass"
    verdict = outcome(case, changed(GrammarWord))
    assert place(verdict) == ("INV-79", 0, 3, "R1"), verdict.message
    assert f"the compile of this rank has {'failed' if fails else 'succeeded'}" in verdict.message


class WaitsForNoCompile(Loop):
    """A later stage takes the leader's word for its own compile."""

    def plan(self) -> Plan:
        def agree_without_waiting(rank: Rank) -> Effects[None]:
            steps, answer = agree_grammar(rank, self.chain), None
            while True:
                try:
                    effect = steps.send(answer)
                except StopIteration:
                    return
                answer = None if type(effect).__name__ == "AwaitLocal" else (yield effect)

        agree_without_waiting.__name__ = "agree_grammar"
        return instead(super().plan(), "agree_grammar", agree_without_waiting)


def test_a_later_stage_waits_for_its_own_compile() -> None:
    case = {**work(row("R1", 0, grammar="json")), **fact("grammar", 3, 9)}
    assert outcome(case).kind == "pass"
    verdict = outcome(case, changed(WaitsForNoCompile))
    assert place(verdict) == ("INV-79", 1, 3, "R1"), verdict.message


class FailedKVCounts(DecodeRole):
    """Decode side: what failed is computed on, with a first token from nowhere."""

    def apply_transferred(self, good: Agreed[Rids], bad: Agreed[Rids], first_tokens: Agreed[dict[str, int]]) -> None:
        tokens = dict.fromkeys(good.value, 7) | first_tokens.value
        super().apply_transferred(good, agree((), bad.origin), agree(tokens, first_tokens.origin))


def test_a_failed_transfer_is_not_computed_on() -> None:
    """The handshake is agreed upon in the first vote, so the transfer is looked at long before iteration 9 fails it."""
    case = {**DECODE, **work(row("R1", 0, output=4)), **fact("receive", 9, 9, failed=True)}
    assert outcome(case).kind == "pass"
    verdict = outcome(case, changed(FailedKVCounts))
    assert (verdict.invariant, verdict.rank, verdict.rid) == ("INV-48", 0, "R1"), verdict.message


class SkipsTokens(Loop):
    """Behind the second chunk two tokens count as computed, on a page that is there."""

    def plan(self) -> Plan:
        def skip(rank: Rank) -> None:
            if rank.iteration == 1 and rank.scheduler.chunked is not None:
                rank.scheduler.chunked.kv_len += 2

        return behind(super().plan(), "launch_batch", does(skip))


class ChunksOfTwelve(Policy):
    def chunk_size(self, prefix_len: int, planned: int) -> int:
        return 12


def test_a_row_begins_where_the_one_before_ended() -> None:
    """Pages of 8: the first chunk is 0:16, the second 16:28 and leaves half of its last page free."""
    case = {"scheduler.page_size": 8, "scheduler.chunked_prefill_size": 16, **work(row("R1", 0, prompt=60))}
    assert outcome(case, changed(ChunksOfTwelve)).kind == "pass"
    verdict = outcome(case, changed(ChunksOfTwelve, SkipsTokens))
    assert place(verdict) == ("INV-90", 0, 2, "R1"), verdict.message
    assert "its row of tokens 30:42" in verdict.message
    assert "leaves out those from 28 on" in verdict.message
