"""Speed-up of ways to use the same GPUs over the bandwidth of the link between them, and where they change places.

Rule: a curve is a speed-up over one group of GPUs; the axis on the right divides it by the GPU multiple. Where two
curves cross, the bandwidth stands as a number. A way that no memory holds is dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ppsim.report.canvas import DPI, GREY, checked_path, encoded, plain_style, write
from ppsim.report.keys import log_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box: TypeAlias = tuple[float, float]
"""Left and lower edge of a mark's words, in fractions of the panel; all are of one size."""

WIDTH, HEIGHT, MARGIN = 0.12, 0.075, 0.015
COLOURS = {"pp": "#0072b2", "tp": "#d55e00", "cp": "#009e73"}  # told apart by the colour-blind, too


@dataclass(frozen=True, slots=True)
class Curve:
    """Speed-ups of a way at rising bandwidths in GB/s. ``way``: pp, tp or cp."""

    way: str
    label: str
    gb_per_s: tuple[float, ...]
    speedups: tuple[float, ...]
    fits: bool = True


@dataclass(frozen=True, slots=True)
class Mark:
    """Two curves meet: at this bandwidth and speed-up."""

    text: str
    gb_per_s: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Picture:
    """One panel; ``asked`` are bandwidths that the user named, ``base`` is what every speed-up is over."""

    title: str
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...]
    gpu_multiple: int
    asked: tuple[float, ...] = ()
    base: str = "one group of GPUs"
    base_fits: bool = True


def plot_crossovers(panels: Sequence[Picture], title: str, path: Path) -> None:
    """Draw the panels beside each other to ``path`` (the ending says which format). Raises UsageError."""
    from matplotlib.figure import Figure

    checked_path(path)
    with plain_style():
        figure = Figure(figsize=(6.2 * len(panels), 4.8), dpi=DPI, layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)
        for place, panel in zip(axes[0], panels):
            draw_panel(place, panel)
        axes[0][0].set_ylabel(f"speed-up over {panels[0].base}")
        figure.legend(
            *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9, frameon=False
        )
        words = title if panels[0].base_fits else f"{title}\n{base_words(panels[0].base)}"
        figure.suptitle(words, fontsize=11, x=0.01, ha="left")
        write(path, encoded(figure, path))


def base_words(base: str) -> str:
    """Said above a picture whose speed-ups are over something that cannot run."""
    return f"the base, {base}, does not fit into memory: speed-ups are over the time that it would take"


