"""Run what is not finished, keep it, and give the results in the order of the points."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ppsim.core.parts import Change
from ppsim.errors import EXIT_PASS
from ppsim.plugin import load
from ppsim.sweeps.folder import SweepFolder
from ppsim.sweeps.one import PASS, Made, Result, run_point
from ppsim.sweeps.order import Order, Refused, Task
from ppsim.sweeps.processes import Run, here, in_processes, on_ray

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Runner:
    """How a point is run; goes to every process. ``made``: the ranks' change; ``last_resort``: as in ``Limit``.
    ``fast``: whether one rank stands for all, None: where it can."""

    made: Made
    max_s: float
    last_resort: Callable[[str], None] | None = None
    fast: bool | None = None

    def __call__(self, task: Task) -> Result:
        return run_point(task, self.made, self.max_s, self.last_resort, self.fast)


def changed_ranks(plugin: str | None = None, policies: tuple[type, ...] = (), bugs: tuple[str, ...] = ()) -> Made:
    """What makes the ranks' change in the process that runs a point: a plug-in file is read there anew."""
    return partial(change_with, plugin, policies, bugs)


def change_with(plugin: str | None, policies: tuple[type, ...], more: tuple[str, ...], bugs: Iterable[str]) -> Change:
    return load([*more, *bugs], plugin, policies).change


def refusing(fast: bool | None) -> list[str]:
    """What ``fast`` adds to the digest of a point: asked for, it refuses points that run without it. Else the results
    are alike to the byte, and what was kept holds."""
    return ["fast"] if fast else []


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(slots=True)
class Sweep:
    """A sweep so far. ``results``: in the order of the points, None where one is not done."""

    order: Order
    results: list[Result | None] = field(default_factory=list)
    is_cut: bool = False

    @property
    def num_done(self) -> int:
        return sum(result is not None for result in self.results)

    @property
    def exit_code(self) -> int:
        """Of the first point, in their order, that did not pass; 0 where all of them did."""
        return next((r.exit_code for r in self.results if r is not None and r.outcome != PASS), EXIT_PASS)


def run_sweep(
    order: Order,
    runner: Run,
    *,
    num_jobs: int = 1,
    ray_address: str | None = None,
    folder: SweepFolder | None = None,
    progress: Progress = lambda done, total: None,
    began: Callable[[], None] = lambda: None,
) -> Sweep:
    """Every point that ``folder`` does not have. Ctrl-C ends it (``is_cut``), with everything that is finished.

    ``num_jobs`` 0: in this process. ``began`` is called once it is known what has to be run.
    Raises UsageError where a cluster does not answer.
    """
    sweep = Sweep(order, [None] * len(order.points))
    left: list[Task] = []
    for number, task in enumerate(order.tasks):
        done = folder.finished(task) if folder is not None else None
        if done is None and isinstance(task, Refused):
            done = Result("refused", task.exit_code, task.message.partition("\n")[0])
            if folder is not None:
                folder.add(task, done)
        sweep.results[number] = done
        if done is None and isinstance(task, Task):
            left.append(task)
    began()
    try:
        num_done = sweep.num_done

        def tick() -> None:
            progress(num_done, len(order.points))

        tick()
        for task, result in ready(runner, left, num_jobs, ray_address, tick):
            sweep.results[task.point.number] = result
            num_done += 1
            if folder is not None:
                folder.add(task, result)
            tick()
    except KeyboardInterrupt:
        sweep.is_cut = True
    return sweep


def ready(
    runner: Run, tasks: Sequence[Task], num_jobs: int, ray_address: str | None, tick: Callable[[], None]
) -> Iterator[tuple[Task, Result]]:
    """Results as they are ready, wherever they are made."""
    if ray_address is not None:
        return on_ray(runner, tasks, ray_address, tick)
    return in_processes(runner, tasks, num_jobs, tick) if num_jobs else here(runner, tasks)
