"""INV-80 to INV-85: what is wrong on all ranks alike is wrong. Cases of public reports, and others of their kinds.

Where a bug strikes follows from the protocol and is written beside each case; the same scenario without the bug passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ppsim.check.invariants import BY_NAME
from ppsim.core.config import RankConfig
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.loop import Loop, Plan
from ppsim.core.memory.kv import KVCache
from ppsim.core.messages import AbortReq, NewRequest
from ppsim.core.parts import Change
from ppsim.core.policy import Policy
from ppsim.core.rank import Rank
from ppsim.core.schedule.journal import Journal
from ppsim.core.schedule.request import Request, State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import SlotRing
from ppsim.core.tokens import pack
from ppsim.plugin import all_bugs, load
from ppsim.plugin.plans import behind, does
from ppsim.recording import Verdict
from tests.planted.test_invariants import DECODE, WIDE, aborts, fact, row, work
from tests.worlds.making import MS, changed, run

Changes = dict[str, Any]

CHUNKED: Changes = {
    "scheduler.chunked_prefill_size": 64,
    "scheduler.max_total_tokens": 1024,
    "scheduler.max_running_requests": 8,
    "scheduler.pp_max_micro_batch_size": 4,
    **work(row("R2", 0, prompt=10), row("R1", 0, prompt=200, output=4), row("R3", 6, prompt=10, output=4)),
}
"""Iteration 0 runs R2 and the first 54 tokens of R1; R2 ends at the harvest of that batch, which is in iteration 1."""
TIGHT: Changes = {  # two requests of 8 tokens are admitted, 28 tokens don't hold 2 x (8 + 12): one is put out
    **WIDE,
    "scheduler.max_total_tokens": 28,
    "scheduler.clip_max_new_tokens": 4,
    **work(row("R1", 0, prompt=8, output=12), row("R2", 0, prompt=8, output=12)),
}
CROWDED: Changes = {  # four requests that grow to 38 tokens in a pool of 80
    **WIDE,
    "cluster.pp_size": 1,
    "scheduler.max_total_tokens": 80,
    "scheduler.clip_max_new_tokens": 2,
    "scheduler.schedule_conservativeness": 0.1,
    "workload.requests": [{"rid": f"R{n}", "at_iteration": 0, "prompt": 8, "output": 30} for n in range(4)],
}
TIERS: Changes = {"hicache.enabled": True, "hicache.host_tokens": 64, "host.schedule_us": 100.0}
HOST_HIT: Changes = {  # the first prompt is evicted to host memory by the second, and asked for again
    **TIERS,
    **WIDE,
    "scheduler.max_total_tokens": 24,
    "workload.block_tokens": 8,
    **work(
        row("R1", 0, prompt=12, prefix_blocks=[1]),
        row("R2", 8, prompt=20, prefix_blocks=[2]),
        row("R3", 16, prompt=12, prefix_blocks=[1]),
    ),
}
PAIR: Changes = {
    "scheduler.page_size": 4,
    "host.schedule_us": 100.0,
    "disaggregation.role": "pd",
    "disaggregation.num_reserved_decode_tokens": 0,
    "disaggregation.decode_max_total_tokens": 512,
    "disaggregation.receive_timeout_ms": 0.0,
    "workload.requests": [{"rid": "R1", "prompt": 8, "output": 4, "at_ms": 0.0}],
}


def outcome(changes: Changes, change: Change | None = None) -> Verdict:
    return run({"run.invariants": True, "run.max_iterations": 2000, **changes}, change=change).verdict


def planted(bug: str) -> Change:
    return load([bug]).change


def place(verdict: Verdict) -> tuple[str | None, int | None, int | None, str | None]:
    return verdict.invariant, verdict.rank, verdict.iteration, verdict.rid


# --- every planted bug of these rules, in a small run -----------------------------------------------------------------

TABLE: dict[str, Changes] = {
    "chunk_place_cleared": CHUNKED,
    "joins_another_slot": {"cluster.pp_size": 3, **work(row("R1", 0, output=9))},
    "retracted_stays_in_its_slot": TIGHT,
    "acks_without_own_copy": {
        "hicache.enabled": True,
        "hicache.host_tokens": 64,
        "hicache.device_host_gb_per_s": 0.0001,
        "model.layer_partition": [1, 35],
        "model.num_hidden_layers": 36,
        **work(row("R1", 0, output=9)),
    },
    "newest_ack_first": {
        **TIERS,
        **WIDE,
        "hicache.device_host_gb_per_s": 0.01,
        **work(*(row(f"R{n}", 0, prompt=6 + n, output=1 + n) for n in range(3))),
    },
    "host_pages_given_back_at_once": {**TIERS, **work(row("R1", 0, output=9))},
    "host_pages_kept": {**TIERS, **work(row("R1", 0, output=9))},
    "loads_asked_for_late": HOST_HIT,
    "fetch_keeps_a_page_more": {
        **TIERS,
        "hicache.storage": True,
        "hicache.storage_hits": [{"rid": "R1", "tokens": [8, 8]}],
        **work(row("R1", 0, prompt=20, output=3)),
    },
    "prefill_limit_ignored": {
        **WIDE,
        "scheduler.max_consecutive_prefills": 1,
        **work(row("R1", 0, output=9), *(row(f"R{n}", n, prompt=20) for n in range(2, 9))),
    },
    "retracted_never_resumes": {**TIGHT, "run.max_wait_iterations": 40},
    "write_begins_hours_late": PAIR,
}
SEEN_BY_THE_FUZZER = {"parked_chunk_waits_too", "running_prompt_first", "chunk_needs_a_place"}
SEEN_BY_THE_FUZZER |= {"polls_only_when_busy", "limits_off_in_pd", "own_storage_hits", "own_storage_readiness"}


@pytest.mark.parametrize("bug", TABLE)
def test_a_bug_that_is_alike_on_all_ranks_is_found_under_its_rule(bug: str) -> None:
    assert outcome(TABLE[bug]).kind == "pass"
    verdict = outcome(TABLE[bug], planted(bug))
    assert (verdict.kind, verdict.invariant) == ("fail", all_bugs()[bug].breaks), verdict.message
    assert f"{verdict.invariant} at rank {verdict.rank}, iteration {verdict.iteration}" in verdict.message


def test_every_rule_of_this_page_has_a_bug_and_names_the_fact_it_is_held_against() -> None:
    broken = {all_bugs()[bug].breaks for bug in TABLE}
    for number in range(80, 86):
        assert f"INV-{number}" in broken
        assert BY_NAME[f"INV-{number}"].fact
    mine = {bug.name for bug in all_bugs().values() if bug.breaks in broken}
    assert mine == set(TABLE) | SEEN_BY_THE_FUZZER


# --- one place -----------------------------------------------------------------------------------------------------


def test_a_lost_chunk_owner_is_named_in_the_iteration_in_which_it_is_lost() -> None:
    verdict = outcome(CHUNKED, planted("chunk_place_cleared"))
    assert place(verdict) == ("INV-80", 0, 1, "R1")
    assert "it is in no place (prefill, KV of 118 of 200 tokens); only middle chunks" in verdict.message


class SecondChunkRefused(Scheduler):
    """World: the second chunk of every prompt is refused its memory once, on all ranks alike."""

    def __init__(
        self, config: RankConfig, kv: KVCache, slots: SlotRing, policy: Policy, journal: Journal | None = None
    ) -> None:
        super().__init__(config, kv, slots, policy, journal)
        self.refused: set[str] = set()

    def is_refused_memory(self, request: Request) -> bool:
        fails = request.kv_len > 0 and request.state is State.PREFILL and request.rid not in self.refused
        if fails:
            self.refused.add(request.rid)
        return fails


class RefusedChunkAlsoWaits(Loop):
    """And the protocol then puts it into the queue beside the chunk place."""

    def plan(self) -> Plan:
        def put_back(rank: Rank) -> None:
            scheduler = rank.scheduler
            assert isinstance(scheduler, SecondChunkRefused)
            if scheduler.chunked is not None and scheduler.chunked.rid in scheduler.refused:
                scheduler.waiting = [scheduler.chunked, *scheduler.waiting]

        return behind(super().plan(), "schedule", does(put_back))


def test_a_refused_chunk_that_stands_in_two_places_is_named_in_the_iteration_of_the_refusal() -> None:
    """The oracle for the iteration: the first decision in which a run with the refusal differs from one without."""
    case = {
        "scheduler.chunked_prefill_size": 2,
        "scheduler.max_total_tokens": 40,
        **work(row("R1", 0, prompt=2, output=10), row("R2", 3, prompt=20)),
    }
    one, other = run(case), run(case, change=changed(SecondChunkRefused))
    assert outcome(case, changed(SecondChunkRefused)).kind == "pass"
    pairs = zip(one.recording.decisions[0], other.recording.decisions[0])
    refusal = next(a.iteration for a, b in pairs if a.pieces != b.pieces)
    verdict = outcome(case, changed(SecondChunkRefused, RefusedChunkAlsoWaits))
    assert place(verdict) == ("INV-80", 0, refusal, "R2")
    assert "it stands in queue waiting and in the chunk place" in verdict.message


def at_iteration(at: int, change: Callable[[Rank], None]) -> Change:
    """All ranks alike: ``change`` strikes behind the scheduler in one iteration."""

    class Struck(Loop):
        def plan(self) -> Plan:
            def strike(rank: Rank) -> None:
                if rank.iteration == at:
                    change(rank)

            return behind(super().plan(), "schedule", does(strike))

    return changed(Struck)


def two_running_sets(rank: Rank) -> None:
    here = rank.scheduler.slots.current(rank.iteration)
    other = rank.scheduler.slots.slots[here.index - 1]
    other.running.append(here.running[0])


def runs_twice(rank: Rank) -> None:
    here = rank.scheduler.slots.current(rank.iteration)
    here.running.append(here.running[0])


def runs_and_waits(rank: Rank) -> None:
    rank.scheduler.waiting.append(rank.scheduler.slots.current(rank.iteration).running[0])


def twice_in_the_batch(rank: Rank) -> None:
    slot = rank.scheduler.slots.current(rank.iteration)
    assert slot.launched is not None
    forward = slot.launched.forward
    object.__setattr__(forward, "pieces", forward.pieces * 2)
    slot.launched.requests *= 2


def dropped_from_its_slot(rank: Rank) -> None:
    slots = rank.scheduler.slots
    slots.slots[slots.current(rank.iteration).index - 1].running.clear()


def ended_and_queued(rank: Rank) -> None:
    request = Request(NewRequest("gone", pack([1]), 1), State.ABORTED)
    rank.scheduler.waiting.append(request)


LONG = {**WIDE, **work(row("R1", 0, output=30), row("R2", 1, output=30))}
MUTATIONS: dict[Callable[[Rank], None], str] = {
    two_running_sets: "it stands in the running set of slot 0 and in the running set of slot 1",
    runs_twice: "it stands in the running set of slot 0 and in the running set of slot 0",
    runs_and_waits: "it stands in queue waiting and in the running set of slot 0",
    twice_in_the_batch: "it has a row in the launched batch of iteration 6 (slot 0) and another in the launched batch",
    ended_and_queued: "it is aborted and no live request any more, and still stands in queue waiting",
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_other_ways_to_be_in_two_places(mutation: Callable[[Rank], None]) -> None:
    """R1 decodes in slot 0, R2 in slot 1; iteration 6 visits slot 0."""
    verdict = outcome(LONG, at_iteration(6, mutation))
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-80", 0, 6), verdict.message
    assert MUTATIONS[mutation] in verdict.message


def test_a_request_that_falls_out_of_its_slot_is_named_when_its_batch_is_harvested() -> None:
    """Iteration 6 drops R2 from slot 1, whose batch of iteration 5 is harvested in the same iteration."""
    verdict = outcome(LONG, at_iteration(6, dropped_from_its_slot))
    assert place(verdict) == ("INV-80", 0, 6, "R2")
    assert "it is in no place (decode" in verdict.message


class AbortForgetsOwner(Scheduler):
    """An abort clears the chunk place and marks nobody."""

    def named_by(self, item: AbortReq) -> list[Request]:
        found = super().named_by(item)
        if self.chunked in found:
            found = [request for request in found if request is not self.chunked]
            self.chunked = None
        return found


def test_a_request_in_no_place_after_an_abort_is_named_where_the_abort_is_read() -> None:
    verdict = outcome({**CHUNKED, **aborts("R1", 2)}, changed(AbortForgetsOwner))
    assert place(verdict) == ("INV-80", 0, 2, "R1")


class RetractedAlsoWaits(Loop):
    """Decode server: who is in the retracted queue joins a slot, too."""

    def plan(self) -> Plan:
        def join(rank: Rank) -> None:
            role = rank.scheduler.role
            if isinstance(role, DecodeRole):
                rank.scheduler.waiting = [q for q in role.put_out if q not in rank.scheduler.waiting]

        return behind(super().plan(), "schedule", does(join))


def test_a_request_that_waits_and_is_retracted_stands_in_both_queues() -> None:
    verdict = outcome({**DECODE, **TIGHT}, changed(RetractedAlsoWaits))
    assert verdict.invariant == "INV-80"
    assert "it stands in queue waiting and in queue retracted" in verdict.message


# --- cache tiers ---------------------------------------------------------------------------------------------------


def test_an_early_ack_is_told_with_the_end_of_the_own_copy() -> None:
    verdict = outcome(TABLE["acks_without_own_copy"], planted("acks_without_own_copy"))
    assert (verdict.invariant, verdict.rank, verdict.rid) == ("INV-81", 1, "R1")
    assert "this rank's own copy is over at" in verdict.message


def test_host_pages_are_audited_in_the_iteration_in_which_they_go_wrong() -> None:
    """R1's prompt is stashed, and written, when its first token is harvested: iteration 1 of a pipeline of two."""
    for bug, word in {"host_pages_given_back_at_once": "too early", "host_pages_kept": "too long"}.items():
        verdict = outcome(TABLE[bug], planted(bug))
        assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-82", 0, 2), verdict.message
        assert word in verdict.message


