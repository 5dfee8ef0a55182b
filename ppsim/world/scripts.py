"""What a rank does in an iteration, as a list of words: learnt from the phases themselves, once for each shape.

Rule: no order of phases stands here. Which effects an iteration has, and in which order, follows from the place of the
rank in the pipeline and from which of a few visits launched a batch: this one, the one before, and those whose outputs
are harvested, released or passed on in it. For each such shape the real phases of a rank (``core/loop.py``) are run
once over a history of that shape, with a scheduler that only plays it, and what they ask is written down.

    word             effect                                     word             effect
    take_list        Recv of the request list                   launch           Launch
    commit_list      Commit of the list sent before             commit_output    Commit of the output sent before
    send_list        Send of it                                 send_output      Send
    decide           Decided, of a batch                        take_output      Recv
    decide_nothing   Decided, of an empty visit                 await_tokens     AwaitTokens
    take_hidden      Recv of hidden states                      harvest          Harvested, of a batch
    commit_hidden    Commit of those sent before                send_hidden      Send
    tell_decided, tell_harvested   first rank: what the scheduler has to say to clients behind each of the two
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ppsim.core.config import RankConfig
from ppsim.core.effects import (
    AwaitTokens,
    Commit,
    Decided,
    Decision,
    Effect,
    Harvest,
    Harvested,
    Ingest,
    Launch,
    Recv,
    Reply,
    Send,
)
from ppsim.core.messages import Hidden, Kind, Meta, NewRequest, Output
from ppsim.core.parts import build_rank
from ppsim.core.rank import Rank
from ppsim.core.schedule.batch import ForwardBatch, Mode
from ppsim.core.schedule.journal import Journal
from ppsim.core.schedule.slots import LaunchedBatch, SlotRing

NOTHING, BATCH, SILENT = 0, 1, 2
"""What a visit launched: no batch, one, or one whose output nobody is sent (a pure middle chunk)."""

Shape: TypeAlias = tuple[int, ...]
"""What the visits at ``looks_back`` launched, in that order."""

NAMES = {Kind.META: "list", Kind.HIDDEN: "hidden", Kind.OUTPUT: "output"}


class Unscripted(Exception):
    """The phases ask for something that has no word here."""


class Script(NamedTuple):
    """Up to the first wait for an output, which may come of another rank's same wave, and from there on."""

    head: tuple[str, ...]
    tail: tuple[str, ...]


def looks_back(config: RankConfig) -> tuple[int, ...]:
    """Which visits an iteration's messages are about, as distances: its own batch and the last one, what is harvested
    in it, what is passed on (and was, one iteration before), what the last rank releases (and did)."""
    ring, depth = config.num_slots, config.pp_async_batch_depth
    return tuple(dict.fromkeys((0, 1, ring - 1, ring, ring + 1, depth, depth + 1)))


