"""Policies of a caller: classes of the running program, or a plug-in file (``docs/plugins.md``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

from ppsim.core.hooks import Hooks
from ppsim.errors import UsageError
from ppsim.planted.registry import MARK, Planted, bug, check_hooks, hooks_for, load_plugin

PolicyLike: TypeAlias = "type[Hooks] | str | os.PathLike[str] | Sequence[type[Hooks]] | None"
"""A subclass of ``ppsim.Policy``, several of them (the first wins), the path of a plug-in file, or none."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a caller changes of the scheduler: classes, or a file, and planted bugs by name."""

    policies: tuple[type[Hooks], ...] = ()
    plugin: str | None = None
    module: ModuleType | None = None
    bugs: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return not (self.policies or self.plugin or self.bugs)

    def planted(self) -> list[Planted]:
        """The planted bugs among it: those that are named, and classes under ``ppsim.planted``."""
        named = [bug(name, self.module) for name in self.bugs]
        return named + [vars(policy)[MARK] for policy in self.policies if MARK in vars(policy)]

    def hooks(self, bugs: Iterable[str] = ()) -> Callable[[int, int], Hooks]:
        """A factory of each rank's hooks, with the bugs of a scenario besides. Raises UsageError."""
        try:
            return hooks_for([*self.bugs, *bugs], self.module, self.policies)
        except TypeError as error:  # two classes whose common subclass cannot be made
            names = ", ".join(policy.__name__ for policy in self.policies)
            raise UsageError(f"policies {names} cannot be combined: {error}") from None


def change_of(policy: PolicyLike, bugs: Iterable[str] = ()) -> Change:
    """What ``policy`` and ``bugs`` mean. Raises UsageError for what is no policy, and for a misspelt hook or bug."""
    named = (bugs,) if isinstance(bugs, str) else tuple(dict.fromkeys(bugs))
    if isinstance(policy, str | os.PathLike):
        change = Change(plugin=os.fspath(policy), module=load_plugin(os.fspath(policy)), bugs=named)
    else:
        given = () if policy is None else tuple(policy) if isinstance(policy, Sequence) else (policy,)
        classes = dict.fromkeys(checked_policy(one) for one in given)
        change = Change(tuple(one for one in classes if one is not Hooks), bugs=named)
    change.planted()  # an unknown name is told here
    return change


def checked_policy(policy: object) -> type[Hooks]:
    """The class. Raises UsageError for no subclass of Policy, one that cannot be made, and a misspelt hook."""
    if not isinstance(policy, type) or not issubclass(policy, Hooks):
        hint = "give the class itself, every rank makes its own" if isinstance(policy, Hooks) else "see docs/plugins.md"
        raise UsageError(
            f"policy: expected a subclass of ppsim.Policy or the path of a plug-in, got {policy!r}; {hint}"
        )
    check_hooks(policy.__module__, policy)
    return policy
