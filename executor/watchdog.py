"""No-progress watchdog of real processes, and the pause of a rank that it exists to find (bugs.md B30).

Rule: a rank makes progress when it completes an effect, whatever its slot holds; the launcher gives it
``run.watchdog_ms`` of real time for each. Waiting for clients is no stall: as long as the first rank does that, nobody
is late.

    in each rank's process   a thread marks that the process runs, and writes down what the rank's state is
    in the launcher          each tick: who has completed nothing for too long? Then every rank is described

The thread is what tells a rank that waits from a process that does not run at all (stopped, or held by a library with
the interpreter's lock): its mark grows old. What it wrote last can still be read, since it lies in shared memory.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

from executor.status import BEFORE_THE_LOOP, CODE, EFFECTS, NUM_CELLS, Status
from ppsim.check.observers import Before
from ppsim.check.progress import DOES, Standing, Stuck, no_progress, state_lines
from ppsim.core.effects import AwaitTokens, Commit, Ingest, Launch, Recv, Send
from ppsim.core.outcome import Stand, Verdict
from ppsim.core.rank import Rank
from ppsim.recording import Recording
from ppsim.scenario import Scenario

if TYPE_CHECKING:
    from executor.judged_rank import Place

NS_PER_MS = 1_000_000
START_MS = 120_000.0  # loading libraries and weights, and meeting the other ranks
MARKS_PER_LIMIT = 8
TEXT_BYTES = 16384  # of one rank's state
DOING = {
    CODE[Send]: "starts a send",
    CODE[Recv]: "waits in a receive",
    CODE[Commit]: "waits in the commit of a send",
    CODE[Launch]: "is in a forward pass",
    CODE[AwaitTokens]: "waits for sampled tokens",
    CODE[Ingest]: "waits for clients",
}


class Pulse:
    """Memory that ranks write and the launcher reads: marks, peers of commits, states. One writer each, no lock."""

    def __init__(self, context: BaseContext, pp_size: int, limit_ms: float, num_slots: int = 0) -> None:
        self.limit_ms = limit_ms
        self.num_slots = num_slots or pp_size
        self.marks = context.RawArray("q", pp_size)  # monotonic ns at which the process was last seen to run
        self.commits = context.RawArray("q", [-1] * pp_size)  # peer of the commit a rank waits in, -1: none
        self.texts = [context.RawArray("c", TEXT_BYTES) for _ in range(pp_size)]

    def mark(self, rank: int) -> None:
        self.marks[rank] = time.monotonic_ns()

    def write(self, rank: int, lines: list[str]) -> None:
        self.texts[rank].value = "\n".join(lines).encode()[: TEXT_BYTES - 1]

    def read(self, rank: int) -> list[str]:
        return self.texts[rank].value.decode(errors="replace").splitlines() or ["nothing written yet"]


def pulse_of(scenario: Scenario, context: BaseContext) -> Pulse | None:
    """The memory of a watchdog, None if the scenario asks for none."""
    limit_ms = scenario.run.watchdog_ms
    cluster = scenario.cluster
    num_slots = cluster.pp_size + cluster.pp_async_batch_depth
    return Pulse(context, cluster.pp_size, limit_ms, num_slots) if limit_ms else None


# --- in the process of a rank ----------------------------------------------------------------------------------


def attach(place: Place, recording: Recording, scenario: Scenario, pulse: Pulse | None) -> None:
    """Let the pauses of this rank happen, and show the launcher that it lives. Call before the rank is driven."""
    rank, core = place.rank_id, place.rank
    pauses = sorted((p.at_iteration, p.ms) for p in scenario.faults.pauses if p.rank == rank)
    if pauses:
        place.observers.before(pausing(core, pauses), Ingest, Recv)  # one of them opens every iteration
    if pulse is not None:
        follow_sends(place, pulse)
        threading.Thread(target=beat, args=(rank, core, recording, pulse), daemon=True).start()


def pausing(core: Rank, pauses: list[tuple[int, float]]) -> Before:
    """Stand still where the scenario says so: asleep for a time, or stopped as a whole process until it is killed."""

    def paused(effect: object) -> None:
        if pauses and core.started is not None and core.iteration >= pauses[0][0]:
            _, ms = pauses.pop(0)
            if ms:
                time.sleep(ms / 1000)
            else:
                os.kill(os.getpid(), signal.SIGSTOP)

    return paused


def follow_sends(place: Place, pulse: Pulse) -> None:
    """A commit names a send, not a rank: remember whom each send went to."""
    rank = place.rank_id
    peers: dict[object, int] = {}

    def sent(effect: Send, work: object) -> None:
        peers[work] = effect.dst

    def committing(effect: Commit) -> None:
        pulse.commits[rank] = peers.pop(effect.work, -1)

    def committed(effect: Commit, _: object) -> None:
        pulse.commits[rank] = -1

    place.observers.after(sent, Send)
    place.observers.before(committing, Commit)
    place.observers.after(committed, Commit)


def beat(rank: int, core: Rank, recording: Recording, pulse: Pulse) -> None:
    """The thread. The rank goes on while its state is read: a state that changes under the reader is left out."""
    while True:
        pulse.mark(rank)
        with suppress(Exception):
            pulse.write(rank, [f"in iteration {core.iteration}", *state_lines(core, recording.decisions[rank])])
        time.sleep(pulse.limit_ms / 1000 / MARKS_PER_LIMIT)


def peers_of(status: Status, pulse: Pulse | None) -> dict[int, int | None]:
    """For whom each rank waits in a receive, or in the commit of a send (known where there is a watchdog)."""
    found: dict[int, int | None] = {}
    for rank in range(status.pp_size):
        code, _, peer = status.cells[rank * NUM_CELLS : rank * NUM_CELLS + 3]
        if code == CODE[Commit]:
            peer = pulse.commits[rank] if pulse is not None else -1
        found[rank] = peer if code in (CODE[Recv], CODE[Commit]) and peer >= 0 else None
    return found


# --- in the launcher -------------------------------------------------------------------------------------------


class Watchdog:
    """Looks at all ranks each time it is asked. ``reported``: ranks whose run is over."""

    def __init__(self, status: Status, pulse: Pulse, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.status, self.pulse, self.now_ns = status, pulse, now_ns
        self.limit_ns = round(pulse.limit_ms * NS_PER_MS)
        self.start_limit_ns = max(self.limit_ns, round(START_MS * NS_PER_MS))
        self.looked_at = now_ns()
        self.counts = list(status.counts())
        self.since = [self.looked_at] * status.pp_size
        self.stands: list[Stand] = []  # once it has found somebody stuck

    def look(self, reported: Collection[int]) -> None:
        """Raises Stuck if a rank has completed nothing for the limit."""
        now, before = self.now_ns(), self.counts
        self.counts = list(self.status.counts())
        slept = now - self.looked_at > self.limit_ns // 2  # the launcher itself did not run: it saw nothing
        self.looked_at = now
        for rank, count in enumerate(self.counts):
            if slept or count != before[rank] or (self.idle(now) and self.runs(rank, now)):
                self.since[rank] = now
        if any(now - self.since[rank] >= self.limit_of(rank) for rank in self.watched(reported)):
            raise Stuck(self.verdict(now, reported))

    def watched(self, reported: Collection[int]) -> list[int]:
        return [rank for rank in range(self.status.pp_size) if rank not in reported]

    def limit_of(self, rank: int) -> int:
        return self.start_limit_ns if self.cell(rank, 0) in BEFORE_THE_LOOP else self.limit_ns

    def cell(self, rank: int, place: int) -> int:
        return int(self.status.cells[rank * NUM_CELLS + place])

    def runs(self, rank: int, now: int) -> bool:
        """Whether the process of a rank was seen to run lately."""
        return not self.pulse.marks[rank] or now - self.pulse.marks[rank] <= self.limit_ns // 2

    def idle(self, now: int) -> bool:
        """The first rank waits for clients, so everybody else waits for it."""
        return self.cell(0, 0) == CODE[Ingest] and self.runs(0, now)

    def standing(self, rank: int, now: int, done: bool) -> Standing:
        """Where a rank stands, from what it has written."""
        code, iteration, peer = (self.cell(rank, place) for place in range(3))
        slot = iteration % self.pulse.num_slots if iteration >= 0 else None
        if done:
            return Standing(rank, iteration, "has ended", None, self.since[rank], done=True, slot=slot)
        if code == CODE[Commit]:
            peer = int(self.pulse.commits[rank])
        known = DOES[EFFECTS[code - 1]] if code > 0 else "starts" if code in BEFORE_THE_LOOP else "decides"
        doing = DOING.get(code, known)
        waits_for = peer if code in (CODE[Recv], CODE[Commit]) and peer >= 0 else None
        if not self.runs(rank, now):
            doing += f" for rank {waits_for}" if waits_for is not None else ""
            return Standing(
                rank, iteration, f"{doing}; its process does not run", None, self.since[rank], False, slot=slot
            )
        return Standing(rank, iteration, doing, waits_for, self.since[rank], slot=slot)

    def verdict(self, now: int, reported: Collection[int]) -> Verdict:
        """The report: each rank's effect, the rank to look at first, and every rank's state."""
        ranks = range(self.status.pp_size)
        standings = [self.standing(rank, now, rank in reported) for rank in ranks]
        states: list[str] = []
        for rank in ranks:
            age_ms = (now - self.pulse.marks[rank]) / NS_PER_MS
            states.append(f"  state of rank {rank}, written {age_ms:.0f} ms ago:")
            states += [f"    {line}" for line in self.pulse.read(rank)]
        self.stands = [Stand(s.rank, s.iteration, s.slot, s.doing, s.waits_for, None) for s in standings]
        return no_progress(standings, now, f"{self.pulse.limit_ms:g} ms", states)
