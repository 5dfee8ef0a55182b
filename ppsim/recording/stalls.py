"""Visits that a rule left empty, or launched with nothing for a prompt: what a user of SGLang needs to hear.

Rule: only the core knows that it happened, and says so in its decisions; here it is counted and put into sentences.

    closed      batch_is_full with nothing running: nothing in the loop opens the slot again but a chunk that passes by
    deferred    prefill_decode_interval held a prefill up in a slot that had nothing to decode
    empty       a batch with a piece of 0 tokens: the decodes of a mixed batch used up the chunk budget
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ppsim.core.effects import CLOSED, DEFERRED, Decision
from ppsim.recording.record import Recording

MAX_CLOSINGS = 4  # sentences; the summary's JSON has all


@dataclass(slots=True)
class Closing:
    """A slot was closed in all of its visits from ``since`` to ``until``; ``is_open_again``: it was not at the end."""

    slot: int
    since: int
    until: int
    num_visits: int = 1
    is_open_again: bool = False

    def sentence(self) -> str:
        visits = f"{self.num_visits} visit{'' if self.num_visits == 1 else 's'}"
        if self.is_open_again:
            when = f"was closed from iteration {self.since} to {self.until} ({visits})"
        else:
            when = f"has been closed since iteration {self.since} ({visits})"
        return f"slot {self.slot} {when}: batch_is_full with nothing running"


@dataclass(frozen=True, slots=True)
class Stalls:
    """Of the first rank: in lockstep all others did the same."""

    closings: tuple[Closing, ...]
    num_deferred: int
    num_empty_pieces: int
    num_closings: int

    def sentences(self) -> list[str]:
        """One line each, for tables and pictures; none where nothing of this happened."""
        lines = [closing.sentence() for closing in self.closings[:MAX_CLOSINGS]]
        if self.num_closings > MAX_CLOSINGS:
            lines.append(f"slots were closed {self.num_closings - MAX_CLOSINGS} more times")
        if self.num_deferred:
            visits = "1 visit stayed" if self.num_deferred == 1 else f"{self.num_deferred} visits stayed"
            lines.append(f"{visits} empty: prefill_decode_interval defers a prefill where nothing is to be decoded too")
        if self.num_empty_pieces:
            pieces = "1 batch has" if self.num_empty_pieces == 1 else f"{self.num_empty_pieces} batches have"
            lines.append(f"{pieces} a piece of 0 tokens of a prompt: the decodes used up the chunk budget")
        return lines


class StallCounter:
    """Looks through the decisions of the first rank, one batch after the other.

    ``max_closings``: so many are named, the rest is counted; None: all are.
    """

    def __init__(self, max_closings: int | None = None) -> None:
        self.max_closings = max_closings
        self.closings: list[Closing] = []
        self.open_in: dict[int, Closing] = {}  # slot -> the closing that it is in
        self.num_closings = self.num_deferred = self.num_empty = 0

    def take(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self.num_deferred += decision.stall == DEFERRED
            if decision.mode != "decode":  # a row of a decode batch is a token
                self.num_empty += any(new_tokens == 0 for _, _, new_tokens in decision.pieces)
            closing = self.open_in.get(decision.slot)
            if decision.stall != CLOSED:
                if closing is not None:
                    closing.is_open_again = True
                    del self.open_in[decision.slot]
            elif closing is None:
                closing = self.open_in[decision.slot] = Closing(decision.slot, decision.iteration, decision.iteration)
                self.num_closings += 1
                if self.max_closings is None or self.num_closings <= self.max_closings:
                    self.closings.append(closing)
            else:
                closing.until = decision.iteration
                closing.num_visits += 1

    def found(self) -> Stalls:
        return Stalls(tuple(self.closings), self.num_deferred, self.num_empty, self.num_closings)


def stalls(recording: Recording) -> Stalls:
    """Of a whole recording."""
    counter = StallCounter()
    counter.take(recording.decisions[0])
    return counter.found()


def stalls_json(found: Stalls) -> dict[str, object]:
    """For ``summary.json``: the numbers, and the sentences that the table and the picture show."""
    return {
        "closed_slots": [
            {
                "slot": c.slot,
                "since_iteration": c.since,
                "until_iteration": c.until if c.is_open_again else None,
                "num_visits": c.num_visits,
            }
            for c in found.closings
        ],
        "num_deferred_visits": found.num_deferred,
        "num_empty_pieces": found.num_empty_pieces,
        "rules_told": found.sentences(),
    }
