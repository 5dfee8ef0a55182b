"""Where points run: in processes of this machine, on a Ray cluster, or here. Results come as they are ready.

Rule: a process has a pipe of its own and works on one point at a time. One that dies takes its point with it and
nothing else: another one is started in its place. So is one that the points before have left big: none of them is
older than ``MAX_AGE`` points.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ppsim.errors import EXIT_UNKNOWN
from ppsim.fuzz.cluster import connect
from ppsim.scenario.load import put
from ppsim.sweeps.one import DIED, Result
from ppsim.sweeps.order import Task

TICK_S = 1.0
ORPHAN_S = 5.0  # a process looks this often whether its parent is still there
MAX_AGE = 200  # points of one process
Run = Callable[[Task], Result]


def here(run: Run, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
    """One after the other, in this process."""
    for task in tasks:
        yield task, run(task)


def in_processes(
    run: Run, tasks: Sequence[Task], num_jobs: int, tick: Callable[[], None] = lambda: None
) -> Iterator[tuple[Task, Result]]:
    """In ``num_jobs`` processes. ``run`` is inherited where processes are forked, else it has to be picklable.

    ``tick`` is called about once a second, also while nothing gets ready.
    """
    ways = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in ways else None)
    left = list(reversed(tasks))
    busy: dict[Connection, tuple[Any, Task]] = {}
    idle: list[tuple[Connection, Any, int]] = []
    ages: dict[Connection, int] = {}
    try:
        while left or busy:
            while left and len(busy) < num_jobs:
                pipe, process, age = idle.pop() if idle else started(context, run)
                task = left.pop()
                try:
                    pipe.send(task)
                except OSError:  # it has ended while it had nothing to do
                    stop(process)
                    left.append(task)
                    continue
                busy[pipe], ages[pipe] = (process, task), age + 1
            tick()
            for ready in wait(list(busy), TICK_S):
                assert isinstance(ready, Connection)
                process, task = busy.pop(ready)
                try:
                    result: Result = ready.recv()
                except (EOFError, ConnectionError):
                    process.join()
                    ages.pop(ready)
                    yield task, died(process.exitcode)
                    continue
                if ages[ready] < MAX_AGE:
                    idle.append((ready, process, ages[ready]))
                else:
                    stop(process)
                yield task, result
    finally:
        for process in [process for process, _ in busy.values()] + [process for _, process, _ in idle]:
            stop(process)


def started(context: Any, run: Run) -> tuple[Connection, Any, int]:
    mine, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, run), daemon=True)
    process.start()
    theirs.close()  # else nobody would see that the process has ended
    return mine, process, 0


def stop(process: Any) -> None:
    process.kill()
    process.join()


def work(pipe: Connection, run: Run) -> None:
    """The life of a process: points in, results out. Ctrl-C is the parent's business; without a parent it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    while True:
        pipe.send(run(pipe.recv()))


def end_with(parent: int) -> None:
    """Nobody waits for a point whose sweep was killed."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGTERM)


def died(exit_code: int | None) -> Result:
    how = f"exit code {exit_code}"
    if exit_code is not None and exit_code < 0:
        names = {number.value: number.name for number in signal.Signals}
        how = names.get(-exit_code, f"signal {-exit_code}")
        how += " (memory?)" if how == "SIGKILL" else ""
    return Result(DIED, EXIT_UNKNOWN, f"the process that ran it ended: {how}")


def on_ray(
    run: Run, tasks: Sequence[Task], address: str, tick: Callable[[], None] = lambda: None
) -> Iterator[tuple[Task, Result]]:
    """On a Ray cluster: as many at once as it has CPUs. Files that a scenario names travel with it."""
    ray = connect(address)

    @ray.remote(max_retries=0)  # type: ignore[untyped-decorator]
    def remote(task: Task, files: dict[str, tuple[str, bytes]]) -> Result:
        with TemporaryDirectory() as folder:
            for key, (name, content) in files.items():
                path = Path(folder) / name
                path.write_bytes(content)
                put(task.config, key, str(path))
            return run(task)

    width = max(1, int(ray.cluster_resources().get("CPU", 1)))
    left = list(reversed(tasks))
    busy: dict[Any, Task] = {}
    try:
        while left or busy:
            while left and len(busy) < width:
                task = left.pop()
                busy[remote.remote(task, shipped(task))] = task
            tick()
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=TICK_S)
            for reference in ready:
                task = busy.pop(reference)
                try:
                    result: Result = ray.get(reference)
                except ray.exceptions.RayError as error:
                    result = Result(DIED, EXIT_UNKNOWN, f"the cluster lost it: {type(error).__name__}")
                yield task, result
    finally:
        for reference in busy:
            ray.cancel(reference, force=True)


def shipped(task: Task) -> dict[str, tuple[str, bytes]]:
    """Name and content of each file that a scenario names. One that has gone is told by the point itself."""
    found: dict[str, tuple[str, bytes]] = {}
    for number, key in enumerate(task.files):
        section, _, leaf = key.partition(".")
        path = Path(str(task.config[section][leaf]))
        if path.is_file():
            found[key] = (f"{number}-{path.name}", path.read_bytes())
    return found
