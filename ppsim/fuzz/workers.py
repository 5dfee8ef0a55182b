"""Rounds of a campaign in processes of this machine: results in order, and an end that waits for nobody.

A worker has a pipe of its own and works on one round at a time; so it can be killed at any moment, and there is no
queue that a killed one could leave locked. A worker that dies by itself is an error with its exit code.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from ppsim.errors import EXIT_UNKNOWN, PpsimError

ORPHAN_S = 5.0  # an idle worker looks this often whether its parent is still there
R = TypeVar("R")
Size = tuple[int, int]  # number of a round, and how many examples it has


class WorkerDied(PpsimError):
    """A process ended in a round: killed for its memory, left by a plug-in, or given up as it could not be stopped."""

    def __init__(self, number: int, ended_with: int | None, hint: str = "") -> None:
        super().__init__(number, ended_with, hint)
        self.number, self.ended_with, self.hint = number, ended_with, hint

    def __str__(self) -> str:
        stuck = ": a run in it could not be stopped" if self.ended_with == EXIT_UNKNOWN else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"a process of the campaign died in round {self.number} with exit code {self.ended_with}{stuck}{hint}"


def work(pipe: Connection, run: Callable[[int, int], Any]) -> None:
    """The life of a worker: rounds in, results or exceptions out. Ctrl-C is the parent's business, but for its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    while True:
        while not pipe.poll(ORPHAN_S):
            if os.getppid() != parent:
                return
        number, size = pipe.recv()
        try:
            pipe.send(run(number, size))
        except PpsimError as error:
            pipe.send(error)


def in_processes(run: Callable[[int, int], R], sizes: Iterator[Size], num: int) -> Iterator[R]:
    """Results of ``run(number, size)``, in the order of ``sizes``. Raises WorkerDied, and what a worker has raised."""
    pipes: dict[Connection, Process] = {}
    numbers: dict[Connection, int] = {}  # what each is working on
    ready: dict[int, R] = {}
    try:
        for _ in range(num):
            here, there = Pipe()
            process = Process(target=work, args=(there, run), daemon=True)
            process.start()
            there.close()  # else the parent would not see that the worker has ended
            pipes[here] = process
        following = first = -1
        for number, size in sizes:
            first = number if first < 0 else first
            following = first if following < 0 else following
            while len(numbers) == num or number >= following + 2 * num:
                receive(pipes, numbers, ready)
                while following in ready:
                    yield ready.pop(following)
                    following += 1
            idle = next(pipe for pipe in pipes if pipe not in numbers)
            idle.send((number, size))
            numbers[idle] = number
        while numbers:
            receive(pipes, numbers, ready)
            while following in ready:
                yield ready.pop(following)
                following += 1
    finally:
        for process in pipes.values():
            process.kill()
            process.join()


def receive(pipes: dict[Connection, Process], numbers: dict[Connection, int], ready: dict[int, R]) -> None:
    """Wait for one of the rounds that are under way."""
    for pipe in wait(list(numbers)):
        assert isinstance(pipe, Connection)
        try:
            result = pipe.recv()
        except EOFError:
            pipes[pipe].join()
            raise WorkerDied(numbers[pipe], pipes[pipe].exitcode) from None
        if isinstance(result, PpsimError):
            raise result
        ready[numbers.pop(pipe)] = result