# --- bounds --------------------------------------------------------------------------------------------------------


def test_a_request_may_be_put_out_of_memory_as_often_as_the_limit_says_and_once_more_is_told() -> None:
    """Without the rules: each of these retractions is needless, which is a rule of its own (INV-89)."""
    assert outcome(CROWDED, planted("same_victim_again")).invariant == "INV-89"
    crowded = {**CROWDED, "run.invariants": False}
    free = {**crowded, "run.max_retractions": 0}
    bound = run(free, change=planted("same_victim_again"))
    counts: dict[str, int] = {}
    for decision in bound.recording.decisions[0]:
        for victim in decision.retracted:
            counts[victim] = counts.get(victim, 0) + 1
    rid, number = max(counts.items(), key=lambda item: item[1])
    assert number > 4
    for limit, ends in {number - 1: "fail", number: "pass", 0: "pass"}.items():
        verdict = outcome({**crowded, "run.max_retractions": limit}, planted("same_victim_again"))
        assert verdict.kind == ends, verdict.message
    verdict = outcome({**crowded, "run.max_retractions": number - 1}, planted("same_victim_again"))
    assert (verdict.invariant, verdict.rank, verdict.rid) == ("INV-84", 0, rid)
    assert f"retraction {number} of it" in verdict.message


def test_without_invariants_and_without_a_limit_nobody_counts() -> None:
    verdict = outcome({**PAIR, "run.invariants": False}, planted("write_begins_hours_late"))
    assert verdict.kind == "pass"
    verdict = outcome({**PAIR, "run.invariants": False, "run.max_wait_ms": 1e6}, planted("write_begins_hours_late"))
    assert verdict.invariant == "INV-85"


