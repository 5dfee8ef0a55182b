"""How long each piece of a prompt took on the first stage, over the prefix before it: flat is balanced.

Rule: a dot is a forward pass with one piece of one prompt and nothing else; passes with more in them are counted and
left out, because their time is not that of a piece. The last piece of a prompt is shorter for other reasons: its dot is
hollow, and the ratio of the longest to the shortest leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ppsim.errors import UsageError
from ppsim.recording.record import Recording
from ppsim.recording.summary import request_lives
from ppsim.report.canvas import LEFT, WIDTH, Block, add_panel, put_words
from ppsim.report.charts import BLUE, CAPTION, DOT, ORANGE, duration, plain, value_ticks
from ppsim.report.legend import hexa
from ppsim.report.panels import AXIS
from ppsim.report.window import UNITS, Window

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 330
STYLES = ((BLUE, "o"), (ORANGE, "^"))


class Piece(NamedTuple):
    """One piece on the first stage."""

    prefix_len: int
    num_tokens: int
    duration_ns: int
    is_last: bool


class Chunks(NamedTuple):
    """The pieces of a run, and how many passes with a prompt in them are left out."""

    name: str
    pieces: list[Piece]
    num_left_out: int

    @property
    def ratio(self) -> float | None:
        """Longest over shortest of the pieces that are not the last ones; None for fewer than two."""
        times = [piece.duration_ns for piece in self.pieces if not piece.is_last]
        return max(times) / min(times) if len(times) > 1 and min(times) else None

    def words(self) -> str:
        flat = f"longest / shortest {self.ratio:.2f}" if self.ratio is not None else "too few for a ratio"
        more = f", {self.num_left_out:,} passes with other work are left out" if self.num_left_out else ""
        return f"{self.name}: {len(self.pieces):,} pieces, {flat}{more}"


def chunks_of(recording: Recording, name: str, window: Window | None = None) -> Chunks:
    """Pieces whose forward pass begins in the window; all of them without one."""
    prompts = {life.rid: life.num_prompt_tokens for life in request_lives(recording)}
    passes = {s.iteration: s for s in recording.spans[0] if s.stream == "forward"}
    found, num_left_out = [], 0
    for decision in recording.decisions[0]:
        span = passes.get(decision.iteration)
        if span is None or (window is not None and not window.start_ns <= span.start_ns < window.end_ns):
            continue
        of_prompts = [p for p in decision.pieces if p[1] < prompts.get(p[0], 0)]
        if not of_prompts:
            continue  # a decode step
        if len(decision.pieces) > 1:
            num_left_out += 1
            continue
        ((rid, prefix_len, num_tokens),) = of_prompts
        is_last = prefix_len + num_tokens >= prompts[rid]
        found.append(Piece(prefix_len, num_tokens, span.end_ns - span.start_ns, is_last))
    return Chunks(name, found, num_left_out)


def chunk_blocks(runs: Sequence[Chunks]) -> list[Block]:
    """One panel with the dots of one run or two. Raises UsageError if there is none."""
    if not any(run.pieces for run in runs):
        raise UsageError(
            "nothing to draw: no forward pass of the first stage holds a piece of one prompt and nothing else"
        )
    return [Block(CAPTION * len(runs) + HEIGHT + AXIS, lambda figure, top: draw(figure, top, runs))]


def draw(figure: Figure, top: int, runs: Sequence[Chunks]) -> None:
    for i, run in enumerate(runs):
        put_words(figure, LEFT, top + 6 + CAPTION * i, run.words(), size=9, colour=hexa(STYLES[i][0]))
    axes = add_panel(figure, LEFT, top + CAPTION * len(runs), WIDTH, HEIGHT)
    every = [piece for run in runs for piece in run.pieces]
    far, long_ns = max(1, max(p.prefix_len for p in every)), max(1, max(p.duration_ns for p in every))
    name, unit = next((u for u in UNITS if long_ns >= u[1]), UNITS[-1])
    for run, (colour, marker) in zip(runs, STYLES):
        for is_last in (False, True):
            mine = [piece for piece in run.pieces if piece.is_last == is_last]
            axes.scatter(
                [x_of(piece, far) for piece in mine],
                [y_of(piece, long_ns) for piece in mine],
                s=DOT**2,
                marker=marker,
                facecolors="none" if is_last else hexa(colour),
                edgecolors=hexa(colour),
                linewidths=0.8,
                clip_on=False,
                label=("against: " if run is not runs[0] else "") + ("last piece" if is_last else "piece"),
            )
    parts = 1 if long_ns / unit >= 5 else 10  # of a unit: few whole ones are no scale
    prefixes, times = value_ticks(far), [t / parts for t in value_ticks(parts * long_ns / unit)]
    axes.set_xticks([x / far * (WIDTH - 20) + 10 for x in prefixes], [plain(x) for x in prefixes], fontsize=9)
    axes.set_xlabel("tokens of the prompt before the piece", fontsize=9)
    axes.set_yticks([y_at(t * unit, long_ns) for t in times], [f"{t:g} {name}" for t in times], fontsize=8)
    if len(times) < 2:
        axes.set_yticks([y_at(0, long_ns), y_at(long_ns, long_ns)], ["0", duration(long_ns)], fontsize=8)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, borderpad=0, handletextpad=0.1)


def x_of(piece: Piece, far: int) -> float:
    return piece.prefix_len / far * (WIDTH - 20) + 10


def y_of(piece: Piece, long_ns: int) -> float:
    return y_at(piece.duration_ns, long_ns)


def y_at(time_ns: float, long_ns: int) -> float:
    """Zero is the lower edge; the longest piece has a little room above it."""
    return HEIGHT * (1 - time_ns / (long_ns * 1.05))
