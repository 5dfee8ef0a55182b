"""Law: the import table of the design, held over every import statement in the tree.

Imports inside functions count too, except in ``ppsim/cli``, which may use everything as long as it does so lazily.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What the core may use of the standard library: data, types, arithmetic and hashing. No clock, no chance, no I/O.
CORE_STDLIB = {
    "__future__",
    "abc",
    "array",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "operator",
    "struct",
    "sys",
    "types",
    "typing",
}
CORE_SYS_NAMES = {"byteorder", "maxsize"}

SIMULATOR = {"simpy"}
TORCH = {"torch", "triton", "transformers", "safetensors", "zmq", "ray"}
DRAWING = {"matplotlib"}

# Package -> (what it may import of the project, what it may import of others). "errors", "parsing", "later": everybody.
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "core": (set(), set()),
    "check": ({"core"}, set()),
    "cost": ({"core"}, {"numpy"}),
    "scenario": ({"core", "cost"}, {"pydantic", "numpy"}),
    "workload": ({"core", "cost", "scenario"}, {"numpy", "tokenizers", "zstandard", "compression"}),
    "recording": ({"core", "cost"}, {"tomli_w", "numpy"}),
    "sglang": ({"core", "cost", "scenario"}, {"yaml"}),
    "plugin": ({"core"}, set()),
    "conform": ({"core"}, set()),
    "world": ({"core", "check", "cost", "scenario", "workload", "recording", "plugin"}, {"numpy", "simpy"}),
    "fuzz": (
        {"core", "check", "cost", "scenario", "workload", "recording", "world", "plugin"},
        {"numpy", "simpy", "hypothesis", "ray"},
    ),
    "plan": (
        {"core", "cost", "scenario", "workload", "recording", "sglang", "world"},
        {"numpy"},
    ),
    "sweeps": (
        {"core", "cost", "scenario", "workload", "recording", "plugin", "world", "fuzz"},
        {"pyarrow", "ray"},
    ),
    "studies": ({"core", "cost", "scenario", "workload", "recording", "sglang", "world"}, {"numpy"}),
    "report": ({"core", "cost", "recording"}, {"numpy", "matplotlib"}),
    "api": (
        {
            "core",
            "check",
            "cost",
            "scenario",
            "workload",
            "recording",
            "sglang",
            "plugin",
            "world",
            "fuzz",
            "plan",
            "report",
            "sweeps",
        },
        {"pandas", "pydantic", "hypothesis"},
    ),
}
PUBLIC = {"__init__", "__main__"}  # ppsim itself: everything, lazily
CORE_VOCABULARY = {"effects", "messages", "batch", "tokens", "agreed"}  # what report may name of the core: types
EXECUTOR = {"core", "check", "cost", "scenario", "workload", "recording", "plugin"}


def imports(path: Path) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(line, module, imported names) of every import statement in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.lineno, node.module, tuple(alias.name for alias in node.names)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def owner(path: Path) -> str:
    """The part of the house a file belongs to: the package below ppsim, or the module itself, or executor."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "ppsim" else parts[0]


def violations(path: Path) -> Iterator[str]:
    part = owner(path)
    for line, module, names in imports(path):
        problem = problem_of(part, module, names)
        if problem:
            yield f"{path.relative_to(ROOT)}:{line}: {problem}"


def problem_of(part: str, module: str, names: tuple[str, ...]) -> str:
    top, _, rest = module.partition(".")
    if top in sys.stdlib_module_names:
        return stdlib_problem(part, top, names)
    if part == "cli" or (part in PUBLIC and top == "ppsim"):
        return ""
    if top == "executor":
        return "" if part == "executor" else f"{part} imports the executor"
    if top == "ppsim":
        return own_problem(part, rest or names[0], rest.split("."))
    allowed = TABLE.get(part, (set(), {"pydantic"}))[1]
    if part == "executor":
        return f"executor imports {top}" if top in SIMULATOR | {"hypothesis"} else ""
    return "" if top in allowed else f"{part} imports {top}"


def stdlib_problem(part: str, top: str, names: tuple[str, ...]) -> str:
    if part != "core":
        return ""
    if top not in CORE_STDLIB or (top == "sys" and not set(names) <= CORE_SYS_NAMES):
        return f"core imports {top}"
    return ""


