"""A rank of the real world as the judge sees it (``ppsim.check.observers.Seat``), and what is hung on it.

Rule: what one rank shows alone is judged in its own process, at once. What only several ranks show together is kept as
records, which go to the launcher with the rank's report and are judged there (``ending.py``). Where another rank is at
this very moment nobody here can know: invariants 7 and 8 are the simulated world's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any
from zlib import crc32

from ppsim.check.audit import Audit, follow
from ppsim.check.blame import Departure, Twin
from ppsim.check.client_watch import Watch
from ppsim.check.leftovers import rank_leftover, unanswered
from ppsim.check.observers import Observers, phase_of, phase_of_error
from ppsim.check.physical import never_committed
from ppsim.check.together import Decides, Harvests, Record
from ppsim.check.verdicts import failed
from ppsim.check.wait_limits import watch_patience
from ppsim.core.consensus import KVPoll
from ppsim.core.messages import NewRequest
from ppsim.core.observations import CopyKey
from ppsim.core.outcome import Verdict
from ppsim.core.rank import Rank
from ppsim.recording import Recording
from ppsim.scenario import Scenario
from ppsim.workload.local_facts import Facts


class Place:
    """One rank. ``facts``, ``stored`` and ``loop`` come once it is connected and runs."""

    def __init__(self, core: Rank, scenario: Scenario, right: Rank | None = None) -> None:
        self.rank, self.run = core, scenario.run
        self.rank_id = core.link.rank_id
        self.observers = Observers()
        self.twin = None if right is None else Twin(self, right)
        self.records: list[Record] = []
        self.facts: Facts | None = None
        self.stored: Mapping[str, Sequence[int | None]] = {}
        self.loop: Generator[Any, Any, Any] | None = None
        self.now_ns: Callable[[], int] = time.monotonic_ns
        self.watch = Watch(0, 0, None)  # the client counts iterations (run.max_iterations), the status shows progress

    def judge(self) -> None:
        """Hang on the rank whatever the scenario asks for, in the order of the simulated world.

        A real run cannot be made again, so the twin that says who is to blame runs beside the rank from the start.
        """
        if self.twin is not None and (self.run.invariants or self.run.check):
            self.twin.watch()
        self.watch.watch(self)
        if self.run.invariants:
            Audit(self.tell, commits_wait=True).watch(self)
        elif self.run.check:
            follow(self, self.tell)
        watch_patience(
            [self],
            self.run.max_wait_iterations,
            self.run.max_agreement_wait_ms,
            max_retractions=self.run.max_retractions,
            max_wait_ms=self.run.max_wait_ms,
            audited=self.run.invariants,
        )

    def departure(self, error: BaseException | None = None) -> Departure | None:
        """Where this rank has parted from a right one. ``error``: what its own loop raised."""
        if self.twin is None or self.twin.loop is None:
            return None
        phase = phase_of_error(error) if error is not None else ""
        return self.twin.ends(error if phase else None, phase)

    def tell(self, record: Record) -> None:
        """Keep what is held against the other ranks."""
        if self.run.check or not isinstance(record, Decides | Harvests):
            self.records.append(record._replace(phase=self.phase()))

    def left_behind(self, recording: Recording, uncommitted: list[str]) -> Verdict | None:
        """What is wrong after the last iteration. ``uncommitted``: the kinds of sends that nobody has waited for."""
        problem = rank_leftover(self.rank)
        if problem is None and self.rank_id == 0:
            problem = unanswered(self.watch, [a.rid for a in recording.arrivals])
        if problem is None and uncommitted:
            problem = "INV-38", never_committed(uncommitted)
        return None if problem is None else failed(problem[0], self, problem[1])

    # --- Seat ------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.now_ns()

    def phase(self) -> str:
        return "start" if self.loop is None else phase_of(self.loop)

    def iteration_of(self, rank_id: int) -> int | None:
        return None

    def transfer_of(self, rid: str) -> int | None:
        """Of a prefill server against a modelled peer, the only role that has transfers here."""
        if self.facts is None or (self.rank_id, "transfer", rid) not in self.facts.known:
            return None
        return self.facts.sender(self.rank_id, self.rank.iteration, rid)

    def copy(self, key: CopyKey) -> tuple[int, int] | None:
        """There are no cache tiers here."""
        return None

    def fetched(self, key: CopyKey) -> int | None:
        """Likewise."""
        return None

    @property
    def launched_ns(self) -> int | None:
        """The device's clock is its own."""
        return None

    def other_side(self, rid: str) -> str:
        """The peer of a single role is modelled."""
        return ""

    def status_of(self, rank_id: int, rid: str) -> int | None:
        return None

    def landed(self, rid: str) -> Sequence[tuple[int, Sequence[tuple[int, int]]]] | None:
        return None

    def first_sampled(self, request: NewRequest) -> int | None:
        return None

    def content(self, payload: object) -> int:
        """Of the bytes of a tensor; waits for the device, like ``sampled``."""
        import torch  # the launcher imports this file, and does without

        assert isinstance(payload, torch.Tensor)
        return crc32(payload.detach().to("cpu").contiguous().flatten().view(torch.uint8).numpy().tobytes())

    def sender_failed_ns(self, rid: str) -> int | None:
        """Of a prefill server against a modelled peer, the only role that has transfers here."""
        if self.facts is None or self.facts.sender(self.rank_id, self.rank.iteration, rid) != KVPoll.FAILED:
            return None
        return self.now

    def sampled(self, reply: object) -> tuple[int, ...]:
        """Waits for the device: who checks every invariant gives up running ahead of it."""
        tokens: list[int] = reply.tolist()  # type: ignore[attr-defined]  # a tensor, of which the launcher knows nothing
        return tuple(tokens)
