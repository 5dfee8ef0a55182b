"""A rank that stops, in simulated runs: found within the limit, by name, whatever its slot holds (bugs.md B30).

The limit counts virtual time from the last effect that a rank completed; waiting for clients is not counted.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from ppsim.errors import ScenarioError
from ppsim.recording import Recording, Verdict
from ppsim.world import SimulationResult
from tests.worlds.making import UNIT, passed, requests, run, scenario

FOUR = {**UNIT, "cluster.pp_size": 4, "workload.requests": requests(4, output=40), "host.schedule_us": 50.0}
LINE = re.compile(
    r"rank (?P<rank>\d): iteration (?P<iteration>\d+), slot (?P<slot>\d), .*no progress for (?P<ms>[\d.]+) ms"
)
WAITS_FOR = re.compile(r"^  rank (?P<rank>\d): .* for rank (?P<peer>\d), no progress", re.MULTILINE)


def pause(rank: int, at_iteration: int, ms: float = 0.0) -> dict[str, Any]:
    return {"faults.pauses": [{"rank": rank, "at_iteration": at_iteration, "ms": ms}]}


def stuck(verdict: Verdict) -> Verdict:
    assert (verdict.kind, verdict.exit_code) == ("fail", 3), verdict
    return verdict


def last_end(recording: Recording) -> int:
    return max(span.end_ns for spans in recording.spans for span in spans)


# --- bugs.md B30 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit_ms", [20.0, 100.0, 60_000.0])
def test_a_rank_that_stops_for_ever_is_named_within_the_limit_with_what_each_rank_waits_for(limit_ms: float) -> None:
    verdict = stuck(run({**pause(2, 50), "run.watchdog_ms": limit_ms}, FOUR).verdict)
    assert (verdict.rank, verdict.iteration, verdict.slot) == (2, 50, 2)
    head = verdict.message.splitlines()[0]
    assert head.startswith(f"watchdog: no progress for {limit_ms:g} ms of virtual time; first: rank 2: iteration 50, ")
    assert "is paused (faults.pauses)" in head
    stood_still = {int(m["rank"]): float(m["ms"]) for m in LINE.finditer(verdict.message)}
    assert stood_still.keys() == {0, 1, 2, 3}
    assert max(stood_still.values()) == limit_ms
    # Rank 3 waits for messages of rank 2, rank 1 for rank 2 to take one, and rank 0 for rank 1.
    peers = {int(m["rank"]): int(m["peer"]) for m in WAITS_FOR.finditer(verdict.message)}
    assert peers == {0: 1, 1: 2, 3: 2}


def test_without_a_watchdog_a_rank_that_stops_for_ever_is_a_report_too_and_not_silence() -> None:
    verdict = stuck(run(pause(2, 50), FOUR).verdict)
    assert (verdict.rank, verdict.iteration) == (2, 50)
    assert verdict.message.startswith("rank 2 is paused: the event queue is empty and 4 of 4 ranks wait for ever")
    assert "rank 2: iteration 50, slot 2, phase ingest_inputs, is paused (faults.pauses) since" in verdict.message


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("at_iteration", [9, 10])
def test_a_rank_that_stops_on_an_empty_slot_is_found_like_any_other(rank: int, at_iteration: int) -> None:
    """One request in four slots: three visits of four are empty. SGLang's watchdog is not armed there."""
    base = {**FOUR, "workload.requests": requests(1, output=40)}
    whole = passed(None, base)
    assert whole.decisions[rank][at_iteration].mode == "empty"
    verdict = stuck(run({**pause(rank, at_iteration), "run.watchdog_ms": 40.0}, base).verdict)
    assert (verdict.rank, verdict.iteration) == (rank, at_iteration)


def test_a_replica_that_stops_is_named_by_its_rank_id() -> None:
    replicas = {**UNIT, "cluster.tp_size": 2, "cluster.tp_replicas": 2, "workload.requests": requests(2, output=20)}
    verdict = stuck(run({**pause(3, 12), "run.watchdog_ms": 40.0}, replicas).verdict)
    assert (verdict.rank, verdict.iteration) == (3, 12)


# --- the limit -------------------------------------------------------------------------------------------------


def simulate(changes: dict[str, Any], base: dict[str, Any] = FOUR) -> SimulationResult:
    return run(changes, base)


def test_a_pause_below_the_limit_only_costs_time() -> None:
    """The pipeline has one rank that stands still for 60 ms; everything is shifted by at most that."""
    whole = passed(None, FOUR)
    slow = simulate({**pause(2, 50, 60.0), "run.watchdog_ms": 70.0})
    assert slow.verdict.kind == "pass", slow.verdict.message
    assert slow.recording.decisions == whole.decisions
    assert slow.recording.harvests == whole.harvests
    assert 50_000_000 < last_end(slow.recording) - last_end(whole) <= 60_000_000


def test_a_pause_as_long_as_the_limit_is_a_stall() -> None:
    verdict = stuck(simulate({**pause(1, 20, 70.0), "run.watchdog_ms": 70.0}).verdict)
    assert (verdict.rank, verdict.iteration) == (1, 20)


