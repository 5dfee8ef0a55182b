"""``ppsim trace``: a saved run as a timeline for Perfetto or chrome://tracing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppsim.cli.guard import guarded, place, say
from ppsim.cli.options import RunArg, SideOption
from ppsim.cli.plot import FromOption, ToOption
from ppsim.errors import EXIT_PASS

FileOption = Annotated[
    str | None,
    typer.Option(
        "-o", "--output", metavar="FILE", callback=place, help="A .json or .json.gz. Default: in the run folder."
    ),
]


@guarded
def trace(
    run: RunArg = "latest",
    output: FileOption = None,
    from_s: FromOption = None,
    to_s: ToOption = None,
    side: SideOption = None,
) -> int:
    """Write a saved run as Chrome trace events; open the file at ui.perfetto.dev."""
    from ppsim.recording.folder import VERDICT, find_recording, open_run, read_verdict
    from ppsim.report.lanes import parts_of
    from ppsim.report.trace import trace as timeline
    from ppsim.report.trace_format import write_trace
    from ppsim.report.window import chosen_window, lifetime, words_on_cut

    source = find_recording(run)
    name = "trace.json.gz" if side is None else f"trace-{side.value}.json.gz"
    target = Path(output) if output is not None else source.parent / name
    verdict = read_verdict(str(source)) if source.with_name(VERDICT).exists() else None
    parts = parts_of(open_run(str(source)), side and side.value)
    window = None
    if from_s is not None or to_s is not None:
        whole = lifetime(*(part.recording for part in parts))
        window = chosen_window(whole, whole, from_s, to_s)
        for sentence in words_on_cut(window, from_s, to_s):
            say(f"ppsim: {sentence}")
    found = timeline(parts, verdict, window)
    before = target.read_bytes() if target.is_file() else None
    write_trace(found.events, found.other, target)
    if before is not None and target.read_bytes() != before:
        say(f"ppsim: replaced {target}")
    print(target)
    return EXIT_PASS