def draw_panel(axes: Axes, panel: Picture) -> None:
    """Curves, crossings, and the efficiency on the right."""
    for curve in panel.curves:
        style = "-" if curve.fits else (0, (4, 2))
        label = curve.label if curve.fits else f"{curve.label} (does not fit)"
        axes.plot(curve.gb_per_s, curve.speedups, linestyle=style, color=COLOURS[curve.way], lw=2.0, label=label)
    mark_asked(axes, panel)
    low, high = panel.curves[0].gb_per_s[0], panel.curves[0].gb_per_s[-1]
    shown = sorted((m for m in panel.marks if low <= m.gb_per_s <= high), key=lambda m: -m.gb_per_s)
    taken: list[Box] = []
    for mark in shown:
        taken.append(free_box(panel, mark, taken))
        draw_mark(axes, mark, taken[-1], panel)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(0.0, panel.gpu_multiple * 1.05)
    axes.axhline(panel.gpu_multiple, color="black", lw=0.8, linestyle=":")
    places = ticks(low, high)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"link between the groups, GB/s in one direction{log_note(True)}")
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.grid(axis="y", color="#e6e3dc", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    right = axes.twinx()
    right.set_ylim(0.0, 105.0)
    right.set_ylabel(f"efficiency: speed-up / {panel.gpu_multiple}, %", fontsize=9)
    right.spines[["top", "left"]].set_visible(False)


def mark_asked(axes: Axes, panel: Picture) -> None:
    """Each bandwidth that was given: a line with its figure, and a ring on every curve where it meets it."""
    for gb_per_s in panel.asked:
        axes.axvline(gb_per_s, color=GREY, lw=1.0, linestyle=(0, (1, 1.5)), zorder=0)
        axes.text(
            gb_per_s,
            0.02,
            f"given: {plain(gb_per_s)} GB/s",
            transform=axes.get_xaxis_transform(),
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=7,
            color=GREY,
        )
        for curve in panel.curves:
            if gb_per_s in curve.gb_per_s:
                y = curve.speedups[curve.gb_per_s.index(gb_per_s)]
                axes.plot([gb_per_s], [y], "o", mfc="white", mec=COLOURS[curve.way], ms=4.5, zorder=4)


def ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... within the axis; only tens where those would be too many."""
    tens = [10.0**n for n in range(-3, 7)]
    found = [m * ten for ten in tens for m in (1, 2, 5) if low <= m * ten * (1 + 1e-9) and m * ten <= high * (1 + 1e-9)]
    return found if len(found) <= 9 else [x for x in found if x in tens]


def free_box(panel: Picture, mark: Mark, taken: Sequence[Box]) -> Box:
    """Where the words of a mark cover neither a curve nor other words: the nearest such place, below or above."""
    x, y = fraction(panel, mark.gb_per_s), mark.speedup / (panel.gpu_multiple * 1.05)
    places = [(x + dx, y + dy) for dy in (-0.14, -0.24, -0.34, -0.44, -0.54, -0.64, 0.05) for dx in (0.02, -0.16)]
    boxes = [(left, bottom) for left, bottom in places if 0.0 <= left <= 1.0 - WIDTH and 0.02 <= bottom <= 1.0 - HEIGHT]
    free = (box for box in boxes if not covers_curve(panel, box) and not any(overlap(box, other) for other in taken))
    return next(free, (min(x + 0.02, 1.0 - WIDTH), max(y - 0.14, 0.02)))


def fraction(panel: Picture, gb_per_s: float) -> float:
    """Place on the logarithmic axis, 0 to 1."""
    low, high = panel.curves[0].gb_per_s[0], panel.curves[0].gb_per_s[-1]
    return log(gb_per_s / low) / log(high / low)


def covers_curve(panel: Picture, box: Box) -> bool:
    """Whether a box, with a margin, has a point of a curve in it."""
    left, bottom = box
    for curve in panel.curves:
        xs = [fraction(panel, b) for b in curve.gb_per_s]
        for x in (left + WIDTH * i / 8 for i in range(-1, 10)):
            i = max(1, next((k for k, at in enumerate(xs) if at >= x), len(xs) - 1))
            share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
            speedup = curve.speedups[i - 1] + share * (curve.speedups[i] - curve.speedups[i - 1])
            y = speedup / (panel.gpu_multiple * 1.05)
            if bottom - MARGIN <= y <= bottom + HEIGHT + MARGIN:
                return True
    return False


def plain(gb_per_s: float) -> str:
    """Three digits that mean something, without an exponent."""
    return f"{gb_per_s:.3g}" if gb_per_s < 1000 else f"{gb_per_s:.0f}"


def overlap(a: Box, b: Box) -> bool:
    return abs(a[0] - b[0]) < WIDTH and abs(a[1] - b[1]) < HEIGHT


def draw_mark(axes: Axes, mark: Mark, box: Box, panel: Picture) -> None:
    """A point, its words in their box, and a line between the two."""
    axes.plot([mark.gb_per_s], [mark.speedup], "o", color="black", ms=5, zorder=5)
    below = box[1] < mark.speedup / (panel.gpu_multiple * 1.05)
    axes.annotate(
        f"{mark.text}\n{plain(mark.gb_per_s)} GB/s",
        (mark.gb_per_s, mark.speedup),
        xytext=box,
        textcoords="axes fraction",
        ha="left",
        va="bottom",
        fontsize=8,
        arrowprops={
            "arrowstyle": "-",
            "color": "#7f7a6c",
            "lw": 0.7,
            "relpos": (0.0 if box[0] > fraction(panel, mark.gb_per_s) else 1.0, 1.0 if below else 0.0),
        },
    )
