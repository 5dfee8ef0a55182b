"""What a rank did in this iteration, in order: one list of typed entries, emptied once, at the iteration's end.

Rule: whatever the scheduler leaves for others is an entry here, and it is read in one of three ways.

    handed out    ``Action`` and ``Reply``: the loop yields each once, as an effect, where the protocol says so
    summed up     ``Delivered``, ``Ended``, ``Absorbed``: the record of the iteration (``Harvest``), made in one place;
                  ``Retracted``: part of the decision
    looked at     all of them: by what compares ranks (``scheduler.causes``), and by listeners from outside

A listener is told of each entry when it is made, and of each ``request.Moved``, which is not kept. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias, TypeVar

from ppsim.core.actions import ACTIONS, Action
from ppsim.core.effects import Harvest, Reply
from ppsim.core.record import record
from ppsim.core.schedule.request import Event, Moved, Request, State
from ppsim.core.schedule.slots import LaunchedBatch


@record
class Advanced:
    """An agreed conclusion moved a request on."""

    rid: str


@record
class AbortFound:
    """An abort found a request, as it was then: in this state, in so many launched batches, being cut or not."""

    rid: str
    reason: str
    state: State
    num_inflight: int
    num_retractions: int
    is_chunked: bool  # it is the prompt that is being cut
    is_marked: bool  # an earlier abort has found it


@record
class Retracted:
    """Put out of memory to make room for the others of its slot."""

    rid: str


@record
class Unfit:
    """The last request of its slot: even alone its next token does not fit."""

    rid: str


class Why(Enum):
    """Why a request that waits is not taken."""

    FULL = "the slot has no place left"
    NO_ROW = "the request table has no row left"
    NO_TOKEN = "it does not fit into memory"
    STORAGE = "it waits for what storage has of its prompt"
    NO_ROOM = "decode side: what it needs is not free beside the reserves of the others"


@record
class NotTaken:
    """A waiting request was looked at and stays where it is."""

    rid: str
    why: Why


@record
class PutBack:
    """Memory that admission counted on was not there: the request waits again, first in line."""

    rid: str


@record
class ChunkCut:
    """Memory, not the chunk budget, limits the prompt that is being cut."""

    rid: str


@record
class ChunkParked:
    """The prompt that is being cut waits for memory, and keeps what it holds."""

    rid: str


@record
class DecodeHeldUp:
    """The decode set of a slot waits for copies between the tiers, which hold the memory that it needs."""

    slot: int


@record
class Launched:
    """A batch was decided."""

    batch: LaunchedBatch


@record
class Delivered:
    """Token ``n`` of a request, n from 1."""

    rid: str
    n: int
    token: int


@record
class Ended:
    """A request has left; ``by_token``: with the last of its tokens, in a harvest."""

    rid: str
    event: Event
    by_token: bool = False

    @property
    def failed(self) -> bool:
        return self.event in (Event.FAIL, Event.GRAMMAR_FAILED)


@record
class Flushed:
    """The cache was emptied; ``rid``: of the flush. The client hears of it when all ranks have done it (flush.py)."""

    rid: str


@record
class Absorbed:
    """The batch that was due is post-processed: that launched in iteration ``harvested``."""

    harvested: int


Entry: TypeAlias = (
    Action
    | Reply
    | Advanced
    | AbortFound
    | Retracted
    | Unfit
    | NotTaken
    | PutBack
    | ChunkCut
    | ChunkParked
    | DecodeHeldUp
    | Launched
    | Delivered
    | Ended
    | Flushed
    | Absorbed
)
Listener: TypeAlias = Callable[[Entry | Moved], None]
E = TypeVar("E")
ASKED = frozenset(ACTIONS)


class Journal:
    """Of one rank. Hang listeners on it before the rank starts.

    Most iterations hand nothing out: what is asked several times in each looks at the end of the list first.
    """

    __slots__ = ("_actions_from", "_replies_from", "entries", "listeners")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.listeners: list[Listener] = []
        self._actions_from = 0  # what comes before is handed out
        self._replies_from = 0

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        for listen in self.listeners:
            listen(entry)

    def of(self, kind: type[E]) -> list[E]:
        """The entries of a kind, in order; handed out or not."""
        return [entry for entry in self.entries if isinstance(entry, kind)] if self.entries else []

    @property
    def has_news(self) -> bool:
        """Whether anything was added since actions and replies were handed out last."""
        num_entries = len(self.entries)
        return self._actions_from < num_entries or self._replies_from < num_entries

    @property
    def due_actions(self) -> list[Action]:
        """What was asked of the surroundings and is not handed out yet."""
        return [entry for entry in self.entries[self._actions_from :] if type(entry) in ASKED]  # type: ignore[misc]

    @property
    def due_replies(self) -> list[Reply]:
        """Likewise for clients."""
        return [entry for entry in self.entries[self._replies_from :] if type(entry) is Reply]

    def take_actions(self) -> list[Action]:
        """They are handed out now."""
        due, self._actions_from = self.due_actions, len(self.entries)
        return due

    def take_replies(self) -> list[Reply]:
        due, self._replies_from = self.due_replies, len(self.entries)
        return due

    def flush(self) -> None:
        """End of an iteration: forget all of it but what is still to be handed out."""
        if self._actions_from == self._replies_from == len(self.entries):
            self.entries.clear()
        else:
            self.entries = [*self.due_actions, *self.due_replies]
        self._actions_from = self._replies_from = 0

    def harvest(self, iteration: int, slot: int, free_tokens: int, evictable_tokens: int) -> Harvest:
        """The record of the iteration. Who ended at rest comes before whom a token ended, and both before whatever
        ended behind the harvest (a release vote, for instance)."""
        if not self.entries:
            return Harvest(iteration, slot, None, (), (), (), free_tokens, evictable_tokens)
        harvested: int | None = None
        at_rest: list[str] = []
        by_token: list[str] = []
        behind: list[str] = []
        delivered: list[tuple[str, int]] = []
        tokens: list[int] = []
        for entry in self.entries:
            if isinstance(entry, Delivered):
                delivered.append((entry.rid, entry.n))
                tokens.append(entry.token)
            elif isinstance(entry, Reply):  # one a token
                continue
            elif isinstance(entry, Ended):
                (by_token if entry.by_token else at_rest if harvested is None else behind).append(entry.rid)
            elif isinstance(entry, Absorbed):
                harvested = entry.harvested
        finished = (*at_rest, *by_token, *behind)
        return Harvest(
            iteration, slot, harvested, tuple(delivered), finished, tuple(tokens), free_tokens, evictable_tokens
        )


def abort_found(request: Request, reason: str, *, is_chunked: bool) -> AbortFound:
    """What an abort finds; call it before the request is marked."""
    marked, launched = bool(request.to_abort), request.num_inflight
    return AbortFound(request.rid, reason, request.state, launched, request.num_retractions, is_chunked, marked)
