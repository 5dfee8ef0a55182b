"""Who may send what to whom, FIFO in each lane, with a typed inbox (protocol.md 2).

    lane     from -> to                               carries
    START    k -> k+1, last -> first                  capacity agreement, before iteration 0
    CONTROL  k -> k+1, last -> first (conclusions)    request lists, votes, conclusions
    TP       leader of a stage -> its replicas        the same request lists; reductions inside the stage
    TENSOR   k -> k+1 (hidden), ring (outputs)        device data; each tensor-parallel replica on its own
    GRAMMAR, HICACHE, BOOTSTRAP   k -> k+1            what the first stage has decided for all
    FLUSH    k -> k+1, last -> first, replica -> leader   the word that caches are empty
    CHECK    k -> k+1, first leader -> its replicas   digests of the rank consensus checker, each replica on its own

A message of another kind than the awaited one is put into the inbox of its kind (bugs.md B54). A message of the right
kind with the wrong logical address is a protocol error that names the side at fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from ppsim.core.config import RankConfig
from ppsim.core.effects import Commit, Effects, Recv, Send, Work
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Check, Conclusion, Hidden, Kind, Lane, Message, Meta, Output, Side, Start, Vote

RULES = {Kind.META: "INV-02", Kind.HIDDEN: "INV-32", Kind.OUTPUT: "INV-33", Kind.CONCLUSION: "INV-37"}
"""What is broken if a message of this kind is left out or sent twice; for the others it is invariant 31."""

MAX_NAMED = 4
"""Requests that a report lists by name."""

M = TypeVar("M", Start, Meta, Hidden, Output, Vote, Conclusion, Side, Check)


class Endpoint:
    """A rank's view of its links. Peers are numbered by ``rank_id`` = pp_rank * tp_replicas + tp_rank."""

    def __init__(self, config: RankConfig) -> None:
        self.config = config
        self.rank_id = config.rank_id
        self.leader = config.pp_rank * config.tp_replicas
        stages, width = config.pp_size, config.tp_replicas
        self.next = (config.pp_rank + 1) % stages * width + config.tp_rank
        self.prev = (config.pp_rank - 1) % stages * width + config.tp_rank
        self.replicas = tuple(self.leader + t for t in range(1, width))
        self.is_leader = self.rank_id == self.leader  # the replica of its stage that talks on the control lane
        self.awaited = (-1, -1)  # iteration and slot of the message that is received now, for reports
        self._inbox: dict[tuple[int, Lane, Kind], deque[Message]] = {}

    @property
    def inbox_size(self) -> int:
        """Messages put aside; zero at the end of an iteration in the basic loops (invariant 36)."""
        return sum(len(queue) for queue in self._inbox.values())

    def send(self, dst: int, message: Message, paired: bool = False) -> Effects[Work]:
        """Start a send; the reply is its work handle."""
        return (yield Send(dst, message, paired))  # type: ignore[no-any-return]

    def receive(self, want: type[M], src: int, lane: Lane, iteration: int, slot: int) -> Effects[M]:
        """The next message of this kind from ``src``; it must belong to this iteration and slot."""
        self.awaited = iteration, slot
        message = yield from self._next_of_kind(want.kind, src, lane)
        if not isinstance(message, want) or message.iteration != iteration or message.slot != slot:
            raise ProtocolError(
                self.rank_id,
                iteration,
                slot,
                f"{want.kind.value} of iteration {iteration}, slot {slot}, from rank {src}",
                f"{message.kind.value} of iteration {message.iteration}, slot {message.slot}",
                self._blame(message, src, iteration),
                RULES.get(want.kind, "INV-31"),
            )
        return message

    def _next_of_kind(self, kind: Kind, src: int, lane: Lane) -> Effects[Message]:
        parked = self._inbox.get((src, lane, kind))
        if parked:
            return parked.popleft()
        while True:
            iteration, slot = self.awaited
            message: Message = yield Recv(src, lane, kind, iteration, slot)
            if message.kind is kind:
                return message
            self._inbox.setdefault((src, lane, message.kind), deque()).append(message)

    def _blame(self, message: Message, src: int, iteration: int) -> str:
        if message.iteration > iteration:
            return f"rank {src} left a message out, or rank {self.rank_id} waits for one that is not due"
        return f"rank {src} sent a message too many, or rank {self.rank_id} missed one"


def put_aside(link: Endpoint) -> list[tuple[int, str, list[int]]]:
    """The messages in a rank's inbox, for reports: (sender, kind, iterations in order)."""
    return [
        (src, kind.value, [message.iteration for message in queue])
        for (src, _, kind), queue in link._inbox.items()
        if queue
    ]


def commit_all(works: list[Work]) -> Effects[None]:
    """Wait for each outstanding send in order, then forget them (protocol.md 3.1). Callers leave it out for none."""
    for work in works:
        yield Commit(work)
    works.clear()


def shape_error(
    rank: int,
    iteration: int,
    slot: int,
    what: str,
    expected: int,
    came: int,
    src: int,
    invariant: str,
    rids: Sequence[str],
) -> ProtocolError:
    """Sender and receiver disagree about the size of a tensor: the two have scheduled different batches.

    ``rids`` are the requests of the receiver's batch.
    """
    blame = f"rank {src} scheduled another batch"
    wanted, rid = f"{what} with {expected} rows ({named(rids)})", rids[0] if len(rids) == 1 else ""
    return ProtocolError(rank, iteration, slot, wanted, f"{came} rows", blame, invariant, rid)


def named(rids: Sequence[str]) -> str:
    """Requests of a batch for a report: the first few, and how many more there are."""
    shown = ", ".join(rids[:MAX_NAMED])
    return f"{shown} and {len(rids) - MAX_NAMED} more" if len(rids) > MAX_NAMED else shown
