"""What a rank may look at around itself: a closed set, one class for each kind of fact (protocol.md 6.1).

A world answers an observation with one integer a key, in the order of ``keys``; an observation without keys with one.
``word`` is what recordings and reports call it.

    class           word              keys     value
    Capacity        capacity          -        tokens of KV that fit on this rank
    HostCapacity    host_capacity     -        tokens of KV that fit into its host tier
    Clock           clock_ms          -        milliseconds on this rank's own clock
    Grammars        grammar           rids     leader.PENDING, READY or FAILED: its own compile
    Senders         sender            rids     KVPoll of its own sending (prefill side)
    Receivers       receiver          rids     KVPoll of its own receiving (decode side)
    FirstTokens     first_token       rids     the token that came with the last KV of a request
    Statuses        bootstrap_store   rids     KVPoll that the consensus store concludes (first rank)
    Copies          hicache           copies   1 if its own copy is over, else 0
    Hits            prefetch          copies   prompt tokens that all ranks have found in storage, -1: not done
    OwnHits         own_prefetch      copies   the same of this rank alone: no ground for a decision

``AwaitLocal`` blocks until a fact of this rank is true: ``Compiled`` (a grammar), ``Copied`` (a copy).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias, get_args


class CopyKey(str):
    """A copy between the tiers of the cache, as recordings name it: "kind:owner#number".

    ``owner`` is the request on whose behalf it was started; ``number`` counts the copies of a rank.
    """

    kind: str  # write | load | fetch
    owner: str
    number: int

    def __new__(cls, kind: str, owner: str, number: int) -> CopyKey:
        key = super().__new__(cls, f"{kind}:{owner}#{number}")
        key.kind, key.owner, key.number = kind, owner, number
        return key

    def __getnewargs__(self) -> tuple[str, str, int]:  # type: ignore[override]
        return self.kind, self.owner, self.number


Rids: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    word: ClassVar[str] = "capacity"
    keys: ClassVar[Rids] = ()


@dataclass(frozen=True, slots=True)
class HostCapacity:
    word: ClassVar[str] = "host_capacity"
    keys: ClassVar[Rids] = ()


@dataclass(frozen=True, slots=True)
class Clock:
    word: ClassVar[str] = "clock_ms"
    keys: ClassVar[Rids] = ()


@dataclass(frozen=True, slots=True)
class Grammars:
    word: ClassVar[str] = "grammar"
    keys: Rids


@dataclass(frozen=True, slots=True)
class Senders:
    word: ClassVar[str] = "sender"
    keys: Rids


@dataclass(frozen=True, slots=True)
class Receivers:
    word: ClassVar[str] = "receiver"
    keys: Rids


@dataclass(frozen=True, slots=True)
class FirstTokens:
    word: ClassVar[str] = "first_token"
    keys: Rids


@dataclass(frozen=True, slots=True)
class Statuses:
    word: ClassVar[str] = "bootstrap_store"
    keys: Rids


@dataclass(frozen=True, slots=True)
class Copies:
    word: ClassVar[str] = "hicache"
    keys: tuple[CopyKey, ...]


@dataclass(frozen=True, slots=True)
class Hits:
    word: ClassVar[str] = "prefetch"
    keys: tuple[CopyKey, ...]


@dataclass(frozen=True, slots=True)
class OwnHits:
    word: ClassVar[str] = "own_prefetch"
    keys: tuple[CopyKey, ...]


Observation: TypeAlias = (
    Capacity | HostCapacity | Clock | Grammars | Senders | Receivers | FirstTokens | Statuses | Copies | Hits | OwnHits
)
OBSERVATIONS: tuple[type[Observation], ...] = get_args(Observation)
Poll: TypeAlias = type[Senders] | type[Receivers]
"""A look at transfers; which side's, its class says."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The grammar of ``rid`` is ready here, or has failed."""

    word: ClassVar[str] = "grammar"
    key: str


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy between the tiers is over here."""

    word: ClassVar[str] = "hicache"
    key: CopyKey


Awaited: TypeAlias = Compiled | Copied
AWAITED: tuple[type[Awaited], ...] = get_args(Awaited)
