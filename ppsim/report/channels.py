"""Space-time diagram of the channels: who sent what when.

Rule: a line leads from the sender at the instant at which the first byte left to the receiver at the instant at which
the last one had come; the bars are forward passes. So a message that somebody waits for is a line whose end touches the
begin of a bar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ppsim.errors import UsageError
from ppsim.report.canvas import WIDTH, Block
from ppsim.report.charts import BLUE, GREEN, VERMILION
from ppsim.report.lanes import Lane, Part, Rows, fitted, rank_name, streams
from ppsim.report.legend import hexa
from ppsim.report.panels import AXIS, add_bars, name_lanes, name_time, place
from ppsim.report.raster import Rgb, boxes, shaded
from ppsim.report.window import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 4000  # lines that can be told apart in a picture, at the very most
COLOURS: dict[str, Rgb] = {"hidden": BLUE, "output": VERMILION, "kv": GREEN}
STYLES: dict[str, Any] = {"hidden": "-", "output": (0, (4, 1.5)), "kv": (0, (1, 1))}
NAMES = {"hidden": "hidden states", "output": "outputs", "kv": "KV"}
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
    """Bars of the ranks and, one artist a kind, the lines between their middles."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    axes: Axes = add_bars(figure, top, shape, [shaded(boxes(lane.spans, window, WIDTH), WIDTH) for lane in lanes], BAR)
    name_lanes(axes, shape, lanes)
    handles = []
    for kind, colour in COLOURS.items():
        mine = [line for line in shown if line.kind == kind]
        if not mine:
            continue
        segments = [ends(line, shape, window) for line in mine]
        style = {"linewidths": 1.3 if len(shown) < 1000 else 0.6, "linestyles": STYLES[kind]}
        axes.add_collection(LineCollection(segments, colors=hexa(colour), zorder=3, **style))
        handles.append(
            Line2D([], [], color=hexa(colour), linestyle=STYLES[kind], label=f"{NAMES[kind]}: {len(mine):,}")
        )
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False, borderpad=0)
    name_time(
        axes, window, "; a line leads from the sender's first byte to the receiver's last; bars are forward passes"
    )


def ends(line: Line, shape: Rows, window: Window) -> list[tuple[float, float]]:
    """Pixels of both ends, at the edges of the bars; what lies outside the panel is cut off by it."""
    down = BAR / 2 if line.dst > line.src else -BAR / 2
    return [
        (place(line.leaves_ns, window), (line.src + 0.5 + down) * shape.pitch),
        (place(line.arrival_ns, window), (line.dst + 0.5 - down) * shape.pitch),
    ]
