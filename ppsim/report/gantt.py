"""The Gantt picture of a run: rank x time, coloured by slot, bubbles left blank.

Rule: a box is a forward pass that happened, to scale; a bubble is whatever no box covers. Two panels: the whole run as
the share of time that each rank computed, and a part of it in which single passes can be told apart. A short
run is shown whole, in one panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.errors import UsageError
from ppsim.recording.record import Recording
from ppsim.recording.schema import Span
from ppsim.recording.stalls import stalls
from ppsim.recording.summary import NS_PER_S, bubble_ratio, covered_ns, forward_window, stage_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READABLE_PASSES = 36  # forward passes of a rank that fit side by side
NUM_BINS = 480  # columns of the overview
BLANK = "#f3f1ec"


@dataclass(frozen=True, slots=True)
class Window:
    """[start_ns, end_ns) of a picture."""

    start_ns: int
    end_ns: int


def forward_spans(recording: Recording, rank: int) -> list[Span]:
    return [span for span in recording.spans[rank] if span.stream == "forward"]


def whole_run(recording: Recording) -> Window:
    """From the first forward start to the last forward end. Raises UsageError if nothing ran."""
    start, end = forward_window(recording)
    if end <= start:
        hint = "; the other pipeline has --side prefill" if recording.peer is not None else ""
        raise UsageError(f"nothing to plot: the recording has no forward pass{hint}")
    return Window(start, end)


def chosen_window(recording: Recording, from_s: float | None, to_s: float | None) -> Window:
    """``--from`` and ``--to`` in seconds of the run's clock; without both, a readable part (``typical_window``)."""
    whole = whole_run(recording)
    if from_s is None and to_s is None:
        return typical_window(recording)
    start = whole.start_ns if from_s is None else round(from_s * NS_PER_S)
    end = whole.end_ns if to_s is None else round(to_s * NS_PER_S)
    if start >= end or end <= whole.start_ns or start >= whole.end_ns:
        raise UsageError(
            f"--from/--to: {start / NS_PER_S} s to {end / NS_PER_S} s shows nothing; "
            f"the run computes from {whole.start_ns / NS_PER_S} s to {whole.end_ns / NS_PER_S} s"
        )
    return Window(start, end)


