"""Write three pages of docs/reference from the code: ``python docs/make_reference.py``; a test holds the pages.

Exit codes from ``ppsim/errors.py``, the run folder and the recording from ``ppsim/recording``, the public interface
from ``ppsim.__all__``. Sentences that no docstring has stand here, and a name that has none is an error.
"""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ppsim
from ppsim import errors
from ppsim.cli import guard
from ppsim.core import effects
from ppsim.core.outcome import Stand, Verdict
from ppsim.recording import folder, schema

HERE = Path(__file__).resolve().parent
fresh = runpy.run_path(str(HERE / "sessions.py"))["fresh"]

# --- exit codes ---------------------------------------------------------------------------------------------------

CODES = {
    "EXIT_PASS": "what was asked for came out: the run passed, or failed as its scenario expects (`[expect]`)",
    "EXIT_SAFETY": "a rule was broken, an expectation not met, a plug-in raised; `diff`, `conform`: a difference",
    "EXIT_USAGE": "bad input: a scenario, a key, a trace, an option, a file; stderr has one sentence that names it",
    "EXIT_LIVENESS": "ranks wait for ever (deadlock), somebody waits beyond a limit, a rank process died",
    "EXIT_NONDETERMINISM": "the same experiment twice, and two outcomes",
    "EXIT_UNKNOWN": "no end within `run.max_iterations` or `--max-seconds`",
    "EXIT_INTERRUPTED": "Ctrl-C; what there is so far is kept, and the folder is marked `incomplete.txt`",
}
EXAMPLES = {
    "EXIT_PASS": "ppsim run tiny --out passed",
    "EXIT_SAFETY": "ppsim run unit --set expect.figures.makespan_ms=6000.0 --out late",
    "EXIT_USAGE": "ppsim run unit --set cluster.pp_sise=8",
    "EXIT_LIVENESS": "ppsim run unit --set links.send=rendezvous --set workload.num_chunks=8 --out stuck",
    "EXIT_UNKNOWN": "ppsim run tiny --set run.max_iterations=3 --out cut",
}
CODES_HEAD = """# Exit codes

Of every command; scripts and CI can rely on them. Errors are one sentence on stderr, never a traceback. From a program
the verdict is a value: `run.verdict.kind`, [the library](../library.md).

This page is made by `python docs/make_reference.py`, its examples are run.

"""


def exit_codes() -> str:
    values = {**constants(errors), **constants(guard)}
    text = CODES_HEAD + "| code | means |\n| --- | --- |\n"
    text += "".join(
        f"| {value} | {CODES[name]} |\n" for name, value in sorted(values.items(), key=lambda item: item[1])
    )
    for name, command in EXAMPLES.items():
        text += f"\n## {values[name]}\n\n```console\n$ {command} 2>&1\n" + "\n" * 2 + "...\n```\n"
    return str(fresh(text))


def constants(module: Any) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if name.startswith("EXIT_")}


# --- the run folder -----------------------------------------------------------------------------------------------

FILES = {
    folder.CONFIG: "the whole scenario, every key; `ppsim run FOLDER/config.toml` is the same run again",
    folder.RECORDING: "what happened, record by record; below. With `run.compress`: `recording.jsonl.gz`",
    folder.SUMMARY: "the figures of the table: `ppsim run --json`",
    folder.VERDICT: "how it ended: kind, rule, rank, iteration, slot, request, message, exit code",
    folder.PEER: "two pipelines only: the prefill side; `recording.jsonl` is then the decode side's",
    folder.INCOMPLETE: "only of a run that has not ended by itself: what happened to it",
}
RECORDS: dict[str, tuple[type, str]] = {
    "arrival": (schema.Arrival, ""),
    "ingested": (schema.Ingested, ""),
    "decision": (effects.Decision, "rank, then "),
    "harvest": (effects.Harvest, "rank, then "),
    "observed": (schema.Observed, "rank, then "),
    "span": (schema.Span, "rank, then "),
    "message": (schema.Message, "sender, receiver, kind, then lists of "),
    "sampled": (schema.Sampled, ""),
    "reply": (schema.TimedReply, ""),
    "mark": (schema.Mark, ""),
    "stand": (Stand, ""),
}
FOLDER_HEAD = """# The run folder and the recording

A run is a folder, `runs/NAME-SEED-N` or that of `--out`. Nothing is ever replaced but an earlier run that `--out`
names, and that is told. Same scenario and seed: the same bytes in every file, on every machine
(packed: with the same version of zlib).

| file | what it holds |
| --- | --- |
"""
RECORDING_HEAD = """
Beside them stand pictures (`gantt.png`), `report.html`, and whatever `-o` puts there. Every command that takes a run
takes a folder, its recording alone, a name below `runs/`, or `latest`.

## recording.jsonl

A line is a record. The first is the header, an object with `format`, `version`, `name`, `seed`, `world` ("sim" or
"exec"), `pp_size`, `tp_replicas`. The last is `["end", number of lines, digest]`, so a file that was cut off is found.
All others are lists that begin with their kind. What a rank decided like rank 0 is not repeated: `["same", rank, kind,
first, count]`. Fields whose names end in `_ns` are times of this world in nanoseconds. All others are logical: they
depend on scenario, seed and what came from outside alone, and digests and `ppsim diff` are of them.

| kind | fields | what it says |
| --- | --- | --- |
"""
RECORDING_TAIL = """
Two further kinds: `visits` (when each rank decided its iterations, for pictures) and `warning` (a sentence).
`ppsim read FILE` says of any file whether it is a recording. In a program: `ppsim.read_run(DIR)`, then
`run.requests()`, `run.batches()`, `run.spans()`, `run.recording` ([the library](../library.md)).

## verdict.json

"""


