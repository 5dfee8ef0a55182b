"""The watchdog over real processes: a stopped or stuck rank is named within the limit, and no process is left.

The rules of the launcher's side are tested with a clock that is set by hand; real processes are used for what only
they can show.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.launch import ExecutionResult, execute
from executor.status import Status
from executor.watchdog import Pulse, Watchdog
from ppsim.check.progress import Stuck
from ppsim.core.effects import Commit, Effect, Effects, Ingest, Launch, Recv
from ppsim.core.loop import Loop
from ppsim.core.messages import Lane
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.batch import ForwardBatch, Mode
from ppsim.recording import Verdict
from ppsim.scenario import Scenario
from ppsim.world import simulate
from tests.executor.small import small_scenario

MS = 1_000_000
LIMIT_MS = 1500.0


# --- the launcher's side, by hand ------------------------------------------------------------------------------


class Bench:
    """Three ranks whose cells the test writes, and a clock that it sets. The limit is 1000 ms."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.now = 5_000 * MS
        self.status = Status(context, 3)
        self.pulse = Pulse(context, 3, 1000.0)
        self.dog = Watchdog(self.status, self.pulse, lambda: self.now)

    def beat(self, rank: int, effect: Effect, iteration: int = 7) -> None:
        self.status.beat(rank, effect, iteration)

    def pass_ms(self, ms: int, silent: tuple[int, ...] = (), reported: tuple[int, ...] = ()) -> None:
        """Time passes in steps of 50 ms; all processes but the silent ones are seen to run."""
        for _ in range(ms // 50):
            self.now += 50 * MS
            for rank in range(3):
                if rank not in silent:
                    self.pulse.marks[rank] = self.now
            self.dog.look(reported)

    def stuck_after(self, ms: int, silent: tuple[int, ...] = (), reported: tuple[int, ...] = ()) -> Verdict:
        with pytest.raises(Stuck) as caught:
            self.pass_ms(ms, silent, reported)
        return caught.value.verdict


TENSOR, CONTROL = Lane.TENSOR, Lane.CONTROL
FORWARD = Launch(ForwardBatch(7, 1, Mode.DECODE, (), 0, False, False), None)


def test_a_rank_that_computes_for_too_long_holds_those_that_wait_for_it() -> None:
    bench = Bench()
    bench.beat(0, Recv(2, TENSOR), 9)
    bench.beat(1, FORWARD, 8)
    bench.beat(2, Recv(1, TENSOR), 7)
    bench.pass_ms(950)
    verdict = bench.stuck_after(100)
    assert (verdict.kind, verdict.exit_code, verdict.rank, verdict.iteration) == ("fail", 3, 1, 8)
    assert verdict.message.splitlines()[:3] == [
        "watchdog: no progress for 1000 ms; "
        "first: rank 1: iteration 8, is in a forward pass, no progress for 1000.0 ms",
        "  rank 0: iteration 9, waits in a receive for rank 2, no progress for 1000.0 ms",
        "  rank 2: iteration 7, waits in a receive for rank 1, no progress for 1000.0 ms",
    ]


def test_progress_of_one_rank_does_not_hide_that_another_has_none() -> None:
    bench = Bench()
    bench.beat(1, FORWARD)

    def others_go_on() -> None:
        for _ in range(30):
            bench.beat(0, Recv(2, TENSOR))
            bench.beat(2, Recv(1, TENSOR))
            bench.pass_ms(50)

    with pytest.raises(Stuck) as caught:
        others_go_on()
    assert caught.value.verdict.rank == 1


def test_a_process_that_does_not_run_is_named_whatever_it_was_waiting_for() -> None:
    bench = Bench()
    bench.beat(0, Commit(1))
    bench.pulse.commits[0] = 1
    bench.beat(1, Recv(0, CONTROL))
    bench.beat(2, Recv(1, TENSOR))
    bench.pulse.marks[1] = bench.now
    verdict = bench.stuck_after(1100, silent=(1,))
    assert verdict.rank == 1
    head, other, _ = verdict.message.splitlines()[:3]
    assert "rank 1: iteration 7, waits in a receive for rank 0; its process does not run" in head
    assert "rank 0: iteration 7, waits in the commit of a send for rank 1" in other


def test_ranks_that_wait_for_each_other_are_shown_as_a_cycle() -> None:
    bench = Bench()
    for rank in range(3):
        bench.beat(rank, Recv((rank + 1) % 3, TENSOR), 20 - rank)
    verdict = bench.stuck_after(1100)
    assert (verdict.rank, verdict.invariant) == (2, "INV-40")
    assert "wait-for cycle: 0 -> 1 -> 2 -> 0" in verdict.message


def test_waiting_for_clients_is_no_stall_but_a_process_that_does_not_run_is_one_even_then() -> None:
    bench = Bench()
    bench.beat(0, Ingest(7, True))
    bench.beat(1, Recv(0, CONTROL))
    bench.beat(2, Recv(1, CONTROL))
    bench.pass_ms(60_000)
    bench.beat(0, FORWARD)  # a client came; the others have not heard of it yet
    bench.pass_ms(900)
    bench.beat(0, Ingest(8, True))
    bench.pass_ms(5_000)
    assert bench.stuck_after(1600, silent=(2,)).rank == 2


def test_a_first_rank_that_is_stopped_while_it_waits_for_clients_excuses_nobody() -> None:
    bench = Bench()
    bench.beat(0, Ingest(7, True))
    bench.beat(1, Recv(0, CONTROL))
    bench.beat(2, Recv(1, CONTROL))
    bench.pass_ms(5_000)
    assert bench.stuck_after(1600, silent=(0,)).rank == 0


def test_loading_takes_longer_than_an_effect_may() -> None:
    bench = Bench()
    bench.pass_ms(119_000, silent=(0, 1, 2))
    assert bench.stuck_after(1_100, silent=(0, 1, 2)).exit_code == 3


def test_a_launcher_that_did_not_run_itself_has_seen_nothing() -> None:
    """Stopped with Ctrl-Z and continued: all that is old is its own view."""
    bench = Bench()
    for rank in range(3):
        bench.beat(rank, FORWARD)
    bench.pass_ms(900)
    bench.now += 3_600_000 * MS
    bench.dog.look(())
    bench.pass_ms(950)
    assert bench.stuck_after(100).exit_code == 3


def test_a_rank_that_has_ended_is_not_watched() -> None:
    bench = Bench()
    for rank in range(3):
        bench.beat(rank, FORWARD)
    for _ in range(40):
        bench.beat(1, FORWARD)
        bench.pass_ms(50, silent=(0, 2), reported=(0, 2))


# --- real processes --------------------------------------------------------------------------------------------


def serving(pp_size: int, **sections: Any) -> Scenario:
    """Two requests that decode for a while."""
    requests = [{"rid": f"R{n}", "at_iteration": 0, "prompt": 40, "output": 30} for n in range(2)]
    workload = {"source": "requests", "requests": requests}
    return small_scenario(cluster={"pp_size": pp_size}, workload=workload, **sections)


def no_process_is_left() -> bool:
    return not [child for child in multiprocessing.active_children() if "ppsim-rank" in child.name]


def stuck(result: ExecutionResult) -> Verdict:
    assert (result.verdict.kind, result.verdict.exit_code) == ("fail", 3), result.verdict
    assert no_process_is_left()
    return result.verdict


def test_a_rank_that_stops_on_an_empty_slot_is_named_with_its_iteration_and_every_rank_is_described() -> None:
    """Two requests in three slots: each third visit is empty. SGLang's watchdog is not armed there."""
    assert simulate(serving(3)).recording.decisions[1][21].mode == "empty"
    faults = {"pauses": [{"rank": 1, "at_iteration": 21}]}
    scenario = serving(3, run={"watchdog_ms": LIMIT_MS}, faults=faults)
    verdict = stuck(execute(scenario, start_method="forkserver"))
    assert (verdict.rank, verdict.iteration) == (1, 21)
    lines = verdict.message.splitlines()
    assert "first: rank 1: iteration 21, waits in a receive for rank 0; its process does not run" in lines[0]
    assert re.match(r"  rank 0: iteration 2\d, waits in .* for rank [12], no progress for ", lines[1])
    assert re.match(r"  rank 2: iteration (1\d|20|21), waits in .* for rank 1, no progress for ", lines[2])
    for rank in range(3):
        assert re.search(rf"^  state of rank {rank}, written \d+ ms ago:\n    in iteration \d+$", verdict.message, re.M)
    assert verdict.message.count("    queue waiting: 0") == 3
    assert verdict.message.count("    decided: iteration ") == 12


class Stopper(threading.Thread):
    """Stops the process of a rank after a while, from outside, wherever it is."""

    def __init__(self, victim: int, delay_s: float) -> None:
        super().__init__(daemon=True)
        self.victim, self.delay_s, self.stopped_at = victim, delay_s, 0.0

    def run(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            pids = {child.name: child.pid for child in multiprocessing.active_children()}
            pid = pids.get(f"ppsim-rank-{self.victim}")
            if pid is not None and len(pids) >= 3:
                time.sleep(self.delay_s)
                os.kill(pid, signal.SIGSTOP)
                self.stopped_at = time.monotonic()
                return
            time.sleep(0.01)


def test_a_process_that_is_stopped_while_all_wait_for_a_client_is_found_too() -> None:
    requests = [
        {"rid": "now", "at_ms": 0.0, "prompt": 9, "output": 2},
        {"rid": "in-an-hour", "at_ms": 3_600_000.0, "prompt": 9, "output": 2},
    ]
    workload = {"source": "requests", "requests": requests}
    scenario = small_scenario(cluster={"pp_size": 3}, workload=workload, run={"watchdog_ms": LIMIT_MS})
    stopper = Stopper(2, 6.0)
    stopper.start()
    verdict = stuck(execute(scenario, start_method="forkserver"))
    seconds = time.monotonic() - stopper.stopped_at
    assert verdict.rank == 2
    assert "its process does not run" in verdict.message
    assert seconds < 2 * LIMIT_MS / 1000 + 4  # the limit, and the time that ending the processes takes


def test_a_pause_below_the_limit_passes_and_so_does_a_long_wait_for_a_client() -> None:
    requests = [{"rid": f"R{n}", "at_ms": 2_500.0 * n, "prompt": 9, "output": 4} for n in range(2)]
    workload = {"source": "requests", "requests": requests}
    faults = {"pauses": [{"rank": 1, "at_iteration": 3, "ms": 300.0}]}
    run = {"watchdog_ms": 1_200.0}
    scenario = small_scenario(cluster={"pp_size": 2}, workload=workload, run=run, faults=faults)
    result = execute(scenario, start_method="forkserver")
    assert result.verdict.kind == "pass", result.verdict.message
    starts = {span.iteration: span.start_ns for span in result.recording.spans[1]}
    assert starts[4] - starts[2] > 300 * MS


# --- the rank consensus checker on real processes ----------------------------------------------------------------


class LosesAPage(Loop):
    """Rank 1 loses a page of KV at the start of iteration 30; nothing is visible for a long time."""

    def plan(self) -> Plan:
        steps = super().plan()
        return (self.strike, *steps) if self.config.pp_rank == 1 else steps

    def strike(self, rank: Rank) -> Effects[None]:
        if rank.iteration == 30:
            rank.scheduler.kv.pool._free.pop()
        yield from ()


class Reorders(Policy):
    """Rank 1 runs the waiting requests in another order: the next batch already differs."""

    def admission_order(self, waiting: list[Any]) -> list[Any]:
        return waiting[::-1] if self.pp_rank == 1 else waiting


def checked(change: type, interval: int, pp_size: int = 2) -> Verdict:
    scenario = serving(pp_size, run={"consensus_check_interval": interval})
    result = execute(scenario, start_method="forkserver", changes=(f"{__name__}:{change.__name__}",))
    assert no_process_is_left()
    return result.verdict


def test_the_checker_names_the_iteration_and_the_call_on_real_processes() -> None:
    verdict = checked(LosesAPage, 16)
    assert (verdict.kind, verdict.exit_code, verdict.invariant) == ("fail", 1, "INV-23")
    assert (verdict.rank, verdict.iteration) == (1, 30)
    assert "differs between ranks: rank 0 called(" in verdict.message
    assert "found when the calls up to iteration 31 were compared" in verdict.message


def test_a_crash_before_the_next_comparison_is_traced_back_on_real_processes() -> None:
    verdict = checked(Reorders, 1000)
    assert (verdict.kind, verdict.exit_code, verdict.rank, verdict.iteration) == ("fail", 1, 1, 0)
    assert "differs between ranks" in verdict.message
    assert "found when the run had failed\nwhat followed from it: " in verdict.message


def test_with_the_checker_real_processes_take_the_same_decisions() -> None:
    results = [
        execute(serving(3, run={"consensus_check_interval": interval}), start_method="forkserver")
        for interval in (0, 7)
    ]
    assert [result.verdict.kind for result in results] == ["pass", "pass"]
    assert results[0].recording.decisions == results[1].recording.decisions
    assert results[0].tokens == results[1].tokens
