"""Where a generated experiment gets its numbers from: a seed of its own, or Hypothesis in a user's own test.

Rule: the generator asks for numbers below a bound, one after the other, and for nothing else. So one generator serves
both: a campaign, whose examples are functions of (profile, seed, number) in any process and under any version of
Hypothesis, and ``@given``, where Hypothesis chooses the numbers, keeps what failed, and shrinks it towards 0.

Every value is drawn with equal chance, and each by itself. Hypothesis on its own would like constants that it finds in
loaded modules, and make most examples from the one before by copying values: ranks would see a fact in the same
iteration nearly always.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

T = TypeVar("T")


class Draws(ABC):
    """What the generator asks. The first value of a sequence and the least number are the simplest."""

    @abstractmethod
    def below(self, n: int) -> int:
        """A number in [0, n), each with the same chance; n is at least 1."""

    def number(self, least: int, most: int) -> int:
        """From ``least`` to ``most``, both included."""
        return least + self.below(most - least + 1)

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def flag(self) -> bool:
        return bool(self.below(2))

    def some(self, values: Sequence[T], least: int, most: int) -> list[T]:
        """From ``least`` to ``most`` different ones of the values, in the order in which they were drawn."""
        left, found = list(values), []
        for _ in range(self.number(least, most)):
            found.append(left.pop(self.below(len(left))))
        return found


class SeededDraws(Draws):
    """Of one seed. Python promises the same ``random()`` of the same seed in every version, and nothing else of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random

    def below(self, n: int) -> int:
        return int(self.random() * n)


class HypothesisDraws(Draws):
    """Of a test that runs under ``@given``: ``draw`` is what ``hypothesis.strategies.composite`` gives."""

    def __init__(self, draw: DrawFn) -> None:
        from hypothesis.strategies import sampled_from  # not before somebody uses it: it takes a while to load

        self.draw, self.sampled_from = draw, sampled_from

    def below(self, n: int) -> int:
        return self.draw(self.sampled_from(range(n))) if n > 1 else 0
