"""What only several ranks together show: that they are alike, agree on what all saw, and deliver what was sampled.

Rule: ranks are known here by records alone, small tuples that can travel from another process. The first record of a
kind and iteration is the one that the others are held against, so the reply depends on the order in which records come;
a world hands them over as its ranks make them, ``in_order`` puts those of separate processes into one order.

What every rank shows in every iteration has a short way (``shows_the_same``): a record is made only where it differs.
``phase`` of a record is empty where the ranks are still at hand when it is looked at, as then their loops say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ppsim.check.lockstep import Lockstep
from ppsim.check.shown import Values
from ppsim.core.disagg.ballots import TERMINAL_VOTES
from ppsim.core.effects import Decision, Harvest
from ppsim.core.errors import InvariantViolation

Parts: TypeAlias = tuple[tuple[str, str, object], ...]
"""(invariant, name, value) of each part of a rank's state."""

View: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""Requests that a rank saw as good, and as bad."""
NOTHING: View = ((), ())
MAX_VIEWS = 4096  # votes whose conclusion never came; a run that goes on has a few
NUM_SAMPLED_KEPT = 1024  # iterations


class Shown(NamedTuple):
    """Parts of a rank's state, as they were at moment ``what`` of iteration ``at``."""

    rank: int
    iteration: int
    slot: int
    what: str
    at: int  # the iteration in which all ranks must show the same; -1: before the first
    parts: Parts
    phase: str = ""


class Decides(NamedTuple):
    """A rank has decided what a slot runs."""

    rank: int
    iteration: int
    slot: int
    decision: Decision
    phase: str = ""


class Harvests(NamedTuple):
    """A rank has post-processed a batch."""

    rank: int
    iteration: int
    slot: int
    harvest: Harvest
    phase: str = ""


class Voices(NamedTuple):
    """What a rank saw in the first pass of a vote."""

    rank: int
    iteration: int
    slot: int
    vote: str
    view: View
    phase: str = ""


class Concludes(NamedTuple):
    """The last rank publishes the conclusion of the vote of iteration ``about``."""

    rank: int
    iteration: int
    slot: int
    vote: str
    about: int
    good: tuple[str, ...]
    bad: tuple[str, ...]
    phase: str = ""


class Samples(NamedTuple):
    """(request, token) of what the last stage has sampled for the launch of ``iteration``, middle chunks left out."""

    rank: int
    iteration: int
    slot: int
    tokens: tuple[tuple[str, int], ...]
    phase: str = ""


class Delivers(NamedTuple):
    """Tokens that a rank took from the batch launched in ``launched``: (request, token) of each row."""

    rank: int
    iteration: int
    slot: int
    launched: int
    tokens: tuple[tuple[str, int], ...]
    aborted: tuple[str, ...] = ()  # of its rows: an abort names them, so their tokens are dropped
    phase: str = ""


class Moves(NamedTuple):
    """Whom a rank has moved on, and whom it has failed, by the conclusions of the votes of iteration ``about``."""

    rank: int
    iteration: int
    slot: int
    about: int
    advanced: tuple[str, ...]
    failed: tuple[str, ...]
    phase: str = ""


class Writes(NamedTuple):
    """A launch has written its result: hidden states, on the last stage tokens. ``content``: ``Seat.content``."""

    rank: int
    iteration: int
    slot: int
    content: int
    phase: str = ""


class Reads(NamedTuple):
    """A rank reads what rank ``writer`` has written in the launch of iteration ``launched``."""

    rank: int
    iteration: int
    slot: int
    what: str
    writer: int
    launched: int
    content: int
    rid: str  # the first request of that batch
    phase: str = ""


class Empties(NamedTuple):
    """A rank has emptied its cache for a flush."""

    rank: int
    iteration: int
    slot: int
    rid: str
    phase: str = ""


class Answers(NamedTuple):
    """The first rank says that a flush is done."""

    rank: int
    iteration: int
    slot: int
    rid: str
    phase: str = ""


Record: TypeAlias = (
    Shown | Decides | Harvests | Voices | Concludes | Moves | Samples | Delivers | Writes | Reads | Empties | Answers
)


