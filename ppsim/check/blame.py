"""Who is to blame: the rank that does something else than a right rank would with the very same replies.

Rule: between the replies of its world a rank is deterministic. So beside a rank goes its *twin*: a fresh rank of right
parts with the user's policy, which is given every reply that the rank gets and must ask for the same things in the same
order. Whoever parts from its twin has done wrong; whoever does not has only met what others did, however early it was
seen there. Comparing ranks with each other cannot tell the two apart.

A send that the twin makes and the rank does not, while both go on alike behind it, is a message that the rank *owes*. A
rank that still stands before its sends owes nothing: that is a circle of waits (invariant 40).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ppsim.check.describe import first_rid, rid_of, short, told, told_message
from ppsim.check.observers import Seat, phase_of
from ppsim.core.channels import RULES
from ppsim.core.config import RankConfig
from ppsim.core.effects import Commit, Decided, Decision, Effect, Send
from ppsim.core.errors import CoreError
from ppsim.core.loop import event_loop_pp
from ppsim.core.messages import Kind, Lane, Message
from ppsim.core.rank import Rank
from ppsim.core.schedule.scheduler import causes, limits, state_parts

BuildRank: TypeAlias = Callable[[RankConfig], Rank]
"""A right rank from its configuration: default parts, the user's policy."""

MAX_LEFT_OUT = 16  # sends in a row that a rank may have left out
SIDE_RULES = {Lane.HICACHE: "INV-28", Lane.BOOTSTRAP: "INV-50", Lane.FLUSH: "INV-86"}
PHASE_RULES = {"agree_tiers": "INV-28", "agree_bootstrap": "INV-50"}
"""What a missing message between replicas of a stage breaks, by the phase that it belongs to."""


@dataclass(frozen=True, slots=True)
class Debt:
    """A message that a rank has not sent although it has passed the point where it was due."""

    dst: int
    kind: Kind
    rule: str  # what is broken where nobody sends it
    what: str  # the message in words
    iteration: int  # of the sender, when it was due
    slot: int
    phase: str


