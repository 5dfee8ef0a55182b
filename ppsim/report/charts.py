"""Panels with a value on the vertical axis: areas over time, dots, and their ticks.

Rule: an area is painted like the bars of the Gantt picture, so that coloured area is value at every zoom. Ticks are
plain numbers; a unit that is not in the name of the panel stands in every label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from ppsim.report.canvas import LEFT, WIDTH, Block, add_panel, put_words
from ppsim.report.legend import hexa
from ppsim.report.panels import AXIS, name_time
from ppsim.report.raster import Floats, Rgb, stacked
from ppsim.report.window import UNITS, Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 170  # pixels of a panel
CAPTION = 30  # pixels of the words above it
NUM_TICKS = 5  # at most, of a linear axis
BLUE: Rgb = (0x1F, 0x77, 0xB4)
ORANGE: Rgb = (0xE6, 0x9F, 0x00)
VERMILION: Rgb = (0xD5, 0x5E, 0x00)
GREEN: Rgb = (0x00, 0x9E, 0x73)
PALE: Rgb = (0xC9, 0xC4, 0xB8)
DOT = 4.0  # diameter in points


class Layer(NamedTuple):
    """A part of a stacked area: one value a pixel column."""

    name: str
    values: Floats
    colour: Rgb


def captioned(words: str, draw: Callable[[Figure, int], Axes]) -> Block:
    """A panel with words above and an axis of time below it."""

    def both(figure: Figure, top: int) -> None:
        put_words(figure, LEFT, top + 6, words, size=9)
        draw(figure, top + CAPTION)

    return Block(CAPTION + HEIGHT + AXIS, both)


def area_block(words: str, layers: Sequence[Layer], top: float, window: Window) -> Block:
    """Layers upon each other over time; ``top`` is the value at the upper edge."""

    def draw(figure: Figure, at: int) -> Axes:
        axes = add_panel(figure, LEFT, at, WIDTH, HEIGHT)
        pixels = stacked([(layer.values, layer.colour) for layer in layers], top, HEIGHT)
        place = (0, WIDTH, HEIGHT, 0)
        axes.imshow(pixels, extent=place, interpolation="none", aspect="auto", origin="upper", zorder=4)
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(HEIGHT, 0)
        values = value_ticks(top)
        axes.set_yticks([HEIGHT * (1 - value / top) for value in values], [plain(v) for v in values], fontsize=8)
        name_time(axes, window, "")
        add_patches(axes, [(layer.name, layer.colour) for layer in reversed(layers) if layer.values.max() > 1e-9])
        return axes

    return captioned(words, draw)


def add_patches(axes: Axes, entries: Sequence[tuple[str, Rgb]]) -> None:
    """A legend right of a panel, in the order of the layers from the top down."""
    from matplotlib.patches import Patch

    patches = [Patch(color=hexa(colour), label=name) for name, colour in entries]
    axes.legend(
        handles=patches,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        fontsize=8,
        frameon=False,
        handlelength=1.2,
        borderpad=0,
    )


def nice_top(value: float) -> float:
    """The upper edge of a linear axis on which ``value`` has room: a little more, and never 0."""
    return max(1.0, value * 1.05)


def value_ticks(top: float) -> list[int]:
    """Whole numbers from 0 to at most ``top``, evenly: steps of 1, 2 or 5 times a power of ten."""
    step = next(m * 10**n for n in range(40) for m in (1, 2, 5) if top / (m * 10**n) <= NUM_TICKS)
    return list(range(0, floor(top) + 1, step))


def plain(value: int) -> str:
    """Thousands set apart."""
    return f"{value:,}"


# --- a logarithmic axis of durations -----------------------------------------------------------------------------


class Decades(NamedTuple):
    """10^low to 10^high nanoseconds on ``HEIGHT`` pixels."""

    low: int
    high: int

    def y(self, value_ns: float) -> float:
        return HEIGHT * (self.high - log10(value_ns)) / (self.high - self.low)

    def ticks(self) -> tuple[list[float], list[str]]:
        powers = range(self.low, self.high + 1)
        return [self.y(10.0**power) for power in powers], [duration(10**power) for power in powers]


def decades(values_ns: Sequence[float]) -> Decades:
    """Whole decades around positive durations."""
    low, high = floor(log10(min(values_ns))), ceil(log10(max(values_ns)))
    return Decades(low, max(high, low + 1))


def duration(value_ns: float) -> str:
    """A duration in the largest unit of which there is one, with three digits: 10 ms, 1.25 s."""
    name, unit = next((u for u in UNITS if value_ns >= u[1]), UNITS[-1])
    value = value_ns / unit
    if value >= 100 or value == int(value):
        return f"{value:,.0f} {name}"
    return f"{value:.3g} {name}"
