"""Figures of a sweep over one of its keys: a panel a figure, a line for each combination of the other keys.

Rule: a dot is one point of the table, at its value; between dots nothing was run, and the line only leads the eye. A
point without a figure is no dot: it has a red cross on the axis, and the words below the title count them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.errors import UsageError
from ppsim.report.canvas import DPI, FAILED, checked_path, encoded, plain_style, wrapped
from ppsim.report.keys import axis_words, figure_name, figure_words, key_words, log_note, shown, value_words
from ppsim.report.legend import PALETTE, hexa

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table = Mapping[str, Sequence[Any]]
USUAL = ("bubble_ratio", "input_tokens_per_s", "ttft_p50_s")
MAX_LINES = 40  # that can be told apart: ten colours times four kinds of dots
MAX_PANELS = 6
MAX_TICKS = 9
WIDE = 8.0  # largest over smallest from which an axis is logarithmic
DOTS = "os^D"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (5, 2, 1, 2)))
TITLE_LETTERS = 52  # of a panel's title in a line


@dataclass(frozen=True, slots=True)
class Line:
    """One combination of the other keys; ``places`` are rows of the table, by rising x. ``alike``: labels of further
    ones whose dots all lie on these, so that nobody could see them."""

    label: str
    places: tuple[int, ...]
    alike: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "\n= ".join((self.label, *self.alike))


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn. ``xs``: a place on the axis for each row; ``names``: of the places, where x is no number."""

    x: str
    xs: tuple[float | None, ...]
    names: tuple[str, ...]
    figures: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def is_log(self) -> bool:
        known = [x for x in self.xs if x is not None]
        return not self.names and bool(known) and min(known) > 0 and max(known) / min(known) >= WIDE


def chart_of(table: Table, keys: Sequence[str], x: str | None = None, figures: Sequence[str] = ()) -> Chart:
    """Choose axes and lines. Raises UsageError for what the table does not have, and where nothing can be drawn."""
    axes = [key for key in ("scenario", *keys) if len(distinct(table[key])) > 1]
    axis = x if x is not None else usual_axis(table, axes)
    if axis not in ("scenario", *keys):
        raise UsageError(f"--x {axis}: no key of this sweep; there are: {', '.join(('scenario', *keys))}")
    chosen = tuple(dict.fromkeys(figures)) or tuple(name for name in USUAL if has_figures(table, name))
    for name in chosen:
        if not has_figures(table, name):
            raise UsageError(f"--y {name}: no point has this figure; {nearest(table, name)}")
    if not chosen:
        raise UsageError("no point has a figure that could be drawn")
    if len(chosen) > MAX_PANELS:
        raise UsageError(f"--y: a picture has at most {MAX_PANELS} panels, these are {len(chosen)}")
    values = [None if v is None else v for v in table[axis]]
    names: tuple[str, ...] = ()
    if all(is_number(v) for v in values if v is not None):
        xs = tuple(None if v is None else float(v) for v in values)
    else:
        names = tuple(shown(v) for v in distinct(values))
        xs = tuple(None if v is None else float(names.index(shown(v))) for v in values)
    others = [key for key in axes if key != axis]
    groups: dict[str, list[int]] = {}
    for row, place in enumerate(xs):
        if place is not None:
            groups.setdefault(label_of(table, others, row), []).append(row)
    if not groups:
        raise UsageError(f"--x {axis}: no point is given it")
    if len(groups) > MAX_LINES:
        raise UsageError(f"{len(groups)} lines cannot be told apart, {MAX_LINES} can; choose another --x")
    lines = tuple(Line(label, tuple(sorted(rows, key=lambda row: xs[row] or 0.0))) for label, rows in groups.items())
    return Chart(axis, xs, names, chosen, merged(table, xs, chosen, lines))


def nearest(table: Table, name: str) -> str:
    """What may have been meant: a figure that begins so, the median first, or one that is spelled nearly so."""
    known = [column for column in table if has_figures(table, column) and "." not in column]
    begins = sorted((one for one in known if one.startswith(f"{name}_")), key=lambda one: "p50" not in one)
    near = begins[:1] or get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "the columns of the table are the names"


def merged(table: Table, xs: Sequence[float | None], figures: Sequence[str], lines: Sequence[Line]) -> tuple[Line, ...]:
    """Lines that lie on each other everywhere become one."""
    found: dict[str, Line] = {}
    for line in lines:
        dots = repr([(xs[row], *(table[name][row] for name in figures)) for row in line.places])
        first = found.get(dots)
        found[dots] = line if first is None else replace(first, alike=(*first.alike, line.label))
    return tuple(found.values())


def usual_axis(table: Table, axes: Sequence[str]) -> str:
    """The key with most different numbers; else the first that differs."""
    numeric = [key for key in axes if all(is_number(v) for v in table[key] if v is not None)]
    if numeric:
        return max(numeric, key=lambda key: len(distinct(table[key])))  # the first of several
    return axes[0] if axes else "scenario"


