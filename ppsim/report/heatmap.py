"""Heat maps of a search: one panel a pair of knobs, a number in every cell, the best one framed.

Rule: colour says how far a cell is from the best of its panel, on one scale for all panels; the number is the figure
itself. What cannot run is hatched, what does not exist is white, and the axis says which of them there are and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ppsim.report.canvas import DPI, encoded, plain_style, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

FAR = 0.5  # half as much again as the best figure, and all beyond, has the palest colour
COLOURS = "YlGnBu_r"
IMPOSSIBLE = "#e9e6df"


class Panel(Protocol):
    """Figures over two knobs; None: cannot run, NaN: does not exist. ``best`` is (row, column).

    ``labels``: a second line below the figures, or nothing at all.
    """

    @property
    def title(self) -> str: ...
    @property
    def row_name(self) -> str: ...
    @property
    def column_name(self) -> str: ...
    @property
    def rows(self) -> tuple[str, ...]: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def values(self) -> tuple[tuple[float | None, ...], ...]: ...
    @property
    def labels(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def unit(self) -> str: ...
    @property
    def lower_is_better(self) -> bool: ...
    @property
    def best(self) -> tuple[int, int] | None: ...
    @property
    def blank(self) -> str: ...


def plot_heat_maps(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Draw all panels beside each other to ``path`` (the ending says which format). Raises UsageError."""
    from matplotlib.figure import Figure

    widths = [0.62 * len(panel.columns) + 1.3 for panel in panels]
    height = 0.36 * max(len(panel.rows) for panel in panels) + 1.9
    with plain_style():
        figure = Figure(figsize=(sum(widths) + 0.9, height), dpi=DPI, layout="constrained")
        axes = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)
        image = [draw_panel(place, panel) for place, panel in zip(axes[0], panels)][-1]
        bar = figure.colorbar(image, ax=list(axes[0]), pad=0.01, shrink=0.9)
        shares = (0.0, 0.1, 0.2, 0.3, 0.4, FAR)
        bar.set_ticks(
            shares, labels=["best", *(f"{100 * x:.0f} %" for x in shares[1:-1]), f"{100 * FAR:.0f} % or more"]
        )
        bar.set_label("worse than the best of the panel", fontsize=8)
        bar.ax.tick_params(labelsize=8)
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
        write(path, encoded(figure, path))


def draw_panel(axes: Axes, panel: Panel) -> AxesImage:
    """Cells with their figures; the image is returned for the colour bar."""
    import matplotlib
    import numpy as np

    loss = [[distance(panel, value) for value in row] for row in panel.values]
    shades = np.array([[np.nan if x is None else min(x, FAR) for x in row] for row in loss])
    image = axes.imshow(shades, cmap=COLOURS, vmin=0.0, vmax=FAR, aspect="auto")
    colours = matplotlib.colormaps[COLOURS]
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            if value is None:
                cell(axes, i, j, facecolor=IMPOSSIBLE, hatch="////", edgecolor="#c9c4b8", linewidth=0.0)
            elif value == value:
                dark = luminance(colours(min((loss[i][j] or 0.0) / FAR, 1.0))) < 0.55
                text = f"{short(value)}\n{panel.labels[i][j]}".strip() if panel.labels else short(value)
                axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    if panel.best is not None:
        cell(axes, *panel.best, facecolor="none", edgecolor="#d1495b", linewidth=2.2)
    axes.set_xticks(range(len(panel.columns)), panel.columns, fontsize=7, rotation=45, ha="right")
    axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize=8)
    axes.set_xlabel(panel.column_name + legend(panel), fontsize=9)
    axes.set_ylabel(panel.row_name, fontsize=9)
    axes.set_title(f"{unit(panel)}\n{panel.title}", fontsize=9, loc="left")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return image


def legend(panel: Panel) -> str:
    """What cells without a figure are, as far as there are any."""
    values = [value for row in panel.values for value in row]
    says = ["hatched: cannot run"] if None in values else []
    if any(value is not None and value != value for value in values):
        says.append(f"white: {panel.blank or 'does not exist'}")
    return f"\n({'; '.join(says)})" if says else ""


def unit(panel: Panel) -> str:
    is_large = any(value is not None and value >= 1e3 for row in panel.values for value in row)
    return f"{panel.unit}, k: thousands" if is_large else panel.unit


def distance(panel: Panel, value: float | None) -> float | None:
    """How much worse than the panel's best: 0.1 is ten per cent; None for a cell without a figure."""
    there = [v for row in panel.values for v in row if v is not None and v == v]
    if value is None or value != value or not there:
        return None
    return value / min(there) - 1.0 if panel.lower_is_better else max(there) / value - 1.0


def cell(axes: Axes, row: int, column: int, **style: object) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1.0, 1.0, **style))  # type: ignore[arg-type]


def luminance(colour: tuple[float, float, float, float]) -> float:
    red, green, blue, _ = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue


def short(value: float) -> str:
    """Three digits that mean something."""
    if value >= 1e5:
        return f"{value / 1e3:.0f}k"
    if value >= 1e3:
        return f"{value / 1e3:.1f}k"
    return f"{value:#.3g}" if value < 100 else f"{value:.0f}"