def test_who_was_put_out_and_does_not_come_back_is_told_so() -> None:
    verdict = outcome(TABLE["retracted_never_resumes"], planted("retracted_never_resumes"))
    assert verdict.invariant == "INV-84"
    assert "it was put out of memory and has not come back: it has not moved since iteration" in verdict.message


def test_a_late_write_is_told_with_the_request_and_the_side_that_owes_it() -> None:
    verdict = outcome(PAIR, planted("write_begins_hours_late"))
    assert (verdict.kind, verdict.invariant, verdict.rid, verdict.exit_code) == ("fail", "INV-85", "R1", 3)
    assert verdict.message.startswith("prefill side: INV-85 at rank 0")
    assert "the prefill side owes the KV" in verdict.message


@pytest.mark.parametrize(("limit_ms", "ends"), [(9_999_000.0, "fail"), (10_001_000.0, "pass")])
def test_a_wait_is_measured_in_time(limit_ms: float, ends: str) -> None:
    """The write begins 10,000 s after its pass; all else takes milliseconds."""
    assert outcome({**PAIR, "run.max_wait_ms": limit_ms}, planted("write_begins_hours_late")).kind == ends


def test_a_request_behind_a_long_queue_waits_for_its_turn_as_long_as_others_get_on() -> None:
    many = work(*(row(f"R{n}", 0, prompt=4, output=8) for n in range(40)))
    case = {**many, "scheduler.max_running_requests": 2}
    replies = run(case).recording.replies
    whole_ms = max(reply.time_ns for reply in replies) / MS
    assert min(reply.time_ns for reply in replies if reply.rid == "R39") / MS > whole_ms / 2  # it did wait
    assert outcome({**case, "run.max_wait_ms": whole_ms / 4}).kind == "pass"


def test_a_slow_compile_is_a_wait_for_something_outside() -> None:
    slow = {"host.schedule_us": 500.0, **work(row("R1", 0, output=9), row("R2", 0, grammar="json"))}
    verdict = outcome({**slow, **fact("grammar", 9, 9, rid="R2"), "run.max_wait_ms": 3.0})
    assert (verdict.invariant, verdict.rid) == ("INV-85", "R2")
    assert "its grammar is owed by the compiler" in verdict.message
