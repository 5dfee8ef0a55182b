"""Write docs/reference/commands.md: every command, its options, an example. ``python docs/make_commands.py [--all]``.

Words and defaults are those of ``ppsim COMMAND -h``, from the same objects; the examples are run, one after the other
in one folder, and what they print is what the page shows. A test holds the page against a fresh one, and every command
must have an example.
"""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import typer
from typer.models import ArgumentInfo, OptionInfo

from ppsim.cli.entry import app

HERE = Path(__file__).resolve().parent
PAGE = HERE / "reference" / "commands.md"
fresh = runpy.run_path(str(HERE / "sessions.py"))["fresh"]

# Commands in the order in which one would try them; behind each the lines of its output that the page keeps (0: all).
EXAMPLES: dict[str, list[tuple[str, int]]] = {
    "run": [("ppsim run unit --out unit4", 0)],
    "exec": [("ppsim exec tiny --out real", 4)],
    "show": [("ppsim show unit4 --schedule", 0)],
    "diff": [("ppsim run unit --set workload.num_chunks=3 --out unit3", 2), ("ppsim diff unit4 unit3", 0)],
    "plot": [("ppsim plot unit4 -o unit4.svg", 0)],
    "trace": [("ppsim trace unit4 -o unit4.json.gz", 0)],
    "report": [("ppsim report unit4 unit3 -o both.html", 0)],
    "fuzz": [("ppsim fuzz --profile abort --bug free_at_abort --examples 20 --out found", 6)],
    "replay": [("ppsim replay found/repro_inv59_0.json", 4)],
    "bugs": [("ppsim bugs free_at_abort", 0)],
    "explore": [("ppsim explore explore_release --bound aborts=2", 0)],
    "fit": [("ppsim fit measured_chunks.csv", 0)],
    "read": [("ppsim read azure_like.csv launch.sh", 0)],
    "volumes": [("ppsim volumes --model qwen3-8b --tp 4 --cp 4 --pp 4", 0)],
    "paper": [("ppsim paper", 8)],
    "questions": [("ppsim questions P26", 0)],
    "layers": [("ppsim layers --model qwen3-30b-a3b --gpu h20 --pp 4 --tp 2 --prompt 32768", 0)],
    "chunks": [("ppsim chunks --model qwen3-30b-a3b --gpu h20 --pp 4 --tp 2 --tokens 32768 --chunk 4096", 0)],
    "sweep": [("ppsim sweep unit --set cluster.pp_size=2,4,8 --set workload.num_chunks=4,16 --out swept", 0)],
    "tune": [("ppsim tune mooncake --prompt 16384 --max-cp 1 --out tuned", 12)],
    "compare": [("ppsim compare --model qwen3-8b --gpu h20 --gpus 4 --prompt 8192 --chunk 2048", 0)],
    "conform": [("ppsim conform engine_run.jsonl", 0)],
    "import": [("ppsim import launch.sh --gpu h20", 0)],
    "export": [("ppsim export mooncake", 0)],
    "list": [("ppsim list gpus", 6)],
}
# Examples that cost too much to be run again for each test; the page keeps what ``--all`` wrote. Other tests run them:
KEPT = {"exec": "tests/unit/test_readme.py", "paper": "tests/unit/test_plan_paper.py"}
NEEDS = {"report": "bokeh"}  # of an example; without it the page keeps the one that it has, too
HEAD = """# Commands

`ppsim COMMAND -h` prints the same. `SCENARIO` is a name of `ppsim list scenarios` or a TOML file, `RUN` a run folder, a
name below `runs/`, or `latest`. Results go to stdout and all else to stderr, which is not shown here; a last line "..."
stands for what follows. The examples were run one after the other in a folder that holds `docs/examples`; what their
exit codes mean: [exit codes](exit-codes.md).

This page is made by `python docs/make_commands.py`.
"""


def page(again: Collection[str] = ()) -> str:
    """The whole page, its examples as they are printed now; of ``KEPT`` only those of ``again``."""
    there = commands()
    missing = sorted(set(there) - set(EXAMPLES))
    assert not missing, f"docs/make_commands.py has no example of {missing}"
    old, kept = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "", {*KEPT, *not_installed()} - {*again}
    text = HEAD + "\n" + " · ".join(f"[{name}](#ppsim-{name})" for name in there) + "\n"
    for name, command in there.items():
        text += f"\n## ppsim {name}\n\n" + "".join(described(command, name))
        text += "\n" + (example_in(old, name) if name in kept else example(name))
    return fresh(text)


