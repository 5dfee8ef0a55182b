"""Requests over time: how many run and wait, and what each waited for its tokens.

Rule: the upper panels are counts at every instant (``series.py``), the lower ones a dot for each request, at the time
of its arrival. What has no dot is counted in the words above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ppsim.recording.summary import NS_PER_S, Life, percentile, request_lives
from ppsim.report.canvas import LEFT, WIDTH, Block, add_panel, put_words
from ppsim.report.charts import (
    BLUE,
    CAPTION,
    DOT,
    HEIGHT,
    ORANGE,
    PALE,
    Layer,
    area_block,
    captioned,
    decades,
    duration,
    nice_top,
)
from ppsim.report.lanes import Part
from ppsim.report.legend import hexa
from ppsim.report.panels import name_time, place
from ppsim.report.series import highest, maxima, means, request_counts, total
from ppsim.report.window import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = (50, 99)  # percentiles with a line of their own


def request_blocks(parts: Sequence[Part], window: Window) -> list[Block]:
    """Counts of every pipeline, then the clients' TTFT and TPOT."""
    clients = parts[-1].recording
    lives = request_lives(clients)
    return [
        *(counts_block(part, window) for part in parts),
        dots_block("TTFT", "no first token", lives, window, lambda life: first_token(life)),
        dots_block("TPOT", "fewer than two tokens", lives, window, lambda life: token_interval(life)),
    ]


def counts_block(part: Part, window: Window) -> Block:
    """Running requests with the waiting ones upon them; what a pixel hides of a peak is pale."""
    counts = request_counts(part.recording)
    running, waiting = (means(series, window, WIDTH) for series in (counts.running, counts.waiting))
    peaks = maxima(total(counts.running, counts.waiting), window, WIDTH)
    layers = [
        Layer("running", running, BLUE),
        Layer("waiting", waiting, ORANGE),
        Layer("peak within a pixel", peaks - running - waiting, PALE),
    ]
    most = [int(highest([maxima(series, window, WIDTH)])) for series in (counts.running, counts.waiting)]
    where = f"{part.name}: " if part.name else ""
    words = f"{where}requests that were read: at most {most[0]:,} run and {most[1]:,} wait for a batch".lstrip()
    return area_block(words, layers, nice_top(highest([peaks])), window)


def first_token(life: Life) -> float | None:
    if not life.token_ns or life.arrived_ns is None:
        return None
    return life.token_ns[0] - life.arrived_ns


def token_interval(life: Life) -> float | None:
    if len(life.token_ns) < 2:
        return None
    return (life.token_ns[-1] - life.token_ns[0]) / (len(life.token_ns) - 1)


def dots_block(
    name: str, lacks: str, lives: Iterable[Life], window: Window, value_of: Callable[[Life], float | None]
) -> Block:
    """A dot for each request that arrived in the window."""
    there = [life for life in lives if life.arrived_ns is not None and in_window(life.arrived_ns, window)]
    found = [(life.arrived_ns, value) for life in there if (value := value_of(life)) is not None]
    dots = [(time, value) for time, value in found if value > 0 and time is not None]
    left_out = [f"{lacks}: {len(there) - len(found):,}"] if len(found) < len(there) else []
    left_out += [f"of 0 ns, without a dot: {len(found) - len(dots):,}"] if len(dots) < len(found) else []
    scale = " on a logarithmic scale" if dots else ""
    words = f"{name} of {len(dots):,} requests{scale}, by time of arrival"
    words += f" ({'; '.join(left_out)})" if left_out else ""
    if not dots:
        return Block(CAPTION, lambda figure, top: put_words(figure, LEFT, top + 6, words, size=9))

    def draw(figure: Figure, at: int) -> Axes:
        axes = add_panel(figure, LEFT, at, WIDTH, HEIGHT)
        name_time(axes, window, "")
        draw_dots(axes, dots, window)
        return axes

    return captioned(words, draw)


def draw_dots(axes: Axes, dots: Sequence[tuple[int, float]], window: Window) -> None:
    scale = decades([value for _, value in dots])
    xs = [place(time, window) for time, _ in dots]
    ys = [scale.y(value) for _, value in dots]
    axes.scatter(xs, ys, s=DOT**2, color=hexa(BLUE), alpha=0.6, linewidths=0, clip_on=False)
    places, labels = scale.ticks()
    axes.set_yticks(places, labels, fontsize=8)
    ordered = sorted(value / NS_PER_S for _, value in dots)
    for q in LINES:
        value = percentile(ordered, q) * NS_PER_S
        axes.axhline(scale.y(value), color="black", linewidth=0.7, linestyle=(0, (3, 2)))
        says = f"p{q} {duration(value)}"
        axes.annotate(
            says,
            (1.0, scale.y(value)),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            va="top" if q == 50 else "bottom",
            xytext=(6, 0),
            textcoords="offset points",
        )


def in_window(time_ns: int, window: Window) -> bool:
    return window.start_ns <= time_ns <= window.end_ns
