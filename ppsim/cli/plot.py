"""``ppsim plot``: the Gantt picture of a saved run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import RunArg, SideOption, side_of
from ppsim.errors import EXIT_PASS

OutputOption = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="Default: gantt.png in the run folder.")
]
FromOption = Annotated[float | None, typer.Option("--from", metavar="SECONDS", help="Start of the part shown.")]
ToOption = Annotated[float | None, typer.Option("--to", metavar="SECONDS", help="End of the part shown.")]


@guarded
def plot(
    run: RunArg = "latest",
    output: OutputOption = None,
    from_s: FromOption = None,
    to_s: ToOption = None,
    side: SideOption = None,
) -> int:
    """Draw rank x time, coloured by slot; a long run also gets an overview."""
    from ppsim.recording.folder import find_recording, open_run
    from ppsim.report.gantt import plot_gantt
    from ppsim.report.window import words_on_cut

    source = find_recording(run)
    target = Path(output) if output is not None else source.parent / "gantt.png"
    window = plot_gantt(side_of(open_run(str(source)), side), target, from_s=from_s, to_s=to_s)
    for sentence in words_on_cut(window, from_s, to_s):
        say(f"ppsim: {sentence}")
    print(target)
    return EXIT_PASS
