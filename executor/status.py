"""What each rank is doing, in memory that the launcher can read even after the rank was killed.

cell 0   1 + place of the effect in ``EFFECTS``; 0 while the rank starts; -1 between two; less: see ``DOING``
cell 1   iteration, -1 before the first
cell 2   peer of a send or receive, else -1
cell 3   number of effects so far: it stands still where the rank does
cell 4   requests that got their terminal reply (first rank)
cell 5   of a receive: 1 + place of the awaited kind in ``KINDS``, else 0
cell 6   of a receive: iteration that the awaited message is of
cell 7   of a receive: place of its lane in ``LANES``

With a run folder the memory is that of a file in it (``ppsim.recording.standing``), so that it can be read even after
the launcher was killed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from ppsim.check.owed import Wait
from ppsim.core.config import RankConfig
from ppsim.core.effects import (
    Act,
    AwaitLocal,
    AwaitTokens,
    Commit,
    Decided,
    Drop,
    Effect,
    Harvested,
    Ingest,
    Launch,
    Observe,
    Recv,
    Reply,
    Send,
)
from ppsim.core.messages import Kind, Lane
from ppsim.core.outcome import Stand
from ppsim.recording.standing import make_standing, map_standing, stand

KINDS, LANES = tuple(Kind), tuple(Lane)
EFFECTS = (Ingest, Send, Recv, Commit, Drop, Launch, AwaitTokens, Observe, AwaitLocal, Act, Reply, Decided, Harvested)
CODE = {effect: 1 + place for place, effect in enumerate(EFFECTS)}
WAITING = (CODE[Recv], CODE[Commit])
STARTING, BETWEEN, OVER, LOADING, MEETING = 0, -1, -2, -3, -4
BEFORE_THE_LOOP = (STARTING, LOADING, MEETING)
DOING = {
    STARTING: "starting",
    LOADING: "loading its part of the model",
    MEETING: "meeting the other ranks",
    BETWEEN: "deciding",
    OVER: "done",
    CODE[Ingest]: "waiting for clients",
    CODE[Send]: "sending to rank {peer}",
    CODE[Recv]: "waiting for a message from rank {peer}",
    CODE[Commit]: "waiting for a send to be taken",
    CODE[Launch]: "running a forward pass",
    CODE[AwaitTokens]: "waiting for sampled tokens",
    CODE[AwaitLocal]: "waiting for a local fact",
    CODE[Drop]: "giving up a send",
    CODE[Observe]: "looking at what it alone can see",
    CODE[Act]: "asking its surroundings for something",
    CODE[Reply]: "answering a client",
    CODE[Decided]: "writing down a decision",
    CODE[Harvested]: "writing down a harvest",
}
NUM_CELLS = 8


class Status:
    """Cells of all ranks. One writer each, so no lock: a torn report is a matter of one effect.

    ``folder``: the run folder that keeps them; None: they are gone with the last process. ``num_slots``: of a rank.
    """

    def __init__(
        self, context: BaseContext, pp_size: int, folder: Path | None = None, num_slots: int | None = None
    ) -> None:
        self.pp_size, self.folder, self.num_slots = pp_size, folder, num_slots or pp_size
        self.asked = context.RawValue("b", 0)  # the launcher's only word: ranks that stand still report (``serve.py``)
        self.sends: dict[object, int] = {}  # of this process's rank: the peer of each send that is not over
        if folder is None:
            self.cells: Any = context.RawArray("q", NUM_CELLS * pp_size)
        else:
            make_standing(folder, pp_size, NUM_CELLS, self.num_slots, words())
            self.cells = map_standing(folder)
        for rank in range(pp_size):
            self.cells[rank * NUM_CELLS + 1] = -1  # before its first iteration

    def __getstate__(self) -> dict[str, Any]:
        """For another process: it maps the file itself."""
        return {**vars(self), "sends": {}, **({} if self.folder is None else {"cells": None})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.folder is not None:
            self.cells = map_standing(self.folder)

    def beat(self, rank: int, effect: Effect, iteration: int) -> None:
        """Rank ``rank`` is about to have ``effect`` answered."""
        at = rank * NUM_CELLS
        peer = effect.dst if isinstance(effect, Send) else effect.src if isinstance(effect, Recv) else -1
        if isinstance(effect, Commit):
            peer = self.sends.pop(effect.work, -1)
        self.cells[at : at + 4] = CODE[type(effect)], iteration, peer, self.cells[at + 3] + 1
        if isinstance(effect, Recv) and effect.kind is not None and effect.iteration is not None:
            self.cells[at + 5 : at + 8] = 1 + KINDS.index(effect.kind), effect.iteration, LANES.index(effect.lane)
        else:
            self.cells[at + 5] = 0

    def sent(self, work: object, dst: int) -> None:
        """A send of this process's rank is under way: whoever commits it waits for that peer."""
        self.sends[work] = dst

    def begins(self, rank: int, what: int) -> None:
        """The rank is about to do ``what``: one of ``BEFORE_THE_LOOP``."""
        self.cells[rank * NUM_CELLS] = what

    def over(self, rank: int) -> None:
        """The rank has ended by itself, in order."""
        self.cells[rank * NUM_CELLS] = OVER

    def answered(self, rank: int) -> None:
        """The rank has its reply, and decides what to ask next."""
        self.cells[rank * NUM_CELLS] = BETWEEN

    def ended(self, num_requests: int) -> None:
        self.cells[4] = num_requests

    @property
    def num_ended(self) -> int:
        return int(self.cells[4])

    def counts(self) -> Sequence[int]:
        """Effects so far, of each rank."""
        return [self.cells[rank * NUM_CELLS + 3] for rank in range(self.pp_size)]

    def iteration(self, rank: int) -> int:
        """The iteration of a rank, -1 before the first."""
        return int(self.cells[rank * NUM_CELLS + 1])

    def waits(self, configs: Sequence[RankConfig]) -> list[Wait]:
        """What each rank that stands in a receive waits for, and where the sender of that is."""
        found: list[Wait] = []
        for rank in range(self.pp_size):
            code, _, src, _, _, kind, of, lane = self.cells[rank * NUM_CELLS : (rank + 1) * NUM_CELLS]
            if code == CODE[Recv] and kind and self.cells[src * NUM_CELLS] != OVER:  # who has ended owes nothing more
                slot = of % configs[src].num_slots
                what = (LANES[lane], KINDS[kind - 1], of, slot, configs[src], self.iteration(src))
                found.append(Wait(rank, "", src, *what))
        return found

    def stands(self) -> list[Stand]:
        """Where each rank stands."""
        known = words()
        rows = [self.cells[rank * NUM_CELLS : rank * NUM_CELLS + 3] for rank in range(self.pp_size)]
        return [stand(rank, list(row), known, self.num_slots) for rank, row in enumerate(rows)]

    def all_wait(self) -> bool:
        """Every rank waits for another one."""
        return all(self.cells[rank * NUM_CELLS] in WAITING for rank in range(self.pp_size))

    def describe(self, rank: int) -> str:
        """For a sentence: "waiting for a message from rank 1 in iteration 7"."""
        code, iteration, peer, *_ = self.cells[rank * NUM_CELLS : (rank + 1) * NUM_CELLS]
        doing = DOING[code].format(peer=peer)
        return doing if iteration < 0 or code == STARTING else f"{doing} in iteration {iteration}"


def words() -> dict[int, tuple[str, bool]]:
    """By code: what a rank does, and whether it waits for the peer in its cell."""
    return {code: (text, code in WAITING) for code, text in DOING.items()}
