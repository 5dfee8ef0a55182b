"""Options that several commands share, and what becomes of them: a scenario with its overrides."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

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
    str, typer.Argument(metavar="SCENARIO", help="A name in scenarios/ (see: ppsim list scenarios) or a TOML file.")
]
SeedOption: TypeAlias = Annotated[int | None, typer.Option("--seed", min=0, help="Replaces the scenario's seed.")]
TraceOption: TypeAlias = Annotated[
    str | None, typer.Option("--trace", metavar="FILE", help="Requests from a Mooncake JSONL or Azure CSV file.")
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a scenario key, e.g. cluster.pp_size=2. Repeatable."),
]
BugOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--bug", metavar="NAME", help="Switch a planted bug on (ppsim list bugs). Repeatable."),
]
PluginOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--plugin", metavar="FILE.py", help="A file with a Policy(Hooks) or planted bugs of your own."),
]
OutOption: TypeAlias = Annotated[
    str | None, typer.Option("--out", metavar="DIR", help="The run folder. Default: runs/NAME-SEED-N, N the next free.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
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
RunArg: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)]


def tell_notes(shape: ModelShape) -> None:
    """What was assumed of a model, and what of its config was not read, on stderr."""
    from ppsim.cli.guard import say

    for note in shape.notes:
        say(f"note: {shape.name}: {note}")


def scenario_of(name: str, seed: int | None, trace: str | None, overrides: list[str] | None) -> Scenario:
    """The scenario a command line asks for; later overrides win, and --set wins over --trace."""
    from ppsim.scenario import load_scenario

    sets = []
    if trace is not None:
        sets += ['workload.source="trace"', f"workload.trace={json.dumps(trace)}"]
    return load_scenario(name, [*sets, *(overrides or [])], seed=seed)


def side_of(recording: Recording, side: Side | None) -> Recording:
    """One side of a saved run. Raises UsageError where there is only one."""
    if side is None:
        return recording
    if recording.peer is None:
        raise UsageError(f"--side {side.value}: this run has one pipeline, two have disaggregation.role 'pd'")
    return recording.peer if side is Side.PREFILL else recording
