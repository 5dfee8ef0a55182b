"""What a plug-in looks at behind its rank's back: the machine's own clock, and random numbers of the whole process.

Rule: whatever comes into a rank from outside is recorded, or told. A policy has a clock of its rank
(``self.wall_clock_ns()``): what it reads there is an observation, kept in the recording and fed to a replay, in both
worlds. ``time.time()`` and its like are the machine's: nobody records them, so a run that hangs on them is another run
each time, and its replay goes another way. The file is read for such names as text; nothing of it is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CLOCKS = {
    "time": ("time", "monotonic", "perf_counter", "process_time", "thread_time", "localtime", "gmtime", "ctime"),
    "datetime": ("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    "os": ("times",),
}
CHANCE = {
    "random": (
        *("random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform", "gauss"),
        *("getrandbits", "randbytes", "betavariate", "expovariate", "normalvariate", "triangular", "SystemRandom"),
    ),
    "os": ("urandom", "getrandom"),
    "secrets": ("token_bytes", "token_hex", "randbelow", "randbits", "choice"),
    "uuid": ("uuid1", "uuid4"),
}
TIME = ("the machine's clock", "self.wall_clock_ns() of a policy is recorded and fed to a replay")
DRAWN = ("chance that no seed decides", "draw from a random.Random(seed) of its own, alike on all ranks")
MODULES = frozenset((*CLOCKS, *CHANCE))


def unrecorded(path: str) -> list[str]:
    """A sentence for each place where a plug-in names a clock of the machine, or chance that no seed decides."""
    file = Path(path)
    tree = ast.parse(file.read_bytes(), file.name)
    told = []
    for line, name in sorted(uses(tree)):
        is_clock = any(is_among(name, module, names) for module, names in CLOCKS.items())
        what, instead = TIME if is_clock else DRAWN
        told.append(
            f"plug-in {file.name}, line {line}: {name} is {what}: what comes of it is not recorded, and a replay "
            f"may go another way ({instead})"
        )
    return told


def uses(tree: ast.Module) -> set[tuple[int, str]]:
    """(line, whole name) of each use, whatever name the file has given to the module or function."""
    known = dict(imported(tree))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in inner or not isinstance(node, ast.Attribute | ast.Name):
            continue
        name = whole_name(node, known)
        if any(is_among(name, module, names) for table in (CLOCKS, CHANCE) for module, names in table.items()):
            found.add((node.lineno, name))
    return found


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name in the file, whole name) of what it imports from the modules that matter, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in MODULES:
                    yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def whole_name(node: ast.expr, known: dict[str, str]) -> str:
    """``datetime.datetime.now`` of ``dt.now`` behind ``from datetime import datetime as dt``; empty: none of these."""
    behind: list[str] = []
    while isinstance(node, ast.Attribute):
        behind.insert(0, node.attr)
        node = node.value
    head = known.get(node.id, "") if isinstance(node, ast.Name) else ""
    return ".".join((head, *behind)) if head else ""


def is_among(name: str, module: str, names: tuple[str, ...]) -> bool:
    """Whether a whole name is one of these of a module; ``time_ns`` is as good as ``time``."""
    return name.removesuffix("_ns") in [f"{module}.{known}" for known in names]
