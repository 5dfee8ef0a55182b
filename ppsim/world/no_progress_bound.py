"""What a rank may do without getting anywhere: every run ends, and no clock is read to make it end.

A simulated rank runs ahead until it has to wait, and gives the turn back only then. So one that never waits would hold
the world for ever, with nothing printed. Three bounds, far beyond what any right rank comes to:

    effects of one iteration      on every rank: ``MAX_EFFECTS``, and ``MAX_EFFECTS_A_REQUEST`` for each request
    iterations ahead of rank 0    on every other rank: ``MAX_AHEAD``. A right one is never ahead: it needs the request
                                  list of an iteration, and that comes from rank 0
    iterations of rank 0          while nothing moves: ``client_watch.py``. All others are tied to it by the second

``run.max_iterations`` is one limit for all ranks. The first rank reaches it first, unless something is wrong. And no
clock goes beyond 292 years.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ppsim.check.client_watch import StopRun
from ppsim.check.progress import describe
from ppsim.core.effects import Effect, Ingest
from ppsim.errors import EXIT_LIVENESS, EXIT_UNKNOWN

if TYPE_CHECKING:
    from ppsim.world.run_setting import SimulatedSeat

MAX_EFFECTS = 100_000
MAX_EFFECTS_A_REQUEST = 1_000  # replies, transfers and copies of each request in one iteration: a few
MAX_AHEAD = 1_000
MAX_TIME_NS = 2**63 - 1  # of virtual time
NUM_TOLD = 1_000  # effects that the report of a full iteration sums up


class Bound:
    """Counts what one rank does. ``allows`` is asked before the world answers an effect."""

    def __init__(self, r: SimulatedSeat) -> None:
        self.r, self.rank, self.watch = r, r.rank, r.setting.watch
        self.iteration = -1  # the highest so far: an iteration that is begun again is no progress
        self.left = 0  # effects that are left to this iteration
        self.is_full = False  # they are used up: what comes now is only looked at for the report
        self.seen: Counter[str] | None = None  # effects by name, where a report may need them

    def allows(self, effect: Effect) -> int:
        """How many effects may follow this one in its iteration before this is asked again: most often all that an
        iteration may have. Raises StopRun at the first effect beyond a bound."""
        if self.rank.iteration > self.iteration:
            self._begins(effect)
        if self.seen is None and self.left:
            num, self.left = self.left - 1, 0
            return num
        if self.seen is not None:
            self.seen[type(effect).__name__.lower()] += 1
        if not self.left:
            self._full(effect)
        else:
            self.left -= 1
        return 0

    def _begins(self, effect: Effect) -> None:
        """A new iteration: is it one that this rank may be in?"""
        r, watch = self.r, self.watch
        iteration = self.iteration = self.rank.iteration
        self.left, self.is_full = self._limit(), False
        if r.now > MAX_TIME_NS:
            self._stop(f"its clock shows {r.now:.3g} ns, more than the 292 years of {MAX_TIME_NS}", EXIT_UNKNOWN)
        if r.rank_id == 0 and isinstance(effect, Ingest):  # the watch sees what it reads, or that it reads no more
            return
        if watch.max_iterations and iteration >= watch.max_iterations:
            self._stop(f"stopped at run.max_iterations = {watch.max_iterations}", EXIT_UNKNOWN)
        ahead = iteration - r.setting.ranks[0].rank.iteration
        if ahead > MAX_AHEAD:
            self._stop(
                f"it is {ahead} iterations ahead of rank 0 and waits for nobody (livelock); since it ran ahead it did: "
                f"{self._told()}"
            )
        if ahead > 0 and self.seen is None:
            self.seen = Counter()
        elif ahead <= 0:
            self.seen = None

    def _full(self, effect: Effect) -> None:
        """The iteration is used up: look at a few more effects, then say what they were."""
        if not self.is_full:
            self.is_full, self.seen, self.left = True, Counter(), NUM_TOLD - 1
            return
        self._stop(
            f"more than {self._limit()} effects in one iteration, and no end (livelock); the last {NUM_TOLD}: "
            f"{self._told()}; now it {describe(effect)}"
        )

    def _limit(self) -> int:
        return MAX_EFFECTS + MAX_EFFECTS_A_REQUEST * self.watch.num_requests

    def _told(self) -> str:
        return ", ".join(f"{num} {name}" for name, num in (self.seen or Counter()).most_common())

    def _stop(self, text: str, code: int = EXIT_LIVENESS) -> None:
        raise StopRun(text, code, self.rank.iteration, self.r.rank_id)
