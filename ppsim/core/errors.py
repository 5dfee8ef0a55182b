"""What a rank says when the rules are broken. Fail-stop: no rank goes on after one of these.

All fields are positional, so that an error survives being rebuilt from ``.args`` (design decision 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppsim.core.messages import CallLog


class CoreError(Exception):
    """Base of the errors that the replicated scheduler raises."""


class ProtocolError(CoreError):
    """A message came that the protocol does not allow here. ``blame`` names the side that broke the rule.

    ``invariant`` is the rule that is broken; 31 says no more than that a message is not the one that is due.
    """

    def __init__(
        self,
        rank: int,
        iteration: int,
        slot: int,
        expected: str,
        came: str,
        blame: str,
        invariant: str = "INV-31",
        rid: str = "",
    ) -> None:
        super().__init__(rank, iteration, slot, expected, came, blame, invariant, rid)
        self.rank, self.iteration, self.slot = rank, iteration, slot
        self.expected, self.came, self.blame = expected, came, blame
        self.invariant, self.rid = invariant, rid

    def __str__(self) -> str:
        return (
            f"rank {self.rank}, iteration {self.iteration}, slot {self.slot}: expected {self.expected}, "
            f"got {self.came}; {self.blame}"
        )


class InvariantViolation(CoreError):
    """A numbered invariant does not hold (``ppsim.check.invariants``).

    ``detail`` says it all; ``expected`` and ``came`` are the two sides of it where they can be told apart, ``phase``
    is where the rank stood if whoever looked knows it.
    """

    def __init__(
        self,
        invariant: str,
        rank: int,
        iteration: int,
        slot: int,
        rid: str,
        detail: str,
        phase: str = "",
        expected: str = "",
        came: str = "",
    ) -> None:
        super().__init__(invariant, rank, iteration, slot, rid, detail, phase, expected, came)
        self.invariant, self.rank, self.iteration = invariant, rank, iteration
        self.slot, self.rid, self.detail = slot, rid, detail
        self.phase, self.expected, self.came = phase, expected, came

    def __str__(self) -> str:
        about = f", request {self.rid}" if self.rid else ""
        return (
            f"{self.invariant} at rank {self.rank}, iteration {self.iteration}, slot {self.slot}{about}: {self.detail}"
        )


class CallsDiffer(CoreError):
    """The last stage's rank consensus checker has compared a window of calls, and the digests differ.

    ``logs`` are those that came, one for each distinct digest; ``ppsim.check.calls`` names the first call that differs.
    """

    def __init__(self, rank: int, iteration: int, slot: int, logs: tuple[CallLog, ...]) -> None:
        super().__init__(rank, iteration, slot, logs)
        self.rank, self.iteration, self.slot, self.logs = rank, iteration, slot, logs

    def __str__(self) -> str:
        return f"rank {self.rank}, iteration {self.iteration}, slot {self.slot}: the calls of the ranks differ"


class PoolError(CoreError):
    """The KV pool was asked for something that its owner count forbids."""


class TransitionError(CoreError):
    """A request was told to do what its state does not allow."""
