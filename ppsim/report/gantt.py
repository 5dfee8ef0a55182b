"""The Gantt picture of a run: rank x time, coloured by slot, bubbles left blank.

Rule: a box is a forward pass that happened, to scale; a bubble is whatever no box covers, and coloured area is busy
time (``raster.py``). Two panels: the whole run as the share of time that each rank computed, and a part of it in which
single passes can be told apart. A short run is shown whole, in one panel. Of a run that failed the last part is shown,
with the verdict above and where every rank stood below (``waits.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ppsim.recording.record import Recording
from ppsim.recording.schema import Verdict
from ppsim.report.canvas import (
    DPI,
    GAP,
    WIDTH,
    Block,
    checked_path,
    encoded,
    heading,
    is_vector,
    plain_style,
    sheet,
    write,
)
from ppsim.report.lanes import KV, Lane, Part, Rows, fitted, lanes_of, left_out, parts_of, streams, title_of
from ppsim.report.legend import Legend, add_legend, add_shade_legend, ink, legend_of, slot_colours
from ppsim.report.notes import notes
from ppsim.report.panels import AXIS, add_bars, mark_part, name_lanes, name_time
from ppsim.report.raster import Box, Rgb, boxes, painted, shaded
from ppsim.report.waits import headline, mark_stands, waits
from ppsim.report.window import READABLE_PASSES, Window, chosen_window, last_window, typical_window, whole_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VECTOR_DETAIL = 4  # columns a pixel in a picture that may be enlarged
LABEL_PT = 7.0
LABEL_PX = LABEL_PT * DPI / 72
DIGIT_PX = 0.64 * LABEL_PX  # the width of a digit in the label's font
LEGEND_HEIGHT = 120  # of the shades


@dataclass(frozen=True, slots=True)
class Picture:
    """A file that is not written yet, and the window that it shows in detail; None where nothing ran."""

    content: bytes
    window: Window | None


def plot_gantt(recording: Recording, path: Path, *, from_s: float | None = None, to_s: float | None = None) -> Window:
    """Draw the picture of a run to ``path`` (the ending says which format) and return the window it shows in detail.

    Raises UsageError for a window that shows nothing and for a place that cannot be written.
    """
    picture = gantt(recording, path, from_s=from_s, to_s=to_s)
    write(path, picture.content)
    assert picture.window is not None  # only a failed run has pictures without one
    return picture.window


def gantt(
    recording: Recording,
    path: Path,
    *,
    verdict: Verdict | None = None,
    side: str | None = None,
    from_s: float | None = None,
    to_s: float | None = None,
) -> Picture:
    """The picture for ``path``. ``side``: of two pipelines only this one. Raises UsageError, see ``plot_gantt``."""
    checked_path(path)
    parts = parts_of(recording, side)
    failed = verdict if verdict is not None and verdict.kind != "pass" else None
    small = [*(sentence for part in parts for sentence in notes(part.recording)), *left_out(parts)]
    blocks: list[Block] = []
    window = None
    with plain_style():
        if failed is None or any(span for part in parts for spans in part.recording.spans for span in spans):
            whole = whole_run(*(part.recording for part in parts))
            window = chosen_window(whole, default_window(whole, parts, failed is not None), from_s, to_s)
            blocks += panels(parts, whole, window, is_vector(path), failed)
            small += kv_words(parts, window)
        if failed is not None:
            blocks += waits(failed, parts)
        blocks.insert(0, heading(title_of(parts), headline(failed), small))
        return Picture(encoded(sheet(blocks), path), window)


def kv_words(parts: Sequence[Part], window: Window) -> list[str]:
    """What the lanes of KV are, and how many transfers nobody can see in them. Nothing where there are none."""
    every = [span for part in parts for rank in part.recording.spans for span in rank if span.stream == "kv"]
    if not every:
        return []
    pixel_ns = (window.end_ns - window.start_ns) / WIDTH
    there = [span for span in every if span.start_ns < window.end_ns and span.end_ns >= window.start_ns]
    num = sum(span.end_ns - span.start_ns < pixel_ns for span in there)
    hidden = f": {num:,} of {len(there):,} in the part that is drawn are shorter than a pixel" if num else ""
    return [f'A lane "KV from" shows when a prefill rank sends KV to the decode side{hidden}.']


def default_window(whole: Window, parts: Sequence[Part], is_failed: bool, num_passes: int = READABLE_PASSES) -> Window:
    """What is shown unasked: of the first pipeline that ran, readable passes of its first rank."""
    spans = next(spans for part in parts if (spans := streams(part.recording, 0, "forward")))
    return (last_window if is_failed else typical_window)(whole, spans, num_passes)


def panels(
    parts: Sequence[Part], whole: Window, window: Window, is_enlarged: bool, failed: Verdict | None
) -> list[Block]:
    """The overview, where the detail is only a part, and the detail."""
    lanes = lanes_of(parts)
    num_columns = WIDTH * (VECTOR_DETAIL if is_enlarged else 1)
    detail = detail_of(lanes, window, num_columns)

    def draw(figure: Figure, top: int) -> None:
        axes = draw_detail(figure, top, detail, num_columns)
        if failed is not None:
            mark_stands(axes, parts, lanes, detail.shape, window)

    blocks = [Block(detail.height, draw)]
    if window != whole:
        shape = fitted(len(lanes), 3, 34, 400)
        height = max(shape.height + AXIS, LEGEND_HEIGHT) + GAP
        blocks.insert(0, Block(height, lambda f, top: draw_overview(f, top, shape, lanes, whole, window, num_columns)))
    return blocks


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


def draw_detail(figure: Figure, top: int, detail: Detail, num_columns: int) -> Axes:
    """Every forward pass in the window as a box with its iteration, coloured by slot."""
    shape = detail.shape
    axes = add_bars(figure, top, shape, [painted(lane, detail.colours, num_columns) for lane in detail.boxes])
    num_labels = write_iterations(axes, shape, detail.boxes, detail.colours, WIDTH / num_columns)
    name_lanes(axes, shape, detail.lanes)
    blank = "; blank is bubble" + (", beside KV: no transfer" if KV in detail.colours else "")
    name_time(axes, detail.window, ("; numbers are iterations" if num_labels else "") + blank)
    add_legend(axes, detail.legend, shape.height)
    return axes


def draw_overview(
    figure: Figure, top: int, shape: Rows, lanes: Sequence[Lane], whole: Window, window: Window, num_columns: int
) -> None:
    """The share of time that each rank computed, over the whole run, with the detailed part marked below it."""
    axes = add_bars(figure, top, shape, [shaded(boxes(lane.spans, whole, num_columns), num_columns) for lane in lanes])
    name_lanes(axes, shape, lanes)
    name_time(axes, whole, "; the part marked in red is shown below")
    mark_part(axes, shape, whole, window)
    add_shade_legend(axes)


def write_iterations(
    axes: Axes,
    shape: Rows,
    drawn: Sequence[Sequence[Box]],
    colours: Mapping[int, Rgb],
    scale: float,
    height: int | None = None,
) -> int:
    """Iteration numbers in the boxes that are wide enough, all of one ink as one path. Returns how many there are.

    ``height``: of a bar in pixels, where it is not ``shape.bar``'s.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    first, stop = shape.bar(0)
    if (stop - first if height is None else height) < LABEL_PX + 2:
        return 0
    found: dict[str, list[Outline]] = {}
    for i, lane in enumerate(drawn):
        for box, following in zip(lane, [*lane[1:], None]):
            text = str(box.iteration)
            width = DIGIT_PX * len(text)
            left, colour = (box.start + box.end) / 2 * scale - width / 2, ink(colours[box.slot])
            if (box.end - box.start) * scale < width + 5:
                room = (following.start * scale if following else WIDTH) - box.end * scale
                if box.slot != KV or room < width + 8:
                    continue
                left, colour = box.end * scale + 4, "black"  # a short transfer has its number beside it
            place = Affine2D().scale(1, -1).translate(left, (i + 0.5) * shape.pitch + 0.36 * LABEL_PX)
            found.setdefault(colour, []).append(TextPath((0, 0), text, size=LABEL_PX).transformed(place))
    for colour, outlines in found.items():
        axes.add_patch(PathPatch(Outline.make_compound_path(*outlines), facecolor=colour, linewidth=0, zorder=5))
    return sum(map(len, found.values()))
