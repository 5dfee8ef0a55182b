"""``ppsim exec``: the same scenario on real processes, with the same result."""

from __future__ import annotations

import json
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated

import typer

from ppsim.cli.guard import guarded, told_to_end
from ppsim.cli.options import (
    BugOption,
    ColumnOption,
    ConcurrencyOption,
    JsonOption,
    OutOption,
    PluginOption,
    ScenarioArg,
    SeedOption,
    SetOption,
    SkipOption,
    TraceOption,
    plugin_of,
    scenario_of,
    tell_unfired,
)
from ppsim.errors import PpsimError, UsageError


class Device(StrEnum):
    """Where the stages compute."""

    CPU = "cpu"
    CUDA = "cuda"


DeviceOption = Annotated[Device, typer.Option("--device", help="Where the stages compute.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="DIR", help="Checkpoint folder with config.json and safetensors. Default: random."),
]
PortOption = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="Rendezvous port on this host. Default: a free one.")
]


@guarded
def execute(
    scenario: ScenarioArg,
    device: DeviceOption = Device.CPU,
    model: ModelOption = None,
    port: PortOption = None,
    seed: SeedOption = None,
    trace: TraceOption = None,
    columns: ColumnOption = None,
    skip_bad_lines: SkipOption = False,
    concurrency: ConcurrencyOption = None,
    overrides: SetOption = None,
    out: OutOption = None,
    bugs: BugOption = None,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a scenario on real processes that run a real model, and save the run."""
    sets = [f"model.path={json.dumps(model)}"] if model is not None else []
    overrides = [*(overrides or []), *sets]
    loaded = scenario_of(scenario, seed, trace, overrides, None, columns, skip_bad_lines, concurrency, bugs)
    module = plugin_of(plugin)
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise UsageError(f"ppsim exec needs {package}, which is not installed: pip install 'ppsim[executor]'")

    from executor.launch import execute as launch
    from ppsim.cli.outcome import conclude, keep_what_there_is, origin_of
    from ppsim.cli.progress import ProgressBar
    from ppsim.plugin import all_bugs, bugs_in
    from ppsim.plugin.loader import always_on
    from ppsim.recording.folder import run_folder
    from ppsim.scenario.expect_judged import with_change
    from ppsim.scenario.kept import digests_of

    if module is not None and always_on(module):
        loaded = with_change(loaded, f"the policy ({plugin})")
    files = digests_of(loaded)
    with run_folder(out, loaded.name, loaded.seed) as folder:
        try:
            with told_to_end(), ProgressBar(f"executing {loaded.name}", "requests") as progress:
                result = launch(
                    loaded,
                    device=device.value,
                    port=port,
                    progress=progress,
                    plugin=plugin,
                    folder=folder.path,
                    origin=origin_of(plugin),
                )
        except (PpsimError, KeyboardInterrupt) as error:
            keep_what_there_is(folder, error)
            raise
        if result.verdict.kind == "pass":
            tell_unfired(result.unfired)
        known = [*all_bugs(), *(bug.name for bug in (bugs_in(module) if module is not None else ()))]
        ran = result.scenario or loaded
        return conclude(folder, ran, result.recording, result.verdict, as_json=as_json, known_bugs=known, files=files)