def test_pauses_follow_each_other_and_each_counts_alone() -> None:
    pauses = [
        {"rank": rank, "at_iteration": at, "ms": 60.0} for rank, at in ((2, 30), (0, 10), (2, 10), (3, 30), (2, 31))
    ]
    result = simulate({"faults.pauses": pauses, "run.watchdog_ms": 100.0})
    assert result.verdict.kind == "pass", result.verdict.message
    assert last_end(result.recording) > last_end(passed(None, FOUR)) + 150_000_000


def test_with_a_watchdog_a_run_without_a_stall_is_the_same_run() -> None:
    off, on = passed(None, FOUR), passed({"run.watchdog_ms": 50.0}, FOUR)
    assert on.decisions == off.decisions
    assert on.replies == off.replies
    assert on.spans == off.spans


# --- what is no stall, and what is one without a pause -----------------------------------------------------------

RARE = [{"rid": f"R{n}", "at_ms": 5_000.0 * n, "prompt": 9, "output": 6, "ignore_eos": True} for n in range(4)]
SERVERS: dict[str, dict[str, Any]] = {
    "plain": {"cluster.pp_size": 4},
    "one stage": {"cluster.pp_size": 1},
    "deep": {"cluster.pp_async_batch_depth": 2},
    "replicas": {"cluster.tp_size": 2, "cluster.tp_replicas": 2},
    "prefill, whose first rank looks at a store by the world's time": {"disaggregation.role": "prefill"},
    "polling": {"host.idle_poll_us": 30_000.0},
}


@pytest.mark.parametrize("server", SERVERS)
def test_waiting_for_clients_is_no_stall_however_long(server: str) -> None:
    base = {**UNIT, "workload.requests": RARE, "links.latency_us": 20.0, **SERVERS[server]}
    passed({"run.watchdog_ms": 40.0}, base)


def test_a_rank_that_stops_between_two_clients_is_found_when_the_next_one_comes() -> None:
    base = {**UNIT, "workload.requests": RARE}
    idle_from = len(passed({"workload.requests": RARE[:1]}, base).decisions[0])
    verdict = stuck(run({**pause(1, idle_from + 2), "run.watchdog_ms": 40.0}, base).verdict)
    assert verdict.rank == 1
    assert verdict.iteration == idle_from + 2


def test_a_forward_pass_slower_than_the_limit_is_a_stall_of_the_rank_that_waits_for_it() -> None:
    """Two stages of 300 ms: the first token is 600 ms away, and a host waits for it that long."""
    base = {**UNIT, "cost.unit_ms": 300.0}
    passed({"run.watchdog_ms": 601.0}, base)
    verdict = stuck(run({"run.watchdog_ms": 299.0}, base).verdict)
    assert "waits for the tokens of iteration 0" in verdict.message.splitlines()[0]


def test_a_ring_that_locks_is_reported_with_its_cycle() -> None:
    """Everybody sends first over a blocking backend (issue: blocking backends)."""
    locked = {**FOUR, "links.send": "rendezvous"}
    verdict = stuck(run({"run.watchdog_ms": 100.0}, locked).verdict)
    assert verdict.invariant == "INV-40"
    assert re.search(r"wait-for cycle: (\d)( -> \d)+ -> \1$", verdict.message, re.MULTILINE)


# --- the dump --------------------------------------------------------------------------------------------------


def test_the_dump_shows_every_rank_as_it_stands() -> None:
    """Checked against the state that the run left behind: a place in each of four slots, five requests wait."""
    many = {**FOUR, "workload.requests": requests(9, output=40), "scheduler.disable_radix_cache": True}
    result = run({**pause(2, 31), "run.watchdog_ms": 30.0}, many)
    parts = re.split(r"^  state of rank (\d):$", stuck(result.verdict).message, flags=re.MULTILINE)
    dumps = dict(zip(map(int, parts[1::2]), parts[2::2]))
    assert dumps.keys() == {0, 1, 2, 3}
    for simulated in result.setting.ranks:
        scheduler, dump = simulated.rank.scheduler, dumps[simulated.rank_id]
        assert f"queue waiting: 5 ({' '.join(r.rid for r in scheduler.waiting)})" in dump
        assert f"pool: {scheduler.kv.pool.free_tokens} of 4096 tokens free" in dump
        for slot in scheduler.slots.slots:
            visited = " (visited)" if slot.index == simulated.rank.slot else ""
            assert slot.launched is not None
            state = "in flight" if slot.in_flight else "harvested"
            launched = f"decode of iteration {slot.launched.iteration}, {state}"
            assert f"slot {slot.index}{visited}: {launched}; running 1 ({slot.running[0].rid}), full" in dump
        last = result.recording.decisions[simulated.rank_id][-1]
        decided = f"    decided: iteration {last.iteration}, slot {last.slot}: decode {last.pieces[0][0]}["
        assert dump.splitlines()[-1].startswith(decided)


def test_the_report_is_the_same_each_time() -> None:
    reports = [run({**pause(2, 31), "run.watchdog_ms": 30.0}, FOUR).verdict for _ in range(2)]
    assert reports[0] == reports[1]


def test_a_pause_of_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"faults.pauses.0.rank: is 4 \(there are ranks 0 to 3\)"):
        scenario(pause(4, 0), FOUR)
