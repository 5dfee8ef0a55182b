"""What a run has reached, counted from outside: a listener on the journal of one rank.

The core says what happened and counts nothing. Here it becomes the situations that probes ask for
(``coverage_probes.py``) and the arrows of the request table.
"""

from __future__ import annotations

from collections import Counter

from ppsim.core.schedule.journal import (
    AbortFound,
    ChunkCut,
    ChunkParked,
    DecodeHeldUp,
    Entry,
    Journal,
    Launched,
    NotTaken,
    PutBack,
    Retracted,
    Unfit,
    Why,
)
from ppsim.core.schedule.request import Event, Moved, State

NOT_TAKEN = {
    Why.FULL: "batch is full",
    Why.NO_ROW: "no free row",
    Why.NO_TOKEN: "no token",
    Why.STORAGE: "waits for storage",
    Why.NO_ROOM: "prealloc misfit",
}
AFTER = {Event.PUT_OUT: "retracted under votes", Event.RESUME: "resumed"}


class Coverage:
    """Of one rank. Hang it on the journal before the rank starts."""

    def __init__(self, journal: Journal) -> None:
        self.arrows: Counter[tuple[State, Event]] = Counter()
        self.situations: Counter[str] = Counter()
        journal.listeners.append(self.hear)

    def hear(self, entry: Entry | Moved) -> None:
        """Count an entry."""
        match entry:
            case Moved(_, before, event):
                self.arrows[before, event] += 1
                if event in AFTER:
                    self.situations[AFTER[event]] += 1
            case NotTaken(_, why):
                self.situations[NOT_TAKEN[why]] += 1
            case AbortFound():
                self.situations.update(situations_of(entry))
            case Launched(batch):
                pieces = zip(batch.forward.pieces, batch.requests, strict=True)
                if any(not piece.is_last_chunk and request.inflight_middle_chunks > 2 for piece, request in pieces):
                    self.situations["third chunk"] += 1
                if batch.forward.skip_output_comm:
                    self.situations["skipped output"] += 1
            case Retracted():
                self.situations["retracted"] += 1
            case Unfit():
                self.situations["unfit"] += 1
            case PutBack():
                self.situations["put back"] += 1
            case ChunkCut():
                self.situations["chunk cut by memory"] += 1
            case ChunkParked():
                self.situations["chunk parked"] += 1
            case DecodeHeldUp():
                self.situations["decode waits for a copy"] += 1


def situations_of(found: AbortFound) -> list[str]:
    """In which situations an abort found its request."""
    place = found.state.value
    if found.is_chunked:
        place = "chunked"
    elif found.state is State.PREFILL:
        place = "last chunk"
    situations = [f"abort {place} {'in flight' if found.num_inflight else 'at rest'}"]
    if found.is_marked:
        situations.append("abort twice")
    if found.num_inflight > 1:
        situations.append("abort several chunks in flight")
    if found.num_retractions:
        situations.append("abort after retraction")
    return situations
