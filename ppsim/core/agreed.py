"""Taint by type: a local observation cannot reach the scheduler until consensus wraps it.

``Local[T]`` is what one rank saw alone (a clock, a poll, a free-memory figure). ``Agreed[T]`` is what every rank has
in the same logical iteration. The scheduler takes only ``Agreed``, and only the functions that agree make one:

    origin                        who makes it
    start ring                    start.agree_on_start         capacities, before iteration 0
    grammar chain                 leader.agree_grammar         which grammars are ready, which failed
    tier chain                    tiers.take_in                acknowledgements and hit lengths of copies
    consensus store               ballots.agree_bootstrap    handshakes, by the minimum of all statuses
    NAME vote                     ballots.concluded          the conclusion of a ring vote
    metadata of the last chunk    ballots.apply_transferred  first tokens: every sender sent the same

Using a local value by accident is therefore a type error, and calling the class itself is refused when it runs.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_SEAL = object()


@dataclass(frozen=True, slots=True)
class Local(Generic[T_co]):
    """A fact that only ``rank`` has observed, in its own iteration ``iteration``."""

    value: T_co
    rank: int
    iteration: int


@dataclass(frozen=True, slots=True)
class Agreed(Generic[T_co]):
    """A fact that all ranks hold in the same logical iteration; ``origin`` names the channel that made it so.

    Raises TypeError where anything but ``agree`` makes one.
    """

    value: T_co
    origin: str
    seal: InitVar[object] = None

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError(
                f"Agreed({self.value!r}, {self.origin!r}) is made by hand: what the ranks agree on comes from the "
                "functions that agree (the table of ppsim.core.agreed), which call agree(value, origin)"
            )


def agree(value: T, origin: str) -> Agreed[T]:
    """For the functions of the table above: all ranks hold ``value`` in this iteration."""
    return Agreed(value, origin, _SEAL)
