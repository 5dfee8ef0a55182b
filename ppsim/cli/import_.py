"""``ppsim import``: a launch line as people write it, turned into a scenario.

The scenario is TOML on stdout, ready for ``ppsim run``; what was not understood, left open or not modelled is told on
stderr, each with its line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import (
    ColumnOption,
    ConcurrencyOption,
    JsonOption,
    OutputOption,
    PromptOption,
    RateOption,
    SetOption,
    SkipOption,
    TraceOption,
    reading_keys,
    workload_keys,
)
from ppsim.errors import EXIT_PASS, EXIT_USAGE

if TYPE_CHECKING:
    from ppsim.sglang.result import LaunchLine

SourceArg = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE|-|LINE", help="A file, - for standard input, or the launch line itself, quoted or word by word."
    ),
]
RoleOption = Annotated[
    str | None,
    typer.Option("--role", metavar="ROLE", help="Of several servers the one with this role: prefill, decode."),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu", metavar="KEY|FILE", help="Times from first principles on this GPU, or one of your own in a TOML file."
    ),
]
# A launch line may have a -h of its own, so here only --help is ours.
CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": True, "help_option_names": ["--help"]}


@guarded
def import_(
    source: SourceArg,
    role: RoleOption = None,
    gpu: GpuOption = None,
    prompt: PromptOption = None,
    output: OutputOption = None,
    rate: RateOption = None,
    trace: TraceOption = None,
    columns: ColumnOption = None,
    skip_bad_lines: SkipOption = False,
    concurrency: ConcurrencyOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Turn an SGLang or vLLM launch line into a scenario."""
    from ppsim.errors import UsageError
    from ppsim.parsing import readable
    from ppsim.scenario.load import parse_overrides

    arriving = workload_keys(prompt, output, rate, trace)
    if trace is not None:
        arriving = {"workload.source": "trace", "workload.trace": trace}
    elif columns or skip_bad_lines:
        raise UsageError("--column and --skip-bad-lines are about the file of --trace, which is not given")
    arriving |= reading_keys(columns, skip_bad_lines, concurrency)
    arriving |= parse_overrides(overrides or [])
    content = content_of(source)
    refuse_a_trace(content)
    text, remark = readable(content)
    lines = [line for line in launches_of(text, source) if role is None or line.role == role]
    if remark:
        say(f"note: {remark}")
    if not lines:
        raise UsageError(f"--role {role}: no server of the text has this role; leave the option out to see all")
    if as_json:
        print(json.dumps([described(line, gpu, arriving) for line in lines], allow_nan=False, default=str))
    else:
        for line in lines:
            tell(line, gpu, arriving)
            if not line.errors:
                print(scenario_text(line, gpu, arriving), end="")
        if len(lines) > 1:
            say(f"ppsim: {len(lines)} servers; choose one with --role, or by its heading")
    return EXIT_USAGE if any(line.errors for line in lines) else EXIT_PASS


def launches_of(text: str, source: list[str]) -> list[LaunchLine]:
    """``read_launch``; of a text that starts nothing the message says what it is instead, and who takes it."""
    from ppsim.cli.measured import is_file
    from ppsim.errors import UsageError
    from ppsim.sglang.launch import read_launch

    try:
        return read_launch(text)
    except UsageError as error:
        if not text.strip() or ("\n" not in text.strip() and source != ["-"] and not is_file(source[0])):
            raise  # words of a command line that is none
        from ppsim.cli.recognise import recognise

        told = recognise(source[0] if len(source) == 1 else "-", text.encode("utf-8", errors="replace"))
        if not told.kind:
            raise
        takes = "; ".join(told.give_to) or "no command takes it"
        raise UsageError(f"this is no launch line but: {told.kind}. It belongs to: {takes}") from error


def refuse_a_trace(content: bytes) -> None:
    """Raises UsageError for a request trace, and says where it belongs."""
    from ppsim.errors import UsageError
    from ppsim.workload.trace import kind_of_content

    kind = kind_of_content(content)
    if kind:
        raise UsageError(
            f"this is a request trace ({kind}), and no launch line; it belongs to ppsim run SCENARIO --trace FILE"
        )


def content_of(source: list[str]) -> bytes:
    """Text of a file or of standard input, or the words themselves. Raises UsageError for a file that isn't there."""
    import shlex

    from ppsim.cli.measured import is_file
    from ppsim.errors import UsageError

    if len(source) > 1:
        refuse_options(source)
        return shlex.join(source).encode("utf-8", errors="replace")
    (only,) = source
    if only == "-":
        return sys.stdin.buffer.read()
    if "\n" in only or (" " in only.strip() and not is_file(only)):
        return only.encode("utf-8", errors="replace")
    if not is_file(only):
        raise UsageError(f"{only}: no such file, and no launch line; expected a file, -, or a command in quotes")
    return unpacked(only, Path(only).read_bytes())


