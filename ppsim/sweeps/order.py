"""What is to be run: each point as a whole scenario, with a digest of everything that its run depends on.

Rule: files are read here, once, before anything runs. A worker gets what stood in them then, and looks at the files
that only it can read (a trace) whether they still hold the same. So a sweep is of one state of everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.scenario.expect_judged import without_expect
from ppsim.scenario.files import file_digest, named_files
from ppsim.scenario.tree import Scenario
from ppsim.sweeps.points import Keys, Point

Load = Callable[[str, Keys], Scenario]
"""A scenario by its name, with keys changed. Raises UsageError."""


@dataclass(frozen=True, slots=True)
class Task:
    """A point that can be run. ``config``: the whole scenario; ``files``: dotted key -> digest of the file it names."""

    point: Point
    config: dict[str, Any]
    files: dict[str, str]
    digest: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A point that no run is of: its scenario is bad input."""

    point: Point
    message: str
    exit_code: int
    digest: str


@dataclass(slots=True)
class Order:
    """All points, in order. ``num_unjudged``: of scenarios with an [expect], which a sweep does not judge."""

    points: list[Point]
    tasks: list[Task | Refused] = field(default_factory=list)
    num_unjudged: int = 0

    @property
    def keys(self) -> list[str]:
        """Dotted keys that points are given, in the order in which they first come."""
        return list(dict.fromkeys(key for point in self.points for key, _ in point.keys))


def prepared(points: Sequence[Point], load: Load, changed_by: str = "") -> Order:
    """Load every point. ``changed_by``: digest of the policy, part of every point's.

    Raises the first point's UsageError where none of them can be run: then it is the command that is wrong.
    """
    order = Order(list(points))
    digests: dict[Path, str] = {}
    first_error: UsageError | None = None
    for point in points:
        try:
            expecting = load(point.scenario, point.keys)
        except UsageError as error:
            first_error = first_error or error
            told = f"{type(error).__name__}: {error}"
            order.tasks.append(Refused(point, str(error), error.exit_code, digest_of(told, changed_by)))
            continue
        order.num_unjudged += expecting.expect is not None and not expecting.expect.changed
        s = without_expect(expecting)
        files = {}
        for key, path in named_files(s).items():
            if path not in digests:
                digests[path] = content_digest(path)
            files[key] = digests[path]
        config = s.model_dump(mode="json", exclude_unset=True)
        order.tasks.append(Task(point, config, files, digest_of([config, files], changed_by)))
    if first_error is not None and all(isinstance(task, Refused) for task in order.tasks):
        raise first_error
    return order


def content_digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def digest_of(value: Any, changed_by: str) -> str:
    """Of everything that a point's run depends on, but for ppsim itself (``version.py``)."""
    text = json.dumps([value, changed_by], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Dotted keys in which two scenarios differ, sorted; what no run depends on is left out."""
    a, b = dict(leaves(before)), dict(leaves(now))
    return [key for key in sorted({*a, *b}) if a.get(key) != b.get(key) and key not in ("name", "description")]


def leaves(section: Mapping[str, Any], before: str = "") -> Sequence[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in section.items():
        found += leaves(value, f"{before}{key}.") if isinstance(value, Mapping) else [(before + key, value)]
    return found
