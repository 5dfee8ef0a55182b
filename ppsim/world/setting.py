"""What all simulated ranks of a run share: scenario, costs, links, clients, recording and the watch over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ppsim.check.watch import Watch
from ppsim.core.surroundings import Surroundings
from ppsim.cost.stage import StageCost
from ppsim.recording import Recording
from ppsim.scenario.tree import Scenario
from ppsim.workload.facts import Facts
from ppsim.world.choices import Choices
from ppsim.world.client import Client, Sampler
from ppsim.world.marks import Marks
from ppsim.world.network import Network

if TYPE_CHECKING:
    from ppsim.world.driver import SimulatedRank


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
    failing: dict[str, int] = field(default_factory=dict)  # allocations that fail after admission, by request
    scripted: frozenset[str] = frozenset()  # requests that name an iteration: they arrive when they are read
    marks: Marks | None = None  # disaggregation: instants that cut the time to the first token
    peer: Setting | None = None  # two pipelines: of the decode side, the prefill side
    store_lag_ns: int = 0
    ranks: list[SimulatedRank] = field(default_factory=list)
    running: SimulatedRank | None = None  # the rank in whose loop or for whom an error was raised that ended the run
    raised: BaseException | None = None  # that error, where the rank's own loop raised it
