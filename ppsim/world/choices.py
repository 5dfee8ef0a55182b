"""The one place where chance enters: every nondeterministic draw of the world asks a ``Choices`` object.

A choice is an integer in [0, n). 0 means "first in order" or "nothing unusual". Streams are named, and a name that
belongs to a rank or a link carries its number: then neither a new draw elsewhere nor the order in which the simulator
runs the ranks can shift what a stream returns (design decision 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol


class Choices(Protocol):
    """Seeded, recorded, replayed or exhaustive: all are implementations of this."""

    def below(self, stream: str, n: int) -> int:
        """An integer in [0, n) from a named stream; n is at least 1."""
        ...


class FirstChoice:
    """Always 0: first in order, nothing unusual."""

    def below(self, stream: str, n: int) -> int:
        return 0


class SeededChoices:
    """Independent random streams of one seed, by counting: draw i of a stream is a hash of (seed, stream, i).

    The order of equal events is first come, first served unless ``shuffle_order``: the result is the same (a test
    shuffles and compares), and a draw for each event costs time.
    """

    def __init__(self, seed: int, *, shuffle_order: bool = False) -> None:
        self.seed = seed
        self.shuffle_order = shuffle_order
        self._drawn: dict[str, int] = {}

    def below(self, stream: str, n: int) -> int:
        if stream == "order" and not self.shuffle_order:
            return 0
        index = self._drawn.get(stream, 0)
        self._drawn[stream] = index + 1
        if n <= 1:
            return 0
        text = f"{self.seed}/{stream}/{index}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") % n


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
