"""Options that several commands share, and what becomes of them: a scenario with its overrides."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ppsim.cli import completion
from ppsim.cli.guard import place, say
from ppsim.errors import UsageError

if TYPE_CHECKING:
    from ppsim.cost.model import ModelShape
    from ppsim.recording import Recording
    from ppsim.scenario import Scenario


class Side(StrEnum):
    """Of two pipelines."""

    PREFILL = "prefill"
    DECODE = "decode"


RUN_HELP = "A run folder, a recording file, a name below runs/, or latest."

ScenarioArg: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A name in scenarios/ (see: ppsim list scenarios) or a TOML file.",
        autocompletion=completion.scenarios,
    ),
]
SeedOption: TypeAlias = Annotated[int | None, typer.Option("--seed", min=0, help="Replaces the scenario's seed.")]
TraceOption: TypeAlias = Annotated[
    str | None, typer.Option("--trace", metavar="FILE", help="Requests from a Mooncake, Azure, BurstGPT or other file.")
]
ColumnOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="ROLE=NAME", help="Of a trace: the column of time, prompt or output. Repeatable."),
]
SkipOption: TypeAlias = Annotated[
    bool, typer.Option("--skip-bad-lines", help="Of a trace: go on behind a line that is no request, and name each.")
]
PromptOption: TypeAlias = Annotated[
    int | None, typer.Option("--prompt", metavar="TOKENS", help="Generated prompts of so many tokens.")
]
OutputOption: TypeAlias = Annotated[
    int | None, typer.Option("--output", metavar="TOKENS", help="Output tokens of each generated prompt.")
]
RateOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--rate", metavar="PER_S", help="Generated prompts arrive so often, as a Poisson stream."),
]
ConcurrencyOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--concurrency", min=1, metavar="N", help="N clients: each sends its next request when one ends."),
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a scenario key, e.g. cluster.pp_size=2. Repeatable."),
]
BugOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--bug",
        metavar="NAME",
        help="Switch a planted bug on (ppsim list bugs). Repeatable.",
        autocompletion=completion.bugs,
    ),
]
PluginOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--plugin", metavar="FILE.py", help="A file with a Policy, parts or planted bugs of your own."),
]
OutOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--out", metavar="DIR", callback=place, help="The run folder. Default: runs/NAME-SEED-N, N the next free."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
ReportOption: TypeAlias = Annotated[
    bool, typer.Option("--report", help="Also write the run's page, report.html, into its folder (see: ppsim report).")
]
FastOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--fast/--no-fast",
        help="Let one rank stand for all, to the same bytes, or run every rank. Default: fast where it is possible.",
    ),
]
WhileRunningOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--while-running",
        help="Write the files of the ranks while the run goes on, so that whatever ends it leaves them (kill -9 too).",
    ),
]
MaxSecondsOption: TypeAlias = Annotated[
    float,
    typer.Option("--max-seconds", metavar="SECONDS", help="A run that takes longer, on your clock, is stopped."),
]
SideOption: TypeAlias = Annotated[
    Side | None, typer.Option("--side", help="Of two pipelines (disaggregation.role pd). Default: decode.")
]
GpuOption: TypeAlias = Annotated[
    str, typer.Option("--gpu", metavar="KEY|FILE", help="A known GPU (ppsim list gpus), or a TOML file with a [gpu].")
]
KvCacheOption: TypeAlias = Annotated[
    str,
    typer.Option("--kv-cache-dtype", metavar="TYPE", help="Type of the KV cache, e.g. fp8_e4m3. Default: the model's."),
]
RunArg: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=completion.runs)]


def tell_notes(shape: ModelShape) -> None:
    """What was assumed of a model, and what of its config was not read, on stderr."""
    from ppsim.cli.guard import say

    for note in shape.notes:
        say(f"note: {shape.name}: {note}")


def scenario_of(
    name: str,
    seed: int | None,
    trace: str | None,
    overrides: list[str] | None,
    arriving: dict[str, Any] | None = None,
    columns: list[str] | None = None,
    skip_bad_lines: bool = False,
    concurrency: int | None = None,
    bugs: list[str] | None = None,
) -> Scenario:
    """The scenario a command line asks for; later overrides win, and --set wins over --trace and ``arriving``."""
    from ppsim.scenario import load_scenario

    sets = [f"{key}={toml_value(value)}" for key, value in (arriving or {}).items()]
    if trace is not None:
        sets += ['workload.source="trace"', f"workload.trace={json.dumps(trace)}"]
    sets += [f"{key}={toml_value(value)}" for key, value in reading_keys(columns, skip_bad_lines, concurrency).items()]
    return load_scenario(
        name, [*sets, *(overrides or [])], seed=seed, bugs=bugs or (), tell=lambda told: say(f"note: {told}")
    )


def tell_unjudged(s: Scenario, command: str) -> None:
    """What a scenario expects is true of itself; ``command`` varied it, and judged nothing. Told on stderr."""
    from ppsim.cli.guard import say

    if s.expect is not None and not s.expect.changed:
        say(f"note: {s.name}: ppsim {command} judges no [expect] (ppsim run and ppsim exec do)")


def reading_keys(
    columns: list[str] | None, skip_bad_lines: bool = False, concurrency: int | None = None
) -> dict[str, Any]:
    """Keys that --column, --skip-bad-lines and --concurrency give. Raises UsageError for a column of no role."""
    keys: dict[str, Any] = {}
    for column in columns or ():
        role, sign, of = column.partition("=")
        if role not in ("time", "prompt", "output") or not sign or not of:
            raise UsageError(f"--column {column}: expected time=NAME, prompt=NAME or output=NAME")
        keys[f"workload.columns.{role}"] = of
    if skip_bad_lines:
        keys["workload.skip_bad_lines"] = True
    if concurrency is not None:
        keys["workload.concurrency"] = concurrency
    return keys


def workload_keys(
    prompt: int | None, output: int | None, rate: float | None, trace: str | None = None
) -> dict[str, Any]:
    """Keys of the workload that --prompt, --output and --rate give. Raises UsageError for a number that cannot be."""
    from ppsim.scenario.bounds import MAX_TOKENS

    given = {"--prompt": prompt, "--output": output, "--rate": rate}
    for option, value in given.items():
        if value is None:
            continue
        if trace is not None:
            raise UsageError(
                f"{option}: is for a generated workload, and --trace {trace} gives another; one of the two"
            )
        if not 0 < value <= (MAX_TOKENS if option != "--rate" else 1e9):
            raise UsageError(
                f"{option} {value:g}: must be more than 0, and at most {MAX_TOKENS if option != '--rate' else 1e9:g}"
            )
    if all(value is None for value in given.values()):
        return {}
    keys: dict[str, Any] = {"workload.source": "generated"}
    for key, tokens in (("workload.input_length", prompt), ("workload.output_length", output)):
        if tokens is not None:
            keys |= {f"{key}.kind": "fixed", f"{key}.value": tokens, f"{key}.max": max(tokens, 131072)}
    if rate is not None:
        keys |= {"workload.arrival": "poisson", "workload.rate_per_s": float(rate)}
    return keys


def toml_value(value: Any) -> str:
    return json.dumps(value)


def check_seconds(option: str, seconds: float | None) -> None:
    """Raises UsageError for a time that is none."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"{option} {seconds:g}: must be a number of seconds more than 0")


