"""Law: a bug that keeps every flag right and all ranks alike is found by the fact, in the iteration in which it acts.

The scenarios are in ``facts/``. Beside the planted bugs of ``ppsim/fuzz/bugs`` stand other bugs of each kind, made here
by changing what a rank asks of its world, or what the world does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppsim.check.invariants import BY_NAME, RULES
from ppsim.core.actions import Action, SendChunk, SendLast
from ppsim.core.consensus import KVPoll
from ppsim.core.effects import Act, Effect, Reply, Send
from ppsim.core.loop import Loop, Plan
from ppsim.core.messages import Conclusion, Output, Side
from ppsim.core.parts import Change
from ppsim.core.rank import Rank
from ppsim.core.schedule.request import State
from ppsim.core.surroundings import Surroundings
from ppsim.core.votes import Voting
from ppsim.fuzz.bugs.replies import answers
from ppsim.plugin import all_bugs, load
from ppsim.plugin.plans import before, behind, does, edited
from ppsim.recording import Verdict
from ppsim.scenario.load import load_scenario
from ppsim.world import SimulationResult, simulate
from ppsim.world.pair.ends import Receiver, Write
from ppsim.world.pair.rank import PipelineRank
from ppsim.world.pair.sides import DECODE
from ppsim.world.pair.transfers import Transfers
from ppsim.world.streams import Payload
from tests.worlds.making import changed, requests, run

FOLDER = Path(__file__).parent / "facts"
FILES = sorted(path.stem for path in FOLDER.glob("*.toml"))


def simulated(name: str, change: Change | None = None, *overrides: str) -> SimulationResult:
    return simulate(load_scenario(str(FOLDER / f"{name}.toml"), overrides), change=change)


def found(name: str, change: Change | None = None, *overrides: str) -> Verdict:
    return simulated(name, change, *overrides).verdict


@pytest.mark.parametrize("name", FILES)
def test_the_right_protocol_passes(name: str) -> None:
    verdict = found(name)
    assert verdict.kind == "pass", verdict.message


PLANTED = {
    "promised_and_not_sent": ("transfer", "INV-74", "R1", "tokens 0:64 are missing, of 128 of the prompt"),
    "page_sent_again": ("transfer", "INV-74", "R1", "tokens 48:64 are there twice"),
    "pages_moved_after_the_handshake": ("transfer", "INV-75", "R1", "but the senders were given (1, 2, 3"),
    "tokens_told_twice": ("stream", "INV-76", "R1", "token 1 is told, token 2 was due"),
    "second_tokens_untold": ("stream", "INV-76", "R1", "was delivered in the last iteration and never told"),
    "limit_off_by_one": ("stream", "INV-77", "R1", "token 64 is not told as the last one, but it has all of its 64"),
    "tensor_of_the_batch_before": ("shapes", "INV-78", "R2", "are those that rank 0 wrote in iteration 0"),
    "pages_of_each_other": ("shapes", "INV-78", "R2", "holds KV of R1, page 0 of its list"),
    "store_takes_the_first": ("store", "INV-79", "R1", "the minimum of the statuses [2, 2, 1, 1] is 1"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found_by_the_fact_that_it_leaves(bug: str) -> None:
    name, rule, rid, words = PLANTED[bug]
    verdict = found(name, load([bug]).change)
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", rule, rid), verdict.message
    assert words in verdict.message
    assert all_bugs()[bug].breaks == rule


def test_every_rule_names_the_fact_and_those_of_facts_are_all_broken_here() -> None:
    assert [rule.name for rule in BY_NAME.values() if not rule.fact] == []
    mine = {rule.name for rule in RULES if 74 <= rule.number <= 79}
    assert {rule for _, rule, _, _ in PLANTED.values()} == mine


def test_the_store_lets_a_request_in_when_the_last_rank_is_ready() -> None:
    """The last rank is ready in its iteration 6; the first rank, three iterations ahead of it, knows that in 9."""
    decisions = simulated("store").recording.decisions[0]
    assert next(d.iteration for d in decisions if d.pieces) == 9


# --- changing what a rank asks for -----------------------------------------------------------------------------------


def asks(edit: Callable[[Rank, Effect], Effect]) -> Change:
    """A change under which each effect of each rank is another one on its way to the world."""

    class Edited(Loop):
        def plan(self) -> Plan:
            return tuple(edited(phase, edit) for phase in super().plan())

    return changed(Edited)


def sends(was: SendChunk | SendLast, becomes: Action) -> Change:
    """One write is asked for as another one."""

    def edit(rank: Rank, effect: Effect) -> Effect:
        return Act(becomes) if isinstance(effect, Act) and effect.action == was else effect

    return asks(edit)


def first(start: int, stop: int) -> Change:
    """The first write of R1, which is its tokens 0:64, becomes this one."""
    return sends(SendChunk("R1", 0, 64), SendChunk("R1", start, stop))


def last(start: int, stop: int, of: str = "R1") -> Change:
    """The last write of R1, which is its tokens 64:128, becomes this one."""
    return sends(SendLast("R1", 64, 128), SendLast(of, start, stop))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (first(0, 48), "tokens 48:64 are missing"),
        (first(16, 64), "tokens 0:16 are missing"),
        (last(64, 112), "tokens 112:128 are missing"),
        (last(32, 128), "tokens 32:64 are there twice"),
        (last(0, 128), "tokens 0:64 are there twice"),
        (last(64, 144), "its prompt ends at 128"),
        (first(0, 128), "tokens of it are launched"),
        (last(128, 64), "which is no range"),
        (sends(SendChunk("R1", 0, 64), SendLast("R1", 0, 64)), "tokens 64:128 are missing"),
        (last(64, 128, of="R2"), "its prompt ends at 96"),
        (sends(SendLast("R2", 64, 96), SendLast("R9", 64, 96)), "there is no such request here"),
    ],
)
def test_what_is_sent_covers_the_prompt_once(change: Change, words: str) -> None:
    verdict = found("transfer", change)
    assert (verdict.kind, verdict.invariant) == ("fail", "INV-74"), verdict.message
    assert words in verdict.message


def replies(edit: Callable[[Reply], Reply]) -> Change:
    return asks(lambda rank, effect: edit(effect) if isinstance(effect, Reply) else effect)


def third(**changes: Any) -> Change:
    """The third token of R1 is told in another way."""
    return replies(lambda r: replace(r, **changes) if (r.rid, r.num_output_tokens) == ("R1", 3) else r)


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        (third(token_ids=(7,)), "INV-76", "token 3 is told as 7, but token 3 was sampled as"),
        (third(num_output_tokens=4), "INV-76", "token 4 is told, token 3 was due"),
        (third(token_ids=()), "INV-76", "has no token"),
        (third(token_ids=(7, 8)), "INV-76", "token 3 of 2 is told"),
        (third(rid="R2"), "INV-76", "token 3"),
        (third(status="finished", reason="length"), "INV-77", "it ends with token 3, which is no stop token, of 64"),
        (third(status="aborted"), "INV-61", "it has ended 0 times in the last iteration, its client was told so 1"),
    ],
)
def test_a_client_is_told_what_was_sampled_and_nothing_else(change: Change, rule: str, words: str) -> None:
    verdict = found("stream", change)
    assert (verdict.kind, verdict.invariant) == ("fail", rule), verdict.message
    assert words in verdict.message


def told(edit: Callable[[list[Reply]], list[Reply]]) -> Change:
    class Told(Loop):
        def plan(self) -> Plan:
            return answers(super().plan(), edit)

    return changed(Told)


def test_an_end_that_is_not_told_or_told_twice_is_found_in_its_iteration() -> None:
    ended = next(h.iteration for h in simulated("stream").recording.harvests[0] if h.finished)
    lost = found("stream", told(lambda out: [r for r in out if r.status != "finished"]))
    assert (lost.invariant, lost.iteration, lost.rid) == ("INV-61", ended, "R2"), lost.message
    twice = found("stream", told(lambda out: out + [r for r in out if r.status == "finished"]))
    assert (twice.invariant, twice.iteration, twice.rid) == ("INV-61", ended, "R2"), twice.message
    as_token = found("stream", told(lambda out: [replace(r, status="token", reason="") for r in out]))
    assert (as_token.invariant, as_token.iteration, as_token.rid) == ("INV-77", ended, "R2"), as_token.message
    assert "it has met a stop token" in as_token.message


def test_a_token_that_was_sampled_and_dropped_on_all_ranks_alike_is_missed() -> None:
    class Drops(Loop):
        """A row of the batch counts as that of a middle chunk: its token is dropped, and sampled once more."""

        def plan(self) -> Plan:
            def skip(rank: Rank) -> None:
                slot = rank.scheduler.slots.to_harvest(rank.iteration)
                if slot.in_flight and slot.launched is not None and rank.iteration == 8:
                    slot.launched.requests[0].inflight_middle_chunks += 1
                    pieces = slot.launched.forward.pieces
                    forward = replace(slot.launched.forward, pieces=tuple(replace(p, is_decode=False) for p in pieces))
                    slot.launched.forward = forward
                    slot.launched.requests[0].state = State.PREFILL

            return before(super().plan(), "harvest", does(skip))

    verdict = found("stream", changed(Drops))
    assert (verdict.kind, verdict.invariant) == ("fail", "INV-76"), verdict.message
    assert "is not delivered" in verdict.message


# --- what a launch reads ---------------------------------------------------------------------------------------------


def of_the_output_before() -> Change:
    seen: dict[int, list[Output]] = {}

    def edit(rank: Rank, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or not isinstance(effect.message, Output) or not rank.config.is_last:
            return effect
        mine = seen.setdefault(rank.link.rank_id, [])
        mine.append(effect.message)
        old = mine[-2].payload if len(mine) > 1 else effect.message.payload
        return Send(effect.dst, replace(effect.message, payload=old), effect.paired)

    return asks(edit)


class BufferRewritten(Loop):
    """The buffer of the hidden states is written to as soon as their send is posted."""

    def plan(self) -> Plan:
        posted: list[Payload] = []

        def note(rank: Rank) -> None:
            posted.clear()
            if rank.hidden_out is not None:
                assert isinstance(rank.hidden_out.payload, Payload)
                posted.append(rank.hidden_out.payload)

        def rewrite(rank: Rank) -> None:
            for payload in posted:
                payload.iteration += len(rank.scheduler.slots)

        return behind(behind(super().plan(), "launch_batch", does(note)), "send_hidden_late", does(rewrite))


class OfTheOtherReplica(Loop):
    """A replica sends on what it has received instead of what it has computed."""

    def plan(self) -> Plan:
        def swap(rank: Rank) -> None:
            if rank.hidden_out is not None:
                payload = rank.hidden_out.payload
                assert isinstance(payload, Payload)
                other = rank.link.leader + 1 - rank.config.tp_rank
                rank.hidden_out = replace(rank.hidden_out, payload=replace(payload, rank=other))

        return behind(super().plan(), "launch_batch", does(swap))


class TokenRewritten(Loop):
    """On all ranks alike the buffer of the last token is written to between its harvest and the next launch."""

    def plan(self) -> Plan:
        def rewrite(rank: Rank) -> None:
            for request in rank.scheduler.requests.values():
                if len(request.output_ids) == 3 and request.state is State.DECODE and not request.num_inflight:
                    request.output_ids[-1] += 1

        return before(super().plan(), "schedule", does(rewrite))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_the_output_before(), "the tokens of iteration 1 that it reads are those that rank 2 wrote in iteration 0"),
        (changed(BufferRewritten), "are not what rank 0 wrote, nor what any launch wrote: they were changed since"),
        (
            changed(OfTheOtherReplica),
            "the hidden states of iteration 0 that it reads are those that rank 1 wrote in iteration 0",
        ),
        (changed(TokenRewritten), "which is neither of its prompt nor sampled there"),
    ],
)
def test_a_launch_reads_what_was_written_for_it(change: Change, words: str) -> None:
    verdict = found("shapes", change, "links.bandwidth_gb_per_s=0.001")
    assert (verdict.kind, verdict.invariant) == ("fail", "INV-78"), verdict.message
    assert words in verdict.message


# --- the store and the votes -----------------------------------------------------------------------------------------


def store(decision: Callable[[Sequence[int | None]], int]) -> Change:
    class Decides(Surroundings):
        def store_decision(self, rid: str, statuses: Sequence[int | None]) -> int:
            return decision(statuses)

    return changed(Decides)


def known(statuses: Sequence[int | None]) -> list[int]:
    return [KVPoll.BOOTSTRAPPING if status is None else status for status in statuses]


class Admits(Loop):
    """The first rank takes the answer for another one when it applies it, and hands it down so."""

    def plan(self) -> Plan:
        def change(rank: Rank, effect: Effect) -> Effect:
            if isinstance(effect, Send) and isinstance(effect.message, Side) and rank.config.is_first:
                return Send(effect.dst, replace(effect.message, counts=tuple(2 for _ in effect.message.counts)))
            return effect

        return tuple(edited(phase, change) for phase in super().plan())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (store(lambda s: KVPoll.BOOTSTRAPPING if None in s else max(known(s))), "the store says 2, the minimum"),
        (store(lambda s: min(known(s[:-1]))), "the store says 2, the minimum"),
        (store(lambda s: sorted(known(s))[1]), "the store says 2, the minimum"),
        (store(lambda s: KVPoll.FAILED), "the store says 0, the minimum"),
        (changed(Admits), "status 2 is handed down, the minimum of all ranks is 1"),
    ],
)
def test_the_answer_of_the_store_is_the_minimum_of_what_the_ranks_told(change: Change, words: str) -> None:
    verdict = found("store", change)
    assert (verdict.kind, verdict.invariant, verdict.rank, verdict.rid) == ("fail", "INV-79", 0, "R1"), verdict.message
    assert words in verdict.message


VOTING: dict[str, Any] = {"disaggregation.role": "decode", "disaggregation.num_reserved_decode_tokens": 2}


def listed(*at: int) -> dict[str, Any]:
    return {"observations.listed": [{"what": "receive", "rid": "R1", "at": list(at)}]}


class OnlyTheLeader(Voting):
    """A replica of a stage has no voice."""

    def reduce_good(self, upstream: tuple[str, ...], local: tuple[str, ...]) -> tuple[str, ...]:
        return upstream


class MovedByNobody(Loop):
    """Each rank fails a request that no conclusion names, all of them alike."""

    def plan(self) -> Plan:
        def change(rank: Rank) -> None:
            conclusion = rank.due.get("transferred")
            if isinstance(conclusion, Conclusion) and rank.iteration == 6:
                rank.due["transferred"] = replace(conclusion, good=("R1",))

        return before(super().plan(), "apply_transferred", does(change))


@pytest.mark.parametrize("stages", [1, 2])
def test_a_replica_without_a_voice_is_missed_on_one_stage_as_on_two(stages: int) -> None:
    changes = {**VOTING, "cluster.pp_size": stages, "cluster.tp_size": 2, "cluster.tp_replicas": 2}
    changes |= {"run.invariants": True, "workload.requests": requests(1)}
    changes |= listed(*[4, 12] * stages)
    assert run(changes).verdict.kind == "pass"
    verdict = run(changes, change=changed(OnlyTheLeader)).verdict
    assert (verdict.kind, verdict.invariant) == ("fail", "INV-52"), verdict.message
    assert "rank 1 does not agree to R1" in verdict.message


def test_whoever_moves_is_named_by_a_conclusion() -> None:
    changes = {**VOTING, **listed(4, 20), "run.invariants": True, "workload.requests": requests(1)}
    assert run(changes).verdict.kind == "pass"
    verdict = run(changes, change=changed(MovedByNobody)).verdict
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", "INV-79", "R1"), verdict.message
    assert "it advances, but no conclusion of the votes of iteration 5 says so" in verdict.message


# --- what the world does between two servers -------------------------------------------------------------------------


def test_a_write_that_lands_short_is_found_when_the_transfer_counts_as_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = PipelineRank._write

    def short(self: PipelineRank, rid: str, start: int, stop: int, *, is_last: bool) -> Write:
        write = original(self, rid, start, stop, is_last=is_last)
        write.stop -= 0 if is_last else self.rank.config.page_size
        return write

    monkeypatch.setattr(PipelineRank, "_write", short)
    verdict = found("transfer")
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", "INV-74", "R1"), verdict.message
    assert "the transfer counts as complete, but tokens 48:64 are missing" in verdict.message
    assert verdict.message.startswith("prefill side: ")


def test_a_decode_server_that_takes_a_transfer_for_complete_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Transfers.pages_given

    def early(self: Transfers, at_ns: int, rank: int, room: int) -> None:
        original(self, at_ns, rank, room)
        receiver: Receiver = self.receiver(rank, room)
        self._change(DECODE, receiver, KVPoll.SUCCESS, at_ns)

    monkeypatch.setattr(Transfers, "pages_given", early)
    verdict = found("transfer")
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", "INV-75", "R1"), verdict.message
    assert "of what prefill rank 0 wrote tokens 0:128 are missing" in verdict.message
    assert verdict.message.startswith("decode side: ")


def test_the_first_token_is_the_one_that_the_other_side_has_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PipelineRank._first_token
    monkeypatch.setattr(PipelineRank, "_first_token", lambda self, rid: original(self, rid) + 1)
    verdict = found("transfer")
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", "INV-76", "R1"), verdict.message
    assert "the prefill side sampled" in verdict.message
