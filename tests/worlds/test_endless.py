"""Law: every run ends, with a verdict that names the rank and what it did, whatever a changed loop does for ever."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ppsim.check import client_watch
from ppsim.core.actions import Compile
from ppsim.core.effects import AwaitLocal, Decision, Effects, Reply, act, observe, recv
from ppsim.core.loop import Loop
from ppsim.core.messages import Lane, NewRequest, Shutdown
from ppsim.core.observations import Clock, Compiled
from ppsim.core.parts import Change
from ppsim.core.phases import ingest_inputs
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.core.tokens import pack
from ppsim.errors import EXIT_LIVENESS, EXIT_SAFETY, EXIT_UNKNOWN
from ppsim.plugin.plans import instead
from ppsim.recording import Verdict
from tests.worlds.making import changed, requests, run
from tests.worlds.pd_making import PAIR

REPLICAS = {"cluster.tp_size": 2, "cluster.tp_replicas": 2}
LATE = {"workload.requests": [*requests(1), {"rid": "late", "prompt": 9, "output": 3, "at_iteration": 12}]}


def named(name: str, phase: Callable[[Rank], Effects[None]]) -> Phase:
    """Under the name of the phase that it replaces."""

    def run(rank: Rank) -> Effects[None]:
        yield from phase(rank)

    run.__name__ = name
    return run


def with_phase(name: str, phase: Phase, rank_id: int, tp: int = 1) -> Change:
    """Another phase in the place of a named one, on one rank."""

    class Changed(Loop):
        def plan(self) -> Plan:
            mine = self.config.pp_rank * tp + self.config.tp_rank == rank_id
            return instead(super().plan(), name, named(name, phase)) if mine else super().plan()

    return changed(Changed)


def skips_when_idle(rank: Rank) -> Effects[None]:
    """The round in which the request list is handed down is skipped by a rank that has no request."""
    if rank.iteration and rank.scheduler.fully_idle:
        rank.inputs = ()
        return
    yield from ingest_inputs(rank)


def lost_rounds(verdict: Verdict, rank: int) -> None:
    assert verdict.kind == "fail"
    assert verdict.exit_code == EXIT_LIVENESS
    assert verdict.rank == rank
    assert "iterations ahead of rank 0 and waits for nobody (livelock)" in verdict.message
    assert f"rank {rank}, iteration 10" in verdict.message
    assert re.search(r", phase (schedule|forward_inputs): ", verdict.message)
    assert re.search(r"it did: .*100\d decided, 100\d harvested", verdict.message)


# --- a rank whose iterations go on while nothing happens --------------------------------------------------------


@pytest.mark.parametrize("pp_size", [1, 2, 3])
def test_a_replica_that_skips_its_round_when_idle_breaks_invariant_2_in_the_first_such_round(pp_size: int) -> None:
    change = with_phase("ingest_inputs", skips_when_idle, 1, tp=2)
    changes = {**LATE, **REPLICAS, "cluster.pp_size": pp_size}
    audited = run({**changes, "run.invariants": True}, change=change).verdict
    # One output token: its last rank samples in iteration pp_size - 1, and the first idle round is the one after.
    assert (audited.invariant, audited.rank, audited.iteration) == ("INV-02", 1, pp_size)
    assert audited.exit_code == EXIT_SAFETY
    assert "which rank 0 sends it" in audited.message
    lost_rounds(run(changes, change=change).verdict, 1)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_stage_that_plays_rounds_of_its_own_when_idle_is_named(rank: int) -> None:
    change = with_phase("ingest_inputs", skips_when_idle, rank)
    changes: dict[str, Any] = {**LATE, "cluster.pp_size": 4}
    audited = run({**changes, "run.invariants": True}, change=change).verdict
    assert (audited.invariant, audited.rank) == ("INV-02", rank)
    assert f"which rank {rank - 1} sends it" in audited.message
    lost_rounds(run(changes, change=change).verdict, rank)


def test_the_limit_on_iterations_holds_for_every_rank() -> None:
    change = with_phase("ingest_inputs", skips_when_idle, 1, tp=2)
    verdict = run({**LATE, **REPLICAS, "run.max_iterations": 50}, change=change).verdict
    assert (verdict.kind, verdict.exit_code, verdict.rank, verdict.iteration) == ("unknown", EXIT_UNKNOWN, 1, 50)
    assert verdict.message.endswith("stopped at run.max_iterations = 50")
    right = run({**LATE, **REPLICAS, "run.max_iterations": 5}).verdict
    assert (right.rank, right.iteration, right.message) == (0, 5, "stopped at run.max_iterations = 5")


@pytest.mark.parametrize("pp_size", [1, 3])
def test_a_first_rank_that_does_not_read_its_inputs_any_more_is_named(pp_size: int) -> None:
    def never_reads(rank: Rank) -> Effects[None]:
        rank.inputs = ()
        if rank.iteration < 1:
            yield from ingest_inputs(rank)

    verdict = run({"cluster.pp_size": pp_size}, change=with_phase("ingest_inputs", never_reads, 0)).verdict
    assert (verdict.kind, verdict.exit_code, verdict.rank) == ("fail", EXIT_LIVENESS, 0)
    assert "no batch for 20000 iterations" in verdict.message
    limited = run({"run.max_iterations": 9}, change=with_phase("ingest_inputs", never_reads, 0)).verdict
    assert (limited.kind, limited.iteration, limited.rank) == ("unknown", 9, 0)


@pytest.mark.parametrize("pp_size", [1, 2])
def test_a_first_rank_that_ignores_the_end_of_the_input_is_named(pp_size: int) -> None:
    def deaf(rank: Rank) -> Effects[None]:
        yield from ingest_inputs(rank)
        rank.inputs = tuple(item for item in rank.inputs if not isinstance(item, Shutdown))

    verdict = run({"cluster.pp_size": pp_size}, change=with_phase("ingest_inputs", deaf, 0)).verdict
    assert (verdict.kind, verdict.exit_code, verdict.rank) == ("fail", EXIT_LIVENESS, 0)
    assert "no batch for 20000 iterations after the last input was read (livelock)" in verdict.message


def test_batches_of_which_nothing_comes_are_no_progress() -> None:
    """Computed, retracted and computed again: each visit has a batch, and the client hears nothing more."""
    watched = client_watch.Watch(0, 1, None)
    watched.ingested(0, (NewRequest("R1", pack(range(10)), 5),), False)
    limit = client_watch.MAX_QUIET_ITERATIONS + client_watch.MAX_QUIET_PER_TOKEN * (10 + 5)

    def go_on(start: int, num: int) -> None:
        for i in range(start, start + num):
            watched.ingested(i, (), False)
            watched.decided(Decision(i, 0, "extend", (("R1", 0, 1),), ("R1",), None, ""))

    go_on(1, limit)
    watched.replied(Reply("R1", "token", (7,), 1), limit, 0)  # that is progress
    go_on(limit + 1, limit + 1)
    for _ in range(5):  # five tokens and an end were asked for: what comes after that is none
        watched.replied(Reply("R1", "token", (7,), 1), 2 * limit, 0)
    go_on(2 * limit + 2, limit)
    watched.replied(Reply("R1", "token", (7,), 1), 3 * limit, 0)
    with pytest.raises(
        client_watch.StopRun, match=rf"^no input and no reply for {limit} iterations although batches run"
    ):
        go_on(3 * limit + 2, 2)


# --- a rank that stays in an iteration ---------------------------------------------------------------------------


def acts(rank: Rank) -> Effects[None]:
    while True:
        yield from act(Compile("nothing", "json"))


def looks(rank: Rank) -> Effects[None]:
    while True:
        yield from observe(Clock(), rank.iteration)


def waits_a_little(rank: Rank) -> Effects[None]:
    """Virtual time goes on, the iteration does not."""
    while True:
        yield AwaitLocal(Compiled("nothing"), rank.iteration)


@pytest.mark.parametrize("endless", [acts, looks, waits_a_little])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_never_leaves_an_iteration_is_named_with_what_it_does(endless: Phase, rank: int) -> None:
    changes = {"cluster.pp_size": 3, "observations.max_delay": 1, "observations.tick_ms": 1.0}
    verdict = run(changes, change=with_phase("harvest", endless, rank)).verdict
    assert (verdict.kind, verdict.exit_code, verdict.rank, verdict.iteration) == ("fail", EXIT_LIVENESS, rank, 0)
    assert f"rank {rank}, iteration 0, slot 0, phase harvest: more than 101000 effects in one" in verdict.message
    what = {acts: "act", looks: "observe", waits_a_little: "awaitlocal"}[endless]
    assert f"the last 1000: 1000 {what};" in verdict.message


def test_a_rank_that_begins_the_same_iteration_again_makes_no_progress() -> None:
    def back(rank: Rank) -> Effects[None]:
        rank.iteration -= 1
        yield from ()

    verdict = run({**LATE, "cluster.pp_size": 1}, change=with_phase("carry_over", back, 0)).verdict
    assert (verdict.kind, verdict.exit_code, verdict.rank) == ("fail", EXIT_LIVENESS, 0)
    assert "livelock" in verdict.message


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_of_two_pipelines_the_side_is_named_too(side: str) -> None:
    class OneSide(Loop):
        def plan(self) -> Plan:
            mine = self.config.role == side and self.config.pp_rank == 1
            return instead(super().plan(), "send_inputs", named("send_inputs", acts)) if mine else super().plan()

    verdict = run({}, PAIR, change=changed(OneSide)).verdict
    assert (verdict.kind, verdict.exit_code, verdict.rank) == ("fail", EXIT_LIVENESS, 1)
    assert verdict.message.startswith(f"{side} side: rank 1, iteration 0, slot 0, phase send_inputs: ")


# --- what is no livelock -----------------------------------------------------------------------------------------


def test_a_rank_that_waits_for_ever_is_a_deadlock_and_not_a_livelock() -> None:
    def waits(rank: Rank) -> Effects[None]:
        yield from recv(0, Lane.CHECK)

    verdict = run({"cluster.pp_size": 3}, change=with_phase("harvest", waits, 2)).verdict
    assert verdict.exit_code == EXIT_LIVENESS
    assert verdict.message.startswith("INV-40 at rank 2, iteration 0, slot 0, phase harvest, request R1: deadlock: ")


def test_many_idle_iterations_before_a_request_that_names_one_are_right() -> None:
    late = [{"rid": "R1", "prompt": 4, "output": 1, "at_iteration": 21_000}]
    result = run({"workload.requests": late, "cluster.pp_size": 1})
    assert result.verdict.kind == "pass", result.verdict.message
    assert len(result.recording.decisions[0]) > 21_000
