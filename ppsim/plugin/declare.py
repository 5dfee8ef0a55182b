"""How a planted bug says what it is.

A bug is a subclass of the very class that it breaks, with four words about itself::

    @planted("local_capacity", breaks="INV-22", profile="plain", source="bugs.md B04")
    class LocalCapacity(Rank):
        def start(self, capacity_tokens, host_tokens):
            super().start(Agreed(self.local_tokens[0], "nobody else"), host_tokens)

It may subclass a part of a rank (``core/parts.py``), the policy, or the world around the ranks
(``core/surroundings.py``). What needs two classes names the other one in ``beside``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

T = TypeVar("T", bound=type)
MARK = "__planted__"


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug: what it breaks, which fuzz profile finds it, where the idea comes from, and the classes it replaces."""

    name: str
    breaks: str  # INV-nn
    profile: str
    source: str
    classes: tuple[type, ...]

    @property
    def summary(self) -> str:
        """First line of the class's docstring."""
        text = self.classes[0].__doc__
        return text.strip().splitlines()[0] if text and text.strip() else ""


def planted(name: str, *, breaks: str, profile: str, source: str, beside: tuple[type, ...] = ()) -> Callable[[T], T]:
    """Class decorator: this subclass of a part, a policy or a world is a planted bug."""

    def mark(cls: T) -> T:
        setattr(cls, MARK, Planted(name, breaks, profile, source, (cls, *beside)))
        return cls

    return mark


def bugs_in(module: ModuleType) -> list[Planted]:
    """Planted bugs that a module defines, in the order of definition."""
    found = [vars(value)[MARK] for value in vars(module).values() if isinstance(value, type) and MARK in vars(value)]
    return [bug for bug in found if bug.classes[0].__module__ == module.__name__]