def run_folder() -> str:
    text = FOLDER_HEAD + "".join(f"| `{name}` | {told} |\n" for name, told in FILES.items()) + RECORDING_HEAD
    for kind, (record, before) in RECORDS.items():
        names = getattr(record, "_fields", None) or tuple(record.__dataclass_fields__)  # type: ignore[attr-defined]
        shown = ", ".join(f"`{name}`" for name in names if name != "live")
        text += f"| `{kind}` | {before}{shown} | {first_sentence(record)} |\n"
    text += RECORDING_TAIL + "| field | |\n| --- | --- |\n"
    return text + "".join(f"| `{name}` | {VERDICT[name]} |\n" for name in Verdict._fields)


VERDICT = {
    "kind": "`pass`, `fail`, or `unknown` where a limit ended the run",
    "exit_code": "[of the command](exit-codes.md)",
    "message": "the sentence that the command prints",
    "invariant": "the rule that was broken, [by name](../invariants.md), or none",
    "rank": "where: pp_rank * tp_replicas + tp_rank",
    "iteration": "where: of that rank",
    "slot": "where",
    "rid": "whose request",
    "phase": "where: the phase of the loop ([all](../effects.md))",
    "expected": "what should have been",
    "came": "what was there instead",
}


# --- the public interface -----------------------------------------------------------------------------------------

INTERFACE_HEAD = """# The public interface

Every name of `ppsim.__all__`, from its own docstring. [The library](../library.md) explains them with examples. What
is not here (`ppsim.core`, `ppsim.world`, ...) may change without a word; [parts](../parts.md) are what plug-ins may
subclass.

This page is made by `python docs/make_reference.py`.
"""


def interface() -> str:
    text = INTERFACE_HEAD
    functions = [name for name in ppsim.__all__ if not inspect.isclass(getattr(ppsim, name)) and name != "__version__"]
    classes = [name for name in ppsim.__all__ if inspect.isclass(getattr(ppsim, name))]
    text += "\n## Functions\n" + "".join("".join(of_function(name)) for name in functions)
    text += "\n## Classes\n" + "".join("".join(of_class(name)) for name in classes if not is_error(name))
    text += "\n## Errors\n\n| error | is a | |\n| --- | --- | --- |\n"
    for name in filter(is_error, classes):
        kind = getattr(ppsim, name)
        text += f"| `ppsim.{name}` | `{kind.__bases__[0].__name__}` | {first_sentence(kind)} |\n"
    return text + "\n`ppsim.__version__` is the installed version.\n"


def is_error(name: str) -> bool:
    return inspect.isclass(getattr(ppsim, name)) and issubclass(getattr(ppsim, name), Exception)


def of_function(name: str) -> Iterator[str]:
    function = target(getattr(ppsim, name))
    yield f"\n### ppsim.{name}\n\n```text\nppsim.{name}{signature(function)}\n```\n\n{words(function)}\n"


def target(thing: Any) -> Callable[..., Any]:
    """The function behind a name; of the package that is called like one, that function."""
    if inspect.ismodule(thing):
        from ppsim.api.campaign import fuzz

        return fuzz
    function: Callable[..., Any] = thing
    return function


def of_class(name: str) -> Iterator[str]:
    cls = getattr(ppsim, name)
    yield f"\n### ppsim.{name}\n\n{words(cls)}\n"
    rows = list(member_rows(cls))
    if rows:
        yield "\n| | |\n| --- | --- |\n"
        yield from rows


def member_rows(cls: type) -> Iterator[str]:
    if cls.__name__ in ("Scenario", "Policy"):
        page = {"Scenario": "scenario.md", "Policy": "../parts.md"}[cls.__name__]
        yield f"| its fields and methods | [have a page of their own]({page}) |\n"
        return
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else value
        if name.startswith("_") or not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        shown = (
            name
            if isinstance(value, property)
            else name + signature(function).replace("(self, ", "(").replace("(self)", "()")
        )
        yield f"| `{shown}` | {first_sentence(function)} |\n".replace(" | None", " \\| None")


def signature(function: Callable[..., Any]) -> str:
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))


def words(thing: Any) -> str:
    text = inspect.getdoc(thing)
    assert text, f"{thing} has no docstring"
    return re.sub(r"``", "`", text)


def first_sentence(thing: Any) -> str:
    return " ".join(words(thing).split("\n\n")[0].split()).replace("|", "\\|")


PAGES = {
    "reference/exit-codes.md": exit_codes,
    "reference/run-folder.md": run_folder,
    "reference/interface.md": interface,
}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
