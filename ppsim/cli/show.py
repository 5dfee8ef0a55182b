"""``ppsim show``: a saved run as a table, or the schedule of one of its ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption, RunArg, SideOption, side_of
from ppsim.errors import EXIT_PASS

if TYPE_CHECKING:
    from ppsim.recording import Recording, Verdict

ScheduleOption = Annotated[bool, typer.Option("--schedule", help="One line an iteration instead of the summary.")]
RankOption = Annotated[int, typer.Option("--rank", min=0, help="The rank whose schedule is shown.")]


@guarded
def show(
    run: RunArg = "latest",
    schedule: ScheduleOption = False,
    rank: RankOption = 0,
    side: SideOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show a saved run."""
    from ppsim.recording.folder import folder_of, incomplete, open_run, open_summary, read_verdict, stand_lines

    whole = (None if schedule else open_summary(run)) or open_run(run)
    recording = side_of(whole, side)
    why = incomplete(folder_of(run))
    if why:
        say(f"{run} is incomplete: {why.splitlines()[0]}")
    if schedule:
        from ppsim.report import schedule as report

        entries = report.schedule(recording, rank)
        lines = (json.dumps(e) for e in entries) if as_json else report.schedule_text(recording, rank)
        for line in lines:
            print(line)
        return EXIT_PASS

    from ppsim.recording.summary import summarize
    from ppsim.report.table import summary_text

    verdict = read_verdict(run)
    summary = summarize(recording, verdict)
    print(json.dumps(summary, allow_nan=False) if as_json else summary_text(summary))
    if as_json:
        return EXIT_PASS
    for line in expected(run, whole, verdict):
        say(line)
    if verdict.message and verdict.kind != "pass":
        print(verdict.message)
    if recording.world == "exec" and verdict.kind != "pass":
        for line in (*recording.cuts, *stand_lines(recording.stands)):
            if line not in verdict.message:
                print(line)
    return EXIT_PASS


def expected(run: str, recording: Recording, verdict: Verdict) -> list[str]:
    """What became of what the scenario of a saved run expects."""
    from ppsim.api.run import Run
    from ppsim.errors import UsageError
    from ppsim.recording.folder import CONFIG, folder_of, incomplete
    from ppsim.scenario.load import read_scenario

    config = folder_of(run) / CONFIG
    try:
        content = read_scenario(str(config)) if config.is_file() else None
        found = Run(recording, verdict, content, incomplete(config.parent)).expectations
    except UsageError as error:  # the table is of the recording, which can be read
        return [f"the expectations of the scenario are not judged: {error}"]
    return found.lines() if found is not None else []