def typical_window(recording: Recording) -> Window:
    """The whole run if it is short; else the passes of rank 0 around the moment when half of its computing is done.

    Half of the computing, not of the time or of the passes: that lands where the run spends its time, neither in
    a pause nor in the long tail of short decode steps.
    """
    whole = whole_run(recording)
    passes = sorted((span.start_ns, span.end_ns) for span in forward_spans(recording, 0))
    if len(passes) <= READABLE_PASSES:
        return whole
    half = sum(end - start for start, end in passes) / 2
    done = 0
    middle = 0
    while done < half:
        done += passes[middle][1] - passes[middle][0]
        middle += 1
    first = min(max(0, middle - READABLE_PASSES // 2), len(passes) - READABLE_PASSES)
    return Window(passes[first][0], passes[first + READABLE_PASSES - 1][1])


def plot_gantt(recording: Recording, path: Path, *, from_s: float | None = None, to_s: float | None = None) -> Window:
    """Draw the picture to ``path`` (the ending says which format) and return the window it shows in detail."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    whole, window = whole_run(recording), chosen_window(recording, from_s, to_s)
    overview = window != whole
    height = 0.42 * recording.num_ranks + 1.1
    figure, panels = pyplot.subplots(
        2 if overview else 1,
        1,
        figsize=(12, height + (0.28 * recording.num_ranks + 1.0 if overview else 0) + 0.6),
        height_ratios=[0.28 * recording.num_ranks + 0.4, height] if overview else None,
        squeeze=False,
        layout="constrained",
    )
    try:
        if overview:
            draw_overview(figure, panels[0][0], recording, whole, window)
        draw_window(panels[-1][0], recording, window)
        figure.suptitle(title(recording), fontsize=11, x=0.01, ha="left")
        figure.savefig(path, dpi=130, metadata=stable_metadata(path))
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"-o {path}: {error}") from None
    finally:
        pyplot.close(figure)
    return window


def title(recording: Recording) -> str:
    stages = [stage_times(recording, pp_rank) for pp_rank in range(recording.pp_size)]
    bubble = 100 * bubble_ratio(stages)
    run = f"{recording.name} ({recording.world})   pp_size {recording.pp_size}   bubble {bubble:.1f} % of the run"
    return "\n".join([run, *stalls(recording).sentences()])


def stable_metadata(path: Path) -> dict[str, Any]:
    """No dates and versions in the file: the same run gives the same picture."""
    return {"Software": None} if path.suffix == ".png" else {"Date": None} if path.suffix == ".svg" else {}


def draw_window(axes: Axes, recording: Recording, window: Window) -> None:
    """Every forward pass in the window as a box with its iteration, coloured by slot."""
    slots = sorted({span.slot for rank in range(recording.num_ranks) for span in forward_spans(recording, rank)})
    colours = slot_colours(slots)
    unit, scale = time_unit(window)
    width_ns = window.end_ns - window.start_ns
    for rank in range(recording.num_ranks):
        axes.barh(rank, width_ns / scale, left=window.start_ns / scale, height=0.8, color=BLANK, zorder=1)
        for span in forward_spans(recording, rank):
            start, end = max(span.start_ns, window.start_ns), min(span.end_ns, window.end_ns)
            if start >= end:
                continue
            axes.barh(
                rank,
                (end - start) / scale,
                left=start / scale,
                height=0.8,
                color=colours[span.slot],
                edgecolor="white",
                linewidth=0.4,
                zorder=2,
            )
            if (end - start) / width_ns > 0.008 * max(2, len(str(span.iteration))):
                axes.text(
                    (start + end) / 2 / scale,
                    rank,
                    str(span.iteration),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white",
                    zorder=3,
                )
    name_ranks(axes, recording)
    axes.set_xlim(window.start_ns / scale, window.end_ns / scale)
    axes.set_xlabel(f"time [{unit}]; numbers are iterations, blank is bubble")
    add_legend(axes, colours)


def draw_overview(figure: Figure, axes: Axes, recording: Recording, whole: Window, window: Window) -> None:
    """The share of time that each rank computed, over the whole run, with the detailed part marked."""
    unit, scale = time_unit(whole)
    shares = [busy_shares(forward_spans(recording, rank), whole) for rank in range(recording.num_ranks)]
    extent = (whole.start_ns / scale, whole.end_ns / scale, recording.num_ranks - 0.5, -0.5)
    image = axes.imshow(shares, aspect="auto", extent=extent, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.axvspan(window.start_ns / scale, window.end_ns / scale, color="#d1495b", alpha=0.9, lw=1.2)
    name_ranks(axes, recording)
    axes.set_xlabel(f"time [{unit}]; the marked part is shown below")
    figure.colorbar(image, ax=axes, pad=0.01, label="computing")


def busy_shares(spans: Sequence[Span], whole: Window) -> list[float]:
    """Covered share of each of ``NUM_BINS`` equal parts of the run."""
    edges = [whole.start_ns + (whole.end_ns - whole.start_ns) * i // NUM_BINS for i in range(NUM_BINS + 1)]
    parts: list[list[Span]] = [[] for _ in range(NUM_BINS)]
    place = 0
    for span in sorted(spans, key=lambda s: s.start_ns):
        while place + 1 < NUM_BINS and edges[place + 1] <= span.start_ns:
            place += 1
        at = place
        while at < NUM_BINS and edges[at] < span.end_ns:
            start, end = max(span.start_ns, edges[at]), min(span.end_ns, edges[at + 1])
            parts[at].append(span._replace(start_ns=start, end_ns=end))
            at += 1
    return [covered_ns(part) / max(1, edges[i + 1] - edges[i]) for i, part in enumerate(parts)]


def slot_colours(slots: Sequence[int]) -> dict[int, Any]:
    """Colours that neighbours in the ring do not share."""
    import matplotlib

    if len(slots) <= 10:
        return {slot: matplotlib.colormaps["tab10"](i) for i, slot in enumerate(slots)}
    return {slot: matplotlib.colormaps["turbo"]((i * 7 % len(slots)) / len(slots)) for i, slot in enumerate(slots)}


def add_legend(axes: Axes, colours: dict[int, Any]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=f"slot {slot}") for slot, colour in colours.items()][:16]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1), fontsize=8, frameon=False)


def name_ranks(axes: Axes, recording: Recording) -> None:
    names = [f"PP{recording.pp_rank(rank)}" for rank in range(recording.num_ranks)]
    if recording.tp_replicas > 1:
        names = [f"{name} TP{rank % recording.tp_replicas}" for rank, name in enumerate(names)]
    axes.set_yticks(range(recording.num_ranks), names, fontsize=8)
    axes.set_ylim(recording.num_ranks - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)


def time_unit(window: Window) -> tuple[str, int]:
    """Name and length in ns of a unit in which the window's end has few digits."""
    if window.end_ns >= NS_PER_S:
        return "s", NS_PER_S
    return ("ms", 1_000_000) if window.end_ns >= 1_000_000 else ("us", 1_000)
