"""What a picture of a run has on its vertical axis: lanes of busy times, of one pipeline or of two.

Rule: every lane says whose it is. Two pipelines are drawn together, prefill above decode, and the KV transfers between
them have lanes of their own; what is recorded and not drawn is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ppsim.errors import UsageError
from ppsim.recording.record import Recording
from ppsim.recording.schema import Span
from ppsim.recording.summary import covered_ns, forward_window

SHOWN = ("forward", "kv")  # streams that have lanes
COPIES = {"load": "loads from host memory", "write": "writes to host memory", "prefetch": "fetches from storage"}
KV = -1  # in place of a slot: a transfer between two pipelines


class Part(NamedTuple):
    """A pipeline of a run; ``name`` is empty where there is only one."""

    name: str
    recording: Recording


class Lane(NamedTuple):
    """One horizontal line of boxes."""

    name: str
    spans: list[Span]


class Rows(NamedTuple):
    """Lanes from top to bottom, ``pitch`` pixels apart; a bar fills about four fifths of that."""

    num: int
    pitch: int

    @property
    def height(self) -> int:
        return self.num * self.pitch

    def bar(self, i: int) -> tuple[int, int]:
        """[first, last + 1) pixel row of a lane's bar."""
        margin = max(1, self.pitch // 8) if self.pitch > 3 else 0
        return i * self.pitch + margin, (i + 1) * self.pitch - margin


def fitted(num: int, least: int, largest: int, height: int) -> Rows:
    """Lanes as high as fits into ``height`` pixels, between ``least`` and ``largest``."""
    return Rows(num, max(least, min(largest, height // num)))


def parts_of(recording: Recording, side: str | None = None) -> list[Part]:
    """The pipelines of a run: prefill and decode where there are two, or the one that ``side`` names."""
    if recording.peer is None:
        if side is not None:
            raise UsageError(f"--side {side}: this run has one pipeline, two have disaggregation.role 'pd'")
        return [Part("", recording)]
    both = [Part("prefill", recording.peer), Part("decode", recording)]
    return [part for part in both if side in (None, part.name)]


def lanes_of(parts: Sequence[Part]) -> list[Lane]:
    """The forward passes of each rank, and below those of a prefill server what each of its ranks transferred."""
    lanes = []
    for part in parts:
        recording = part.recording
        names = [rank_name(part, rank) for rank in range(recording.num_ranks)]
        lanes += [Lane(names[rank], streams(recording, rank, "forward")) for rank in range(recording.num_ranks)]
        kv = [streams(recording, rank, "kv") for rank in range(recording.num_ranks)]
        if any(kv):
            lanes += [Lane(f"KV from {rank_name(Part('', recording), i)}", as_kv(spans)) for i, spans in enumerate(kv)]
    return lanes


def streams(recording: Recording, rank: int, stream: str) -> list[Span]:
    return [span for span in recording.spans[rank] if span.stream == stream]


def as_kv(spans: Sequence[Span]) -> list[Span]:
    return [span._replace(slot=KV) for span in spans]


def rank_name(part: Part, rank: int) -> str:
    recording = part.recording
    name = f"{part.name} PP{recording.pp_rank(rank)}".strip()
    return f"{name} TP{rank % recording.tp_replicas}" if recording.tp_replicas > 1 else name


def title_of(parts: Sequence[Part]) -> str:
    """Name of the run, and size and bubble of each pipeline: idle over the time of all ranks, as in the summary."""
    first = parts[0].recording
    return f"{first.name} ({first.world})   " + "   ".join(sizes(part) for part in parts)


def sizes(part: Part) -> str:
    recording = part.recording
    start, end = forward_window(recording)
    length = (end - start) * recording.num_ranks
    bubble = "no forward pass"
    if length:
        bubble = f"bubble {100 * (length - sum(map(covered_ns, recording.spans))) / length:.1f} % of the run"
    if not part.name:
        return f"pp_size {recording.pp_size}   {bubble}"
    return f"{part.name}: pp_size {recording.pp_size}, {bubble.replace('the run', 'its time')}"


def left_out(parts: Sequence[Part]) -> list[str]:
    """A sentence a pipeline on what its lanes do not show although it was recorded: of a rank, as ``ppsim show`` counts
    (``summary.tier_use``): every rank copies what it holds of the same tokens, so a sum would count them again."""
    told = []
    for part in parts:
        ranks = [Counter(s.stream for s in spans if s.stream not in SHOWN) for spans in part.recording.spans]
        streams = sorted({stream for found in ranks for stream in found})
        if not streams:
            continue
        copies = [f"{max(found[name] for found in ranks):,} {COPIES.get(name, name)}" for name in streams]
        most = "at most " if any(len({found[name] for found in ranks}) > 1 for name in streams) else ""
        who = " ".join(["the" if len(ranks) == 1 else "each", *filter(None, [part.name]), "rank"])
        told.append(f"Not drawn, of {who}: {most}{', '.join(copies)}.")
    return told
