"""No-progress watchdog of the simulated world, and the pause of a rank that it exists to find (bugs.md B30).

Rule: a rank makes progress when it completes an effect. If it completes none for ``run.watchdog_ms`` of virtual time,
while the server is not simply idle, the run ends as a liveness failure with the state of every rank.

The ranks run ahead on local clocks, so there are two ways to see it. A rank that goes on after too long a time is
caught when it completes the effect (a forward pass or a link slower than the limit). A rank that does not go on leaves
the event queue to the watchdog's own process, which sleeps until the limit of the rank that is furthest behind: SimPy
gives it a turn when nothing else can happen before that instant.

Waiting for clients is no stall. The intervals in which the idle first rank waited are taken off everybody's time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import replace

from simpy import Event

from ppsim.check.observers import EFFECTS
from ppsim.check.progress import Standing, Stuck, describe, no_progress, state_lines
from ppsim.core.effects import Effect, Ingest
from ppsim.core.outcome import Verdict
from ppsim.world.run_setting import Setting, SimulatedSeat

NS_PER_MS = 1_000_000
NUM_IDLE_KEPT = 64  # idle intervals; a wait of one rank meets one or two of them


class Watchdog:
    """Watches all ranks of a setting. ``limit_ns`` of virtual time."""

    def __init__(self, setting: Setting, limit_ns: int, side: str = "") -> None:
        self.setting = setting
        self.limit_ns = limit_ns
        self.side = f"{side} side: " if side else ""
        self.idle: deque[tuple[int, int]] = deque(maxlen=NUM_IDLE_KEPT)
        self.still_idle: tuple[SimulatedSeat, int] | None = None  # who waits for inputs now, and since when
        self.progress: dict[int, int] = {}  # local instant at which each rank has completed an effect last

    def attach(self) -> None:
        """See every effect of every rank, and start the watchdog's process. Call before the ranks start."""
        for simulated in self.setting.ranks:
            self._watch(simulated)
        env = self.setting.ranks[0].env
        env.process(self.run())

    def run(self) -> Generator[Event, None, None]:
        """The SimPy process: sleep until the limit of the rank that is furthest behind has come."""
        env = self.setting.ranks[0].env
        while True:
            left = [r for r in self.setting.ranks if not r.done]
            if not left:
                return
            now_ns, due = int(env.now), min(self._due(r) for r in left)
            if due <= now_ns:
                raise Stuck(self.verdict(now_ns))
            yield env.timeout(due - now_ns)

    def _watch(self, simulated: SimulatedSeat) -> None:
        """A pause comes before an effect, so both ends of each are looked at.

        Reading inputs takes time only where the idle first rank waits for some.
        """
        began = simulated.now

        def before(effect: Effect) -> None:
            nonlocal began
            began = simulated.now
            self._completed(simulated, began)
            if isinstance(effect, Ingest) and effect.idle:
                self.still_idle = (simulated, began)

        def read(effect: Ingest, inputs: object) -> None:
            self.still_idle = None
            if simulated.now > began:
                self.idle.append((began, simulated.now))
            self.progress[simulated.rank_id] = simulated.now

        def after(effect: Effect, reply: object) -> None:
            self._completed(simulated, simulated.now)

        simulated.observers.before(before)
        simulated.observers.after(read, Ingest)
        simulated.observers.after(after, *(effect for effect in EFFECTS if effect is not Ingest))

    def _completed(self, simulated: SimulatedSeat, now_ns: int) -> None:
        """A rank has come to an instant of its clock: not too long after its last progress, a pause included."""
        before = self.progress.get(simulated.rank_id, 0)
        if now_ns - before >= self.limit_ns and now_ns - before - self._idle_between(before, now_ns) >= self.limit_ns:
            raise Stuck(self.verdict(before + self.limit_ns, simulated.rank_id, before))
        self.progress[simulated.rank_id] = now_ns

    def _due(self, simulated: SimulatedSeat) -> int:
        """The instant at which a rank will have made no progress for the limit."""
        idle = sum(max(0, end - max(start, simulated.now)) for start, end in self._idle_times())
        return simulated.now + self.limit_ns + idle

    def _idle_between(self, start_ns: int, end_ns: int) -> int:
        return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in self._idle_times())

    def _idle_times(self) -> list[tuple[int, int]]:
        """Those that are over, and the one that lasts: its rank looks for inputs again, and its clock goes on."""
        lasting = [(self.still_idle[1], self.still_idle[0].now)] if self.still_idle is not None else []
        return [*self.idle, *lasting]

    def verdict(self, now_ns: int, slow: int | None = None, since_ns: int = 0) -> Verdict:
        """The report. ``slow``: a rank that has not stopped, but took longer than the limit for one effect."""
        standings = [standing(r) for r in self.setting.ranks]
        if slow is not None:
            standings[slow] = replace(standings[slow], waits_for=None, since_ns=since_ns, runs=True, done=False)
        limit = f"{self.limit_ns / NS_PER_MS:g} ms of virtual time"
        verdict = no_progress(standings, now_ns, limit, dump(self.setting), slow)
        return verdict._replace(message=f"{self.side}{verdict.message}")


def standing(r: SimulatedSeat) -> Standing:
    """Where a simulated rank stands, by its local clock."""
    if r.done:
        return Standing(r.rank_id, r.rank.iteration, "is done", None, r.now, done=True, slot=r.rank.slot)
    iteration, slot = r.rank.iteration, r.rank.slot
    where = f"slot {slot}, phase {r.phase()}"
    if r.is_paused:
        return Standing(
            r.rank_id, iteration, f"{where}, is paused (faults.pauses)", None, r.now, False, slot=slot, phase=r.phase()
        )
    rid = next(iter(r.rank.scheduler.requests), "") if r.rank.started is not None else ""
    doing = f"{where}, {describe(r.effect)}"
    return Standing(r.rank_id, iteration, doing, r.waits_for, r.now, slot=slot, phase=r.phase(), rid=rid)


def dump(setting: Setting) -> list[str]:
    """The state of every rank, indented below the report."""
    lines: list[str] = []
    for r in setting.ranks:
        lines.append(f"  state of rank {r.rank_id}:")
        lines += [f"    {line}" for line in state_lines(r.rank, setting.recording.decisions[r.rank_id])]
    return lines


def watch_for_stalls(setting: Setting, side: str = "") -> None:
    """Attach a watchdog if the scenario asks for one. ``side`` names the pipeline where there are two."""
    limit_ns = round(setting.scenario.run.watchdog_ms * NS_PER_MS)
    if limit_ns:
        Watchdog(setting, limit_ns, side).attach()
