"""The seam of chance: whatever is not determined asks a ``Choices`` object, in both worlds.

A choice is an integer in [0, n). 0 means "first in order" or "nothing unusual". Streams are named, and a name that
belongs to a rank or a link carries its number: then neither a new draw elsewhere nor the order in which the ranks
happen to run can shift what a stream returns (design decision 6). More implementations are in ``ppsim.world.choices``.
"""

from __future__ import annotations

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
