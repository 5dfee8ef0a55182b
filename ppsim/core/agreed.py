"""Taint by type: a local observation cannot reach the scheduler until consensus wraps it.

``Local[T]`` is what one rank saw alone (a clock, a poll, a free-memory figure). ``Agreed[T]`` is what every rank has
in the same logical iteration. The scheduler takes only ``Agreed``; only ``channels.py`` (replicated inputs) and
``consensus.py`` (votes, leader chain) make one. Using a local value by accident is therefore a type error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Local(Generic[T_co]):
    """A fact that only ``rank`` has observed, in its own iteration ``iteration``."""

    value: T_co
    rank: int
    iteration: int


@dataclass(frozen=True, slots=True)
class Agreed(Generic[T_co]):
    """A fact that all ranks hold in the same logical iteration; ``origin`` names the channel that made it so."""

    value: T_co
    origin: str
