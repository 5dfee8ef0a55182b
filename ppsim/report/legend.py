"""Colours of the slots, and the legend of a Gantt picture.

Rule: a legend says what it leaves out. Up to ten slots have colours that the colour-blind can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from ppsim.report.lanes import KV
from ppsim.report.raster import BLANK, Box, Rgb, is_thin, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

LINE = 19  # pixels of an entry
PALETTE: tuple[Rgb, ...] = (
    (0x1F, 0x77, 0xB4),
    (0xE6, 0x9F, 0x00),
    (0x00, 0x9E, 0x73),
    (0xD5, 0x5E, 0x00),
    (0xCC, 0x79, 0xA7),
    (0x56, 0xB4, 0xE9),
    (0x8C, 0x6D, 0x31),
    (0x7F, 0x7F, 0x7F),
    (0x6A, 0x3D, 0x9A),
    (0xB2, 0xA4, 0x00),
)
MOST = 24  # lines of slots, where the panel is lower
KV_COLOUR: Rgb = (0x44, 0x44, 0x44)
SHADES = (1.0, 0.75, 0.5, 0.25)


def slot_colours(slots: Sequence[int]) -> dict[int, Rgb]:
    """Colours that neighbours in the ring do not share; transfers (``lanes.KV``) have one of their own."""
    if KV in slots:
        return {KV: KV_COLOUR, **slot_colours([slot for slot in slots if slot != KV])}
    if len(slots) <= len(PALETTE):
        return dict(zip(slots, PALETTE))
    import matplotlib

    num = len(slots)
    stride = next(step for step in range(7, num + 8) if gcd(step, num) == 1)  # every colour once, none beside its like
    wheel = matplotlib.colormaps["turbo"]
    return {slot: as_rgb(wheel((0.5 + i * stride % num) / num)) for i, slot in enumerate(slots)}


def as_rgb(colour: Sequence[float]) -> Rgb:
    return round(255 * colour[0]), round(255 * colour[1]), round(255 * colour[2])


def hexa(colour: Rgb) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def ink(colour: Rgb) -> str:
    """White or black, whichever reads better on that colour."""
    red, green, blue = colour
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 150 else "black"


class Legend(NamedTuple):
    """What a legend has to explain, and how it is laid out."""

    colours: Mapping[int, Rgb]  # of the slots that are seen by their colour
    num_thin: int  # boxes that are not
    num_boxes: int

    def slot_lines(self, height: int) -> int:
        """Lines for the slots beside a panel of that height: one column if they fit, else two, of ``MOST`` at most."""
        num = len(self.colours)
        fits = max(4, height // LINE - self.shade_lines)
        return num if num <= fits else max(fits, min(-(-num // 2), MOST))

    @property
    def shade_lines(self) -> int:
        return len(SHADES) + 4 if self.num_thin else 0  # with a gap, two lines of heading, and the bubble

    def height(self, panel_height: int) -> int:
        """Pixels from the top of the panel."""
        return LINE * (self.slot_lines(panel_height) + self.shade_lines)


def legend_of(lanes: Sequence[Sequence[Box]], colours: Mapping[int, Rgb]) -> Legend:
    """The legend of what was drawn: no slot that is not seen."""
    seen = {box.slot for lane in lanes for box in lane if not is_thin(box)}
    num_thin = sum(is_thin(box) for lane in lanes for box in lane)
    return Legend({slot: c for slot, c in colours.items() if slot in seen}, num_thin, sum(map(len, lanes)))


def add_legend(axes: Axes, legend: Legend, height: int) -> None:
    """Right of a panel of ``height`` pixels: slots by colour, then what shade means where there is no colour."""
    lines = legend.slot_lines(height)
    patches = slot_patches(legend.colours, lines)
    beside: dict[str, Any] = {
        "loc": "upper left",
        "fontsize": 8,
        "frameon": False,
        "handlelength": 1.2,
        "borderpad": 0,
        "labelspacing": 0.3,
        "columnspacing": 0.8,
        "alignment": "left",
    }
    if patches:
        columns = 1 if len(patches) <= lines else 2
        axes.add_artist(axes.legend(handles=patches, bbox_to_anchor=(1.01, 1.0), ncols=columns, **beside))
    if legend.num_thin:
        axes.legend(
            handles=shade_patches(),
            title=f"{legend.num_thin:,} of {legend.num_boxes:,} boxes\ntoo thin for a colour:",
            title_fontsize=8,
            bbox_to_anchor=(1.01, 1.0 - (lines + 0.5) * LINE / height if patches else 1.0),
            **beside,
        )


def slot_patches(colours: Mapping[int, Rgb], per_column: int) -> list[Patch]:
    """Entries in at most two columns; what does not fit is counted in the last one."""
    from matplotlib.patches import Patch

    entries = [
        Patch(color=hexa(colour), label="KV transfer" if slot == KV else f"slot {slot}")
        for slot, colour in colours.items()
    ]
    room = 2 * per_column
    if len(entries) <= room:
        return entries
    return [*entries[: room - 1], Patch(color="white", label=f"+ {len(entries) - room + 1} more")]


def shade_patches() -> list[Patch]:
    """What a shade means."""
    from matplotlib.patches import Patch

    shades = [Patch(color=hexa(shade(share)), label=f"{100 * share:.0f} % of the time busy") for share in SHADES]
    return [*shades, Patch(color=hexa(BLANK), label="bubble")]


def add_shade_legend(axes: Axes) -> None:
    """Right of a panel that shows shares only."""
    axes.legend(
        handles=shade_patches(),
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        fontsize=8,
        frameon=False,
        handlelength=1.2,
        borderpad=0.0,
        labelspacing=0.3,
    )
