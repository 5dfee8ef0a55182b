"""Two planners of our own, and how far each rule is from the best known plan.

equal_time   every chunk takes the same time under the *full* cost model, gamma and floor included. Which time is
             searched for: a short beat fills the pipeline fast but pays the per-chunk constant often. Chunks are kept
             at ``MIN_UNITS`` alignment units or more, since below that rounding alone moves a chunk's time by over 4 %
             (and a peer whose time-targeted chunks shrink to 32 tokens loses to plain 4096).
optimal      least makespan. For identical stages and enough slots it is (sum t + (P-1) max t) / P in whole-model times
             t; a chunk that waits for the return of an earlier one only adds to that. So:
             for a bound M on max t, the least sum over all cuts by dynamic programming over aligned boundaries, O(G^2)
             for G boundaries; then the best M. All distinct chunk times are tried as M up to EXACT_GRID boundaries,
             which is exact on that grid, tail included; beyond, a geometric grid of M, refined around the best. Each
             plan found is judged by the recurrence itself, so that unequal stages are judged right, too (for them the
             bound is an upper bound). Then tokens move between the chunks of a plan of at most MAX_POLISHED
             as long as that helps. Plans of all other planners are candidates, so the result is never worse.

Two terms pull apart: (P-1) max t wants equal times, hence small late chunks; gamma, the prefix cost of each chunk,
wants few late chunks. With MLA at a million tokens gamma wins, and every equal-time rule loses to a fixed size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.plan import Pipeline, Plan, check_length, fixed, from_sizes, treat_tail
from ppsim.cost.sglang_chunks import ALIGN_TOKENS
from ppsim.errors import ScenarioError
from ppsim.later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float64]
else:
    np = later("numpy")

MIN_UNITS = 24
NUM_BEATS = 48
NUM_BISECTIONS = 24
DEFAULT_GRID = 384
EXACT_GRID = 48
NUM_BOUNDS = 48
NUM_REFINEMENTS = 2
MAX_POLISH_ROUNDS = 40

MAX_POLISHED = 96
MAX_PAIRED = 12

FIXED_SIZES = tuple(sorted(2**k * m // 2 for k in range(11, 17) for m in (2, 3)))
"""Fixed sizes that are tried as rivals: 2048 (where the published sweep on H20 starts), 3072, 4096, ... 98304."""


def equal_time(
    num_tokens: int,
    cost: Coefficients,
    pipeline: Pipeline,
    *,
    start: int = 0,
    align: int = ALIGN_TOKENS,
    min_chunk: int | None = None,
    max_chunk: int | None = None,
) -> Plan:
    """The best plan whose chunks all take the same time, the tail excepted.

    Tokens throughout; ``start`` is a cached prefix. ``max_chunk`` (a limit on one forward pass) can make equal times
    impossible: early chunks are then shorter, and the note says so. Raises ScenarioError for contradicting limits.
    """
    check_length(num_tokens)
    low = max(align, min_chunk if min_chunk is not None else MIN_UNITS * align)
    high = max_chunk // align * align if max_chunk is not None else num_tokens + align
    if max_chunk is not None and high < low:
        raise ScenarioError(
            "chunks.max_chunk", f"{max_chunk} is below the smallest chunk {low}", "lower chunks.min_chunk"
        )
    if num_tokens <= low:
        return from_sizes("equal_time", [num_tokens], start)
    end = start + num_tokens
    shortest = cost.chunk_ms(end - low, low)
    longest = max(cost.chunk_ms(start, min(high, num_tokens)), cost.chunk_ms(end - low, low))
    beats = np.geomspace(shortest, longest, NUM_BEATS) if longest > shortest else np.array([shortest])
    beats = _fill_tails(beats, num_tokens, cost, start, align, low, high)
    plans = [
        treat_tail(from_sizes("equal_time", sizes, start), low, high, align)
        for sizes in _cut(beats, num_tokens, cost, start, align, low, high)
    ]
    best = plans[int(np.argmin(pipeline.ttfts_ms(plans, cost)))]
    if max_chunk is not None and high in best.sizes[:-1] and len(set(best.sizes[:-1])) > 1:
        return Plan(best.planner, best.pieces, f"early chunks are capped at {high} and take less time")
    return best


def _fill_tails(
    beats: Floats, num_tokens: int, cost: Coefficients, start: int, align: int, low: int, high: int
) -> Floats:
    """Each beat lowered as far as its number of chunks allows, so that the last chunk is as full as the others."""
    counts = _count(beats, num_tokens, cost, start, align, low, high)
    bottom, top = beats * 0.25, beats.copy()
    for _ in range(NUM_BISECTIONS):
        middle = (bottom + top) / 2.0
        enough = _count(middle, num_tokens, cost, start, align, low, high) <= counts
        top, bottom = np.where(enough, middle, top), np.where(enough, bottom, middle)
    return top


def _step(prefix: Floats, beats: Floats, cost: Coefficients, align: int, low: int, high: int) -> Floats:
    """The largest aligned sizes within the beat and the limits."""
    ideal = np.minimum(cost.largest_chunk(prefix, beats), float(high))
    return np.asarray(np.clip(np.floor(ideal / align) * align, -(-low // align) * align, high))


def _count(
    beats: Floats, num_tokens: int, cost: Coefficients, start: int, align: int, low: int, high: int
) -> npt.NDArray[np.int64]:
    """Number of chunks for each beat."""
    at, count, end = np.full(len(beats), float(start)), np.zeros(len(beats), dtype=np.int64), start + num_tokens
    while np.any(at < end):
        count += at < end
        at = at + _step(at, beats, cost, align, low, high)
    return count


def _cut(
    beats: Floats, num_tokens: int, cost: Coefficients, start: int, align: int, low: int, high: int
) -> list[list[int]]:
    """Sizes for each beat."""
    at, end = np.full(len(beats), float(start)), float(start + num_tokens)
    sizes: list[list[int]] = [[] for _ in beats]
    while np.any(at < end):
        step = np.minimum(_step(at, beats, cost, align, low, high), end - at)
        for i in np.flatnonzero(at < end):
            sizes[i].append(int(step[i]))
        at = at + step
    return sizes


def best_fixed(
    num_tokens: int, cost: Coefficients, pipeline: Pipeline, sizes: Sequence[int] = FIXED_SIZES, start: int = 0
) -> Plan:
    """The fixed size with the shortest TTFT; of equals the largest."""
    plans = [fixed(num_tokens, size, start) for size in sorted(sizes, reverse=True)]
    return plans[int(np.argmin(pipeline.ttfts_ms(plans, cost)))]


def optimal(
    num_tokens: int,
    cost: Coefficients,
    pipeline: Pipeline,
    *,
    rivals: Sequence[Plan] = (),
    start: int = 0,
    align: int = ALIGN_TOKENS,
    max_chunk: int | None = None,
    grid: int = DEFAULT_GRID,
) -> Plan:
    """The plan of least TTFT; never worse than any rival, the best fixed size or equal times.

    ``grid``: boundaries of the dynamic programming; the alignment is coarsened to it for long prompts.
    """
    check_length(num_tokens)
    plans = [*rivals, best_fixed(num_tokens, cost, pipeline, start=start)]
    if max_chunk is None:
        plans.append(equal_time(num_tokens, cost, pipeline, start=start, align=align))
    else:
        plans = [p for p in plans if max(p.sizes) <= max_chunk] + [fixed(num_tokens, max_chunk // align * align, start)]
    cuts = _boundaries(num_tokens, align, grid)
    chunk_ms = _chunk_table(cuts, start, cost, pipeline, max_chunk)
    plans += _bounded_plans(chunk_ms, cuts, start, pipeline, cost)
    ttfts = pipeline.ttfts_ms(plans, cost)
    best = plans[int(np.argmin(ttfts))]
    polished = _polish(best, cost, pipeline, align, max_chunk)
    return from_sizes("optimal", polished.sizes, start)


def _boundaries(num_tokens: int, align: int, grid: int) -> npt.NDArray[np.int64]:
    """Multiples of the (coarsened) alignment below the length, and the length."""
    step = align * max(1, -(-num_tokens // (align * grid)))
    return np.append(np.arange(0, num_tokens, step, dtype=np.int64), num_tokens)


def _chunk_table(
    cuts: npt.NDArray[np.int64], start: int, cost: Coefficients, pipeline: Pipeline, max_chunk: int | None
) -> Floats:
    """table[i, j]: time of the chunk from boundary i to j in whole-model milliseconds, infinite where it is none."""
    size = cuts[None, :] - cuts[:, None]
    table = cost.ms(start + cuts[:, None], np.maximum(size, 0)) + pipeline.host_ms / max(pipeline.shares)
    allowed = (size > 0) if max_chunk is None else (size > 0) & (size <= max_chunk)
    return np.where(allowed, table, np.inf)


def _bounded_plans(
    table: Floats, cuts: npt.NDArray[np.int64], start: int, pipeline: Pipeline, cost: Coefficients
) -> list[Plan]:
    """One plan for each bound on the dearest chunk that is worth trying."""
    finite = table[np.isfinite(table)]
    if len(cuts) <= EXACT_GRID:
        return _least_sums(table, np.unique(finite), cuts, start)
    lowest = float(np.max(np.diagonal(table, 1)))
    bounds = np.geomspace(lowest, float(finite.max()), NUM_BOUNDS)
    plans = _least_sums(table, bounds, cuts, start)
    for _ in range(NUM_REFINEMENTS):
        ttfts = pipeline.ttfts_ms(plans, cost)
        best = plans[int(np.argmin(ttfts))]
        peak = float(np.max(cost.ms(*best.arrays()))) + pipeline.host_ms / max(pipeline.shares)
        ratio = (bounds[1] / bounds[0]) if len(bounds) > 1 else 1.0
        bounds = np.geomspace(max(lowest, peak / ratio), peak * ratio, NUM_BOUNDS)
        plans += _least_sums(table, bounds, cuts, start)
    return plans


def _least_sums(table: Floats, bounds: Floats, cuts: npt.NDArray[np.int64], start: int) -> list[Plan]:
    """For each bound the plan of least total time with no chunk above it; equal plans once, impossible ones never."""
    num_cuts = len(cuts)
    total = np.full((len(bounds), num_cuts), np.inf)
    total[:, 0] = 0.0
    origin = np.zeros((len(bounds), num_cuts), dtype=np.int64)
    for j in range(1, num_cuts):
        into = table[:j, j]
        reached = np.where(into[None, :] <= bounds[:, None], total[:, :j] + into[None, :], np.inf)
        origin[:, j] = np.argmin(reached, axis=1)
        total[:, j] = np.take_along_axis(reached, origin[:, j][:, None], axis=1)[:, 0]
    seen: dict[tuple[int, ...], Plan] = {}
    for m in np.flatnonzero(np.isfinite(total[:, -1])):
        ends = [num_cuts - 1]
        while ends[-1]:
            ends.append(int(origin[m, ends[-1]]))
        sizes = tuple(int(s) for s in np.diff(cuts[ends[::-1]]))
        seen.setdefault(sizes, from_sizes("optimal", sizes, start))
    return list(seen.values())


def _polish(plan: Plan, cost: Coefficients, pipeline: Pipeline, align: int, max_chunk: int | None) -> Plan:
    """Move tokens between chunks by halving steps while the TTFT falls."""
    start = plan.pieces[0][0]
    best, best_ms = plan, pipeline.ttft_ms(plan, cost)
    if len(plan.sizes) > MAX_POLISHED:
        return best
    step = align * max(1, max(plan.sizes) // align // 4)
    for _ in range(MAX_POLISH_ROUNDS):
        moves = list(_moves(best, step, max_chunk, start))
        ttfts = pipeline.ttfts_ms(moves, cost) if moves else np.array([np.inf])
        found = int(np.argmin(ttfts))
        if ttfts[found] < best_ms:
            best, best_ms = moves[found], float(ttfts[found])
        elif step > align:
            step = max(align, step // 2 // align * align)
        else:
            break
    return best


def _moves(plan: Plan, step: int, max_chunk: int | None, start: int) -> list[Plan]:
    """All plans with ``step`` tokens moved between two chunks (neighbours only in long plans), or two chunks merged."""
    num = len(plan.sizes)
    reach = num if num <= MAX_PAIRED else 2
    out = []
    for i in range(num):
        for j in range(max(0, i - reach + 1), min(num, i + reach)):
            sizes = list(plan.sizes)
            sizes[i] += step
            sizes[j] -= step
            out.append(sizes)
        out.append([*plan.sizes[: i - 1], plan.sizes[i - 1] + plan.sizes[i], *plan.sizes[i + 1 :]] if i else [])
    return [
        from_sizes(plan.planner, sizes, start)
        for sizes in out
        if sizes and min(sizes) >= 1 and (max_chunk is None or max(sizes) <= max_chunk) and tuple(sizes) != plan.sizes
    ]


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan beside the best: ``over_optimum`` and ``over_fixed`` are relative, 0.03 is three per cent slower."""

    plan: Plan
    ttft_ms: float
    over_optimum: float
    over_fixed: float
    spread: float

    @property
    def remark(self) -> str:
        """What the report must say about it."""
        loses = f"loses {self.over_fixed:.1%} to the best fixed size" if self.over_fixed > 1e-9 else ""
        return "; ".join(part for part in (self.plan.note, loses) if part)


def judge(plans: Sequence[Plan], cost: Coefficients, pipeline: Pipeline) -> tuple[Judged, ...]:
    """All plans of one prompt against the best of them and against the best fixed size."""
    ttfts = pipeline.ttfts_ms(plans, cost)
    first, num_tokens = plans[0].pieces[0][0], plans[0].num_tokens
    rival = pipeline.ttft_ms(best_fixed(num_tokens, cost, pipeline, start=first), cost)
    best = float(min(ttfts.min(), rival))
    out = []
    for plan, ttft in zip(plans, ttfts):
        beat = pipeline.chunk_ms(plan, cost)
        beat = beat[:-1] if len(beat) > 1 else beat  # the tail is excepted
        out.append(
            Judged(
                plan, float(ttft), float(ttft / best - 1.0), float(ttft / rival - 1.0), float(beat.max() / beat.min())
            )
        )
    return tuple(out)
