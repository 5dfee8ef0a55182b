"""The Gantt picture of a run: rank x time, coloured by slot, bubbles left blank.

Rule: a box is a forward pass that happened, to scale; a bubble is whatever no box covers, and coloured area is busy
time (``raster.py``). Two panels: the whole run as the share of time that each rank computed, and a part of it in which
single passes can be told apart. A short run is shown whole, in one panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ppsim.recording.record import Recording
from ppsim.recording.schema import Span
from ppsim.recording.summary import covered_ns
from ppsim.report.canvas import (
    DPI,
    GREY,
    add_panel,
    checked_path,
    is_vector,
    new_sheet,
    plain_style,
    put_image,
    put_words,
    save,
    wrapped,
)
from ppsim.report.legend import Legend, add_legend, add_shade_legend, ink, legend_of, slot_colours
from ppsim.report.notes import notes
from ppsim.report.raster import Box, Rgb, boxes, painted, shaded
from ppsim.report.window import Window, chosen_window, forward_spans, ticks, time_unit, whole_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, WIDTH, RIGHT = 100, 1240, 230  # pixels: names of ranks, time, legend
TITLE, LINE, AXIS, GAP = 46, 20, 58, 14  # heights in pixels: title, a line of small text, ticks and axis name, between
LINE_LETTERS = 190  # letters of small text in the width of a picture
VECTOR_DETAIL = 4  # columns a pixel in a picture that may be enlarged
LABEL_PT = 7.0
LABEL_PX = LABEL_PT * DPI / 72
DIGIT_PX = 0.64 * LABEL_PX  # the width of a digit in the label's font
LEGEND_HEIGHT = 120  # of the shades
MARK = "#d1495b"


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


def plot_gantt(recording: Recording, path: Path, *, from_s: float | None = None, to_s: float | None = None) -> Window:
    """Draw the picture to ``path`` (the ending says which format) and return the window it shows in detail.

    Raises UsageError for a window that shows nothing and for a place that cannot be written.
    """
    checked_path(path)
    whole, window = whole_run(recording), chosen_window(recording, from_s, to_s)
    lanes = forward_lanes(recording)
    num_columns = WIDTH * (VECTOR_DETAIL if is_vector(path) else 1)
    sentences = wrapped(notes(recording), LINE_LETTERS)
    detail = detail_of(lanes, window, num_columns)
    overview = fitted(len(lanes), 3, 34, 400) if window != whole else None
    overview_height = max(overview.height + AXIS, LEGEND_HEIGHT) + GAP if overview else 0
    top = TITLE + LINE * len(sentences)
    height = top + overview_height + detail.height
    with plain_style():
        figure = new_sheet(LEFT + WIDTH + RIGHT, height)
        put_words(figure, 12, 10, title(recording, whole))
        for i, line in enumerate(sentences):
            put_words(figure, 12, TITLE + LINE * i - 4, line, size=8, colour=GREY)
        if overview:
            draw_overview(figure, top, overview, lanes, whole, window, num_columns)
        draw_detail(figure, top + overview_height, detail, num_columns)
        save(figure, path)
    return window


def title(recording: Recording, whole: Window) -> str:
    """The bubble is that of ``summary.bubble_ratio``: idle time of all ranks over their time."""
    length = (whole.end_ns - whole.start_ns) * recording.num_ranks
    bubble = 100 * (length - sum(covered_ns(spans) for spans in recording.spans)) / length
    return f"{recording.name} ({recording.world})   pp_size {recording.pp_size}   bubble {bubble:.1f} % of the run"


def forward_lanes(recording: Recording) -> list[Lane]:
    """The forward passes of each rank."""
    return [Lane(rank_name(recording, rank), forward_spans(recording, rank)) for rank in range(recording.num_ranks)]


def rank_name(recording: Recording, rank: int) -> str:
    name = f"PP{recording.pp_rank(rank)}"
    return f"{name} TP{rank % recording.tp_replicas}" if recording.tp_replicas > 1 else name


# --- panels ----------------------------------------------------------------------------------------------------


class Detail(NamedTuple):
    """The panel of single passes, before it is drawn."""

    window: Window
    lanes: Sequence[Lane]
    boxes: Sequence[Sequence[Box]]  # of each lane
    colours: Mapping[int, Rgb]
    legend: Legend
    shape: Rows

    @property
    def height(self) -> int:
        return max(self.shape.height + AXIS, self.legend.height(self.shape.height))


def detail_of(lanes: Sequence[Lane], window: Window, num_columns: int) -> Detail:
    colours = slot_colours(sorted({span.slot for lane in lanes for span in lane.spans}))
    drawn = [boxes(lane.spans, window, num_columns) for lane in lanes]
    return Detail(window, lanes, drawn, colours, legend_of(drawn, colours), fitted(len(lanes), 6, 54, 900))


def draw_detail(figure: Figure, top: int, detail: Detail, num_columns: int) -> None:
    """Every forward pass in the window as a box with its iteration, coloured by slot."""
    shape = detail.shape
    axes = add_bars(figure, top, shape, [painted(lane, detail.colours, num_columns) for lane in detail.boxes])
    num_labels = write_iterations(axes, shape, detail.boxes, detail.colours, WIDTH / num_columns)
    name_lanes(axes, shape, detail.lanes)
    name_time(axes, detail.window, ("numbers are iterations, " if num_labels else "") + "blank is bubble")
    add_legend(axes, detail.legend, shape.height)


def draw_overview(
    figure: Figure, top: int, shape: Rows, lanes: Sequence[Lane], whole: Window, window: Window, num_columns: int
) -> None:
    """The share of time that each rank computed, over the whole run, with the detailed part marked below it."""
    bars = [shaded(boxes(lane.spans, whole, num_columns), num_columns) for lane in lanes]
    axes = add_bars(figure, top, shape, bars)
    name_lanes(axes, shape, lanes)
    name_time(axes, whole, "the part marked in red is shown below")
    mark_part(axes, shape, whole, window)
    add_shade_legend(axes)


def add_bars(figure: Figure, top: int, shape: Rows, bars: Sequence[np.ndarray]) -> Axes:
    """A panel with each lane's row of pixels, as high as its bar."""
    pixels = np.full((shape.height, len(bars[0]), 3), 255, np.uint8)
    for i, bar in enumerate(bars):
        first, stop = shape.bar(i)
        pixels[first:stop] = bar
    axes = add_panel(figure, LEFT, top, WIDTH, shape.height)
    put_image(axes, pixels, WIDTH, shape.height)
    return axes


