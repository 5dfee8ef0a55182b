"""Panels over time: bars of pixels in lanes, the names of the lanes, the axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ppsim.report.canvas import LEFT, WIDTH, add_panel
from ppsim.report.lanes import Lane, Rows
from ppsim.report.raster import Bytes
from ppsim.report.window import Window, ticks, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXIS = 58  # pixels: ticks and the name of an axis of time
MARK = "#d1495b"


def add_bars(figure: Figure, top: int, shape: Rows, bars: Sequence[Bytes], height: float | None = None) -> Axes:
    """A panel with each lane's row of pixels [num_columns, 3], as high as its bar, or as that share of its lane."""
    pixels = np.zeros((shape.height, len(bars[0]), 4), np.uint8)  # transparent between the bars
    for i, bar in enumerate(bars):
        first, stop = shape.bar(i)
        if height is not None:
            first, stop = (round((i + 0.5 + side * height / 2) * shape.pitch) for side in (-1, 1))
        pixels[first:stop, :, :3] = bar
        pixels[first:stop, :, 3] = 255
    axes = add_panel(figure, LEFT, top, WIDTH, shape.height)
    place = (0, WIDTH, shape.height, 0)
    axes.imshow(pixels, extent=place, interpolation="none", aspect="auto", origin="upper", zorder=4)  # nothing over it
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(shape.height, 0)
    return axes


def name_lanes(axes: Axes, shape: Rows, lanes: Sequence[Lane]) -> None:
    """Names of lanes at their middles; of low lanes every second, fourth, ... so that none touches the next."""
    every = 1
    while every * shape.pitch < 14:
        every *= 2
    places = range(0, shape.num, every)
    axes.set_yticks([(i + 0.5) * shape.pitch for i in places], [lanes[i].name for i in places], fontsize=8)


def name_time(axes: Axes, window: Window, says: str) -> None:
    places, labels = ticks(window, WIDTH)
    axes.set_xticks(places, labels, fontsize=9)
    axes.set_xlabel(f"time [{time_unit(window)[0]}]{says}", fontsize=9)


def mark_part(axes: Axes, shape: Rows, whole: Window, window: Window) -> None:
    """Red lines above and below the bars, as long as a part of the time but never too short to see."""
    from matplotlib.patches import Rectangle

    start, stop = (place(time, whole) for time in (window.start_ns, window.end_ns))
    for y, height in ((shape.height, 7), (-7, 7)):
        mark = Rectangle((start, y), max(stop - start, 3), height, color=MARK, linewidth=0, clip_on=False, zorder=5)
        axes.add_patch(mark)


def place(time_ns: int, window: Window) -> float:
    """The pixel of an instant in a panel that shows the window."""
    return (time_ns - window.start_ns) / (window.end_ns - window.start_ns) * WIDTH
