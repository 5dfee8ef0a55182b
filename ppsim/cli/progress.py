"""A progress bar on stderr, for people only: on a terminal, and not before two seconds have passed."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 2.0
EVERY_S = 0.1


class ProgressBar:
    """Call it with (done, total); nothing is shown in a pipe. The clock here is the user's, never the simulation's."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.began = self.shown = time.monotonic()
        self.bar: Progress | None = None
        self.wanted = sys.stderr.isatty()
        self.done = 0  # for what is said at Ctrl-C

    def __call__(self, done: int, total: int) -> None:
        self.done = done
        if not self.wanted:
            return
        now = time.monotonic()
        if now - self.began < PATIENCE_S or now - self.shown < EVERY_S:
            return
        self.shown = now
        if self.bar is None:
            self.open()
        assert self.bar is not None
        self.bar.update(self.bar.task_ids[0], completed=done, total=total or None)

    def open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.bar.add_task(self.label)
        self.bar.start()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
