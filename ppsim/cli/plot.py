"""``ppsim plot``: the Gantt picture of a saved run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ppsim.cli.guard import guarded, place, say
from ppsim.cli.options import RunArg, SideOption, side_of
from ppsim.errors import EXIT_PASS


class Kind(StrEnum):
    """Pictures of a run (``ppsim.report.kinds``)."""

    GANTT = "gantt"
    CHANNELS = "channels"
    CHUNKS = "chunks"
    REQUESTS = "requests"
    KV = "kv"
    MEASURED = "measured"


OutputOption = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE", callback=place, help="Default: the kind's name in the run folder."),
]
FromOption = Annotated[float | None, typer.Option("--from", metavar="SECONDS", help="Start of the part shown.")]
KindOption = Annotated[Kind, typer.Option("--kind", help="What is drawn.")]
AgainstOption = Annotated[
    str | None, typer.Option("--against", metavar="RUN", help="With --kind chunks or measured: a second run.")
]
ToOption = Annotated[float | None, typer.Option("--to", metavar="SECONDS", help="End of the part shown.")]


@guarded
def plot(
    run: RunArg = "latest",
    output: OutputOption = None,
    from_s: FromOption = None,
    to_s: ToOption = None,
    side: SideOption = None,
    kind: KindOption = Kind.GANTT,
    against: AgainstOption = None,
) -> int:
    """Draw a saved run.

    gantt: rank x time, coloured by slot. channels: who sent what when. chunks: time of each prompt piece. requests:
    running and waiting requests, TTFT and TPOT over time. kv: KV memory over time. measured: forward passes of a
    simulation against those of real processes (--against).
    """
    from ppsim.recording.folder import VERDICT, find_recording, open_run, read_verdict
    from ppsim.report.kinds import Wish, picture
    from ppsim.report.window import words_on_cut

    source = find_recording(run)
    recording = open_run(str(source))
    side_of(recording, side)  # refuses a side where there is only one
    name = kind.value if side is None else f"{kind.value}-{side.value}"
    target = Path(output) if output is not None else source.parent / f"{name}.png"
    verdict = read_verdict(str(source)) if source.with_name(VERDICT).exists() else None
    other = open_run(against) if against is not None else None
    wish = Wish(kind.value, side and side.value, from_s, to_s, other)
    drawn = picture(recording, target, wish, verdict)
    for sentence in words_on_cut(drawn.window, from_s, to_s):
        say(f"ppsim: {sentence}")
    print(put(target, drawn.content, is_named=output is not None))
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