class Together:
    """One for each run. ``check``: lockstep; ``audited``: the other records come too (``run.invariants``)."""

    def __init__(self, num_ranks: int, *, check: bool, audited: bool) -> None:
        self.num_ranks = num_ranks
        self.lockstep = Lockstep(num_ranks, audited=audited) if check else None
        self.firsts: dict[tuple[str, int], tuple[Values, int]] = {}
        self.views: dict[tuple[str, int], dict[int, View]] = {}  # (vote, iteration) -> what each rank saw
        self.samples: dict[int, dict[str, int]] = {}
        self.written: dict[int, dict[int, int]] = {}  # rank -> iteration -> content
        self.concluded: dict[
            int, tuple[set[str], set[str]]
        ] = {}  # iteration of the votes -> good and bad of all of them
        self.emptied: dict[str, tuple[int, ...]] = {}  # flush -> ranks that have done it and were not answered for
        self._takers: dict[type[Record], Callable[[Any], None]] = {
            Shown: self._compare,
            Decides: self._decides,
            Harvests: self._harvests,
            Voices: self._speaks,
            Concludes: self._agrees,
            Moves: self._named,
            Samples: self._samples,
            Delivers: self._own_samples,
            Writes: self._writes,
            Reads: self._as_written,
            Empties: self._empties,
            Answers: self._flushed,
        }

    def take(self, record: Record) -> None:
        """Raises InvariantViolation if this record does not go with the earlier ones."""
        try:
            self._takers[type(record)](record)
        except InvariantViolation as broken:
            broken.phase = broken.phase or record.phase
            raise

    def shows_the_same(self, what: str, at: int, values: Values) -> bool:
        """The short way of a ``Shown``. True: it goes with the earlier ones, and is taken. False: nothing is taken."""
        key = (what, at)
        known = self.firsts.get(key)
        if known is None:
            if self.num_ranks > 1:
                self.firsts[key] = (values, 1)
            return True
        first, seen = known
        if first != values:
            return False
        if seen + 1 == self.num_ranks:
            del self.firsts[key]
        else:
            self.firsts[key] = (first, seen + 1)
        return True

    def _decides(self, record: Decides) -> None:
        if self.lockstep is not None:
            self.lockstep.decision(record.rank, record.decision)

    def _harvests(self, record: Harvests) -> None:
        if self.lockstep is not None:
            self.lockstep.harvest(record.rank, record.harvest)

    def _speaks(self, record: Voices) -> None:
        self.views.setdefault((record.vote, record.iteration), {})[record.rank] = record.view
        if len(self.views) > MAX_VIEWS:
            del self.views[next(iter(self.views))]

    def _samples(self, record: Samples) -> None:
        self.samples[record.iteration] = dict(record.tokens)
        self.samples.pop(record.iteration - NUM_SAMPLED_KEPT, None)

    def _writes(self, record: Writes) -> None:
        mine = self.written.setdefault(record.rank, {})
        mine[record.iteration] = record.content
        mine.pop(record.iteration - NUM_SAMPLED_KEPT, None)

    def _empties(self, record: Empties) -> None:
        self.emptied[record.rid] = (*self.emptied.get(record.rid, ()), record.rank)

    def _compare(self, shown: Shown) -> None:
        """Hold a rank's parts against those of the first rank that came to this iteration."""
        if self.shows_the_same(shown.what, shown.at, tuple([value for _, _, value in shown.parts])):
            return
        key = (shown.what, shown.at)
        first, seen = self.firsts[key]
        if seen + 1 == self.num_ranks:
            del self.firsts[key]
        else:
            self.firsts[key] = (first, seen + 1)
        for (invariant, name, mine), other in zip(shown.parts, first, strict=True):
            if mine != other:
                named = refined(invariant, mine, other)
                if named:
                    fail(named, shown, "", f"{name}: this rank has {mine!r}, the first had {other!r}")

    def _agrees(self, concluded: Concludes) -> None:
        """I4: a conclusion is the intersection of what all ranks saw as good, and the union of what any saw as bad."""
        views = self.views.pop((concluded.vote, concluded.about), {})
        ranks, is_terminal = range(self.num_ranks), concluded.vote in TERMINAL_VOTES
        bad = {rid for view in views.values() for rid in view[1]}
        named = self.concluded.setdefault(concluded.about, (set(), set()))
        named[0].update(concluded.good)
        named[1].update(concluded.bad)
        self.concluded.pop(concluded.about - NUM_SAMPLED_KEPT, None)
        good = [rid for rid in views.get(0, NOTHING)[0] if all(rid in views.get(k, NOTHING)[0] for k in ranks)]
        if not is_terminal:
            good = [rid for rid in good if rid not in bad]
        if list(concluded.good) == good and set(concluded.bad) == bad:
            return
        wrong = next((rid for rid in concluded.good if rid not in good), "")
        against = [k for k in ranks if wrong and wrong not in views.get(k, NOTHING)[0]]
        came = f"good {concluded.good}, bad {concluded.bad}"
        text = f"conclusion of {concluded.vote} of iteration {concluded.about}: {came}"
        text += f", but all ranks together saw good {tuple(good)}, bad {tuple(sorted(bad))}"
        early = "INV-52" if wrong and is_terminal else "INV-47"
        broken = early if list(concluded.good) != good else "INV-48"
        fail(broken, concluded, wrong, text + (f"; rank {against[0]} does not agree to {wrong}" if against else ""))

    def _own_samples(self, delivered: Delivers) -> None:
        """Invariants 34 and 41: a request gets the token that the last stage has sampled for it."""
        tokens = self.samples.get(delivered.launched)
        if tokens is None:
            return
        for rid, token in delivered.tokens:
            if token != tokens.get(rid):
                row = "another row" if token in tokens.values() else "nowhere"
                text = f"token {token} of {rid} comes from {row}, the last rank sampled {tokens}"
                fail("INV-34" if token in tokens.values() else "INV-41", delivered, rid, text)
        for rid, token in tokens.items() if len(delivered.tokens) < len(tokens) else ():
            if rid not in delivered.aborted and all(rid != other for other, _ in delivered.tokens):
                text = f"token {token}, sampled in iteration {delivered.launched}, is not delivered"
                fail("INV-76", delivered, rid, text)

    def _named(self, moves: Moves) -> None:
        """Invariants 48 and 79: nobody moves whom no conclusion of these votes names, and nobody goes on who failed."""
        good, bad = self.concluded.get(moves.about, (set(), set()))
        for rid in moves.advanced:
            if rid in bad:
                text = f"it advances, although the conclusion of iteration {moves.about} says that it failed"
                fail("INV-48", moves, rid, text)
        for rids, named, how in ((moves.advanced, good, "advances"), (moves.failed, bad, "fails")):
            for rid in rids:
                if rid not in named:
                    text = f"it {how}, but no conclusion of the votes of iteration {moves.about} says so"
                    fail("INV-79", moves, rid, text)

    def _as_written(self, reads: Reads) -> None:
        """Invariant 78: what is read is what its writer wrote for it, and has not changed since."""
        written = self.written.get(reads.writer, {})
        due = written.get(reads.launched)
        if due is None or due == reads.content:
            return
        text = f"the {reads.what} of iteration {reads.launched} that it reads "
        others = [
            (abs(iteration - reads.launched), rank != reads.writer, rank, iteration)
            for rank, of_rank in self.written.items()
            for iteration, content in of_rank.items()
            if content == reads.content
        ]
        if others:
            _, _, rank, iteration = min(others)
            text += f"are those that rank {rank} wrote in iteration {iteration}"
        else:
            text += f"are not what rank {reads.writer} wrote, nor what any launch wrote: they were changed since"
        fail("INV-78", reads, reads.rid, text)

    def _flushed(self, answer: Answers) -> None:
        """INV-86: every rank has emptied its cache."""
        done = list(self.emptied.get(answer.rid, ()))
        missing = [rank for rank in range(self.num_ranks) if rank not in done]
        for rank in range(self.num_ranks) if not missing else ():
            done.remove(rank)  # an id may come twice
        self.emptied[answer.rid] = tuple(done)
        if missing:
            text = f"the flush is answered, but rank {missing[0]} has not emptied its cache"
            fail("INV-86", answer, answer.rid, text)