def own_problem(part: str, rest: str, path: list[str]) -> str:
    target = rest.partition(".")[0]
    if target in (part, "errors", "parsing", "later"):
        return f"core imports ppsim.{target}" if part == "core" and target != "core" else ""
    allowed = EXECUTOR if part == "executor" else TABLE.get(part, (set(), set()))[0]
    if target not in allowed:
        return f"{part} imports ppsim.{target}"
    if part == "report" and target == "core" and (len(path) < 2 or path[1] not in CORE_VOCABULARY):
        return f"report looks into the core's state: ppsim.{rest}"
    return ""


def test_every_import_keeps_to_the_table() -> None:
    files = sources("ppsim", "executor")
    assert len(files) > 40
    found = [violation for path in files for violation in violations(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("part", "module", "names"),
    [
        ("core", "time", ()),
        ("core", "random", ("Random",)),
        ("core", "os.path", ()),
        ("core", "logging", ()),
        ("core", "sys", ("argv",)),
        ("core", "numpy", ()),
        ("core", "ppsim.cost.stage", ("UnitCost",)),
        ("core", "ppsim.errors", ("PpsimError",)),
        ("core", "ppsim.parsing", ("parse_json",)),
        ("core", "ppsim.later", ("later",)),
        ("core", "ppsim.check.lockstep", ("Lockstep",)),
        ("check", "simpy", ()),
        ("check", "ppsim.world.driver", ("SimulatedRank",)),
        ("check", "ppsim.recording", ("Recording",)),
        ("check", "ppsim.scenario", ("Scenario",)),
        ("cost", "simpy", ()),
        ("cost", "ppsim.world.clock", ()),
        ("recording", "ppsim.scenario", ("Scenario",)),
        ("recording", "ppsim.world", ("simulate",)),
        ("world", "torch", ()),
        ("world", "ppsim.report.table", ()),
        ("world", "executor.stage", ()),
        ("fuzz", "ppsim.report.gantt", ()),
        ("report", "ppsim.world.simulate", ()),
        ("report", "ppsim.core.schedule.scheduler", ("Scheduler",)),
        ("report", "ppsim", ("world",)),
        ("plugin", "ppsim.check.invariants", ("check_rule",)),
        ("plugin", "ppsim.fuzz.bugs", ()),
        ("core", "ppsim.plugin", ("load",)),
        ("executor", "ppsim.fuzz.bugs", ()),
        ("executor", "simpy", ()),
        ("executor", "ppsim.world.network", ()),
        ("errors", "ppsim.core.effects", ()),
    ],
)
def test_the_table_forbids_what_the_design_forbids(part: str, module: str, names: tuple[str, ...]) -> None:
    assert problem_of(part, module, names)


def test_the_command_line_is_lazy_about_everything_but_itself() -> None:
    """At the top of a file ``cli`` imports only typer, errors and itself; the rest waits until a command runs."""
    found = []
    for path in sources("ppsim/cli"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                name = node.names[0].name if isinstance(node, ast.Import) else str(node.module)
                top = name.partition(".")[0]
                own = name.startswith("ppsim.cli") or name == "ppsim.errors"
                if not (top in sys.stdlib_module_names or top == "typer" or own):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not found, "\n".join(found)


def test_only_the_command_line_prints_exits_or_configures_logging() -> None:
    found = []
    for path in sources("ppsim"):
        if owner(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "exit",
                "quit",
                "sys.exit",
                "os._exit",
                "logging.basicConfig",
            ):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}")
    assert not found, "\n".join(found)


# --- no circles ------------------------------------------------------------------------------------------------------


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for types count too; those inside functions do not, as they wait until everything is there."""
    modules = {name_of(path): path for path in sources("ppsim", "executor")}
    graph = {name: sorted(top_level(name, path, modules)) for name, path in modules.items() if name != "ppsim"}
    assert circles(graph) == []


def test_a_circle_is_seen() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"]}
    assert circles(graph) == [["b", "c"]]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def top_level(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of the project that a file imports outside of its functions; the lazy ``ppsim`` itself is left out."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.FunctionDef):
                continue
            waiting.append(node)
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
                found.add(str(node.module))
    return {module for module in found & set(modules) if module not in (name, "ppsim")}


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """Sets of modules each of which can be reached from itself: strongly connected ones (Tarjan, 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in graph.get(module, ()):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            ring = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(ring) > 1:
                found.append(sorted(ring))

    for module in graph:
        if module not in number:
            visit(module)
    return found
