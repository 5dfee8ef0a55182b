"""Policies of a caller: classes of the running program, or a plug-in file (``docs/plugins.md``)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from ppsim.check.invariants import check_breaks
from ppsim.core.policy import Policy
from ppsim.errors import UsageError
from ppsim.plugin import Loaded, Planted, bug, bugs_in, load, load_plugin
from ppsim.plugin.declare import MARK
from ppsim.plugin.loader import check_class, right_class

if TYPE_CHECKING:
    from ppsim.recording.schema import Origin

PolicyLike: TypeAlias = "type | str | os.PathLike[str] | Sequence[type] | None"
"""A subclass of ``ppsim.Policy`` or of a part of a rank, several of them (the first wins), the path of a plug-in file,
or none."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a caller changes of the scheduler: classes, or a file, and planted bugs by name."""

    policies: tuple[type, ...] = ()
    plugin: str | None = None
    module: ModuleType | None = None
    bugs: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return not (self.policies or self.plugin or self.bugs)

    def planted(self) -> list[Planted]:
        """The planted bugs among it: those that are named, and classes that ``ppsim.planted`` marks."""
        named = [bug(name, self.module) for name in self.bugs]
        return named + [vars(policy)[MARK] for policy in self.policies if MARK in vars(policy)]

    def origin(self) -> Origin:
        """What a recording says it was made with: classes by module and name, so that a replay can find them."""
        from ppsim.recording.origin import digest_of_file, ppsim_version
        from ppsim.recording.schema import Origin

        classes = (f"{cls.__module__}:{cls.__qualname__}" for cls in self.policies)
        return Origin(ppsim_version(), (*self.bugs, *classes), self.plugin, digest_of_file(self.plugin))

    def loaded(self, bugs: Iterable[str] = ()) -> Loaded:
        """What ranks are built with, with the bugs of a scenario besides. Raises UsageError."""
        beside = [cls for entry in self.planted() for cls in entry.classes[1:]]
        return load([*self.bugs, *bugs], self.module, [*self.policies, *beside])


def changes_of(policy: PolicyLike, bugs: Iterable[str] = ()) -> Changes:
    """What ``policy`` and ``bugs`` mean.

    Raises UsageError for what is no policy, for a misspelt method or bug, and for one that breaks no rule.
    """
    named = (bugs,) if isinstance(bugs, str) else tuple(dict.fromkeys(bugs))
    if isinstance(policy, str | os.PathLike):
        changes = Changes(plugin=os.fspath(policy), module=load_plugin(os.fspath(policy)), bugs=named)
    else:
        given = () if policy is None else tuple(policy) if isinstance(policy, Sequence) else (policy,)
        classes = dict.fromkeys(checked_policy(one) for one in given)
        changes = Changes(tuple(one for one in classes if one is not Policy), bugs=named)
    changes.planted()  # an unknown name is told here
    if changes.module is not None:
        check_breaks(f"plug-in {changes.plugin}", bugs_in(changes.module))
    for cls in changes.policies:
        check_breaks(cls.__module__, [vars(cls)[MARK]] if MARK in vars(cls) else [])
    return changes


def checked_policy(policy: object) -> type:
    """The class. Raises UsageError for what is no policy and no part, what cannot be made, and a misspelt method."""
    if not isinstance(policy, type) or right_class(policy) is None:
        hint = "give the class itself, every rank makes its own" if right_class(type(policy)) else "see docs/plugins.md"
        raise UsageError(
            f"policy: expected a subclass of ppsim.Policy or the path of a plug-in, got {policy!r}; {hint}"
        )
    check_class(policy.__module__, policy)
    return policy
