"""What each rank observes alone: grammar compiles, transfers, clocks (protocol.md 6.1).

A fact of a rank becomes true in an iteration of that rank: where the scenario lists it, there; otherwise some
iterations after the rank asked for it, drawn from ``choices``. So the same fact comes at different times on different
ranks, which is the whole reason for votes. A transfer's progress is monotonic and its end is final.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from ppsim.core.actions import (
    AbortReceiver,
    AbortSender,
    Admitted,
    Bootstrap,
    CancelCompile,
    Compile,
    Handshake,
    HandshakeAgreed,
    Refused,
    SendChunk,
    SendLast,
    SendMetadata,
    Transfer,
)
from ppsim.core.consensus import KVPoll
from ppsim.core.leader import FAILED, PENDING, READY
from ppsim.core.observations import CopyKey
from ppsim.scenario.tree import Observations
from ppsim.workload.choices import Choices

FACTS_OF_A_TRANSFER = ("bootstrap", "handshake", "transfer", "receive", "abort")


@dataclass(slots=True)
class Fact:
    """Seen by the rank from iteration ``at`` on."""

    at: int
    failed: bool


@dataclass(slots=True)
class Facts:
    """All local facts of a run, by (rank, kind, rid)."""

    observations: Observations
    choices: Choices
    known: dict[tuple[int, str, str], Fact] = field(default_factory=dict)
    begun: dict[tuple[int, str], int] = field(default_factory=dict)  # (rank, rid) -> iteration of its latest beginning

    def act(self, rank: int, iteration: int, action: Compile | CancelCompile | Transfer) -> None:
        """A rank asked its surroundings for something."""
        match action:
            case Compile(rid):
                self._begin(rank, iteration, "grammar", rid)
            case Bootstrap(rid):
                self._begin(rank, iteration, "bootstrap", rid)
            case Handshake(rid):
                self._begin(rank, iteration, "handshake", rid)
            case SendLast(rid):
                self.known[rank, "transfer", rid] = self._fact(rank, iteration, "transfer", rid)
            case SendMetadata(rid):
                self.known[rank, "receive", rid] = self._fact(rank, iteration, "receive", rid)
            case AbortSender(rid) | AbortReceiver(rid):
                # What is under way is drained first; then the transfer is terminal on this rank, whoever aborts it
                # again.
                if (rank, "abort", rid) not in self.known:
                    self.known[rank, "abort", rid] = Fact(iteration + self._delay("abort", rid, rank), True)
            case CancelCompile() | Admitted() | SendChunk() | HandshakeAgreed() | Refused():
                pass  # nothing comes of it that a rank could look at
            case _:
                assert_never(action)

    def copy(self, rank: int, iteration: int, kind: str, key: CopyKey) -> None:
        """A copy between the tiers of the cache was started (``tiers.py``)."""
        self.known[rank, "copy", key] = self._fact(rank, iteration, kind, key.owner, key)

    def _begin(self, rank: int, iteration: int, kind: str, rid: str) -> None:
        """An id may come again: what was known of the request before it is forgotten."""
        for old in FACTS_OF_A_TRANSFER:
            self.known.pop((rank, old, rid), None)
        self.begun[rank, rid] = iteration
        self.known[rank, kind, rid] = self._fact(rank, iteration, kind, rid)

    def grammar(self, rank: int, iteration: int, rid: str) -> int:
        """PENDING, READY or FAILED."""
        fact = self.known.get((rank, "grammar", rid))
        if fact is None or iteration < fact.at:
            return PENDING
        return FAILED if fact.failed else READY

    def poll(self, rank: int, iteration: int, rid: str, begin: str, end: str) -> int | None:
        """KVPoll of a sender (bootstrap, transfer) or receiver (handshake, receive); None: unknown to this rank."""
        first, last = self.known.get((rank, begin, rid)), self.known.get((rank, end, rid))
        if first is None:
            return None
        if last is not None and iteration >= last.at:
            return KVPoll.FAILED if last.failed else KVPoll.SUCCESS
        abort = self.known.get((rank, "abort", rid))
        if abort is not None and iteration >= abort.at:
            return KVPoll.FAILED
        if last is not None:
            return KVPoll.TRANSFERRING
        if iteration < first.at:
            return KVPoll.BOOTSTRAPPING
        return KVPoll.FAILED if first.failed else KVPoll.WAITING_FOR_INPUT

    def sender(self, rank: int, iteration: int, rid: str) -> int | None:
        return self.poll(rank, iteration, rid, "bootstrap", "transfer")

    def sender_of(self, rank: int, iteration: int, rid: str, arrived: int) -> int | None:
        """Of the request that was read in iteration ``arrived``: what began before is another one of the same id."""
        return self.sender(rank, iteration, rid) if self.begun.get((rank, rid), -1) >= arrived else None

    def receiver(self, rank: int, iteration: int, rid: str) -> int | None:
        return self.poll(rank, iteration, rid, "handshake", "receive")

    def iterations_until(self, rank: int, iteration: int, what: str, rid: str) -> int:
        """Iterations that a rank still has to wait for a fact of its own."""
        fact = self.known.get((rank, what, rid))
        return max(0, fact.at - iteration) if fact is not None else 0

    def _fact(self, rank: int, iteration: int, kind: str, rid: str, key: str = "") -> Fact:
        for entry in self.observations.listed:
            if entry.what == kind and entry.rid == rid:
                return Fact(max(entry.at[rank], iteration), entry.fails_on(rank))
        return Fact(iteration + self._delay(kind, key or rid, rank), False)

    def _delay(self, kind: str, rid: str, rank: int) -> int:
        limit = self.observations.max_delay
        return self.choices.below(f"delay {kind} {rid} {rank}", limit + 1) if limit else 0