def commands() -> dict[str, Callable[..., None] | typer.Typer]:
    """By name, in the order of ``ppsim -h``: the function behind a command, or a group of them."""
    single: dict[str, Any] = {command.name: command.callback for command in app.registered_commands}
    return single | {str(group.name): group.typer_instance for group in app.registered_groups}


def not_installed() -> list[str]:
    return [name for name, module in NEEDS.items() if find_spec(module) is None]


def example(name: str) -> str:
    """A session to be run: commands, and so many empty lines as are to be kept."""
    lines = [f"$ {command}\n" + ("\n" * keep + "...\n" if keep else "") for command, keep in EXAMPLES[name]]
    return "```console\n" + "".join(lines) + "```\n"


def example_in(old: str, name: str) -> str:
    """The example that the page has, as a block that is not run."""
    block = re.search(rf"## ppsim {name}\n.*?```\w+\n(.*?)```", old, re.DOTALL)
    return "```text\n" + (block[1] if block else f"$ {EXAMPLES[name][0][0]}\n") + "```\n"


def described(command: Callable[..., None] | typer.Typer, name: str) -> Iterator[str]:
    """What a command does, how it is called, and a row for each of its parameters."""
    if isinstance(command, typer.Typer):
        yield f"{command.info.help}\n\n`ppsim {name} WHAT`\n\n| | |\n| --- | --- |\n"
        for inner in command.registered_commands:
            yield f"| `ppsim {name} {inner.name}` | {one_line(inspect.getdoc(inner.callback))} |\n"
        return
    parameters = [parameter(name, p) for name, p in inspect.signature(command, eval_str=True).parameters.items()]
    arguments = "".join(f" {p.name if p.needed else f'[{p.name}]'}" for p in parameters if p.is_argument)
    yield f"{one_line(inspect.getdoc(command))}\n\n`ppsim {name}{arguments} [OPTIONS]`\n"
    yield "\n| argument or option | value | default | what it does |\n| --- | --- | --- | --- |\n"
    for p in parameters:
        yield "| " + " | ".join(c.replace("|", "\\|") for c in (f"`{p.name}`", p.value, p.usual, p.told)) + " |\n"


class Told(NamedTuple):
    name: str
    is_argument: bool
    needed: bool
    value: str
    usual: str
    told: str


def parameter(name: str, given: inspect.Parameter) -> Told:
    """An argument or option, from its annotation."""
    kind, *more = get_args(given.annotation)
    info = next(part for part in more if isinstance(part, OptionInfo | ArgumentInfo))
    is_argument = isinstance(info, ArgumentInfo)
    kinds = [part for part in (get_args(kind) or (kind,)) if part is not type(None)]
    is_list = get_origin(kind) is list or any(get_origin(part) is list for part in kinds)
    if is_argument:
        words = (info.metavar or name.upper()).strip("[].") + ("..." if is_list else "")
    else:
        named = [d for d in (info.default, *(info.param_decls or ())) if isinstance(d, str) and d.startswith("-")]
        words = ", ".join(sorted(named or [f"--{name.replace('_', '-')}"], key=len))
    needed = given.default is inspect.Parameter.empty
    value = "" if is_argument or bool in kinds else info.metavar or of_kind(kinds[0], info)
    usual = "must be given" if needed else "off" if given.default is False else ""
    if not usual and given.default not in (None, "", []):
        usual = f"`{given.default}`"
    return Told(words, is_argument, needed, value, usual, one_line(info.help))


def of_kind(kind: Any, info: OptionInfo | ArgumentInfo) -> str:
    """What a value is: its type, and its range where it has one."""
    kind = get_args(kind)[0] if get_args(kind) else kind
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return ", ".join(str(member.value) for member in kind)
    words = {int: "integer", float: "number", str: "text"}.get(kind, kind.__name__)
    if info.min is not None:
        words += f" {info.min:g} to {info.max:g}" if info.max is not None else f" from {info.min:g}"
    return words


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


PAGES = {"reference/commands.md": page}


def main() -> None:
    text = page(KEPT if "--all" in sys.argv else ())
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