def rule_of(kind: Kind, lane: Lane, phase: str) -> str:
    """What is broken where a message of this kind is not sent. ``phase``: where it is sent, or received."""
    if kind is Kind.SIDE:
        return SIDE_RULES.get(lane) or PHASE_RULES.get(phase, "INV-31")
    return RULES.get(kind, "INV-31")


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a rank has parted from its twin. ``owes``: what it never sent, the first of it at this place.

    ``unsent``: a right rank sends this here. Whether this one does so later is not known.
    """

    rank: int
    iteration: int
    slot: int
    phase: str
    rid: str
    expected: str
    came: str
    owes: tuple[Debt, ...] = ()
    unsent: Debt | None = None


@dataclass(slots=True, eq=False)
class Twin:
    """A right rank beside a rank. ``watch`` hangs it there, ahead of everybody who may end the run."""

    r: Seat
    right: Rank
    departure: Departure | None = None
    loop: Any = None
    reply: Any = None
    is_lost: bool = False  # it can't follow: its policy raises
    owed: list[tuple[Debt, Message]] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)  # handles of sends that only the twin has made

    def watch(self) -> None:
        """Call before the rank runs."""
        self.loop = event_loop_pp(self.right)
        self.r.observers.before(self.asks)
        self.r.observers.after(self.gets)

    def asks(self, effect: Effect) -> None:
        """The rank asks something of its world: its twin must do so too."""
        if self.departure is not None or self.is_lost:
            return
        mine = self._next()
        if mine != effect and isinstance(effect, Send) and self._pays(effect):
            return
        debts: list[tuple[Debt, Message]] = []
        if isinstance(mine, Send) and mine != effect:
            mine = self._leave_out(mine, effect, debts)
        if isinstance(mine, Exception):
            self._stops(mine, told(effect))
        elif mine != effect:
            unsent = debts[0][0] if debts else None
            if isinstance(mine, Decided) and isinstance(effect, Decided) and alike(mine.decision, effect.decision):
                self._compare_state(effect)  # a part of it says more than two digests
            self._departs(told(mine), told(effect), rid_of(mine, effect, self._known()), unsent)
        elif isinstance(effect, Decided):
            self._compare_state(effect)

    def gets(self, effect: Effect, reply: object) -> None:
        """The world has answered."""
        self.reply = reply

    def _next(self) -> Effect | Exception:
        """What the twin asks next, or why it stops; it waits for no send that only it has made."""
        try:
            mine: Effect = self.loop.send(self.reply)
            while isinstance(mine, Commit) and mine.work in self.left_out:
                mine = self.loop.send(None)
        except Exception as error:  # a policy may raise anything; the rank will have raised the same
            return error
        return mine

    def _stops(self, error: Exception, came: str) -> None:
        """A right rank stops here, and this one goes on."""
        if isinstance(error, StopIteration):
            self._departs("ends its loop", came, "")
        elif isinstance(error, CoreError):
            self._departs(f"stops: {error}", came, getattr(error, "rid", ""))
        else:
            self.is_lost = True

    def _leave_out(self, mine: Effect, effect: Effect, debts: list[tuple[Debt, Message]]) -> Effect | Exception:
        """Whether the rank has left out this send, and maybe some behind it, and goes on as its twin does. The reply is
        what the twin asks then. ``debts`` is told the sends."""
        first = mine
        following: Effect | Exception = mine
        while isinstance(following, Send) and following != effect and len(debts) < MAX_LEFT_OUT:
            debts.append((self._debt(following), following.message))
            self.reply = -1 - len(self.left_out)
            self.left_out.add(self.reply)
            following = self._next()
        if following != effect:
            return first
        self.owed += debts
        return following

    def _debt(self, send: Send) -> Debt:
        message, phase, right = send.message, phase_of(self.loop), self.right
        rule = rule_of(message.kind, message.lane, phase)
        return Debt(send.dst, message.kind, rule, told_message(message), right.iteration, right.slot, phase)

    def _pays(self, effect: Send) -> bool:
        """Whether the rank sends what it has left out, late: then it is no debt, but the order was wrong."""
        for debt, message in self.owed:
            if message == effect.message and debt.dst == effect.dst:
                place = (debt.iteration, debt.slot, debt.phase)
                self.departure = Departure(
                    self.r.rank_id, *place, "", f"sends the {debt.what} to rank {debt.dst}", "sends it later"
                )
                self.owed.remove((debt, message))
                return True
        return False

    def _compare_state(self, effect: Decided) -> None:
        """Where decisions are alike, all that they were made from must be too, and what they leave behind."""
        at, right, here = effect.decision.iteration, self.right, self.r.rank
        pairs = [("inputs", tuple(right.inputs), tuple(here.inputs))]
        mine, its = right.scheduler, here.scheduler
        for parts, others in (
            (causes(mine), causes(its)),
            (limits(mine, at), limits(its, at)),
            (state_parts(mine, at), state_parts(its, at)),
        ):
            pairs += [(name, a, b) for (_, name, a), (_, _, b) in zip(parts, others, strict=True)]  # type: ignore[misc]
        for name, a, b in pairs:
            if a != b:
                self._departs(f"has {name} {a!r}", f"has {name} {b!r}", first_rid(a, b, self._known()))
                return

    def _known(self) -> dict[str, object]:
        """Ids of the requests that either of the two has."""
        ranks = [rank for rank in (self.right, self.r.rank) if rank.started is not None]
        return {rid: None for rank in ranks for rid in rank.scheduler.requests}

    def _departs(self, expected: str, came: str, rid: str, unsent: Debt | None = None) -> None:
        if self.departure is None:
            r = self.r
            place = (r.rank_id, r.rank.iteration, r.rank.slot, r.phase())
            self.departure = Departure(*place, rid, short(expected), short(came), unsent=unsent)

    def ends(self, error: BaseException | None = None, phase: str = "") -> Departure | None:
        """What is known when the run is over. ``error``: what the rank's own loop raised, in ``phase``."""
        if self.departure is None and error is not None and not self.is_lost:
            mine = self._next()
            if isinstance(mine, StopIteration) or not isinstance(mine, Exception):  # else a right rank stops here too
                expected = "ends its loop" if isinstance(mine, Exception) else told(mine)
                place = (self.r.rank_id, self.r.rank.iteration, self.r.rank.slot, phase)
                self.departure = Departure(*place, getattr(error, "rid", ""), short(expected), short(f"stops: {error}"))
        if not self.owed:
            return self.departure
        debt = self.owed[0][0]
        place = (self.r.rank_id, debt.iteration, debt.slot, debt.phase)
        expected = f"sends the {debt.what} to rank {debt.dst}"
        owes = tuple(debt for debt, _ in self.owed)
        return Departure(*place, "", expected, "goes on without sending it", owes)


def alike(one: Decision, other: Decision) -> bool:
    """Whether two decisions differ in nothing but the state that they leave behind."""
    return one._replace(state_digest=other.state_digest) == other


def earliest(departures: Iterable[Departure]) -> Departure | None:
    """The one that came first in the order of the run."""
    return min(departures, key=lambda d: (d.iteration, d.rank), default=None)
