"""``ppsim report``: saved runs as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ppsim.cli.guard import guarded, place, say
from ppsim.cli.options import RUN_HELP
from ppsim.cli.plot import put
from ppsim.errors import EXIT_PASS

if TYPE_CHECKING:
    from ppsim.recording import Recording, Verdict

NAME = "report.html"
ENDINGS = (".html", ".htm")

RunsArg = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help=f"{RUN_HELP} Several are compared.")]
FileOption = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE", callback=place, help=f"Default: {NAME} in the first run's folder."),
]


@guarded
def report(runs: RunsArg = None, output: FileOption = None) -> int:
    """Write saved runs as one HTML page: verdict, metrics, a timeline with zoom, requests, several runs side by side.

    The page needs no network and no server: open it in a browser.
    """
    from ppsim.recording.folder import find_recording, incomplete, open_run, read_verdict
    from ppsim.report.page.html import Run, page
    from ppsim.report.page.library import library

    named = runs or ["latest"]
    sources = [find_recording(run) for run in named]
    target = checked(output) if output is not None else sources[0].parent / NAME
    library()  # before long recordings are read
    found = []
    for run, source in zip(named, sources):
        why = incomplete(source.parent)
        if why:
            say(f"{run} is incomplete: {why.splitlines()[0]}")
        found.append(Run(name_of(source), open_run(str(source)), read_verdict(str(source))))
    print(put(target, page(found), is_named=output is not None))
    return EXIT_PASS


def checked(output: str) -> Path:
    """Raises UsageError for a name that no browser would open as a page."""
    from ppsim.errors import UsageError

    path = Path(output)
    if path.suffix.lower() not in ENDINGS:
        ending = f"the ending {path.suffix} is no page's" if path.suffix else "the name has no ending"
        raise UsageError(f"-o {output}: {ending}; expected {' or '.join(ENDINGS)}")
    return path


def name_of(source: Path) -> str:
    """What a run is called beside others: its folder, or its file where that has a name of its own."""
    from ppsim.recording.folder import RECORDINGS

    path = source.resolve()
    return path.parent.name if path.name in RECORDINGS else path.name


def write_report(folder: Path, recording: Recording, verdict: Verdict) -> Path:
    """The page of a run that has just ended, in its folder; an earlier one there is replaced with its run."""
    from ppsim.report.canvas import write
    from ppsim.report.page.html import Run, page

    target = folder / NAME
    write(target, page([Run(recording.name, recording, verdict)]))
    return target
