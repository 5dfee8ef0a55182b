"""KV between two servers is held against the ranges that were written, not against the word "last".

    INV-74   what a prefill rank sends of a request covers [0, prompt) once, without gap or overlap
    INV-75   what a decode server computes on was written by the other side, on the pages that it was told of

Ranges are looked at twice: when a rank asks for a write, which any world can see, and when the write is there, which
only a world with both servers knows (``Seat.landed``, ``ppsim/world/pair/transfers.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ppsim.check.observers import Seat
from ppsim.core import effects as fx
from ppsim.core.actions import SendChunk, SendLast, SendMetadata
from ppsim.core.errors import InvariantViolation
from ppsim.core.observations import FirstTokens
from ppsim.core.schedule.request import Request

Range: TypeAlias = tuple[int, int]
"""Tokens [start, stop)."""
SENDS = (SendChunk, SendLast)


@dataclass(slots=True)
class Life:
    """One life of an id on one rank: what was asked for (prefill side), or which pages were given (decode side)."""

    arrived: int
    ranges: list[Range] = field(default_factory=list)
    num_launched: int = 0  # tokens of its prompt, as far as its latest launch goes
    is_over: bool = False  # the last write is asked for
    pages: tuple[int, ...] = ()
    is_complete: bool = False  # what it computes on has been looked at


class TransferRules:
    """Of the ranks of one process."""

    def __init__(self) -> None:
        self.lives: dict[tuple[int, str], Life] = {}

    def watch(self, r: Seat) -> None:
        """Hang it on a rank of either role."""
        if r.rank.config.role == "prefill":
            r.observers.before(lambda effect: self.acts(r, effect), fx.Act)
            r.observers.before(lambda effect: self.computes(r, effect), fx.Launch)
        elif r.rank.config.role == "decode":
            r.observers.before(lambda effect: self.gives_pages(r, effect), fx.Act)
            r.observers.before(lambda effect: self.commits(r, effect), fx.Observe)
            r.observers.before(lambda effect: self.launches(r, effect), fx.Launch)

    def ended(self, rank: int, rids: Iterable[str]) -> None:
        """Requests that have ended on a rank."""
        for rid in rids:
            self.lives.pop((rank, rid), None)

    # --- prefill side: INV-74 ----------------------------------------------------------------------------------

    def acts(self, r: Seat, act: fx.Act) -> None:
        """A write is asked for: it must be of this request's computed prompt, and of nothing that was sent before."""
        action = act.action
        if not isinstance(action, SENDS):
            return
        rid, start, stop = action.rid, action.start, action.stop
        text = colon((start, stop))
        request = r.rank.scheduler.requests.get(rid)
        if request is None:
            raise violation("INV-74", r, rid, f"KV of tokens {text} is to be sent, but there is no such request here")
        life = self._life(r, request)
        wrong = "" if 0 <= start <= stop else "which is no range"
        if not wrong and stop > request.prompt_len:
            wrong = f"but its prompt ends at {request.prompt_len}"
        if not wrong and stop > life.num_launched:
            wrong = f"but only {life.num_launched} tokens of it are launched"
        if not wrong and life.is_over:
            wrong = "behind the write that was called the last one"
        if wrong:
            raise violation("INV-74", r, rid, f"KV of tokens {text} is to be sent, {wrong}")
        life.ranges.append((start, stop))
        life.is_over = isinstance(action, SendLast)
        missing = not_covered_once(life.ranges, request.prompt_len if life.is_over else None)
        if missing:
            raise violation("INV-74", r, rid, f"with its write of tokens {text} {missing}")

    def computes(self, r: Seat, launch: fx.Launch) -> None:
        """What is launched may be sent."""
        for piece in launch.batch.pieces:
            request = r.rank.scheduler.requests.get(piece.rid)
            if request is not None:
                self._life(r, request).num_launched = piece.prefix_len + piece.new_tokens

    # --- decode side: INV-75 -----------------------------------------------------------------------------------

    def gives_pages(self, r: Seat, act: fx.Act) -> None:
        """The senders are told where to write: from now on these are the pages of the prompt."""
        if not isinstance(act.action, SendMetadata):
            return
        request = r.rank.scheduler.requests.get(act.action.rid)
        if request is not None:
            self._life(r, request).pages = tuple(request.pages[: pages_of(r, request)])

    def commits(self, r: Seat, look: fx.Observe) -> None:
        """The first token is taken from the metadata of the last write: all that came before it must be there."""
        if isinstance(look.observation, FirstTokens):
            for rid in look.observation.keys:
                self._has_come(r, rid)

    def launches(self, r: Seat, launch: fx.Launch) -> None:
        """A decode server computes no prompt: what its launches read was written by the other side."""
        for piece in launch.batch.pieces:
            self._has_come(r, piece.rid)

    def _has_come(self, r: Seat, rid: str) -> None:
        """Once a life: what landed covers the prompt, and lies where this rank reads."""
        request = r.rank.scheduler.requests.get(rid)
        if request is None:
            return
        life = self._life(r, request)
        if life.is_complete:
            return
        life.is_complete = True
        for sender, ranges in r.landed(rid) or ():
            missing = not_covered_once(ranges, request.prompt_len)
            if missing:
                raise violation(
                    "INV-75", r, rid, f"it is computed on, but of what prefill rank {sender} wrote {missing}"
                )
        now = tuple(request.pages[: pages_of(r, request)])
        if now != life.pages and not request.num_retractions:
            text = f"it is computed on pages {now[:8]}, but the senders were given {life.pages[:8]}"
            raise violation("INV-75", r, rid, text)

    def _life(self, r: Seat, request: Request) -> Life:
        key = (r.rank_id, request.rid)
        life = self.lives.get(key)
        if life is None or life.arrived != request.arrived:
            life = self.lives[key] = Life(request.arrived)
        return life


def not_covered_once(ranges: Sequence[Range], num_tokens: int | None) -> str:
    """What is wrong with writes that should cover [0, num_tokens) once; empty if nothing. None: more are to come.

    The order in which they were made does not count.
    """
    reached, last = 0, (0, 0)
    for start, stop in sorted(part for part in ranges if part[0] < part[1]):
        if start < reached:
            return (
                f"tokens {start}:{min(stop, reached)} are there twice, in {colon(last)} and in {colon((start, stop))}"
            )
        if start > reached and num_tokens is not None:
            return f"tokens {reached}:{start} are missing, of {num_tokens} of the prompt"
        reached, last = stop, (start, stop)
    if num_tokens is None or reached == num_tokens:
        return ""
    if reached < num_tokens:
        return f"tokens {reached}:{num_tokens} are missing, of {num_tokens} of the prompt"
    return f"tokens {num_tokens}:{reached} lie behind the prompt of {num_tokens}"


def colon(part: Range) -> str:
    return f"{part[0]}:{part[1]}"


def pages_of(r: Seat, request: Request) -> int:
    """Pages of a prompt."""
    return -(-request.prompt_len // r.rank.config.page_size)


def violation(rule: str, r: Seat, rid: str, text: str) -> InvariantViolation:
    return InvariantViolation(rule, r.rank_id, r.rank.iteration, r.rank.slot, rid, text)
