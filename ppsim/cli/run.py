"""``ppsim run``: a scenario in simulation."""

from __future__ import annotations

from ppsim.cli.guard import guarded
from ppsim.cli.options import (
    BugOption,
    JsonOption,
    OutOption,
    PluginOption,
    ScenarioArg,
    SeedOption,
    SetOption,
    TraceOption,
    scenario_of,
)


@guarded
def run(
    scenario: ScenarioArg,
    seed: SeedOption = None,
    trace: TraceOption = None,
    overrides: SetOption = None,
    out: OutOption = None,
    bugs: BugOption = None,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Simulate a scenario and save the run."""
    loaded = scenario_of(scenario, seed, trace, overrides)

    from ppsim.planted import hooks_for, load_plugin

    hooks = hooks_for([*(bugs or []), *loaded.bugs], load_plugin(plugin) if plugin else None)

    from ppsim.cli.outcome import conclude, simulated
    from ppsim.cli.progress import ProgressBar
    from ppsim.recording.folder import run_folder

    with run_folder(out, loaded.name, loaded.seed) as folder:
        with ProgressBar(f"simulating {loaded.name}") as progress:
            result = simulated(loaded, hooks, progress, is_changed=bool(plugin or bugs or loaded.bugs))
        return conclude(folder, loaded, result.recording, result.verdict, as_json=as_json)
