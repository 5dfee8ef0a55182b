"""The life of rank processes: started, supervised, ended; what is left when one dies, and what the user is told."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.launch import execute, failed, open_store
from executor.status import Status
from executor.supervise import Ranks, Stalled
from executor.worker import Report
from ppsim.check.invariants import BY_NAME
from ppsim.core.effects import Commit, Recv
from ppsim.core.errors import InvariantViolation
from ppsim.core.messages import Lane, NewRequest
from ppsim.core.tokens import pack
from ppsim.errors import PpsimError, RankDied
from ppsim.recording import Recording, Verdict
from ppsim.scenario import Scenario
from ppsim.workload import Arrival
from tests.executor.small import small_scenario

ROOT = Path(__file__).resolve().parents[2]
NEVER_MS = 3_600_000.0


def endless(pp_size: int = 3) -> Scenario:
    """A long request at once, and another one in an hour: the ranks compute for a while, and wait then."""
    requests = [
        {"rid": "long", "at_ms": 0.0, "prompt": 40, "output": 60},
        {"rid": "in-an-hour", "at_ms": NEVER_MS, "prompt": 4, "output": 1},
    ]
    return small_scenario(cluster={"pp_size": pp_size}, workload={"source": "requests", "requests": requests})


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
    return found


class Killer(threading.Thread):
    """Waits for the ranks of this process, then kills one after a delay; remembers all pids and the moment."""

    def __init__(self, pp_size: int, victim: int, delay_s: float) -> None:
        super().__init__(daemon=True)
        self.pp_size, self.victim, self.delay_s = pp_size, victim, delay_s
        self.pids: dict[int, int] = {}
        self.killed_at = 0.0

    def run(self) -> None:
        wait_until(self.all_started)
        time.sleep(self.delay_s)
        self.killed_at = time.monotonic()
        os.kill(self.pids[self.victim], signal.SIGKILL)

    def all_started(self) -> bool:
        for child in multiprocessing.active_children():
            found = re.fullmatch(r"ppsim-rank-(\d+)", child.name)
            if found and child.pid:
                self.pids[int(found[1])] = child.pid
        return len(self.pids) == self.pp_size


@pytest.mark.parametrize(
    ("start_method", "victim", "delay_s"),
    [
        ("spawn", 1, 0.0),  # while it starts
        ("forkserver", 0, 0.8),  # around its first batches
        ("forkserver", 1, 1.2),
        ("forkserver", 2, 6.0),  # while all wait for the next client
    ],
)
def test_a_killed_rank_is_named_within_ten_seconds_and_no_process_is_left(
    start_method: str, victim: int, delay_s: float
) -> None:
    killer = Killer(3, victim, delay_s)
    killer.start()
    with pytest.raises(RankDied) as caught:
        execute(endless(), start_method=start_method)
    assert time.monotonic() - killer.killed_at < 10
    assert str(caught.value).startswith(f"rank {victim} of 3 was killed by signal 9 (SIGKILL) while it was ")
    assert caught.value.exit_code == 3
    assert not [pid for pid in killer.pids.values() if is_alive(pid)]


def test_if_the_launcher_is_killed_its_ranks_end_too() -> None:
    script = (
        "from executor.launch import execute\n"
        "from tests.executor.test_launch import endless\n"
        "execute(endless(1), progress=lambda done, total: print(done, total, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        try:
            assert launcher.stdout is not None
            assert any(line == "1 2\n" for line in launcher.stdout)  # the first request is done: all ranks run
            pids = [int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]
            assert any(is_alive(pid) for pid in pids)
        finally:
            launcher.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_port_that_is_taken_is_a_usage_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PpsimError, match=rf"--port {port}: cannot listen on 127.0.0.1:{port}: ") as caught:
            execute(small_scenario(), port=port)
    assert caught.value.exit_code == 2
    assert not [child for child in multiprocessing.active_children() if "ppsim-rank" in child.name]
    assert open_store(port).port == port  # once it is free, it is taken


def test_reaching_max_iterations_keeps_the_recording_so_far() -> None:
    scenario = endless(2).model_copy(update={"run": small_scenario().run.model_copy(update={"max_iterations": 12})})
    result = execute(scenario, start_method="forkserver")
    assert (result.verdict.kind, result.verdict.exit_code) == ("unknown", 5)
    assert result.verdict.message == "stopped at run.max_iterations = 12"
    assert [d.iteration for d in result.recording.decisions[0]] == list(range(12))
    assert len(result.recording.decisions[1]) in (10, 11, 12)
    assert result.recording.spans[1]


def test_a_stop_token_ends_a_request_early_on_every_rank() -> None:
    scenario = small_scenario(cluster={"pp_size": 2})
    prompt = pack(range(10, 30))
    free = execute(scenario, arrivals=[Arrival(NewRequest("free", prompt, 12), None, 0, 12)], start_method="forkserver")
    tokens = free.tokens["free"]
    stop = tokens[5]
    request = NewRequest("stopped", prompt, 12, stop_token_ids=(stop,))
    stopped = execute(scenario, arrivals=[Arrival(request, None, 0, 12)], start_method="forkserver")
    assert stopped.verdict.kind == "pass"
    assert stopped.tokens["stopped"] == tokens[: tokens.index(stop) + 1]
    assert stopped.recording.harvests[0] == stopped.recording.harvests[1]


def test_an_exception_in_a_rank_is_one_sentence_with_its_place() -> None:
    odd: Any = NewRequest("odd", pack([5] * 8), "many")  # type: ignore[arg-type]
    sentence = r"^rank [01] of 2 failed while it was deciding in iteration 0: TypeError: "
    with pytest.raises(RankDied, match=sentence) as caught:
        execute(small_scenario(), inputs_by_iteration={0: (odd,)}, start_method="forkserver")
    assert "Traceback" not in str(caught.value)
    assert "Traceback" in str(caught.value.__cause__)  # for whoever wants to know


def test_a_broken_rule_becomes_a_verdict_with_what_was_recorded() -> None:
    part = Recording(2, world="exec")
    part.span(1, "forward", 0, 0, 5, 9)
    broken = InvariantViolation("INV-64", 1, 7, 2, "R3", "KV slot 16 is also written by R1")
    ranks = Ranks(Status(multiprocessing.get_context("spawn"), 2))
    ranks.reports = {1: Report(1, part, broken)}
    result = failed(ranks.reports[1], ranks, Recording(2, world="exec"))
    expected, came = BY_NAME["INV-64"].statement, "KV slot 16 is also written by R1"
    assert result.verdict == Verdict("fail", 1, str(broken), "INV-64", 1, 7, 2, "R3", None, expected, came)
    assert len(result.recording.spans[1]) == 1


def test_ranks_that_all_wait_for_each_other_are_a_deadlock_that_says_what_each_waits_for() -> None:
    context: Any = multiprocessing.get_context("forkserver")
    status = Status(context, 2)
    ranks = Ranks(status)
    status.beat(0, Recv(1, Lane.TENSOR), 4)
    status.beat(1, Commit(3), 5)
    for _ in range(2):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=time.sleep, args=(60,))
        process.start()
        ranks.add(process, ours)
    try:
        with pytest.raises(Stalled) as caught:
            ranks.wait(lambda: None, stall_s=0.5)
    finally:
        ranks.stop()
    assert str(caught.value) == (
        "rank 0 is waiting for a message from rank 1 in iteration 4; "
        "rank 1 is waiting for a send to be taken in iteration 5"
    )
    assert not any(is_alive(process.pid or 0) for process in ranks.processes)