@dataclass
class Scripts:
    """Of one rank. ``output_age``: by word, how many iterations ago the batch of an output was launched."""

    config: RankConfig
    known: dict[Shape, Script] = field(default_factory=dict)
    output_age: dict[str, int] = field(default_factory=dict)

    def script(self, shape: Shape) -> Script:
        """Learnt when it is first asked for."""
        found = self.known.get(shape)
        if found is None:
            found = self.known[shape] = self._learn(shape)
        return found

    def _learn(self, shape: Shape) -> Script:
        """Run the phases over a history in which only visits of the shape launched anything; the last one counts."""
        last = self.config.num_slots + 2
        launches = {last - back: what for back, what in zip(looks_back(self.config), shape, strict=True)}
        rank = build_rank(self.config)
        played = Played(rank.journal, SlotRing(self.config.pp_size, self.config.pp_async_batch_depth), launches)
        rank.started = rank.scheduler = played  # type: ignore[assignment]
        words: list[str] = []
        for rank.iteration in range(last + 1):
            words = self._iteration(rank)
        cut = words.index("take_output") if "take_output" in words else len(words)
        return Script(tuple(words[:cut]), tuple(words[cut:]))

    def _iteration(self, rank: Rank) -> list[str]:
        words: list[str] = []
        for phase in rank.plan:
            effects, reply = phase(rank), None
            while True:
                try:
                    effect = effects.send(reply)
                except StopIteration:
                    break
                word, reply = self._word(rank, effect)
                words += [word] if word else []
        rank.journal.flush()
        return words

    def _word(self, rank: Rank, effect: Effect) -> tuple[str, Any]:
        """The word of an effect ("": it takes no time here), and a reply with which the phase goes on."""
        match effect:
            case Ingest():
                return "", ()
            case Recv(_, _, kind, iteration, slot) if kind in NAMES:
                came = message(rank, kind, iteration or 0, slot or 0)
                return self._aged(f"take_{NAMES[kind]}", rank, came.iteration), came
            case Send(_, sent) if sent.kind in NAMES:
                return self._aged(f"send_{NAMES[sent.kind]}", rank, sent.iteration), NAMES[sent.kind]
            case Commit(work):
                return f"commit_{work}", None
            case Decided(decision):
                return "decide" if decision.pieces else "decide_nothing", None
            case Launch():
                return "launch", None
            case AwaitTokens(output):
                return self._aged("await_tokens", rank, output.iteration), (0,)
            case Harvested(record):
                return "harvest" if record.harvested is not None else "", None
            case Reply(rid):
                return rid, None
        raise Unscripted(f"{type(effect).__name__} of rank {rank.link.rank_id}")

    def _aged(self, word: str, rank: Rank, launched: int) -> str:
        """An output's age is the same in every shape; all else is about the iteration itself."""
        age = rank.iteration - launched
        if "output" in word or word == "await_tokens":
            if self.output_age.setdefault(word, age) != age:
                raise Unscripted(f"{word} of outputs of {age} and {self.output_age[word]} iterations")
        elif age:
            raise Unscripted(f"{word} of another iteration")
        return word


def message(rank: Rank, kind: Kind, iteration: int, slot: int) -> Meta | Hidden | Output:
    """A message as the one before sends it: every batch is one token of one request."""
    if kind is Kind.META:
        return Meta(rank.link.prev, iteration, slot, ())
    if kind is Kind.HIDDEN:
        return Hidden(rank.link.prev, iteration, slot, 1, num_layers=rank.first_layer)
    return Output(rank.link.prev, iteration, slot, 1)


@dataclass
class NoTiers:
    """A cache without a host tier."""

    tiers: None = None


class Player(NamedTuple):
    """A request as far as a batch shows it."""

    rid: str = "played"
    spec: NewRequest = NewRequest("played", b"", 1)


@dataclass
class Played:
    """A scheduler that launches what a history says, one request and token each."""

    journal: Journal
    slots: SlotRing
    launches: dict[int, int]
    iteration: int = 0
    fully_idle: bool = False
    grammar_queue: tuple[()] = ()
    kv: NoTiers = field(default_factory=NoTiers)

    def apply(self, inputs: object) -> None:
        """Nothing comes."""

    def on_idle(self) -> None:
        """Nothing is kept."""

    def schedule(self, iteration: int) -> tuple[LaunchedBatch | None, Decision]:
        slot, what = self.slots.current(iteration), self.launches.get(iteration, NOTHING)
        batch = None
        if what:
            forward = ForwardBatch(iteration, slot.index, Mode.EXTEND, (), 1, False, skip_output_comm=what == SILENT)
            batch = LaunchedBatch(forward, (Player(),), None)  # type: ignore[arg-type]
        slot.launched, slot.in_flight = batch, batch is not None
        self.journal.add(Reply("tell_decided", "token"))
        pieces = (("played", 0, 1),) if what else ()
        return batch, Decision(iteration, slot.index, "extend", pieces, (), None, "")

    def absorb(self, iteration: int, token_ids: tuple[int, ...] | None) -> None:
        self.slots.to_harvest(iteration).in_flight = False

    def harvest(self, iteration: int) -> Harvest:
        slot = self.slots.to_harvest(iteration)
        was = slot.launched.iteration if slot.launched is not None else None
        self.journal.add(Reply("tell_harvested", "token"))
        return Harvest(iteration, slot.index, was, (), (), (), 0, 0)
