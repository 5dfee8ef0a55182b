"""How far a long command is, on stderr: a bar on a terminal, a line every ten seconds anywhere else.

Nothing is shown of a command that is done before (two seconds for the bar). The lines come from a thread, so they come
also while a single step takes long: who looks at a log sees that somebody works. The clock here is the user's, never
the simulation's.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from ppsim.cli.guard import say

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 2.0
EVERY_S = 0.1
LINE_S = 10.0


class ProgressBar:
    """Call it with (done, total), 0 for a total that nobody knows. ``what`` is counted: requests, examples, ..."""

    def __init__(self, label: str, what: str = "") -> None:
        self.label, self.what = label, what
        self.began = self.shown = time.monotonic()
        self.bar: Progress | None = None
        self.is_terminal = sys.stderr.isatty()
        self.done = self.total = 0  # for what is said at Ctrl-C, too
        self.ended = threading.Event()
        self.lines: threading.Thread | None = None

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if not self.is_terminal:
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

    def write_lines(self) -> None:
        while not self.ended.wait(LINE_S):
            say(self.line())

    def line(self) -> str:
        """simulating mooncake: 120 of 400 requests, 20 s"""
        far = f"{self.done} of {self.total}" if self.total else f"{self.done}"
        return f"{self.label}: {far}{f' {self.what}' if self.what else ''}, {time.monotonic() - self.began:.0f} s"

    def __enter__(self) -> ProgressBar:
        if not self.is_terminal:
            self.lines = threading.Thread(target=self.write_lines, daemon=True)
            self.lines.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ended.set()
        if self.lines is not None:
            self.lines.join()
        if self.bar is not None:
            self.bar.stop()
