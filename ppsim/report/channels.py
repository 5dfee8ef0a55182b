"""Space-time diagram of the channels: who sent what when.

Rule: an arrow leads from the sender at the instant at which the first byte left to the receiver at the instant at which
the last one had come; the bars are forward passes. So a message that somebody waits for is an arrow whose tip touches
the begin of a bar. Only the ends of an arrow are times: in between it is bent, so that hidden states and outputs that
take the same way at once are both seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import hypot
from typing import TYPE_CHECKING, Any, NamedTuple

from ppsim.errors import UsageError
from ppsim.recording.schema import Span
from ppsim.report.canvas import WIDTH, Block
from ppsim.report.charts import BLUE, GREEN, VERMILION
from ppsim.report.gantt import write_iterations
from ppsim.report.lanes import Lane, Part, Rows, fitted, rank_name, streams
from ppsim.report.legend import hexa
from ppsim.report.panels import AXIS, add_bars, name_lanes, name_time, place
from ppsim.report.raster import THIN, Rgb, boxes, painted
from ppsim.report.window import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 4000  # lines that can be told apart in a picture, at the very most
COLOURS: dict[str, Rgb] = {"hidden": BLUE, "output": VERMILION, "kv": GREEN}
STYLES: dict[str, Any] = {"hidden": "-", "output": (0, (4, 1.5)), "kv": (0, (1, 1))}
NAMES = {"hidden": "hidden states", "output": "outputs", "kv": "KV"}
BENDS = {"hidden": 0.0, "output": 9.0, "kv": -9.0}  # pixels at the middle of the way: down to the right, up to the left
NUM_BENT = 16  # straight pieces of a bent way
PASSES: dict[int, Rgb] = {0: THIN, 1: (0x5B, 0x6E, 0x8C)}  # every second one
NUM_PASSES = 12  # of a rank that are shown unasked
BAR = 0.24  # of the distance of two ranks


class Line(NamedTuple):
    """A message between two lanes."""

    kind: str
    src: int
    dst: int
    leaves_ns: int
    arrival_ns: int


def channel_blocks(parts: Sequence[Part], window: Window) -> list[Block]:
    """The diagram. Raises UsageError where nothing was sent, where it was not recorded, and where nobody could see."""
    every = list(lines_of(parts))
    if not every:
        raise UsageError(
            "nothing to draw: this recording has no messages between ranks (one stage sends to nobody; "
            "recordings of processes and of older versions have none: run it again)"
        )
    shown = [line for line in every if line.leaves_ns < window.end_ns and line.arrival_ns > window.start_ns]
    if len(shown) > MOST:
        raise UsageError(
            f"{len(shown):,} messages cannot be told apart in one picture, {MOST:,} can: use --from and --to"
        )
    lanes = [
        Lane(rank_name(part, rank), streams(part.recording, rank, "forward"))
        for part in parts
        for rank in range(part.recording.num_ranks)
    ]
    shape = fitted(len(lanes), 16, 90, 900)
    return [Block(shape.height + AXIS, lambda figure, top: draw(figure, top, shape, lanes, shown, window))]


def lines_of(parts: Sequence[Part]) -> Iterator[Line]:
    """Every message; of two pipelines also the KV, which goes to the same stage, or to the only one there is."""
    first = 0
    for part in parts:
        for (src, dst, kind), messages in sorted(part.recording.messages.items()):
            yield from (Line(kind, first + src, first + dst, m.leaves_ns, m.arrival_ns) for m in messages)
        first += part.recording.num_ranks
    if len(parts) == 2:
        prefill, decode = (part.recording for part in parts)
        for rank in range(prefill.num_ranks):
            peer = prefill.num_ranks + (rank if decode.pp_size > 1 else rank % prefill.tp_replicas)
            for span in streams(prefill, rank, "kv"):
                yield Line("kv", rank, peer, span.start_ns, span.end_ns)


def draw(figure: Figure, top: int, shape: Rows, lanes: Sequence[Lane], shown: Sequence[Line], window: Window) -> None:
    """Bars of the ranks and, two artists a kind, the arrows between them."""
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = [boxes(alternating(lane.spans), window, WIDTH) for lane in lanes]
    axes: Axes = add_bars(figure, top, shape, [painted(lane, PASSES, WIDTH) for lane in drawn], BAR)
    num_labels = write_iterations(axes, shape, drawn, PASSES, 1.0, round(BAR * shape.pitch))
    name_lanes(axes, shape, lanes)
    is_few = len(shown) < 1000
    handles: list[Line2D | Patch] = []
    for kind, colour in COLOURS.items():
        mine = [line for line in shown if line.kind == kind]
        if not mine:
            continue
        ways = [way(line, shape, window) for line in mine]
        style = {"linewidths": 1.3 if is_few else 0.6, "linestyles": STYLES[kind]}
        axes.add_collection(LineCollection(ways, colors=hexa(colour), zorder=3, **style))
        heads = [head(points, 9.0 if is_few else 5.0) for points in ways]
        axes.add_collection(PolyCollection(heads, facecolors=hexa(colour), linewidths=0, zorder=3.5))
        label = f"{NAMES[kind]}: {len(mine):,}"
        handles.append(Line2D([], [], color=hexa(colour), linestyle=STYLES[kind], label=label))
    handles += [Patch(color=hexa(PASSES[0]), label="forward pass"), Patch(color=hexa(PASSES[1]), label="the next one")]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False, borderpad=0)
    says = "; an arrow leads from the sender's first byte to the receiver's last"
    name_time(axes, window, says + ("; numbers are iterations" if num_labels else ""))


def alternating(spans: Sequence[Span]) -> list[Span]:
    """Every second pass of a lane in the other shade, by order of time: passes that touch are not one bar."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    return [span._replace(slot=number % 2) for number, span in enumerate(ordered)]


def ends(line: Line, shape: Rows, window: Window) -> tuple[tuple[float, float], tuple[float, float]]:
    """Pixels of both ends, at the edges of the bars; what lies outside the panel is cut off by it."""
    down = BAR / 2 if line.dst > line.src else -BAR / 2
    return (
        (place(line.leaves_ns, window), (line.src + 0.5 + down) * shape.pitch),
        (place(line.arrival_ns, window), (line.dst + 0.5 - down) * shape.pitch),
    )


def way(line: Line, shape: Rows, window: Window) -> list[tuple[float, float]]:
    """From end to end, bent to the side of its kind and of its way, down or up: two kinds that go the same way at once
    do not cover each other, nor do two that go to and fro."""
    (x0, y0), (x1, y1) = ends(line, shape, window)
    length, bend = hypot(x1 - x0, y1 - y0), BENDS[line.kind]
    if not bend or not length:
        return [(x0, y0), (x1, y1)]
    aside = ((y1 - y0) / length * bend, (x0 - x1) / length * bend)
    bent = [(t, 4 * t * (1 - t)) for t in (i / NUM_BENT for i in range(NUM_BENT + 1))]
    return [(x0 + (x1 - x0) * t + b * aside[0], y0 + (y1 - y0) * t + b * aside[1]) for t, b in bent]


def head(points: Sequence[tuple[float, float]], size: float) -> list[tuple[float, float]]:
    """A triangle whose tip is the end of the way."""
    (xa, ya), (x, y) = points[-2], points[-1]
    length = hypot(x - xa, y - ya) or 1.0
    along = ((x - xa) / length * size, (y - ya) / length * size)
    side = (-along[1] * 0.4, along[0] * 0.4)
    back = (x - along[0], y - along[1])
    return [(x, y), (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1])]
