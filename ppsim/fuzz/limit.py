"""The user's clock over a run: the only thing that ends one from outside.

Core and world read no clock, and the bounds of the world (``world/no_progress_bound.py``) count what a rank asks of
it. A change that loops for ever asks nothing. So whoever starts a run for a user, the command line or a campaign, sets
a limit here: on the whole of it, and on the time in which no rank gets anything done. No ordinary run comes near them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, GeneratorType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppsim.world.driver import SimulatedRank
    from ppsim.world.run_setting import Setting

MAX_EXAMPLE_S = 60.0  # of an experiment of a campaign, which takes a second at most
MAX_STILL_S = 60.0  # without any effect of any rank; an effect takes a millisecond
TICK_S = 1.0
NUM_ASKED = 5  # times that a run which keeps the error is told to stop


class OutOfTime(BaseException):
    """The limit has passed. ``place``: file, line and function in which the run stands."""

    def __init__(self, reason: str, where: str, place: str, rank: int | None, iteration: int | None) -> None:
        super().__init__(reason, where, place, rank, iteration)
        self.reason, self.where, self.place, self.rank, self.iteration = reason, where, place, rank, iteration

    def __str__(self) -> str:
        return f"{self.where}{self.reason}; it was in {self.place}"


class Limit:
    """A context in which the main thread has so many seconds. ``began`` is told the setting of the run that is watched.

    ``last_resort`` is called with a sentence where a run cannot be stopped so; it ends the process.
    """

    def __init__(self, max_s: float, last_resort: Callable[[str], None] | None = None) -> None:
        self.max_s, self.max_still_s = max_s, min(max_s, MAX_STILL_S)
        self.last_resort = last_resort
        self.setting: Setting | None = None
        self.seen: list[object] = []  # the last effect of each rank, when one was new
        self.asked = 0
        self.is_on = False

    def began(self, setting: Setting) -> None:
        self.setting = setting

    def __enter__(self) -> Limit:
        self.started_s = self.new_s = time.monotonic()
        can = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        if can:
            self.is_on = True
            self.before = signal.signal(signal.SIGALRM, self._rings)
            tick_s = min(TICK_S, self.max_s)
            signal.setitimer(signal.ITIMER_REAL, tick_s, tick_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.is_on:
            self.is_on = False  # an alarm that rings now finds nobody
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self.before)

    def ranks(self) -> list[SimulatedRank]:
        """Of all pipelines of the run."""
        if self.setting is None:
            return []
        peer = self.setting.peer
        return [*self.setting.ranks, *(peer.ranks if peer is not None else ())]

    def _rings(self, number: int, frame: FrameType | None) -> None:
        if not self.is_on:
            return
        now_s = time.monotonic()
        ranks = self.ranks()
        effects: list[object] = [r.effect for r in ranks]
        if len(effects) != len(self.seen) or any(a is not b for a, b in zip(effects, self.seen, strict=True)):
            self.seen, self.new_s = effects, now_s
        if now_s - self.started_s >= self.max_s:
            reason = f"it was stopped after {self.max_s:g} s (--max-seconds)"
        elif ranks and now_s - self.new_s >= self.max_still_s:
            reason = f"it was stopped: no rank got anything done for {self.max_still_s:g} s"
        else:
            return
        self.asked += 1
        stop = self._stop(reason, frame)
        if self.asked > NUM_ASKED and self.last_resort is not None:
            self.last_resort(f"{stop}, and goes on although it was told to stop {NUM_ASKED} times")
        raise stop

    def _stop(self, reason: str, frame: FrameType | None) -> OutOfTime:
        """Where the run stands: the rank whose loop runs, its phase, and the innermost line of code."""
        place = "an unknown place"
        names: list[str] = []
        if frame is not None:
            code = frame.f_code
            place = f"{os.path.basename(code.co_filename)}, line {frame.f_lineno}, in {code.co_name}"
        while frame is not None and frame.f_code.co_name != "event_loop_pp":
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        runs = next((r for r in self.ranks() if isinstance(r.loop, GeneratorType) and r.loop.gi_running), None)
        if runs is None:
            return OutOfTime(reason, "", place, None, None)
        phase = names[-1] if frame is not None and names else "of no name"
        where = f"rank {runs.rank_id}, iteration {runs.rank.iteration}, slot {runs.rank.slot}, phase {phase}: "
        return OutOfTime(reason, where, place, runs.rank_id, runs.rank.iteration)
