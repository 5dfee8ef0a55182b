"""What a rank process observes alone: grammar compiles, transfers of a modelled peer, its clock, the store.

The facts are those of the simulated world (``ppsim.workload.local_facts``): by iteration of the rank, listed
or drawn from the same named streams. What differs is how the first rank learns of the others' statuses: over ZeroMQ,
in its own time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import assert_never

from executor.store import ConsensusStore
from ppsim.core import actions as acts
from ppsim.core import observations as obs
from ppsim.core import surroundings as behaviour_of
from ppsim.core.consensus import KVPoll
from ppsim.core.errors import InvariantViolation
from ppsim.core.rank import Rank
from ppsim.scenario import Scenario
from ppsim.workload.choices import Choices, SeededChoices
from ppsim.workload.local_facts import Facts

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
        choices: Choices | None = None,
        held: Mapping[tuple[int, str], tuple[int | None, ...]] | None = None,
    ) -> None:
        """``held``: what the store held in another run, by (iteration, request); told instead of what it holds."""
        self.core, self.scenario, self.now_ns, self.store = core, scenario, now_ns, store
        core.policy.wall_clock_ns = now_ns
        self.behaviour = behaviour
        self.rank = core.link.rank_id
        self.facts = Facts(scenario.observations, choices or SeededChoices(scenario.seed))
        self.stored: dict[str, list[int | None]] = {}  # statuses that the last look found, by request
        self.watched: list[str] = []  # requests whose sender status this rank reports
        self.held = held or {}

    def look(self, observation: obs.Observation, iteration: int) -> tuple[int, ...] | None:
        """Values in the order of the keys; None for a fact that the executor does not know."""
        facts, me = self.facts, self.rank
        match observation:
            case obs.Clock():
                skew = self.scenario.faults.clock_skew_ms
                return (self.behaviour.clock_ms(me, self.now_ns() // NS_PER_MS + (skew[me] if skew else 0)),)
            case obs.Grammars(rids):
                return tuple(facts.grammar(me, iteration, rid) for rid in rids)
            case obs.Senders(rids):
                return tuple(known(facts.sender(me, iteration, rid)) for rid in rids)
            case obs.Statuses(rids):
                if self.store is None:
                    return None
                self.report(iteration)
                return tuple(self.decision(self.store, rid, iteration) for rid in rids)
            case obs.Capacity() | obs.HostCapacity() | obs.Receivers() | obs.FirstTokens():
                return None  # the driver knows its capacity; decode servers and host tiers are simulated only
            case obs.Copies() | obs.Hits() | obs.OwnHits():
                return None
            case _:
                assert_never(observation)

    def decision(self, store: ConsensusStore, rid: str, iteration: int) -> int:
        """What the store says of a request, from the statuses that have reached the first rank by now."""
        held = self.held.get((iteration, rid))
        self.stored[rid] = statuses = store.collect(rid) if held is None else list(held)
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

    def act(self, action: acts.Action, iteration: int) -> None:
        """What a rank asks for. Raises InvariantViolation for a copy between tiers, which are simulated only."""
        if isinstance(action, acts.Copy):
            text = f"it asks for a copy between the tiers of its cache ({action.key}), which nothing here can make"
            raise InvariantViolation("INV-02", self.rank, iteration, self.core.slot, action.key.owner, text)
        if isinstance(action, acts.Bootstrap):
            self.watched.append(action.rid)
        self.facts.act(self.rank, iteration, action)

    def wait(self, fact: obs.Awaited, iteration: int) -> None:
        """Block until a fact of this rank is true; a blocked rank counts no iterations, so they are given a time."""
        iterations = self.facts.iterations_until(self.rank, iteration, fact.word, fact.key)
        time.sleep(iterations * self.scenario.observations.tick_ms / 1000)


def known(status: int | None) -> int:
    """A request that this rank has not registered reads as Bootstrapping (invariant 55)."""
    return KVPoll.BOOTSTRAPPING if status is None else status
