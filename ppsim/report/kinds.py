"""Every picture of a run by its name: ``ppsim plot --kind``.

Rule: a title says what to see. What a picture cannot show it refuses in a sentence, or tells below the title.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppsim.errors import UsageError
from ppsim.recording.record import Recording
from ppsim.recording.schema import Verdict
from ppsim.report.canvas import Block, checked_path, encoded, heading, plain_style, sheet
from ppsim.report.channels import NUM_PASSES, channel_blocks
from ppsim.report.chunks import chunk_blocks, chunks_of
from ppsim.report.gantt import Picture, default_window, gantt
from ppsim.report.kv import kv_blocks
from ppsim.report.lanes import Part, parts_of
from ppsim.report.measured import measured_blocks, pairs_of
from ppsim.report.notes import notes
from ppsim.report.requests import request_blocks
from ppsim.report.waits import headline
from ppsim.report.window import Window, chosen_window, lifetime, whole_run

GANTT, CHANNELS, CHUNKS, REQUESTS, KV, MEASURED = KINDS = (
    "gantt",
    "channels",
    "chunks",
    "requests",
    "kv",
    "measured",
)
TWO = (CHUNKS, MEASURED)  # kinds that take a second run
TITLES = {
    CHANNELS: "who sent what when: an arrow that ends where a bar begins is one that the bar waited for",
    CHUNKS: "time of each piece on the first stage: the flatter, the fewer bubbles the pieces leave on the next ones",
    REQUESTS: "requests over time: a growing queue is more load than the server carries",
    KV: "KV memory over time: where requests hold all of it, somebody waits or is retracted",
    MEASURED: "forward passes in two runs: on the line both took the same time, below it this run was faster",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user asked for. ``against``: a second run beside the first, of chunks and measured only."""

    kind: str = GANTT
    side: str | None = None
    from_s: float | None = None
    to_s: float | None = None
    against: Recording | None = None


def picture(recording: Recording, path: Path, wish: Wish, verdict: Verdict | None = None) -> Picture:
    """The picture for ``path``. Raises UsageError for what cannot be drawn."""
    if wish.against is not None and wish.kind not in TWO:
        raise UsageError(f"--against: belongs to --kind {' and '.join(TWO)}, not to {wish.kind}")
    if wish.against is None and wish.kind == MEASURED:
        raise UsageError(f"--kind {MEASURED}: needs a second run, as of ppsim exec: --against RUN")
    if wish.kind == GANTT:
        return gantt(recording, path, verdict=verdict, side=wish.side, from_s=wish.from_s, to_s=wish.to_s)
    checked_path(path)
    parts = parts_of(recording, wish.side)
    recordings = [part.recording for part in parts]
    whole = lifetime(*recordings) if wish.kind in (REQUESTS, KV) else whole_run(*recordings)
    usual = whole
    if wish.kind == CHANNELS:
        usual = default_window(whole, parts, verdict is not None and verdict.kind != "pass", NUM_PASSES)
    window = chosen_window(whole, usual, wish.from_s, wish.to_s)
    first = parts[0].recording
    small = [sentence for part in parts for sentence in notes(part.recording)]
    if wish.kind == CHANNELS and window != whole:
        small.insert(0, part_drawn(window, whole))
    with plain_style():
        blocks = [heading(f"{first.name} ({first.world})   {TITLES[wish.kind]}", headline(verdict), small)]
        blocks += BLOCKS[wish.kind](parts, window, wish)
        return Picture(encoded(sheet(blocks), path), window)


def part_drawn(window: Window, whole: Window) -> str:
    """So that nobody takes the counts of a part for those of the run."""
    begin, end, last = (f"{ns / 1e9:.5g}" for ns in (window.start_ns, window.end_ns, whole.end_ns))
    return (
        f"drawn are {begin} to {end} s of a run that ends at {last} s, counts are of this part; --from and --to choose"
    )


def chunks_in(parts: Sequence[Part], window: Window, wish: Wish) -> list[Block]:
    """The pipeline that computes prompts, and the run beside it."""
    runs = [chunks_of(parts[0].recording, parts[0].recording.name, window)]
    if wish.against is not None:
        other = parts_of(wish.against, wish.side)[0].recording
        runs.append(chunks_of(other, f"{other.name} (--against)"))
    return chunk_blocks(runs)


def passes_of_both(parts: Sequence[Part], window: Window, wish: Wish) -> list[Block]:
    """The forward passes of the run and of the one beside it."""
    assert wish.against is not None
    return measured_blocks(pairs_of(parts[0].recording, parts_of(wish.against, wish.side)[0].recording, window))


BLOCKS: dict[str, Callable[[Sequence[Part], Window, Wish], list[Block]]] = {
    CHANNELS: lambda parts, window, wish: channel_blocks(parts, window),
    CHUNKS: chunks_in,
    MEASURED: passes_of_both,
    REQUESTS: lambda parts, window, wish: request_blocks(parts, window),
    KV: lambda parts, window, wish: kv_blocks(parts, window),
}