def mark_part(axes: Axes, shape: Rows, whole: Window, window: Window) -> None:
    """A red line under the bars, as long as the detailed part but never too short to see, and its feet."""
    from matplotlib.patches import Rectangle

    length = whole.end_ns - whole.start_ns
    start = (window.start_ns - whole.start_ns) / length * WIDTH
    stop = max((window.end_ns - whole.start_ns) / length * WIDTH, start + 3)
    for y, height in ((shape.height, 7), (-7, 7)):
        axes.add_patch(Rectangle((start, y), stop - start, height, color=MARK, linewidth=0, clip_on=False, zorder=5))


def write_iterations(
    axes: Axes, shape: Rows, drawn: Sequence[Sequence[Box]], colours: Mapping[int, Rgb], scale: float
) -> int:
    """Iteration numbers in the boxes that are wide enough, all of one ink as one path. Returns how many there are."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    first, stop = shape.bar(0)
    if stop - first < LABEL_PX + 2:
        return 0
    found: dict[str, list[Outline]] = {}
    for i, lane in enumerate(drawn):
        for box in lane:
            text = str(box.iteration)
            width = DIGIT_PX * len(text)
            if (box.end - box.start) * scale >= width + 5:
                left = (box.start + box.end) / 2 * scale - width / 2
                place = Affine2D().scale(1, -1).translate(left, (i + 0.5) * shape.pitch + 0.36 * LABEL_PX)
                outline = TextPath((0, 0), text, size=LABEL_PX).transformed(place)
                found.setdefault(ink(colours[box.slot]), []).append(outline)
    for colour, outlines in found.items():
        axes.add_patch(PathPatch(Outline.make_compound_path(*outlines), facecolor=colour, linewidth=0))
    return sum(map(len, found.values()))


# --- axes ------------------------------------------------------------------------------------------------------


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
    axes.set_xlabel(f"time [{time_unit(window)[0]}]; {says}", fontsize=9)
