"""The catalogue of planted bugs and plug-ins, and how one is switched on.

A bug is a subclass of ``Hooks`` with four words about itself::

    @planted("local_capacity", breaks="INV-22", profile="plain", source="bugs.md B04")
    class LocalCapacity(Hooks):
        def capacity(self, agreed_tokens, local_tokens):
            return local_tokens

A user's own file (``--plugin FILE.py``) may hold policies and bugs in the same way: a plain subclass of ``Hooks`` named
``Policy`` is always on, a ``@planted`` class only with ``--bug NAME``. Several can be on at once; the first named wins
where two override the same hook.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from ppsim.core.hooks import Hooks
from ppsim.errors import UsageError


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug: what it breaks, which fuzz profile finds it, and where the idea comes from."""

    name: str
    breaks: str  # INV-nn
    profile: str
    source: str
    hooks: type[Hooks]

    @property
    def summary(self) -> str:
        """First line of the class's docstring."""
        return (self.hooks.__doc__ or "").strip().splitlines()[0] if self.hooks.__doc__ else ""


MARK = "__planted__"


def planted(name: str, *, breaks: str, profile: str, source: str) -> Callable[[type[Hooks]], type[Hooks]]:
    """Class decorator: this subclass of Hooks is a planted bug."""

    def mark(cls: type[Hooks]) -> type[Hooks]:
        setattr(cls, MARK, Planted(name, breaks, profile, source, cls))
        return cls

    return mark


def bugs_in(module: ModuleType) -> list[Planted]:
    """Planted bugs that a module defines, in the order of definition."""
    found = [vars(value)[MARK] for value in vars(module).values() if isinstance(value, type) and MARK in vars(value)]
    return [bug for bug in found if bug.hooks.__module__ == module.__name__]


def all_bugs() -> dict[str, Planted]:
    """The project's own bugs by name, sorted."""
    import ppsim.planted as package

    found: dict[str, Planted] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda i: i.name):
        if info.name != "registry":
            for entry in bugs_in(importlib.import_module(f"ppsim.planted.{info.name}")):
                found[entry.name] = entry
    return dict(sorted(found.items()))


def bug(name: str, plugin: ModuleType | None = None) -> Planted:
    """A bug by name, from the plug-in first. Raises UsageError with the nearest name."""
    known = all_bugs()
    if plugin is not None:
        known.update({entry.name: entry for entry in bugs_in(plugin)})
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise UsageError(
            f"unknown planted bug {name!r}" + (f" (did you mean {near[0]!r}?)" if near else " (see: ppsim list bugs)")
        )
    return known[name]


def load_plugin(path: str) -> ModuleType:
    """Import a user's file. Raises UsageError if it is missing, raises, or defines nothing usable."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"plug-in {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"ppsim_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plug-in {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"plug-in {path} raises while it is loaded: {type(error).__name__}: {error}") from error
    policy = policy_of(module)
    if policy is None and not bugs_in(module):
        raise UsageError(f"plug-in {path} defines neither a class Policy(Hooks) nor a @planted bug")
    for hooks in ([policy] if policy else []) + [entry.hooks for entry in bugs_in(module)]:
        check_hooks(path, hooks)
    return module


def check_hooks(path: str, hooks: type[Hooks]) -> None:
    """Raise UsageError for a class that no rank could be given, and for a hook whose name is misspelt."""
    try:
        hooks(0, 0)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"plug-in {path}: {hooks.__name__}(pp_rank, tp_rank) cannot be made: {type(error).__name__}: {error}"
        ) from error
    known = [name for name in vars(Hooks) if not name.startswith("_")]
    for name in vars(hooks):
        near = [] if name.startswith("_") or name in known else get_close_matches(name, known, n=1, cutoff=0.85)
        if near:
            raise UsageError(
                f"plug-in {path}: {hooks.__name__}.{name} is no hook (did you mean {near[0]!r}? see: docs/hooks.md)"
            )


def policy_of(module: ModuleType) -> type[Hooks] | None:
    policy = getattr(module, "Policy", None)
    return policy if isinstance(policy, type) and issubclass(policy, Hooks) else None


def hooks_for(
    names: Iterable[str], plugin: ModuleType | None = None, policies: Iterable[type[Hooks]] = ()
) -> Callable[[int, int], Hooks]:
    """A factory of each rank's hooks with the named bugs, the plug-in's policy and other policies switched on."""
    bases: list[type[Hooks]] = [bug(name, plugin).hooks for name in names]
    policy = policy_of(plugin) if plugin is not None else None
    if policy is not None:
        bases.append(policy)
    bases += policies
    if not bases:
        return Hooks
    unique = tuple(dict.fromkeys(bases))
    return unique[0] if len(unique) == 1 else type("CombinedHooks", unique, {})
