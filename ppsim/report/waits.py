"""Where every rank stood when a run failed, and who waited for whom: lines of words with arrows beside them.

Rule: an arrow leads from the rank that waits to the rank that it waits for; those of a circle are red, because nobody
in it can go on. Of a run that did not fail but was stopped nothing is red: a message may have been on its way. What
does not fit is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ppsim.recording.schema import Stand, Verdict
from ppsim.recording.summary import NS_PER_S
from ppsim.report.canvas import FAILED, GREY, SHEET, Block, add_panel
from ppsim.report.lanes import Lane, Part, Rows, rank_name
from ppsim.report.panels import place
from ppsim.report.phases import doing_words, phase_words
from ppsim.report.window import Window, decimal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PITCH = 22  # pixels of a line
MOST = 64  # lines
NODE, REACH = 190, 150  # where the arrows begin and end, and how far they reach to the left


def headline(verdict: Verdict | None) -> list[str]:
    """The verdict in one sentence; nothing of a run that passed."""
    if verdict is None or verdict.kind == "pass":
        return []
    first = first_line(verdict)
    rule = f", {verdict.invariant}" if verdict.invariant and not first.startswith(verdict.invariant) else ""
    return [f"{verdict.kind.upper()} (exit code {verdict.exit_code}{rule}): {first}"]


def first_line(verdict: Verdict) -> str:
    """The first sentence of a verdict, with the words of the phase that it names."""
    line = str(verdict.message).strip().split("\n", 1)[0].rstrip(":")
    name = verdict.phase or ""
    words = phase_words(name)
    return line.replace(f"phase {name}", f"phase {name} ({words})", 1) if name and words != name else line


def circles(peers: Mapping[str, str]) -> set[str]:
    """Everybody who waits in a circle."""
    found: set[str] = set()
    for start in peers:
        path: list[str] = []
        at = start
        while at in peers and at not in path:
            path.append(at)
            at = peers[at]
        if at in path:
            found.update(path[path.index(at) :])
    return found


def caught(verdict: Verdict, peers: Mapping[str, str]) -> set[str]:
    """Everybody who waits in a circle that holds; of a run that was stopped in its midst nobody can say that."""
    return circles(peers) if verdict.kind == "fail" else set()


STOPPED = "; the run was stopped, and might have gone on"


def stands_of(parts: Sequence[Part]) -> dict[str, tuple[Part, Stand]]:
    """Name of the lane -> pipeline and stand, from the top down."""
    return {rank_name(part, s.rank): (part, s) for part in parts for s in part.recording.stands}


def waits(verdict: Verdict, parts: Sequence[Part]) -> list[Block]:
    """The block of where the ranks stood; none where that was not recorded."""
    stands = stands_of(parts)
    if not stands:
        return []
    height = PITCH * (min(len(stands), MOST) + (len(stands) > MOST) + 1) + 24
    return [Block(height, lambda figure, top: draw_waits(figure, top, height, verdict, stands))]


def draw_waits(
    figure: Figure, top: int, height: int, verdict: Verdict, stands: Mapping[str, tuple[Part, Stand]]
) -> None:
    """A line for each rank, with the arrows in front of the lines."""
    axes = add_panel(figure, 12, top + 10, SHEET - 24, height - 10)
    axes.set_axis_off()
    says = "Where the ranks stood; an arrow leads from the one that waits to the one that it waits for"
    says += "" if verdict.kind == "fail" else STOPPED
    axes.text(0, PITCH * 0.5, says, va="center", fontsize=9)
    shown = dict(list(stands.items())[:MOST])
    places = {name: (i + 1.5) * PITCH for i, name in enumerate(shown)}
    peers = {name: rank_name(part, s.waits_for) for name, (part, s) in shown.items() if s.waits_for is not None}
    in_circle = caught(verdict, peers)
    for name, (part, stand) in shown.items():
        is_red = name in in_circle or (not in_circle and is_guilty(verdict, part, stand))
        words = sentence(name, stand, peers.get(name))
        axes.text(NODE + 14, places[name], words, va="center", fontsize=8, color=FAILED if is_red else "black")
    if len(stands) > MOST:
        more = f"and {len(stands) - MOST} more ranks"
        axes.text(NODE + 14, (MOST + 1.5) * PITCH, more, va="center", fontsize=8, color=GREY)
    arrows = {(name, peer): name in in_circle for name, peer in peers.items() if peer in places}
    for colour, is_red in ((GREY, False), (FAILED, True)):
        draw_arrows(axes, [(places[a], places[b]) for (a, b), red in arrows.items() if red == is_red], colour)


def sentence(name: str, stand: Stand, peer: str | None) -> str:
    slot = f", slot {stand.slot}" if stand.slot is not None else ""
    waits_for = f" for {peer}" if peer is not None else ""
    since = f", since {decimal(stand.since_ns, NS_PER_S, 1)} s" if stand.since_ns is not None else ""
    return f"{name}:  iteration {stand.iteration}{slot}, {doing_words(stand.doing)}{waits_for}{since}"


def mark_stands(axes: Axes, parts: Sequence[Part], lanes: Sequence[Lane], shape: Rows, window: Window) -> None:
    """A red mark under each bar at the instant from which on the rank did nothing, where the panel shows it."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    stands = stands_of(parts)
    marks = []
    for i, lane in enumerate(lanes):
        since = stands[lane.name][1].since_ns if lane.name in stands else None
        if since is not None and window.start_ns <= since <= window.end_ns:
            x, y = place(since, window), shape.bar(i)[1]
            size = max(2, min(6, (shape.pitch - y % shape.pitch) % shape.pitch))
            marks.append(Path([(x, y), (x - size, y + size + 1), (x + size, y + size + 1), (x, y)], [1, 2, 2, 79]))
    if marks:
        patch = PathPatch(Path.make_compound_path(*marks), color=FAILED, linewidth=0, clip_on=False, zorder=6)
        axes.add_patch(patch)
        axes.set_xlabel(f"{axes.get_xlabel()}; red triangle: the last step of a rank")


def is_guilty(verdict: Verdict, part: Part, stand: Stand) -> bool:
    """The rank that the verdict names; of two pipelines its text begins with the side."""
    same_side = not part.name or str(verdict.message).startswith(f"{part.name} side")
    return same_side and stand.rank == verdict.rank


def draw_arrows(axes: Axes, arrows: Sequence[tuple[float, float]], colour: str) -> None:
    """Arcs to the left of the lines, all of a colour as one path, and their heads as another."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not arrows:
        return
    arcs, heads = [], []
    for start, end in arrows:
        out = NODE - min(REACH, 22 + abs(end - start) * 0.8)
        start, end = start + (3 if end > start else -3), end - (3 if end > start else -3)  # to and fro do not meet
        arcs.append(Path([(NODE, start), (out, start), (out, end), (NODE, end)], [1, 4, 4, 4]))
        heads.append(Path([(NODE + 4, end), (NODE - 7, end - 4), (NODE - 7, end + 4), (NODE + 4, end)], [1, 2, 2, 79]))
    axes.add_patch(PathPatch(Path.make_compound_path(*arcs), facecolor="none", edgecolor=colour, linewidth=1.3))
    axes.add_patch(PathPatch(Path.make_compound_path(*heads), facecolor=colour, linewidth=0))