def fail(invariant: str, record: Record, rid: str, text: str) -> None:
    raise InvariantViolation(invariant, record.rank, record.iteration, record.slot, rid, text)


def refined(invariant: str, mine: object, other: object) -> str:
    """Same members in another order is the mark of an unordered container; a member more is an orphan.

    Empty: another batch, which lockstep names.
    """
    if not isinstance(mine, tuple) or not isinstance(other, tuple):
        return invariant
    if invariant == "INV-27" and [rid for rid, _ in mine] != [rid for rid, _ in other]:
        return ""
    if invariant == "INV-46":
        return refined_queues(mine, other)
    pairs = zip(mine, other) if invariant == "INV-15" else [(mine, other)] if invariant in ("INV-14", "INV-47") else ()
    return "INV-62" if any(a != b and sorted(a) == sorted(b) for a, b in pairs) else invariant


def refined_queues(mine: tuple[object, ...], other: tuple[object, ...]) -> str:
    for queue, first in zip(mine, other):
        assert isinstance(queue, tuple)
        assert isinstance(first, tuple)
        if queue != first and sorted(queue) == sorted(first):
            return "INV-62"
        if any(rid not in first for rid in queue):
            return "INV-51"
    return "INV-46"


def in_order(records: Mapping[int, Sequence[Record]]) -> Iterable[Record]:
    """Records of separate processes, by rank in the order in which it made them, as one: by iteration, then by rank.

    What a rank does in an iteration depends on what the ranks before it did in the same one, hardly ever on those
    behind it: so the first difference in this order is the one from which the others followed.
    """
    places = [(place.iteration, rank, nth) for rank, mine in records.items() for nth, place in enumerate(mine)]
    return (records[rank][nth] for _, rank, nth in sorted(places))
