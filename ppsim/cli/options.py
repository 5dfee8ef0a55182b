"""Options that several commands share, and what becomes of them: a scenario with its overrides."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from ppsim.scenario import Scenario

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
RunArg: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)]


def scenario_of(name: str, seed: int | None, trace: str | None, overrides: list[str] | None) -> Scenario:
    """The scenario a command line asks for; later overrides win, and --set wins over --trace."""
    from ppsim.scenario import load_scenario

    sets = []
    if trace is not None:
        sets += ['workload.source="trace"', f"workload.trace={json.dumps(trace)}"]
    return load_scenario(name, [*sets, *(overrides or [])], seed=seed)
