"""What a rank process observes alone: grammar compiles, transfers of a modelled peer, its clock, the store.

The facts are those of the simulated world (``ppsim.workload.facts``): by iteration of the rank, listed or drawn from
the same named streams. What differs is how the first rank learns of the others' statuses: over ZeroMQ, in its own time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from executor.store import ConsensusStore
from ppsim.core import surroundings as behaviour_of
from ppsim.core.consensus import KVPoll
from ppsim.core.rank import Rank
from ppsim.scenario import Scenario
from ppsim.workload.choices import SeededChoices
from ppsim.workload.facts import Facts

NS_PER_MS = 1_000_000


class Surroundings:
    """Answers Observe, AwaitLocal and Act of one rank."""

    def __init__(
        self,
        core: Rank,
        scenario: Scenario,
        now_ns: Callable[[], int],
        store: ConsensusStore | None,
        behaviour: behaviour_of.Surroundings,
    ) -> None:
        self.core, self.scenario, self.now_ns, self.store = core, scenario, now_ns, store
        core.policy.wall_clock_ns = now_ns
        self.behaviour = behaviour
        self.rank = core.link.rank_id
        self.facts = Facts(scenario.observations, SeededChoices(scenario.seed))
        self.stored: dict[str, list[int | None]] = {}  # statuses that the last look found, by request
        self.watched: list[str] = []  # requests whose sender status this rank reports

    def look(self, what: str, keys: tuple[str, ...], iteration: int) -> tuple[int, ...] | None:
        """Values in the order of ``keys``; None for a fact that the executor does not know."""
        facts, me = self.facts, self.rank
        match what:
            case "clock_ms":
                skew = self.scenario.faults.clock_skew_ms
                return (self.behaviour.clock_ms(me, self.now_ns() // NS_PER_MS + (skew[me] if skew else 0)),)
            case "grammar":
                return tuple(facts.grammar(me, iteration, rid) for rid in keys)
            case "sender":
                return tuple(known(facts.sender(me, iteration, rid)) for rid in keys)
            case "bootstrap_store" if self.store is not None:
                self.report(iteration)
                return tuple(self.decision(self.store, rid) for rid in keys)
        return None

    def decision(self, store: ConsensusStore, rid: str) -> int:
        """What the store says of a request, from the statuses that have reached the first rank by now."""
        self.stored[rid] = statuses = store.collect(rid)
        return self.behaviour.store_decision(rid, statuses)

    def report(self, iteration: int) -> None:
        """Put this rank's sender statuses, as they are in this iteration, into the store."""
        if self.store is None:
            return
        live = self.core.scheduler.requests
        for rid in self.watched:
            status = self.facts.sender(self.rank, iteration, rid)
            if rid not in live:
                self.store.delete(rid)
            elif status is not None:
                self.store.put(rid, status)
        self.watched = [rid for rid in self.watched if rid in live]

    def act(self, what: str, rid: str, iteration: int) -> None:
        if what == "bootstrap":
            self.watched.append(rid)
        self.facts.act(self.rank, iteration, what, rid)

    def wait(self, what: str, rid: str, iteration: int) -> None:
        """Block until a fact of this rank is true; a blocked rank counts no iterations, so they are given a time."""
        iterations = self.facts.iterations_until(self.rank, iteration, what, rid)
        time.sleep(iterations * self.scenario.observations.tick_ms / 1000)


def known(status: int | None) -> int:
    """A request that this rank has not registered reads as Bootstrapping (invariant 55)."""
    return KVPoll.BOOTSTRAPPING if status is None else status
