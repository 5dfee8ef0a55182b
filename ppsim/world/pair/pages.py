"""No KV page goes back to its pool while a transfer may still read or write it (invariants 52, 64; bugs.md I10, B33).

    prefill rank   a page that a write covers may be freed only when that write is over
    decode rank    a page that was given to the senders may be freed only when the receiver has reached its end

The pools report every page that becomes free; a write to pages that were given back is caught when it begins or lands
(``pair/transfers.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ppsim.core.errors import InvariantViolation
from ppsim.world.pair.ends import Progress, Receiver, Write
from ppsim.world.pair.transfers import Transfers
from ppsim.world.run_setting import SimulatedSeat


@dataclass(slots=True)
class PageGuard:
    """The pages of one rank that transfers use."""

    r: SimulatedSeat
    transfers: Transfers
    writes: dict[int, list[Write]] = field(default_factory=dict)  # by page; prefill side
    receivers: dict[int, Receiver] = field(default_factory=dict)  # by page; decode side

    def reads(self, write: Write) -> None:
        """A write of this rank will read its pages."""
        for page in write.pages:
            mine = [w for w in self.writes.get(page, ()) if w.progress is not Progress.OVER]
            self.writes[page] = [*mine, write]

    def receives(self, receiver: Receiver, pages: list[int]) -> None:
        """Senders were told to write to these pages."""
        for page in pages:
            self.receivers[page] = receiver

    def freed(self, page: int) -> None:
        """The pool has the page back. Raises InvariantViolation if that is too early."""
        for write in self.writes.pop(page, ()):
            if write.progress is not Progress.OVER and not self._is_dropped(write):
                text = f"write {write.nth} of its KV (tokens {write.start}:{write.stop}) is {write.progress.value}"
                raise self._too_early(page, write.rid, text)
        receiver = self.receivers.pop(page, None)
        if receiver is None:
            return
        if not receiver.is_terminal:
            raise self._too_early(page, receiver.rid, "a sender may still write to it")
        if receiver.freed_ns is None:
            receiver.freed_ns = self.r.now

    def _is_dropped(self, write: Write) -> bool:
        """It was asked for after its sender had reached its end."""
        return write.progress is Progress.ASKED and self.transfers.sender(write.rank, write.room).is_terminal

    def _too_early(self, page: int, rid: str, why: str) -> InvariantViolation:
        rank = self.r.rank
        text = f"page {page} goes back to the pool at {self.r.now} ns, but {why}"
        return InvariantViolation("INV-52", self.r.rank_id, rank.iteration, rank.slot, rid, text)
