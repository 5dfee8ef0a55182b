"""The only things a rank may ask of its world (design decision 1).

Each effect is a small record that nobody writes to (``record.py``), yielded as it is, ``reply = yield Recv(...)``, or
through the typed helper below, ``reply = yield from recv(...)``. What a rank asks in every visit is yielded as it is: a
helper is one more generator. For all else the helper is plainer, and refuses what is no observation, act or fact.
The *order* of effects is protocol and is fixed by ``phases.py``; how long each takes, and whether it blocks, is the
world's business (decision 3). What a world must do for each:

``Ingest``       first rank only. Client inputs that have arrived; with ``idle`` it may wait for the next one, without
                 it must not block. Ends the run with ``Shutdown`` once nothing more will come and the rank is idle.
``Send``         start an asynchronous send; the reply is a work handle that keeps the send buffer alive.
``Recv``         block until the next message of the lane from ``src`` is here. FIFO per (src, dst, lane).
``Commit``       wait for a send (protocol.md 3.1): the peer has taken the metadata, the payload is ordered.
``Drop``         give a send buffer up *without* waiting. No phase of ``phases.py`` does so.
``Launch``       start the forward pass of a batch; reply is the payload handle of its result (hidden states, or on
                 the last rank the sampled tokens). Returns at once; the device works on.
``AwaitTokens``  host-wait for the sampled tokens behind an output payload: one token id for each row.
``Observe``      look at a local fact (``observations.py``). The reply is ``Local``: no other rank has seen it.
``AwaitLocal``   block until a local fact is true (a compile that the leader found ready, an ack that the leader has).
``Act``          ask the local environment to begin or end something (``actions.py``); never blocks.
``Reply``        a message for the client. Every rank may compute it; only the first rank yields it.
``Decided``      the scheduling decision of this visit is made (host time of scheduling; goes into the recording).
``Harvested``    a batch was post-processed (host time of post-processing; goes into the recording).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ppsim.core.actions import ACTIONS, Action
from ppsim.core.agreed import Local
from ppsim.core.messages import Hidden, Input, Kind, Lane, Message, Output
from ppsim.core.observations import AWAITED, OBSERVATIONS, Awaited, Observation
from ppsim.core.record import record
from ppsim.core.schedule.batch import ForwardBatch

R = TypeVar("R")
Effects: TypeAlias = Generator["Effect", Any, R]


def _over() -> Effects[None]:
    yield from ()


NOTHING: Effects[None] = _over()
"""What a phase that has nothing to ask returns instead of steps of its own: a generator that is over.

Whoever takes steps from it gets none; the event loop need not even try.
"""
next(NOTHING, None)

Work: TypeAlias = int
"""Handle of an outstanding send."""


@record
class Ingest:
    iteration: int
    idle: bool


@record
class Send:
    """``paired``: submitted together with the receive that follows it, so that neither blocks the other."""

    dst: int
    message: Message
    paired: bool = False


@record
class Recv:
    """``kind``, ``iteration``, ``slot``: of the message that is waited for, for reports; what comes may be another."""

    src: int
    lane: Lane
    kind: Kind | None = field(default=None, compare=False)
    iteration: int | None = field(default=None, compare=False)
    slot: int | None = field(default=None, compare=False)


@record
class Commit:
    work: Work


@record
class Drop:
    work: Work


@record
class Launch:
    batch: ForwardBatch
    hidden: Hidden | None


@record
class AwaitTokens:
    output: Output


@record
class Observe:
    """The reply's value is a tuple: one number for each key of the observation, in their order."""

    observation: Observation
    iteration: int

    @property
    def what(self) -> str:
        """The word of recordings and reports."""
        return self.observation.word

    @property
    def keys(self) -> tuple[str, ...]:
        """What is asked about."""
        return self.observation.keys


@record
class AwaitLocal:
    fact: Awaited
    iteration: int

    @property
    def what(self) -> str:
        """The word of reports."""
        return self.fact.word

    @property
    def key(self) -> str:
        """What it is a fact of."""
        return self.fact.key


