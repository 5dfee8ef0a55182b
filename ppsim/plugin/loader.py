"""From names and a file to a ``Change``: the one way in which planted bugs and plug-ins reach a rank.

What goes from one process to another is data: names of bugs and the path of a file. Each process loads them again, so
the simulated world, the fuzzer's workers and the executor's ranks all run the same code. What a file gets wrong (a
misspelt method, a class that is a part of nothing, the form of an earlier version) is told here, before anything runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from ppsim.core.parts import RIGHT, UNCHANGED, Change, parts_with, place_of
from ppsim.core.policy import Policy
from ppsim.core.surroundings import Surroundings
from ppsim.errors import UsageError
from ppsim.plugin.declare import Planted, bugs_in
from ppsim.plugin.watched import watched

CATALOGUE = "ppsim.fuzz.bugs"
"""Where the project's own bugs stand: a package, imported by name, for who may not import the fuzzer."""

OLD_FORM = ("ppsim.core.hooks", "ppsim.planted")
"""Modules of the earlier plug-in interface, whose classes patched a rank by the names of hooks."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A change that is ready: what ranks are built with, and how often each of its classes has been asked."""

    change: Change = UNCHANGED
    fired: Counter[str] = field(default_factory=Counter)
    names: tuple[str, ...] = ()

    def unfired(self) -> list[str]:
        """What was switched on and never asked, in the order in which it was named."""
        return [name for name in self.names if not self.fired[name]]


def class_named(name: str) -> type:
    """The class behind "module:Class". Raises UsageError."""
    module, _, attribute = name.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"change {name!r}: {error}; expected module:Class") from None
    check_class(name, cls)
    return cls  # type: ignore[no-any-return]


def load(names: Iterable[str] = (), plugin: str | ModuleType | None = None, classes: Iterable[type] = ()) -> Loaded:
    """The change of the named bugs, of a plug-in's policy, and of further classes. Raises UsageError.

    The first named wins where two override the same method.
    """
    module = load_plugin(plugin) if isinstance(plugin, str) else plugin
    found: dict[type, str] = {}
    for name in names:
        for cls in (class_named(name),) if ":" in name else bug(name, module).classes:
            found.setdefault(cls, name)
    for cls in [*(always_on(module) if module is not None else ()), *classes]:
        found.setdefault(cls, cls.__name__)
    if not found:
        return Loaded()
    fired: Counter[str] = Counter()
    return Loaded(change_of([watched(cls, name, fired) for cls, name in found.items()]), fired, unique(found.values()))


def unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def change_of(classes: list[type]) -> Change:
    """Sort classes into parts, policy and world, and combine those of one kind. Raises UsageError."""
    policies = [cls for cls in classes if issubclass(cls, Policy)]
    worlds = [cls for cls in classes if issubclass(cls, Surroundings)]
    parts = [cls for cls in classes if cls not in policies and cls not in worlds]
    try:
        return Change(
            parts_with(parts) if parts else RIGHT, one_class(policies, Policy), one_class(worlds, Surroundings)
        )
    except TypeError as error:  # two classes whose common subclass cannot be made
        names = ", ".join(cls.__name__ for cls in classes)
        raise UsageError(f"{names} cannot be combined: {error}") from None


def one_class(classes: list[type], right: type) -> type:
    if len(classes) < 2:
        return classes[0] if classes else right
    return type("And".join(cls.__name__ for cls in classes), tuple(classes), {})


def all_bugs() -> dict[str, Planted]:
    """The project's own bugs by name, sorted."""
    package = importlib.import_module(CATALOGUE)
    found: dict[str, Planted] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda i: i.name):
        for entry in bugs_in(importlib.import_module(f"{CATALOGUE}.{info.name}")):
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


# --- a user's file ---------------------------------------------------------------------------------------------------


def load_plugin(path: str) -> ModuleType:
    """Import a user's file. Raises UsageError if it is missing, raises, or has nothing usable."""
    module = import_module(path)
    classes = [cls for entry in bugs_in(module) for cls in entry.classes] + always_on(module)
    if not classes:
        raise UsageError(
            f"plug-in {path} defines neither a class Policy nor a @planted bug, nor a subclass of a part (see: "
            "docs/plugins.md)"
        )
    for cls in dict.fromkeys(classes):
        check_class(path, cls)
    return module


def import_module(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"plug-in {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"ppsim_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plug-in {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name and any(error.name == old or error.name.startswith(f"{old}.") for old in OLD_FORM):
            raise UsageError(
                f"plug-in {path} is written for the earlier interface ({error.name} is gone): subclass Policy, a part "
                "of a rank or Surroundings instead of Hooks, and take planted from ppsim.plugin; docs/plugins.md says "
                "for each old hook where it is now"
            ) from None
        raise raised(path, error) from error
    except (Exception, SystemExit) as error:
        raise raised(path, error) from error
    return module


def raised(path: str, error: BaseException) -> UsageError:
    return UsageError(f"plug-in {path} raises while it is loaded: {type(error).__name__}: {error}")


def always_on(module: ModuleType) -> list[type]:
    """What of a file is on without a name: its class ``Policy``, or the classes that its list ``CHANGES`` has."""
    policy = getattr(module, "Policy", None)
    found = [policy] if isinstance(policy, type) and policy.__module__ == module.__name__ else []
    changes = getattr(module, "CHANGES", ())
    if not isinstance(changes, list | tuple):
        raise UsageError(f"plug-in {module.__file__}: CHANGES must be a list of classes, it is {changes!r}")
    return found + list(changes)


def check_class(path: str, cls: type) -> None:
    """Raise UsageError for a class that could stand nowhere, and for a method whose name is misspelt."""
    try:
        right = right_class(cls) if isinstance(cls, type) else None
    except TypeError as error:  # it would be two parts
        raise UsageError(f"plug-in {path}: {error}") from None
    if right is None:
        came = getattr(cls, "__name__", repr(cls))
        raise UsageError(
            f"plug-in {path}: {came} subclasses neither Policy, nor Surroundings, nor a part of a rank (see: "
            "docs/plugins.md)"
        )
    if right in (Policy, Surroundings):
        try:
            cls(*((0, 0) if right is Policy else ()))
        except (Exception, SystemExit) as error:
            how = "pp_rank, tp_rank" if right is Policy else ""
            raise UsageError(
                f"plug-in {path}: {cls.__name__}({how}) cannot be made: {type(error).__name__}: {error}"
            ) from error
    known = [name for name in dir(right) if not name.startswith("__")]
    for name in vars(cls):
        near = [] if name.startswith("__") or name in known else get_close_matches(name, known, n=1, cutoff=0.85)
        if near:
            raise UsageError(
                f"plug-in {path}: {cls.__name__}.{name} overrides nothing of {right.__name__} (did you mean "
                f"{near[0]!r}? see: docs/plugins.md)"
            )


def right_class(cls: type) -> type | None:
    """The right class that this one stands in for."""
    for right in (Policy, Surroundings):
        if issubclass(cls, right):
            return right
    return place_of(cls)