def unpacked(name: str, content: bytes) -> bytes:
    """What a file holds, packed with gzip or not. Raises UsageError for one that is damaged."""
    import gzip

    from ppsim.errors import UsageError
    from ppsim.recording.packed import DAMAGED, MAGIC

    if not content.startswith(MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except DAMAGED as error:
        raise UsageError(f"{name}: packed with gzip, and cut off or damaged ({error}); copy it again") from None


def refuse_options(source: list[str]) -> None:
    """Raises UsageError for a file with more behind it: an option that this command does not have."""
    from ppsim.cli.measured import is_file
    from ppsim.errors import UsageError

    if source[0] == "-" or is_file(source[0]):
        said = f"{' '.join(source[1:3])}: stands behind {'-' if source[0] == '-' else f'the file {source[0]}'}"
        raise UsageError(
            f"{said}, which is the whole launch line, and is no option of ppsim import (ppsim import --help lists "
            "them; the scenario goes to standard output)"
        )


def described(line: LaunchLine, gpu: str | None, arriving: dict[str, Any] | None = None) -> dict[str, Any]:
    """A server for ``--json``: what was read, the scenario it makes (null if it has errors), the line printed back."""
    scenario = scenario_of(line, gpu, arriving) if not line.errors else None
    return {**line.to_dict(), "scenario": scenario, "launch_line": None if scenario is None else printed(scenario)}


def scenario_of(line: LaunchLine, gpu: str | None, arriving: dict[str, Any] | None = None) -> dict[str, Any]:
    """``to_scenario``, with the costs of a GPU that the line does not name. Raises ScenarioError for an unknown one,
    and for a key or value of ``--set`` that no scenario has."""
    from ppsim.sglang.settle import settled_line

    found = settled_line(line, gpu)
    given = arriving or {}
    left_open = {key: why for key, why in found["left_open"].items() if key not in given}
    made = {**found, "overrides": {**found["overrides"], **given}, "left_open": left_open}
    if given:
        tree_of(made)
    return made


def printed(scenario: dict[str, Any]) -> str:
    from ppsim.sglang.launch import to_launch_line

    return to_launch_line(tree_of(scenario))


def tree_of(scenario: dict[str, Any]) -> Any:
    from ppsim.scenario.load import put, validate

    raw: dict[str, Any] = {}
    for key, value in scenario["overrides"].items():
        put(raw, key, value)
    return validate(raw)


def scenario_text(line: LaunchLine, gpu: str | None = None, arriving: dict[str, Any] | None = None) -> str:
    """TOML of the scenario: what the line settles, by section, under a heading that says where it comes from."""
    overrides = scenario_of(line, gpu, arriving)["overrides"]
    heading = " ".join(part for part in (line.engine, line.variant, line.program, line.role or "") if part)
    out = [f"# {heading}, line {line.line}"]
    out += [f"{key} = {literal(value)}" for key, value in overrides.items() if "." not in key]
    sections: dict[str, list[str]] = {}
    for key, value in overrides.items():
        if "." not in key:
            continue
        section, _, leaf = key.rpartition(".")
        sections.setdefault(section, []).append(f"{leaf} = {literal(value)}")
    for section, rows in sections.items():
        out += [f"[{section}]", *rows, ""]
    return "\n".join(out) + "\n"


def literal(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return json.dumps(value) if isinstance(value, str | int | float | bool) else str(value)


def differences(line: LaunchLine) -> tuple[str, ...]:
    """Where the rules of SGLang stand in for the engine's own."""
    from ppsim.scenario.warn import VLLM_DIFFERENCES

    return VLLM_DIFFERENCES if line.engine == "vllm" else ()


def tell(line: LaunchLine, gpu: str | None, arriving: dict[str, Any]) -> None:
    """All that the scenario does not show, on stderr."""
    for note in line.errors:
        say(f"error: {note}")
    for note in line.warnings:
        say(f"warning: {note}")
    for note in line.notes:
        say(f"note: {note}")
    for flag in line.unknown_flags:
        near = f"; did you mean {flag.nearest}?" if flag.nearest else ""
        say(f"unknown: line {flag.line}, {' '.join((flag.spelling, *flag.values))}{near}")
    for hole in line.unresolved:
        say(f"unresolved: line {hole.line}, {hole.name or 'outside the flags'}: {hole.text}")
    if line.errors:
        return
    found = scenario_of(line, gpu, arriving)
    for text in differences(line):
        say(f"differs: {text}")
    for key, why in found["left_open"].items():
        say(f"left open: {key}: {why}")
    if found["not_modelled"]:
        say("not modelled: " + ", ".join(f"{name}={value}" for name, value in found["not_modelled"].items()))
    if not any(key.startswith("workload.") for key in arriving):
        from ppsim.scenario.tree import Scenario
        from ppsim.scenario.warn import assumed_workload

        say(f"left open: workload: {assumed_workload(Scenario())}")
    if gpu is None and not any(key.startswith(("cost.", "gpu.")) for key in arriving):
        say("left open: stage times: a launch line names no GPU; give --gpu KEY, or cost.* from ppsim fit")
