"""The main function of a rank process.

Rule: a rank always says how it ended. It sends one ``Report`` through its pipe and leaves; only a process that was
killed from outside says nothing, and that is how the launcher knows (``supervise.py``).

The launcher imports this file too, so the model libraries, which take seconds to load, stay in ``serve.py``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path

from executor.fed import Fed
from executor.status import Status
from executor.watchdog import Pulse
from ppsim.check.blame import Departure
from ppsim.check.together import Record
from ppsim.core.messages import Call, Input
from ppsim.core.outcome import Verdict
from ppsim.recording import Recording
from ppsim.recording.rank_file import KeptRecording, rank_path
from ppsim.recording.schema import UNTOLD, Origin
from ppsim.scenario import Scenario
from ppsim.workload import Arrival, Control

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank is told to do. Only rank 0 has clients: ``inputs`` to replay, or ``arrivals`` that come live."""

    scenario: Scenario
    device: str
    port: int
    arrivals: tuple[Arrival, ...] = ()
    controls: tuple[Control, ...] = ()
    inputs: Mapping[int, tuple[Input, ...]] | None = None
    changes: tuple[str, ...] = ()  # bugs by name, classes as module:Class; each rank loads them itself
    plugin: str | None = None
    pulse: Pulse | None = None
    fed: Fed | None = None  # by a run in simulation
    folder: Path | None = None  # of the run: where the rank writes its file
    origin: Origin = UNTOLD

    def recording_of(self, rank: int) -> Recording:
        """An empty recording of a rank; in its file where there is a folder. Raises UsageError."""
        scenario = self.scenario
        made = Recording(scenario.cluster.pp_size, name=scenario.name, seed=scenario.seed, world="exec")
        made.origin, made.concurrency = self.origin, scenario.workload.concurrency
        return made if self.folder is None else KeptRecording(made, rank, rank_path(self.folder, rank))


@dataclass(frozen=True, slots=True)
class Report:
    """How a rank ended. ``error`` None: as it should. ``lost_peer``: it ended because another rank did."""

    rank: int
    recording: Recording | None = None
    error: Exception | None = None
    lost_peer: int | None = None
    trace: str = ""
    verdict: Verdict | None = None  # of its error, or of what it had left behind at the end
    calls: tuple[Call, ...] = ()  # of the rank consensus checker, where it is on
    records: tuple[Record, ...] = ()  # what it is held against the other ranks by
    fired: tuple[str, ...] = ()  # bugs and policies that this rank has asked
    departure: Departure | None = None  # where it has parted from a right rank with the same replies, if it has
    is_audited: bool = False  # run.invariants: the records show all of its state, not its decisions alone


def run_rank(rank: int, job: Job, pipe: connection.Connection, status: Status) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    end_with_parent()
    from executor.serve import attempt

    report = attempt(rank, job, status, pipe)
    pipe.send(report)
    pipe.close()
    if report.error is not None:
        os._exit(1)  # no tidying up: the links are broken, and their destructors could wait for ever


def end_with_parent() -> None:
    """If the launcher is killed, so are its ranks."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