def plugin_of(path: str | None) -> ModuleType | None:
    """A plug-in file. Raises UsageError for one that cannot be read, or that never comes to its end."""
    if path is None:
        return None
    from ppsim.check.invariants import check_breaks
    from ppsim.fuzz.limit import MAX_STILL_S, Limit, OutOfTime
    from ppsim.plugin import bugs_in, load_plugin
    from ppsim.plugin.unrecorded import unrecorded

    try:
        with Limit(MAX_STILL_S):
            module = load_plugin(path)
    except OutOfTime as stop:
        raise UsageError(f"{path}: reading it takes more than {MAX_STILL_S:g} s; it was in {stop.place}") from None
    check_breaks(f"plug-in {path}", bugs_in(module))
    for sentence in unrecorded(path):
        say(f"note: {sentence}")
    return module


def tell_unfired(names: list[str], where: str = "this run") -> None:
    """A bug or a policy that nobody asked proves nothing by passing."""
    for name in names:
        say(f"{name}: fired 0 times: nothing in {where} came to what it changes")


def side_of(recording: Recording, side: Side | None) -> Recording:
    """One side of a saved run. Raises UsageError where there is only one."""
    if side is None:
        return recording
    if recording.peer is None:
        raise UsageError(f"--side {side.value}: this run has one pipeline, two have disaggregation.role 'pd'")
    return recording.peer if side is Side.PREFILL else recording