def distinct(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    seen: set[str] = set()
    for value in values:
        if repr(value) not in seen:
            seen.add(repr(value))
            found.append(value)
    return found


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_figures(table: Table, name: str) -> bool:
    return name in table and any(is_number(value) for value in table[name])


def label_of(table: Table, keys: Sequence[str], row: int) -> str:
    """The other keys of a row, in words."""
    parts = [
        shown(table[key][row]) if key == "scenario" else value_words(key, shown(table[key][row]))
        for key in keys
        if table[key][row] is not None
    ]
    return ", ".join(parts)


# --- drawing -----------------------------------------------------------------------------------------------------


def title_of(names: Sequence[str], num_points: int, chart: Chart) -> str:
    """What there is to see: how which figures move with what, and in how many runs."""
    of = names[0] if len(names) == 1 else f"{len(names)} scenarios"
    over = "the scenario" if chart.x == "scenario" else key_words(chart.x).name.partition(":")[0]
    figures = [figure_name(name) for name in chart.figures]
    moving = " and ".join([", ".join(figures[:-1]), figures[-1]] if len(figures) > 1 else figures)
    move = "move" if len(figures) > 1 else "moves"
    return f"{of}: how {moving} {move} with {over}; {num_points} runs, a dot each"


def plot_sweep(table: Table, keys: Sequence[str], path: Path, title: str, chart: Chart) -> bytes:
    """The picture, in the format that the ending of ``path`` says."""
    from matplotlib.figure import Figure

    checked_path(path)
    without = missing_words(table, chart)
    with plain_style():
        num = len(chart.figures)
        width = max(4.4 * num, 7.0) + (0.0 if only_line(chart) else 2.4)
        figure = Figure(figsize=(width, 4.6), dpi=DPI, layout="constrained")
        axes = figure.subplots(1, num, squeeze=False)[0]
        for place, name in zip(axes, chart.figures):
            draw_panel(place, table, chart, name)
        if not only_line(chart):
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
        words = "\n".join([title, *wrapped([without] if without else [], round(width * 15))])
        figure.suptitle(words, fontsize=10, x=0.01, ha="left")
        return encoded(figure, path)


def only_line(chart: Chart) -> bool:
    return len(chart.lines) == 1 and not chart.lines[0].name


def draw_panel(axes: Axes, table: Table, chart: Chart, name: str) -> None:
    values = table[name]
    for number, line in enumerate(chart.lines):
        pairs = [(chart.xs[row], values[row]) for row in line.places]
        drawn = [(x, y) for x, y in pairs if x is not None and y is not None and is_number(y)]
        kind = number // len(PALETTE)
        axes.plot(
            [x for x, _ in drawn],
            [y for _, y in drawn],
            color=hexa(PALETTE[number % len(PALETTE)]),
            marker=DOTS[kind],
            linestyle=DASHES[kind] if not chart.names else "none",
            ms=4.5,
            lw=1.5,
            label=line.name,
        )
    set_x(axes, chart)
    set_y(axes, [v for v in values if is_number(v)])
    lost = [x for row, x in enumerate(chart.xs) if x is not None and not is_number(values[row])]
    if lost:  # on the lower edge, whatever the scale
        axes.plot(lost, [0.0] * len(lost), "x", color=FAILED, ms=7, mew=1.6, clip_on=False, zorder=5,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    title = figure_words(name) + log_note(axes.get_yscale() == "log")
    axes.set_title("\n".join(wrapped([title], TITLE_LETTERS)), fontsize=10, loc="left")
    axes.grid(color="#e6e3dc", lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def set_x(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xlabel(axis_words(chart.x) + log_note(chart.is_log), fontsize=9)
    if chart.names:
        axes.set_xticks(range(len(chart.names)), chart.names, rotation=30, ha="right")
        axes.set_xlim(-0.5, len(chart.names) - 0.5)
        return
    if chart.is_log:
        axes.set_xscale("log")
    places = sorted({x for x in chart.xs if x is not None})
    if len(places) <= MAX_TICKS or chart.is_log:
        every = -(-len(places) // MAX_TICKS)
        axes.set_xticks(places[::every], [f"{place:,g}" for place in places[::every]])
        axes.xaxis.set_minor_locator(NullLocator())


def set_y(axes: Axes, values: Sequence[float]) -> None:
    """From 0, or by decades where values lie far apart; ticks are plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if min(values) > 0 and max(values) / min(values) >= 50:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0.0, max(values) * 1.08 or 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def missing_words(table: Table, chart: Chart) -> str:
    """How many points have no figure, and why; empty if all have."""
    rows = [row for row, x in enumerate(chart.xs) if x is not None]
    lost = [row for row in rows if any(not is_number(table[name][row]) for name in chart.figures)]
    if not lost:
        return ""
    why: dict[str, int] = {}
    for row in lost:
        why[table["outcome"][row]] = why.get(table["outcome"][row], 0) + 1
    counts = ", ".join(f"{count} {outcome}" for outcome, count in why.items())
    return f"red crosses: {len(lost)} of {len(rows)} points lack a figure ({counts})"
