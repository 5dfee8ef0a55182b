"""Forward passes of one run against those of another that decided alike: simulated against measured.

Rule: a dot is a forward pass of a rank that both runs have, with the same pieces in the same iteration; across is its
time in the run of ``--against``, upwards its time in the run that is drawn. On the diagonal the two agree. What only
one of the runs has, or what they decided otherwise, is counted and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ppsim.errors import UsageError
from ppsim.recording.record import Recording
from ppsim.report.canvas import GREY, LEFT, Block, add_panel, put_words
from ppsim.report.charts import BLUE, CAPTION, DOT, ORANGE, duration
from ppsim.report.keys import log_note
from ppsim.report.legend import hexa
from ppsim.report.panels import AXIS
from ppsim.report.window import Window

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 460  # pixels: both axes have the same scale
KINDS = (("prefill, or mixed", BLUE, "o", False), ("decode", ORANGE, "^", True))


class Pair(NamedTuple):
    """A forward pass in both runs."""

    is_decode: bool
    mine_ns: int
    other_ns: int


class Pairs(NamedTuple):
    """What two runs have in common. ``num_left_out``: passes of the first run that have no partner."""

    mine: str
    other: str
    found: list[Pair]
    num_left_out: int

    def words(self) -> list[str]:
        ratios = sorted(pair.mine_ns / pair.other_ns for pair in self.found)
        left = f"; {self.num_left_out:,} others have no equal in {self.other}" if self.num_left_out else ""
        near = sum(0.9 <= ratio <= 1.1 for ratio in ratios) / len(ratios)
        return [
            f"{len(ratios):,} passes, time in {self.mine} over time in {self.other}: median {median(ratios):.3g}, "
            f"from {ratios[0]:.3g} to {ratios[-1]:.3g}, {100 * near:.0f} % within a tenth{left}"
        ]


def pairs_of(mine: Recording, other: Recording, window: Window | None = None) -> Pairs:
    """Passes of both runs that begin in the window of the first one."""
    names = [f"{run.name} ({run.world})" for run in (mine, other)]
    if names[0] == names[1]:
        names[1] += " (--against)"
    found, num_left_out = [], 0
    for rank in range(mine.num_ranks):
        decided = [
            {d.iteration: d for d in run.decisions[rank]} if rank < run.num_ranks else {} for run in (mine, other)
        ]
        theirs = {s.iteration: s for s in other.spans[rank] if s.stream == "forward"} if rank < other.num_ranks else {}
        for span in mine.spans[rank]:
            if span.stream != "forward":
                continue
            if window is not None and not window.start_ns <= span.start_ns < window.end_ns:
                continue
            here, there = (of.get(span.iteration) for of in decided)
            partner = theirs.get(span.iteration)
            times = (span.end_ns - span.start_ns, partner.end_ns - partner.start_ns if partner is not None else 0)
            if here is None or there is None or here.pieces != there.pieces or min(times) <= 0:
                num_left_out += 1
            else:
                found.append(Pair(here.mode == "decode", *times))
    return Pairs(names[0], names[1], found, num_left_out)


def measured_blocks(pairs: Pairs) -> list[Block]:
    """One square panel. Raises UsageError where the runs have no pass in common."""
    if not pairs.found:
        raise UsageError(
            f"nothing to draw: no forward pass of {pairs.mine} has an equal in {pairs.other}; the two must be runs of "
            "one scenario, as of ppsim run and ppsim exec"
        )
    return [Block(CAPTION + SIDE + AXIS, lambda figure, top: draw(figure, top, pairs))]


def draw(figure: Figure, top: int, pairs: Pairs) -> None:
    put_words(figure, LEFT, top + 6, pairs.words()[0], size=9)
    axes = add_panel(figure, LEFT, top + CAPTION, SIDE, SIDE)
    low, high = limits([time for pair in pairs.found for time in (pair.mine_ns, pair.other_ns)])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.plot([low, high], [low, high], color=GREY, lw=1.0, zorder=1, label="the same time in both")
    for name, colour, marker, is_decode in KINDS:
        dots = [pair for pair in pairs.found if pair.is_decode == is_decode]
        if dots:
            across, upwards = [pair.other_ns for pair in dots], [pair.mine_ns for pair in dots]
            axes.scatter(
                across, upwards, s=DOT**2, marker=marker, color=hexa(colour), alpha=0.6, linewidths=0, label=name
            )
    ticks = ticks_of(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [duration(tick) for tick in ticks], fontsize=8)
        axis.set_ticks([], minor=True)
    axes.set_xlabel(f"time of a forward pass in {pairs.other}{log_note(True)}", fontsize=9)
    axes.set_ylabel(f"in {pairs.mine}{log_note(True)}", fontsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, frameon=False, borderpad=0)


def limits(times_ns: Sequence[int]) -> tuple[float, float]:
    """Of both axes: a little more than the times reach."""
    return min(times_ns) / 1.25, max(times_ns) * 1.25


def ticks_of(low: float, high: float) -> list[int]:
    """1, 2, 5, 10, ... nanoseconds within the axis; only tens where those are too many."""
    found = [m * 10**n for n in range(19) for m in (1, 2, 5) if low <= m * 10**n <= high]
    if len(found) < 2:  # all times are close together: even steps of a round length
        length = 10 ** (len(str(max(1, int(high - low)))) - 1)
        for step in (length, max(1, length // 2), max(1, length // 5), max(1, length // 10)):
            found = list(range(-(-int(low) // step) * step, int(high) + 1, step))
            if len(found) >= 3:
                break
        return found
    return found if len(found) <= 9 else [tick for tick in found if str(tick).startswith("1")]
