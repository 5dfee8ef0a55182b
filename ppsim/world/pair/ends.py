"""What the two sides of disaggregation know of a request: a room with a sender on every prefill rank, a receiver on
every decode rank, and the KV writes between them (protocol.md 6.1, 6.5, 6.6).

    sender     registered, BOOTSTRAPPING -> its receiver's pages have come, WAITING_FOR_INPUT -> TRANSFERRING -> end
    receiver   registered, BOOTSTRAPPING -> all its senders are known, WAITING_FOR_INPUT -> pages given, TRANSFERRING
    end        SUCCESS or FAILED, and nothing else afterwards; FAILED only when no write can touch a page any more

With equal pipelines prefill rank r writes to decode rank r; a decode pipeline of one stage hears of all stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ppsim.core.consensus import KVPoll

TERMINAL = (KVPoll.SUCCESS, KVPoll.FAILED)


class Progress(Enum):
    """Of a write. ``OVER`` ends it, whether it arrived, was cancelled or could not be posted."""

    ASKED = "asked"
    ON_THE_WIRE = "on the wire"
    LANDING = "landing"
    LOST = "lost"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Write:
    """KV of tokens [start, stop) for the layers of one stage; ``pages`` are the sender's."""

    rank: int
    room: int
    rid: str
    nth: int  # of this room on this rank, from 1
    iteration: int
    slot: int
    start: int
    stop: int
    pages: tuple[int, ...]
    computed_ns: int  # the forward pass that wrote the last of it has ended
    duration_ns: int
    token: int | None = None  # first output token: with the last write go the metadata
    num_prompt: int = 0  # tokens of the prompt of which it is a part
    asked_ns: int = -1
    begin_ns: int = -1
    landed_ns: int = -1
    arrived: bool = False
    progress: Progress = Progress.ASKED

    @property
    def is_last(self) -> bool:
        return self.token is not None


@dataclass(slots=True, eq=False)
class End:
    """What senders and receivers have in common. ``history`` has every status with the instant it came."""

    rank: int
    room: int
    rid: str = ""
    status: int | None = None  # None: this rank has not registered the request yet
    history: list[tuple[int, int]] = field(default_factory=list)
    gave_up: bool = False

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    def status_before(self, now_ns: int) -> int | None:
        """The status as it was just before an instant."""
        found = None
        for at_ns, status in self.history:
            if at_ns >= now_ns:
                break
            found = status
        return found


@dataclass(slots=True, eq=False)
class Sender(End):
    """On a prefill rank. One that gave up begins no write; it has failed when the last one on its way has landed."""

    writes: list[Write] = field(default_factory=list)
    has_pages: bool = False  # the receiver's metadata are here
    is_silent: bool = False  # a write was lost: nobody hears of it again

    def landed(self) -> list[tuple[int, int]]:
        """The token ranges that have arrived."""
        return [(w.start, w.stop) for w in self.writes if w.arrived]

    @property
    def num_under_way(self) -> int:
        return sum(w.progress in (Progress.ON_THE_WIRE, Progress.LANDING) for w in self.writes)


@dataclass(slots=True, eq=False)
class Receiver(End):
    """On a decode rank. ``ended`` are its senders that have reached their end, and whether with success."""

    known: set[int] = field(default_factory=set)
    gave_pages: bool = False
    ended: dict[int, bool] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    freed_ns: int | None = None  # the first of its pages went back to the pool


@dataclass(slots=True)
class Peers:
    """Who writes to whom; ranks of a stage side by side."""

    prefill_stages: int
    decode_stages: int
    width: int  # tensor-parallel ranks of a stage

    def receiver_of(self, prefill_rank: int) -> int:
        return prefill_rank if self.decode_stages == self.prefill_stages else prefill_rank % self.width

    def senders_of(self, decode_rank: int) -> tuple[int, ...]:
        num_prefill = self.prefill_stages * self.width
        return tuple(rank for rank in range(num_prefill) if self.receiver_of(rank) == decode_rank)
