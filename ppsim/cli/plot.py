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
    from ppsim.recording.folder import VERDICT, find_recording, open_run, read_verdict
    from ppsim.report.gantt import gantt
    from ppsim.report.window import words_on_cut

    source = find_recording(run)
    recording = open_run(str(source))
    side_of(recording, side)  # refuses a side where there is only one
    name = "gantt.png" if side is None else f"gantt-{side.value}.png"
    target = Path(output) if output is not None else source.parent / name
    verdict = read_verdict(str(source)) if source.with_name(VERDICT).exists() else None
    picture = gantt(recording, target, verdict=verdict, side=side and side.value, from_s=from_s, to_s=to_s)
    for sentence in words_on_cut(picture.window, from_s, to_s):
        say(f"ppsim: {sentence}")
    print(put(target, picture.content, is_named=output is not None))
    return EXIT_PASS


def put(target: Path, content: bytes, *, is_named: bool) -> Path:
    """Write the picture and return where it went. Another picture is only replaced where its very name was given."""
    from ppsim.report.canvas import write

    if is_named and target.is_file() and target.read_bytes() != content:
        say(f"ppsim: replaced {target}")
    if not is_named:
        stem = target.stem
        number = 2
        while target.is_file() and target.read_bytes() != content:
            target = target.with_name(f"{stem}-{number}{target.suffix}")
            number += 1
    write(target, content)
    return target