@record
class Act:
    action: Action


@record
class Reply:
    """``status``: "token" for a streamed token, "finished", "aborted" or "refused" for a terminal reply."""

    rid: str
    status: str
    token_ids: tuple[int, ...] = ()
    num_output_tokens: int = 0
    reason: str = ""


CLOSED = "closed"  # batch_is_full with nothing running: nothing in the loop opens the slot again
DEFERRED = "deferred"  # prefill_decode_interval, although the slot had nothing to decode


class Decision(NamedTuple):
    """One visit of a slot, in logical terms only: no time, no address. This is what the digests cover."""

    iteration: int
    slot: int
    mode: str  # extend | decode | mixed | empty
    pieces: tuple[tuple[str, int, int], ...]  # (rid, prefix_len, new_tokens)
    retracted: tuple[str, ...]
    chunked_rid: str | None
    state_digest: str  # queues, running sets, pool and ratio after the decision
    stall: str = ""  # a rule, not a want of work or memory, left this visit empty: CLOSED or DEFERRED


class Harvest(NamedTuple):
    """What one iteration delivered. ``harvested`` is the launch iteration, None if the slot held nothing."""

    iteration: int
    slot: int
    harvested: int | None
    delivered: tuple[tuple[str, int], ...]  # (rid, n): the n-th token of rid, n from 1
    finished: tuple[str, ...]
    token_ids: tuple[int, ...]  # one a delivered token
    free_tokens: int
    evictable_tokens: int


@record
class Decided:
    decision: Decision


@record
class Harvested:
    harvest: Harvest


Effect: TypeAlias = (
    Ingest
    | Send
    | Recv
    | Commit
    | Drop
    | Launch
    | AwaitTokens
    | Observe
    | AwaitLocal
    | Act
    | Reply
    | Decided
    | Harvested
)


def ingest(iteration: int, idle: bool) -> Effects[tuple[Input, ...]]:
    return (yield Ingest(iteration, idle))  # type: ignore[no-any-return]


def send(dst: int, message: Message, paired: bool = False) -> Effects[Work]:
    return (yield Send(dst, message, paired))  # type: ignore[no-any-return]


def recv(
    src: int, lane: Lane, kind: Kind | None = None, iteration: int | None = None, slot: int | None = None
) -> Effects[Message]:
    return (yield Recv(src, lane, kind, iteration, slot))  # type: ignore[no-any-return]


def commit(work: Work) -> Effects[None]:
    yield Commit(work)


def drop(work: Work) -> Effects[None]:
    yield Drop(work)


def launch(batch: ForwardBatch, hidden: Hidden | None) -> Effects[object]:
    return (yield Launch(batch, hidden))


def await_tokens(output: Output) -> Effects[tuple[int, ...]]:
    return (yield AwaitTokens(output))  # type: ignore[no-any-return]


def observe(observation: Observation, iteration: int) -> Effects[Local[tuple[int, ...]]]:
    """Raises TypeError for what is no observation, as ``await_local`` and ``act`` do: the sets are closed."""
    known(observation, OBSERVATIONS, "a rank may look at")
    return (yield Observe(observation, iteration))  # type: ignore[no-any-return]


def await_local(fact: Awaited, iteration: int) -> Effects[None]:
    known(fact, AWAITED, "a rank may wait for")
    yield AwaitLocal(fact, iteration)


def act(action: Action) -> Effects[None]:
    known(action, ACTIONS, "a rank may ask for")
    yield Act(action)


def known(value: object, kinds: tuple[type, ...], what: str) -> None:
    """The type check holds this for what it sees; a part from outside may have been written for another release."""
    if type(value) not in kinds:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{value!r} is nothing that {what}: {names} (docs/effects.md)")


def reply(message: Reply) -> Effects[None]:
    yield message


def decided(decision: Decision) -> Effects[None]:
    yield Decided(decision)


def harvested(harvest: Harvest) -> Effects[None]:
    yield Harvested(harvest)
