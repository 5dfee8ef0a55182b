"""Implementations of ``Choices`` for the simulated world: replay, recording, few preemptions, all of them.

The protocol and the seeded streams are in ``ppsim.workload.choices``, for both worlds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.workload.choices import Choices, FirstChoice, SeededChoices

__all__ = [
    "Choices",
    "ExhaustiveChoices",
    "FirstChoice",
    "PctChoices",
    "RecordingChoices",
    "SeededChoices",
    "TapeChoices",
    "same_again",
]


class TapeChoices:
    """Replay: the choices of a recorded tape in order, 0 ("first in order") when it runs out.

    A value that is too large for what is asked is taken modulo n, so a shortened or edited tape is always valid.
    """

    def __init__(self, tape: Sequence[int]) -> None:
        self.tape = tape
        self.position = 0

    def below(self, stream: str, n: int) -> int:
        if self.position >= len(self.tape):
            return 0
        value = self.tape[self.position]
        self.position += 1
        return value % n


class RecordingChoices:
    """Passes every question on and keeps the answers: ``tape`` replays the run, ``asked`` says what was asked."""

    def __init__(self, inner: Choices) -> None:
        self.inner = inner
        self.tape: list[int] = []
        self.asked: list[tuple[str, int]] = []

    def below(self, stream: str, n: int) -> int:
        value = self.inner.below(stream, n)
        self.tape.append(value)
        self.asked.append((stream, n))
        return value


class PctChoices:
    """Few preemptions first (probabilistic concurrency testing): almost always 0, with ``depth`` deviations.

    The deviations fall on positions drawn from the seed among the first ``horizon`` questions. Most concurrency bugs
    need only one or two of them, so a small depth finds them with fewer runs than uniform choices.
    """

    def __init__(self, seed: int, depth: int, horizon: int) -> None:
        self.again = (seed, depth, horizon)
        draws = SeededChoices(seed)
        self.deviations = {draws.below("pct position", max(1, horizon)) for _ in range(depth)}
        self.draws = draws
        self.position = -1

    def below(self, stream: str, n: int) -> int:
        self.position += 1
        if self.position not in self.deviations or n < 2:
            return 0
        return 1 + self.draws.below(f"pct {stream}", n - 1)


class ExhaustiveChoices:
    """Depth-first over all tapes: run, call ``advance``, run again, until it returns False.

    Streams in ``fixed`` always answer 0: their order is equivalent (design decision 11) and need not be explored.
    """

    def __init__(self, fixed: tuple[str, ...] = ("order",)) -> None:
        self.fixed = fixed
        self.path: list[list[int]] = []  # [value, n] of each question on the current branch
        self.position = 0

    def below(self, stream: str, n: int) -> int:
        if n < 2 or stream in self.fixed:
            return 0
        if self.position == len(self.path):
            self.path.append([0, n])
        value = self.path[self.position][0]
        self.position += 1
        return value

    def advance(self) -> bool:
        """Go to the next unexplored branch; False if there is none."""
        del self.path[self.position :]
        self.position = 0
        while self.path and self.path[-1][0] + 1 >= self.path[-1][1]:
            self.path.pop()
        if not self.path:
            return False
        self.path[-1][0] += 1
        return True

    @property
    def tape(self) -> list[int]:
        """The choices of the current branch."""
        return [value for value, _ in self.path]


def same_again(choices: Choices) -> Choices | None:
    """Choices that answer a second run as these have answered the first; None for kinds that are not known here."""
    match choices:
        case SeededChoices():
            return SeededChoices(choices.seed, shuffle_order=choices.shuffle_order)
        case RecordingChoices() | TapeChoices():
            return TapeChoices(tuple(choices.tape))
        case PctChoices():
            return PctChoices(*choices.again)
        case FirstChoice():
            return choices
        case ExhaustiveChoices():
            again = ExhaustiveChoices(choices.fixed)
            again.path = [list(entry) for entry in choices.path]
            return again
    return None
