"""Systems of max-plus equations in integer nanoseconds: each unknown is a maximum of others plus constants.

    x = max(a + 3, b, c + 10)        an unknown without terms is 0, the beginning of the run

A system has one least solution, or none: unknowns that wait for each other in a circle. Of programs that send and
receive in a fixed order such a circle is a deadlock. There is no clock and no queue of events here, so the order in
which a program would be run cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Name: TypeAlias = tuple[int, int, str]
"""(rank, iteration or batch, operation)"""

Term: TypeAlias = "Name | tuple[Name, int]"
"""An unknown, or an unknown and what is added to it."""


class Deadlock(Exception):
    """Unknowns that wait for each other. ``cycle``: each waits for the next, the last one for the first; ``values``:
    what has a time all the same."""

    def __init__(self, cycle: tuple[Name, ...], values: dict[Name, int]) -> None:
        super().__init__(cycle, values)
        self.cycle, self.values = cycle, values

    def __str__(self) -> str:
        return "no time satisfies: " + " <- ".join(f"rank {k} {what} {i}" for k, i, what in self.cycle)


class NoEquation(Exception):
    """Something waits for an operation that nobody does: a message that is received and never sent."""

    def __init__(self, waiting: Name, missing: Name) -> None:
        super().__init__(waiting, missing)
        self.waiting, self.missing = waiting, missing

    def __str__(self) -> str:
        return f"{self.waiting} waits for {self.missing}, which has no equation"


@dataclass(slots=True)
class Equations:
    """Equations by the unknown on their left side."""

    terms: dict[Name, tuple[tuple[Name, int], ...]] = field(default_factory=dict)

    def put(self, name: Name, *terms: Term | None) -> Name:
        """Add ``name = max(terms)``; a term that is None is left out. Raises ValueError for a second equation."""
        if name in self.terms:
            raise ValueError(f"{name} has two equations")
        self.terms[name] = tuple(_pair(term) for term in terms if term is not None)
        return name

    def solve(self) -> dict[Name, int]:
        """The least solution. Raises Deadlock or NoEquation."""
        waits: dict[Name, int] = {}
        followers: dict[Name, list[Name]] = {}
        for name, terms in self.terms.items():
            waits[name] = len(terms)
            for other, _ in terms:
                if other not in self.terms:
                    raise NoEquation(name, other)
                followers.setdefault(other, []).append(name)
        ready = [name for name, count in waits.items() if not count]
        values: dict[Name, int] = {}
        while ready:
            name = ready.pop()
            values[name] = max((values[other] + ns for other, ns in self.terms[name]), default=0)
            for follower in followers.get(name, ()):
                waits[follower] -= 1
                if not waits[follower]:
                    ready.append(follower)
        if len(values) < len(self.terms):
            raise Deadlock(tuple(self._cycle(values)), values)
        return values

    def _cycle(self, solved: dict[Name, int]) -> Iterator[Name]:
        """An unsolved unknown waits for an unsolved one, and so on until one comes again."""
        name = min(name for name in self.terms if name not in solved)
        path: dict[Name, None] = {}
        while name not in path:
            path[name] = None
            name = next(other for other, _ in self.terms[name] if other not in solved)
        names = list(path)
        yield from names[names.index(name) :]

    def reasons(self, values: dict[Name, int], name: Name, length: int = 12) -> list[str]:
        """Why an unknown is as late as it is: the chain of terms that decide it, latest first."""
        found: list[str] = []
        while len(found) < length:
            rank, number, what = name
            found.append(f"{values[name]:>12} ns  rank {rank} {what} {number}")
            tight = [other for other, ns in self.terms[name] if values[other] + ns == values[name]]
            if not tight:
                break
            name = tight[0]
        return found


def _pair(term: Term) -> tuple[Name, int]:
    if len(term) == 2:
        return term
    return term, 0
