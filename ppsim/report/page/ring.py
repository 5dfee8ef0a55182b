"""Who waits for whom, drawn: ranks on a circle, an arrow from the one that waits to the one that it waits for.

Rule: as in the Gantt (``report/waits.py``): those who wait in a circle are red, because none of them can go on. What
does not fit is counted. A picture in the page itself (SVG), so that it is there without a script too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, hypot, pi, sin

from ppsim.recording.schema import Stand, Verdict
from ppsim.report.lanes import Part, rank_name
from ppsim.report.page.words import text
from ppsim.report.waits import STOPPED, caught, is_guilty, sentence, stands_of

MOST = 16  # ranks on the circle
WIDTH, MIDDLE = 400, 200
HALF_HEIGHT, GAP = 15, 5
RED, GREY = "#c1121f", "#7d7a72"


def waits_html(verdict: Verdict, parts: Sequence[Part]) -> str:
    """The drawing, and a line for each rank beside it. Nothing where it was not recorded where the ranks stood."""
    stands = stands_of(parts)
    if verdict.kind == "pass" or not stands:
        return ""
    peers = {name: rank_name(part, s.waits_for) for name, (part, s) in stands.items() if s.waits_for is not None}
    found = caught(verdict, peers)
    lines = "".join(line(verdict, name, *stands[name], peers.get(name), found) for name in stands)
    says = says_of(found, len(stands), verdict.kind == "fail")
    return f'<p>{text(says)}</p><div class="ring">{drawing(stands, peers, found)}<ol>{lines}</ol></div>'


def says_of(caught: set[str], num: int, has_failed: bool) -> str:
    if not has_failed:
        return f"An arrow leads from a rank that waits to the one that it waits for{STOPPED}."
    if not caught:
        return "An arrow leads from a rank that waits to the one that it waits for; nobody waits in a circle."
    who = "all ranks wait" if len(caught) == num else f"{len(caught)} of {num} ranks wait"
    return (
        "An arrow leads from a rank that waits to the one that it waits for. "
        f"In red: {who} in a circle, and none of them can go on."
    )


def line(verdict: Verdict, name: str, part: Part, stand: Stand, peer: str | None, caught: set[str]) -> str:
    is_red = name in caught or (not caught and is_guilty(verdict, part, stand))
    return f"<li{' class=caught' if is_red else ''}>{text(sentence(name, stand, peer))}</li>"


def drawing(stands: Mapping[str, tuple[Part, Stand]], peers: Mapping[str, str], caught: set[str]) -> str:
    """Those in the circle first, the others as far as there is room."""
    wanted = sorted(stands, key=lambda name: name not in caught)[:MOST]
    shown = [name for name in stands if name in wanted]
    radius = 0 if len(shown) == 1 else 110 if len(shown) < 9 else 160
    height = 2 * radius + 2 * HALF_HEIGHT + (60 if len(shown) < len(stands) else 24)
    places = {name: place(i, len(shown), radius) for i, name in enumerate(shown)}
    half = {name: 9 + 4 * min(len(name), 18) for name in shown}
    arrows = [
        arrow(places[name], places[peer], half[peer], half[name], name in caught)
        for name, peer in peers.items()
        if name in places and peer in places
    ]
    nodes = [node(name, places[name], half[name], name in caught) for name in shown]
    num_left = len(stands) - len(shown)
    top, below = MIDDLE - radius - HALF_HEIGHT - 12, MIDDLE + radius + HALF_HEIGHT + 36
    more = f'<text x="8" y="{below}" class="more">and {num_left} more ranks</text>' if num_left else ""
    label = text("; ".join(f"{name} waits for {peer}" for name, peer in peers.items()) or "no rank waits for another")
    return (
        f'<svg viewBox="0 {top} {WIDTH} {height}" role="img" aria-label="{label}">'
        f"<defs>{head('red', RED)}{head('grey', GREY)}</defs>{''.join(arrows)}{''.join(nodes)}{more}</svg>"
    )


def place(i: int, num: int, radius: float) -> tuple[float, float]:
    """Clockwise from the top."""
    angle = 2 * pi * i / num
    return MIDDLE + radius * sin(angle), MIDDLE - radius * cos(angle)


def head(name: str, colour: str) -> str:
    return (
        f'<marker id="head-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="12" markerHeight="12" '
        f'orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
    )


def arrow(
    start: tuple[float, float], end: tuple[float, float], half_end: float, half_start: float, is_caught: bool
) -> str:
    """From box to box, bent a little so that one each way can be told apart."""
    length = hypot(end[0] - start[0], end[1] - start[1])
    if not length:
        return ""
    ahead = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    bend = 0.12 * length
    control = ((start[0] + end[0]) / 2 - ahead[1] * bend, (start[1] + end[1]) / 2 + ahead[0] * bend)
    first, last = edge(start, control, half_start), edge(end, control, half_end)
    kind = "red" if is_caught else "grey"
    path = f"M{point(first)}Q{point(control)} {point(last)}"
    return f'<path d="{path}" class="arrow {kind}" marker-end="url(#head-{kind})"/>'


def edge(centre: tuple[float, float], towards: tuple[float, float], half_width: float) -> tuple[float, float]:
    """Where the line from the middle of a box towards a point leaves it, and a little on."""
    x, y = towards[0] - centre[0], towards[1] - centre[1]
    length = hypot(x, y)
    steps = min((half_width + GAP) / abs(x) if x else float("inf"), (HALF_HEIGHT + GAP) / abs(y) if y else float("inf"))
    return (centre[0] + x * steps, centre[1] + y * steps) if length else centre


def node(name: str, at: tuple[float, float], half_width: float, is_caught: bool) -> str:
    shown = name if len(name) <= 18 else f"{name[:17]}…"
    kind = " caught" if is_caught else ""
    return (
        f'<g class="node{kind}"><rect x="{at[0] - half_width:.1f}" y="{at[1] - HALF_HEIGHT:.1f}" rx="6" '
        f'width="{2 * half_width}" height="{2 * HALF_HEIGHT}"/>'
        f'<text x="{at[0]:.1f}" y="{at[1] + 5:.1f}">{text(shown)}</text></g>'
    )


def point(at: tuple[float, float]) -> str:
    return f"{at[0]:.1f} {at[1]:.1f}"
