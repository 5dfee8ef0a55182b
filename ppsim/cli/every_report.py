"""Everything that a run leaves, written and read back: what a campaign does with some of its examples.

Rule: no report may fail on a run that passed, whatever has happened in it or has not. This raises what went wrong.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ppsim.errors import UsageError

if TYPE_CHECKING:
    from ppsim.recording import Recording
    from ppsim.scenario import Scenario
    from ppsim.world import SimulationResult


def write_and_read(scenario: Scenario, result: SimulationResult) -> None:
    """Write the run folder, read it, and make every table, schedule, picture, page and comparison of it.

    Raises AssertionError where the folder holds another run than the one that was written.
    """
    from ppsim.recording.diff import first_difference
    from ppsim.recording.folder import CONFIG, SUMMARY, RunFolder, open_run, read_verdict, write_run
    from ppsim.recording.summary import summarize
    from ppsim.report.page.html import Run, Shown, run_html
    from ppsim.report.table import summary_text
    from ppsim.scenario.load import validate

    with TemporaryDirectory() as name:
        path = Path(name)
        summary = summarize(result.recording, result.verdict)
        write_run(RunFolder(path), scenario.model_dump(mode="json"), result.recording, summary, result.verdict)
        again, verdict = open_run(name), read_verdict(name)
        if verdict != result.verdict or summarize(again, verdict) != summary:
            raise AssertionError("the run folder holds another summary than the run")
        if json.loads((path / SUMMARY).read_text(encoding="utf-8")) != json.loads(json.dumps(summary, allow_nan=False)):
            raise AssertionError(f"{SUMMARY} is not the summary")
        if validate(tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))) != scenario:
            raise AssertionError(f"{CONFIG} is not the scenario of the run")
        found = first_difference(result.recording, again, times=True)
        if found is not None:
            raise AssertionError(f"what is read back differs: {found}")
        first_difference(result.recording, again, decisions_only=True)
        summary_text(summary)
        run_html(Shown.of(Run(again.name, again, verdict)), again.name)
        for recording in [again] if again.peer is None else [again, again.peer]:
            show(recording, path)


def show(recording: Recording, folder: Path) -> None:
    """The schedule of each rank, for people and for scripts, and the picture."""
    from ppsim.report.gantt import plot_gantt
    from ppsim.report.schedule import schedule, schedule_text

    for rank in range(recording.num_ranks):
        for entry in schedule(recording, rank):
            json.dumps(entry, allow_nan=False)
        for _ in schedule_text(recording, rank):
            pass
    try:
        plot_gantt(recording, folder / "gantt.png")
    except UsageError as error:
        if not str(error).startswith("nothing to plot"):
            raise
