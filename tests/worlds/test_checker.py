"""The rank consensus checker in simulated runs: it names the cause at its iteration, and changes nothing else.

The lockstep check of the simulator sees all ranks at once, which no real rank can; it is off here (``run.check``), so
that only what the ranks tell each other can be found.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.core import phases
from ppsim.core.agreed import Agreed, agree
from ppsim.core.effects import Decision, Effects
from ppsim.core.loop import Loop
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.recording import Recording, Verdict
from tests.worlds.making import UNIT, changed, passed, requests, run

BLIND = {**UNIT, "run.check": False}


class Planted(Loop):
    """Runs ``fault`` once, on one rank, at the start of one iteration; tests make subclasses of it."""

    rank = 1
    iteration = 100

    def plan(self) -> Plan:
        return (self.strike, *super().plan()) if self.is_faulty else super().plan()

    @property
    def is_faulty(self) -> bool:
        return self.config.pp_rank == self.rank

    def strike(self, rank: Rank) -> Effects[None]:
        if rank.iteration == self.iteration:
            self.fault(rank)
        yield from ()

    def fault(self, rank: Rank) -> None:
        raise NotImplementedError


def checked(changes: dict[str, Any], part: type | None, interval: int, base: Any = BLIND) -> Verdict:
    """The verdict with the checker on, of ranks with this part; None: of right ones."""
    change = changed(part) if part is not None else changed()
    return run({**changes, "run.consensus_check_interval": interval}, base, change=change).verdict


def first_visible_difference(recording: Recording) -> int:
    """The first iteration in which two ranks decided batches that differ, from the recording alone."""

    def visible(decision: Decision) -> tuple[object, ...]:
        return decision.mode, decision.pieces, decision.retracted, decision.chunked_rid

    first, *others = recording.decisions
    differ = [mine.iteration for rank in others for mine, his in zip(rank, first) if visible(mine) != visible(his)]
    return min(differ)


# --- bugs.md B118 ----------------------------------------------------------------------------------------------

# Two requests decode one token each in turns: a token of KV an iteration. After prompts of 10 each, 200 tokens are full
# 180 iterations later. 8 tokens of output are reserved, so both are admitted at once.
FILLING = {
    "scheduler.max_total_tokens": 200,
    "scheduler.chunked_prefill_size": 16,
    "scheduler.clip_max_new_tokens": 8,
    "scheduler.disable_radix_cache": True,
    "workload.requests": requests(2, prompt=10, output=150),
}


class LosesAPage(Planted):
    def fault(self, rank: Rank) -> None:
        rank.scheduler.kv.pool._free.pop()


def test_without_the_checker_a_lost_page_shows_eighty_iterations_later_in_an_innocent_request() -> None:
    result = run(FILLING, BLIND, change=changed(LosesAPage))
    assert (result.verdict.kind, result.verdict.exit_code) == ("fail", 1)
    assert 175 <= first_visible_difference(result.recording) <= 185
    assert result.verdict.iteration is not None
    assert result.verdict.iteration >= 175


@pytest.mark.parametrize("interval", [1, 7, 20, 50])
def test_the_checker_names_the_iteration_and_the_call_within_its_interval(interval: int) -> None:
    verdict = checked(FILLING, LosesAPage, interval)
    assert (verdict.kind, verdict.exit_code, verdict.invariant) == ("fail", 1, "INV-23")
    assert (verdict.rank, verdict.iteration, verdict.slot) == (1, 100, 0)
    compared = ((100 // interval) + 1) * interval - 1  # the end of the window that iteration 100 belongs to
    assert f"found when the calls up to iteration {compared} were compared" in verdict.message
    assert compared - 100 < interval
    # 20 tokens of prompts are held after iteration 1; iterations 2..99 took one token each.
    free = 200 - 20 - 98
    assert "Pool.alloc differs between ranks" in verdict.message
    assert f"rank 0 called(num_pages=1) [num_free_pages={free}]" in verdict.message
    assert f"rank 1 called(num_pages=1) [num_free_pages={free - 1}]" in verdict.message


class ReleasesOneTooFew(Planted):
    """The page is lost inside an operation: a request that ends leaves one behind."""

    iteration = 0

    def fault(self, rank: Rank) -> None:
        pool = rank.scheduler.kv.pool
        release = pool.release

        def lossy(pages: Any) -> None:
            kept = list(pages)
            release(kept[:-1] if rank.iteration == 100 else kept)

        pool.release = lossy  # type: ignore[method-assign]


def test_the_operation_that_lost_the_page_is_named() -> None:
    # R1's 50 tokens: the first in iteration 1, the n-th in 2n - 1; so it ends in iteration 99. R2, one slot later,
    # ends in iteration 100 and gives back 10 + 49 pages.
    changes = {**FILLING, "workload.requests": requests(2, prompt=10, output=50)}
    verdict = checked(changes, ReleasesOneTooFew, 32)
    assert (verdict.rank, verdict.iteration, verdict.invariant) == (1, 100, "INV-23")
    assert "Pool.release differs between ranks: rank 0 called(len(pages)=59)" in verdict.message
    assert "rank 1 called(len(pages)=58)" in verdict.message
    without = run(changes, BLIND, change=changed(ReleasesOneTooFew)).verdict
    assert without.message.startswith("INV-23 at rank 1")  # at the end of the run, when the pool is counted
    assert without.iteration != 100


class FirstRankLosesAPage(LosesAPage):
    rank = 0


def test_the_rank_that_is_alone_is_named_even_if_it_is_the_first() -> None:
    changes = {**FILLING, "cluster.pp_size": 4, "workload.requests": requests(4, prompt=10, output=150)}
    verdict = checked(changes, FirstRankLosesAPage, 10)
    assert (verdict.rank, verdict.iteration) == (0, 100)
    assert "ranks 1, 2, 3 called(" in verdict.message


def loses_a_page(rank_id: int) -> type[Planted]:
    """The fault on one rank of two stages with two replicas each."""

    class OnOneRank(LosesAPage):
        @property
        def is_faulty(self) -> bool:
            return 2 * self.config.pp_rank + self.config.tp_rank == rank_id

    return OnOneRank


@pytest.mark.parametrize("faulty", [0, 1, 2, 3])
def test_every_replica_of_every_stage_is_compared(faulty: int) -> None:
    changes = {**FILLING, "cluster.tp_size": 2, "cluster.tp_replicas": 2}
    verdict = checked(changes, loses_a_page(faulty), 10)
    assert (verdict.invariant, verdict.iteration) == ("INV-23", 100)
    assert f"rank {faulty} called(" in verdict.message
    if faulty:  # rank 0 alone against one other rank: both are shown, and nobody can tell
        assert verdict.rank == faulty
    assert checked(changes, None, 10).kind == "pass"


# --- other causes ----------------------------------------------------------------------------------------------


class LocalClock(RadixCache):
    """Recency from a clock of its own: the two touched last come out in the other order on rank 1 (bugs.md B06)."""

    def stamp(self) -> int:
        return self.clock if self.policy.pp_rank == 0 else -self.clock


# R1 and R2 stay cached (99 whole tokens each, of 300); R3 needs more than is free, so one of them must go.
CROWDED = {
    "scheduler.max_total_tokens": 300,
    "scheduler.chunked_prefill_size": 256,
    "scheduler.pp_max_micro_batch_size": 4,
    "workload.requests": [
        {"rid": "R1", "at_iteration": 0, "prompt": 100, "output": 1, "ignore_eos": True},
        {"rid": "R2", "at_iteration": 0, "prompt": 100, "output": 1, "ignore_eos": True},
        {"rid": "R3", "at_iteration": 20, "prompt": 150, "output": 1, "ignore_eos": True},
    ],
}


def test_another_victim_is_named_although_all_sizes_are_equal() -> None:
    assert (
        run(CROWDED, change=changed(LocalClock)).verdict.kind == "pass"
    )  # the lockstep check compares sizes: nothing to see
    verdict = checked(CROWDED, LocalClock, 64)
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-26", 1, 20)
    assert "RadixCache.evict differs between ranks: rank 0 returned(result=[" in verdict.message


class OwnCapacity(Rank):
    """No minimum over the ranks (bugs.md B04)."""

    def start(self, capacity_tokens: Agreed[int], host_tokens: Agreed[int] | None = None) -> None:
        super().start(agree(self.local_tokens[0], "nobody else"), host_tokens)


def test_pools_of_different_size_are_named_at_the_first_allocation_long_before_a_cache_hit_differs() -> None:
    scenario = {
        "scheduler.max_total_tokens": [1000, 1040],
        "scheduler.chunked_prefill_size": 1000,
        "workload.requests": [
            {"rid": "R1", "at_iteration": 0, "prompt": 600, "output": 1, "prefix_blocks": [1, 2], "ignore_eos": True},
            {"rid": "R2", "at_iteration": 5, "prompt": 420, "output": 1, "ignore_eos": True},
            {"rid": "R3", "at_iteration": 10, "prompt": 600, "output": 1, "prefix_blocks": [1, 2], "ignore_eos": True},
        ],
    }
    blind = run(scenario, BLIND, change=changed(OwnCapacity))
    assert first_visible_difference(blind.recording) == 10
    verdict = checked(scenario, OwnCapacity, 4)
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-23", 1, 0)
    assert "[num_free_pages=1000]" in verdict.message
    assert "[num_free_pages=1040]" in verdict.message


class LooksTwice(Planted):
    """A call that no other rank makes, and whose result is thrown away: it refreshes recency, nothing else."""

    def fault(self, rank: Rank) -> None:
        rank.scheduler.kv.tree.match(b"\0\0\0\0" * 8)


def leaves_out(phase: Phase) -> type[Loop]:
    """Rank 1 never runs this phase."""

    class LeavesOut(Loop):
        def plan(self) -> Plan:
            return tuple(step for step in super().plan() if self.config.pp_rank != 1 or step is not phase)

    return LeavesOut


def test_an_extra_call_and_a_missing_call_are_found() -> None:
    extra = checked(FILLING, LooksTwice, 16)
    assert (extra.rank, extra.iteration, extra.invariant) == (1, 100, "INV-27")
    assert "RadixCache.match differs between ranks" in extra.message
    # Without carry_over rank 1 never resets its state in an idle sweep. R2 comes late, so there is one.
    late = {"workload.requests": [*requests(1), {"rid": "R2", "at_iteration": 9, "prompt": 4, "ignore_eos": True}]}
    missing = checked(late, leaves_out(phases.carry_over), 4)
    assert (missing.rank, missing.invariant) == (1, "INV-29")
    assert "Scheduler.on_idle differs between ranks: rank 0 called()" in missing.message


class PutsOneLast(Planted):
    """Rank 1 schedules the waiting requests in another order: the batches differ at once."""

    iteration = 12

    def fault(self, rank: Rank) -> None:
        rank.scheduler.waiting.reverse()


def test_a_crash_before_the_next_comparison_is_traced_back_to_the_call() -> None:
    lengths = [{"rid": f"R{n}", "at_iteration": 0, "prompt": 5 + n, "output": 20, "ignore_eos": True} for n in range(9)]
    changes = {"scheduler.pp_max_micro_batch_size": 2, "workload.requests": lengths}
    crash = run(changes, BLIND, change=changed(PutsOneLast)).verdict
    assert crash.kind == "fail"
    verdict = checked(changes, PutsOneLast, 1000)
    assert verdict.rank == 1
    assert verdict.iteration is not None
    assert crash.iteration is not None
    assert 12 <= verdict.iteration <= crash.iteration
    assert "differs between ranks" in verdict.message
    assert f"found when the run had failed\nwhat followed from it: {crash.message}" in verdict.message


# --- it changes nothing else -----------------------------------------------------------------------------------

TIMED = {
    "links.latency_us": 10.0,
    "host.schedule_us": 100.0,
    "host.process_us": 60.0,
    "host.stage_jitter_percent": 20.0,
}
BUSY = {**UNIT, "workload.requests": requests(12, prompt=19, output=12), "scheduler.pp_max_micro_batch_size": 2}
SERVERS: dict[str, dict[str, Any]] = {
    "plain": {**BUSY, **TIMED, "cluster.pp_size": 4},
    "deep": {**BUSY, **TIMED, "cluster.pp_size": 3, "cluster.pp_async_batch_depth": 2},
    "replicas": {**BUSY, **TIMED, "cluster.tp_size": 2, "cluster.tp_replicas": 2},
    "replicas of one stage": {**BUSY, "cluster.pp_size": 1, "cluster.tp_size": 2, "cluster.tp_replicas": 2},
    "short of memory": {**BUSY, "scheduler.max_total_tokens": 60, "scheduler.clip_max_new_tokens": 2},
    "blocking sends": {**BUSY, "links.send": "rendezvous", "scheduler.exchange_order": "parity", "cluster.pp_size": 4},
    "idle in between": {
        **UNIT,
        **TIMED,
        "workload.requests": [{"rid": f"R{n}", "at_ms": 300.0 * n, "prompt": 9, "output": 3} for n in range(4)],
    },
    "prefill": {**BUSY, "cluster.pp_size": 3, "disaggregation.role": "prefill"},
    "prefill, voting": {**BUSY, "disaggregation.role": "prefill", "disaggregation.bootstrap": "vote"},
    "decode": {**BUSY, "cluster.pp_size": 3, "disaggregation.role": "decode"},
}


@pytest.mark.parametrize("jitter_us", [0.0, 40.0])
@pytest.mark.parametrize("server", SERVERS)
def test_with_the_checker_all_decisions_stay_the_same_and_without_jitter_all_times(
    server: str, jitter_us: float
) -> None:
    """With jitter a check may come later than the message that the rank waits for anyway, by the jitter."""
    base = {**SERVERS[server], "links.jitter_us": jitter_us}
    off = passed(None, base)
    for interval in (1, 5, 64):
        on = passed({"run.consensus_check_interval": interval}, base)
        assert on.decisions == off.decisions
        assert on.harvests == off.harvests
        if jitter_us == 0:
            assert on.replies == off.replies
            assert on.spans == off.spans


def test_the_checker_watched_those_runs() -> None:
    """Without this the test above would pass with a checker that records nothing."""
    ranks = run({"run.consensus_check_interval": 5}, SERVERS["plain"]).setting.ranks
    logs = [simulated.rank.checker.log for simulated in ranks if simulated.rank.checker is not None]
    assert len(logs) == 4
    assert logs[0] == logs[1] == logs[2] == logs[3]
    assert {"Scheduler.schedule", "Pool.alloc", "RadixCache.match"} <= {call.name for call in logs[0]}
