"""The instants that cut a request's time to the first token into shares (``ppsim.recording.shares``).

What a rank does is marked when the first rank does it, or when the last one has done it. What a rank only sees is
marked when the last rank could see it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from ppsim.check.observers import Seat
from ppsim.core.actions import (
    Action,
    Admitted,
    CancelCompile,
    Compile,
    HandshakeAgreed,
    SendLast,
    SendMetadata,
    Transfer,
)
from ppsim.recording import Recording
from ppsim.recording.schema import Mark
from ppsim.workload.local_facts import Facts

BY_FIRST_RANK: dict[type[Action], str] = {Admitted: "admitted", HandshakeAgreed: "agreed", SendMetadata: "allocated"}
BY_ALL_RANKS: dict[type[Action], str] = {Admitted: "in_force", SendLast: "sent"}
OF_FACTS = {"bootstrap": "ready", "transfer": "landed", "receive": "received"}


@dataclass(slots=True)
class Marks:
    """Marks of one pipeline; ``finish`` puts them into its recording, in order of time."""

    num_ranks: int
    found: list[Mark] = field(default_factory=list)
    counts: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # ranks so far, latest instant

    def acted(self, r: Seat, action: Compile | CancelCompile | Transfer) -> None:
        """A rank asked its surroundings for something."""
        kind, rid = type(action), action.rid
        if kind in BY_FIRST_RANK and r.rank_id == 0:
            # A vote is applied at the end of an iteration, the chain's answer before the batch is chosen.
            later = r.rank.config.role == "prefill" and r.rank.config.bootstrap_consensus == "vote"
            self.found.append(Mark(rid, BY_FIRST_RANK[kind], r.rank.iteration + later, r.now))
        if kind in BY_ALL_RANKS:
            self.reached(BY_ALL_RANKS[kind], rid, r.rank.iteration, r.now)

    def reached(self, what: str, rid: str, iteration: int, at_ns: int, of: int | None = None) -> None:
        """One more rank (of ``of``, or of all) has come there; the mark is set by the last."""
        count, latest_ns = self.counts.get((what, rid), (0, 0))
        count, latest_ns = count + 1, max(latest_ns, at_ns)
        if count < (of or self.num_ranks):
            self.counts[what, rid] = (count, latest_ns)
        else:
            self.counts.pop((what, rid), None)
            self.found.append(Mark(rid, what, iteration, latest_ns))

    def add_facts(self, facts: Facts, starts: list[list[int]]) -> None:
        """A single role against a modelled peer: its facts become true in iterations, whose starts are known now."""
        by_rid: dict[tuple[str, str], dict[int, int]] = {}
        for (rank, kind, rid), fact in facts.known.items():
            if kind in OF_FACTS and fact.at < len(starts[rank]) and not fact.failed:
                by_rid.setdefault((OF_FACTS[kind], rid), {})[rank] = starts[rank][fact.at]
        for (what, rid), times in by_rid.items():
            if len(times) == self.num_ranks:
                at_ns = max(times.values())
                self.found.append(Mark(rid, what, iteration_at(starts[0], at_ns), at_ns))

    def finish(self, recording: Recording, facts: Facts, starts: list[list[int]]) -> None:
        """The run is over. ``starts``: of each rank, the instants at which its iterations began."""
        self.add_facts(facts, starts)
        recording.marks = sorted(self.found, key=lambda m: (m.time_ns, m.rid, m.what))


def iteration_at(starts: list[int], at_ns: int) -> int:
    """The iteration that a rank had last begun at an instant; -1 before the first."""
    return bisect_right(starts, at_ns) - 1
