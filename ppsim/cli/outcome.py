"""How a run of either world ends: the folder is filled, the result printed, the exit code chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from ppsim.cli.guard import say

if TYPE_CHECKING:
    from ppsim.core.hooks import Hooks
    from ppsim.recording import Recording, Verdict
    from ppsim.recording.folder import RunFolder
    from ppsim.scenario import Scenario
    from ppsim.world import SimulationResult


def simulated(
    scenario: Scenario, hooks: Callable[[int, int], Hooks], progress: Callable[[int, int], None], *, is_changed: bool
) -> SimulationResult:
    """Simulate. What a changed scheduler raises is its own failure, with the place where it happened."""
    from ppsim.errors import PluginError, PpsimError
    from ppsim.world import simulate

    try:
        return simulate(scenario, progress=progress, hooks=hooks)
    except PpsimError:
        raise
    except (Exception, SystemExit) as error:
        if not is_changed:
            raise
        from ppsim.fuzz.experiment import place

        raise PluginError(f"{scenario.name}: crash: {type(error).__name__}: {error} ({place(error)})") from error


def conclude(folder: RunFolder, scenario: Scenario, recording: Recording, verdict: Verdict, *, as_json: bool) -> int:
    """Save, print and return the exit code. The verdict's text goes to stderr, as does the place of the run."""
    from ppsim.recording.folder import write_run
    from ppsim.recording.summary import summarize
    from ppsim.report.table import summary_text

    summary = summarize(recording, verdict)
    write_run(folder, scenario.model_dump(mode="json"), recording, summary, verdict)
    if verdict.message and verdict.kind != "pass":
        say(verdict.message)
    if folder.replaces:
        say(f"replaced the earlier run in {folder.path}")
    say(f"saved {folder.path}")
    print(json.dumps(summary, allow_nan=False) if as_json else summary_text(summary))
    return verdict.exit_code
