"""What all simulated ranks of a run share: scenario, costs, links, clients, recording and the watch over them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from simpy import Environment, Event

from ppsim.check.client_watch import Watch
from ppsim.check.observers import Seat
from ppsim.core.effects import Effect
from ppsim.core.observations import CopyKey
from ppsim.core.surroundings import Surroundings
from ppsim.cost.stage import StageCost
from ppsim.recording import Recording
from ppsim.scenario.tree import Scenario
from ppsim.workload.local_facts import Facts
from ppsim.workload.refusals import Refusal
from ppsim.world.choices import Choices
from ppsim.world.client import Client, Sampler
from ppsim.world.milestones import Marks
from ppsim.world.network import Network
from ppsim.world.streams import Streams


class OwnCopies(Protocol):
    """The copies between the cache tiers of one rank, as the others ask for them (``tiers.py``)."""

    ends: dict[CopyKey, int]

    def reported(self, key: CopyKey, reader: SimulatedSeat) -> int:
        """What the reader knows of this rank's fetch: -1, or its hit length in tokens."""
        ...


class SimulatedSeat(Seat, Protocol):
    """A simulated rank as the rest of the world sees it; ``driver.py`` has the rank itself, which needs the rest."""

    env: Environment
    setting: Setting
    now: int  # of its host clock, ns
    streams: Streams
    scenario: Scenario
    effect: Effect | None
    waits_for: int | None  # peer of a blocked effect
    asleep: Event | None  # until ``wake``
    done: bool
    is_paused: bool
    iteration_starts: list[int]
    loop: Generator[Effect, Any, None]

    @property
    def tiers(self) -> OwnCopies | None:
        """Its copies between the cache tiers, where there are tiers."""
        ...

    def wall_clock_ns(self) -> int:
        """Its wall clock, as wrong as the scenario says."""
        ...

    def run(self) -> Generator[Event, None, None]:
        """The SimPy process."""
        ...

    def wake(self) -> None:
        """Let the rank look again at what it waits for."""


@dataclass(slots=True)
class Setting:
    """One run. ``ranks`` is indexed by rank_id."""

    scenario: Scenario
    cost: StageCost
    choices: Choices
    network: Network
    client: Client
    sampler: Sampler
    recording: Recording
    watch: Watch
    facts: Facts
    surroundings: Surroundings = field(default_factory=Surroundings)  # how this world behaves, one for both pipelines
    failing: dict[str, Refusal] = field(default_factory=dict)  # allocations that fail after admission, by request
    scripted: frozenset[str] = frozenset()  # requests that name an iteration: they arrive when they are read
    marks: Marks | None = None  # disaggregation: instants that cut the time to the first token
    peer: Setting | None = None  # two pipelines: of the decode side, the prefill side
    store_lag_ns: int = 0
    ranks: list[SimulatedSeat] = field(default_factory=list)
    running: SimulatedSeat | None = None  # the rank in whose loop or for whom an error was raised that ended the run
    raised: BaseException | None = None  # that error, where the rank's own loop raised it
