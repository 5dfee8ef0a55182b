"""Watching the rank processes until all have reported, or one is known to be at fault.

Rule: when one rank dies the others lose their links within milliseconds and say so; the one that *said nothing* is the
one to name. So after the first sign of trouble the others get ``GRACE_S`` to speak before anyone is blamed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess

from executor.status import Status
from executor.worker import Report
from ppsim.errors import RankDied

TICK_S = 0.1
GRACE_S = 1.0
STALL_S = 60.0
JOIN_S = 2.0
ASK_S = 5.0


class Stalled(Exception):
    """Every rank waits for another one, and has for ``STALL_S``. The argument is one sentence a rank."""


class Ranks:
    """The processes of a run, their pipes, and what they have reported."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self.processes: list[BaseProcess] = []
        self.pipes: dict[connection.Connection, int] = {}
        self.reports: dict[int, Report] = {}

    def add(self, process: BaseProcess, pipe: connection.Connection) -> None:
        self.pipes[pipe] = len(self.processes)
        self.processes.append(process)

    def wait(self, on_tick: Callable[[], None], stall_s: float = STALL_S) -> list[Report]:
        """The reports of all ranks, in order. Raises RankDied, Stalled, or the error that a rank reported."""
        counts, changed = self.status.counts(), time.monotonic()
        while len(self.reports) < len(self.processes):
            self.collect(TICK_S)
            on_tick()
            if self.trouble():
                self.listen(GRACE_S)
                self.blame()
            now, before = time.monotonic(), counts
            counts = self.status.counts()
            if counts != before or not self.status.all_wait():
                changed = now
            elif now - changed > stall_s:
                raise Stalled("; ".join(f"rank {rank} is {self.doing(rank)}" for rank in range(len(self.processes))))
        if self.trouble():
            self.blame()
        return [self.reports[rank] for rank in range(len(self.processes))]

    def ask(self) -> None:
        """Let ranks that wait for one another say what they have seen; not all of them may."""
        self.status.asked.value = 1
        until = time.monotonic() + ASK_S
        while time.monotonic() < until and len(self.reports) < len(self.processes):
            self.collect(TICK_S)

    def collect(self, timeout_s: float) -> None:
        """Take in reports. A pipe that ends without one belongs to a process that was killed."""
        live = [process.sentinel for process in self.processes if process.exitcode is None]
        for ready in connection.wait([*self.pipes, *live], timeout_s):
            if isinstance(ready, connection.Connection):
                rank = self.pipes[ready]
                with suppress(EOFError, OSError):
                    self.reports[rank] = ready.recv()
                del self.pipes[ready]

    def listen(self, seconds: float) -> None:
        """Give the others time to report or to be seen dead, but no longer than there is anyone left."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and len(self.dead()) + len(self.reports) < len(self.processes):
            self.collect(TICK_S)

    def dead(self) -> list[int]:
        """Ranks whose process has ended without a report."""
        return [
            rank
            for rank, process in enumerate(self.processes)
            if process.exitcode is not None and rank not in self.reports and rank not in self.pipes.values()
        ]

    def trouble(self) -> bool:
        return bool(self.dead()) or any(report.error is not None for report in self.reports.values())

    def blame(self) -> None:
        """Raise for the rank at fault: one that was killed, else one that failed by itself, else the lost peer."""
        for rank in self.dead():
            raise RankDied(
                f"rank {rank} of {len(self.processes)} {self.ending(rank)} while it was {self.doing(rank)}", rank
            )
        failed = [report for report in self.reports.values() if report.error is not None]
        for report in failed:
            if report.lost_peer is None:
                raise Failed(report)
        raise Failed(failed[0])

    def ending(self, rank: int) -> str:
        code = self.processes[rank].exitcode or 0
        if code < 0:
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"

    def doing(self, rank: int) -> str:
        return self.status.describe(rank)

    def stop(self) -> None:
        """Leave no process behind: ask, then kill."""
        for process in self.processes:
            if process.exitcode is None:
                process.terminate()
        for process in self.processes:
            process.join(JOIN_S)
            if process.exitcode is None:
                process.kill()
                process.join()
        for pipe in self.pipes:
            pipe.close()


class Failed(Exception):
    """A rank reported an error of its own."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report
