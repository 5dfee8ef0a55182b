"""What travels between ranks: frozen, typed, each with the lane it rides on (protocol.md 2.1 to 2.3).

    inputs      NewRequest, AbortReq, FlushCache, Shutdown: the elements of the request list, which every rank processes
    messages    Start, Meta, Hidden, Output, Vote, Conclusion, Side, Check: what one rank sends to another
    calls       Call, CallLog: what a Check message carries

A message carries its own logical address (iteration, slot). The released engines send most of these untyped and
unnumbered; here a receiver can tell a wrong kind, a wrong iteration and a wrong shape at once and name the side that
broke the rule, instead of hanging an hour later (bugs.md B20, B29, B54).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple, TypeAlias

from ppsim.core.record import record
from ppsim.core.tokens import TokenBytes


class Lane(Enum):
    """A separate matching space between two ranks. FIFO inside a lane, unordered between lanes."""

    START = "start"  # capacity and plan agreement, before iteration 0
    CONTROL = "control"  # request lists and rid lists ("pyobj ring")
    TP = "tp"  # inside a stage: from its leader to its tensor-parallel replicas, and back for reductions
    TENSOR = "tensor"  # hidden states and outputs ("tensor dict")
    GRAMMAR = "grammar"
    HICACHE = "hicache"
    BOOTSTRAP = "bootstrap"
    CHECK = "check"  # digests of the rank consensus checker
    FLUSH = "flush"  # the word that all ranks up to the sender have emptied their caches

    # By identity: Enum hashes its name in Python code, which costs a tenth of a run. Nothing iterates in hash order.
    __hash__ = object.__hash__


class Kind(Enum):
    """The type field of a message; a typed inbox keeps one FIFO for each."""

    START = "start"
    META = "meta"
    HIDDEN = "hidden"
    OUTPUT = "output"
    VOTE = "vote"
    CONCLUSION = "verdict"  # the word of recordings, of pictures and of what a rank waits for
    SIDE = "side"
    CHECK = "check"

    __hash__ = object.__hash__


# --- replicated inputs: the elements of a request list ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A generation request. ``stop_token_ids`` end it early unless ``ignore_eos``.

    ``grammar`` names a grammar to compile first (None: unconstrained). ``room`` is the PD bootstrap room.
    """

    rid: str
    prompt: TokenBytes
    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    return_logprob: bool = False
    priority: int = 0
    grammar: str | None = None
    room: int | None = None


@dataclass(frozen=True, slots=True)
class AbortReq:
    """Abort one request (``rid``) or, with ``abort_all``, every one. ``reason`` goes into the reply."""

    rid: str
    abort_all: bool = False
    reason: str = "abort"


@dataclass(frozen=True, slots=True)
class FlushCache:
    """Empty the radix cache; done only where the rank is fully idle, on all ranks alike (protocol.md section 9).

    ``rid`` names the control request: its reply is "finished" once the last rank has done it, or "refused" while
    anything is in flight.
    """

    rid: str = "flush"


@dataclass(frozen=True, slots=True)
class Shutdown:
    """No further input follows. A plain rank ends its loop once it has passed this list on; one that votes takes part
    in P-1 more iterations, until the conclusions of the last vote have come everywhere (``ballots.end_iteration``)."""


Input: TypeAlias = NewRequest | AbortReq | FlushCache | Shutdown


# --- messages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start-up ring: MIN of the local capacities on the first pass, the agreed one on the second."""

    kind: ClassVar[Kind] = Kind.START
    lane: ClassVar[Lane] = Lane.START
    sender: int
    capacity_tokens: int
    fingerprint: str  # of everything that all ranks must share
    iteration: int = -1
    slot: int = -1
    host_tokens: int = 0  # likewise of the host tier (hicache.py); 0: there is none


@record
class Meta:
    """The ordered list of inputs that every rank processes in ``iteration``; sent every iteration, empty or not."""

    kind: ClassVar[Kind] = Kind.META
    sender: int
    iteration: int
    slot: int
    inputs: tuple[Input, ...]
    lane: Lane = Lane.CONTROL  # Lane.TP from a stage's leader to its replicas


@record
class Hidden:
    """Activations of the batch launched in ``iteration``: [num_tokens, hidden_size]. ``payload`` is the world's.

    ``num_layers`` of the model are behind them: the next stage begins with that layer.
    """

    kind: ClassVar[Kind] = Kind.HIDDEN
    lane: ClassVar[Lane] = Lane.TENSOR
    sender: int
    iteration: int
    slot: int
    num_tokens: int
    payload: object = field(default=None, compare=False)
    num_layers: int = 0


@record
class Output:
    """Sampled tokens of the batch launched in ``iteration``: one row per request, in batch order.

    ``num_logprobs`` of the rows carry logprobs as well; a relay that drops them is found out (bugs.md B57).
    """

    kind: ClassVar[Kind] = Kind.OUTPUT
    lane: ClassVar[Lane] = Lane.TENSOR
    sender: int
    iteration: int
    slot: int
    num_rows: int
    payload: object = field(default=None, compare=False)
    num_logprobs: int = 0


@record
class Vote:
    """First pass of a ring vote: what all ranks up to the sender have observed (protocol.md 6.3)."""

    kind: ClassVar[Kind] = Kind.VOTE
    sender: int
    iteration: int
    slot: int
    name: str
    good: tuple[str, ...]
    bad: tuple[str, ...] = ()
    lane: Lane = Lane.CONTROL  # Lane.TP from a replica to the leader of its stage


@record
class Conclusion:
    """Second pass: the numbered, immutable conclusion of the vote taken in ``iteration``."""

    kind: ClassVar[Kind] = Kind.CONCLUSION
    sender: int
    iteration: int
    slot: int
    name: str
    number: int
    good: tuple[str, ...]
    bad: tuple[str, ...] = ()
    lane: Lane = Lane.CONTROL  # Lane.TP from the leader of a stage to its replicas


@record
class Side:
    """What the first stage decides on a side lane (grammar, HiCache, bootstrap), handed down the chain; inside a stage
    what a replica sees, on its way to the leader, and the answer; on the flush lane the word that a cache is empty."""

    kind: ClassVar[Kind] = Kind.SIDE
    sender: int
    lane: Lane
    iteration: int
    slot: int
    values: tuple[tuple[str, ...], ...] = ()
    counts: tuple[int, ...] = ()


class Call(NamedTuple):
    """One entry in a rank's log of calls that must be the same everywhere (``checker.py``)."""

    iteration: int
    slot: int
    invariant: str  # which one a difference breaks
    name: str
    text: str


class CallLog(NamedTuple):
    """The calls of a window, as ``ranks`` made them, and their digest."""

    ranks: tuple[int, ...]
    digest: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """MIN and MAX of the digests of all ranks up to the sender, and one log for each distinct digest."""

    kind: ClassVar[Kind] = Kind.CHECK
    lane: ClassVar[Lane] = Lane.CHECK
    sender: int
    iteration: int
    slot: int
    lowest: str
    highest: str
    logs: tuple[CallLog, ...]


Message: TypeAlias = Start | Meta | Hidden | Output | Vote | Conclusion | Side | Check
