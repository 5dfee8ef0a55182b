"""The search: SGLang's tuning path on one split, then all splits, chunks, smooth factors, depths and partitions.

The path is the one that is recommended for SGLang: the best fixed chunk, an initial size of two to four times that, a
smooth factor of 0.6 to 0.85, the layers. It moves one knob at a time, and its end is one of the candidates of the joint
search: first every split over all chunks and factors, then the best splits over all depths, then their layers around
their best chunk, then steps from the best candidate until none helps: one knob moved by one step, or any chunk with any
factor. So no step of one knob improves the winner, nor does any cell of its heat map; but for the depth: the smallest
one that costs no more than ``DEPTH_TOLERANCE`` is taken (``shallow``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ppsim.errors import ScenarioError, UsageError
from ppsim.plan import grid
from ppsim.plan.candidate import DEFAULT_FACTOR, Candidate, Split, given_candidate
from ppsim.plan.evaluate import FastPath, Figures
from ppsim.plan.feasible import Feasibility, feasibility, splits, why_not
from ppsim.plan.trial_load import Probe
from ppsim.plan.tuning import DEPTH_TOLERANCE, Row, Step, gain_over, score_of
from ppsim.scenario.tree import Scenario

MAX_GPUS = 1024
NUM_REFINED = 3  # splits whose depth and layers are searched, too
MAX_CLIMBS = 24
SPARE_TOKENS = 2
AT_ONCE = 2048  # candidates between two signs of progress

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Search:
    """State of one search. Every candidate is evaluated once."""

    scenario: Scenario
    probe: Probe
    num_gpus: int
    max_cp: int = 0  # 0: no limit
    progress: Progress | None = None
    fast: FastPath = field(init=False)
    possible: dict[Split, Feasibility] = field(default_factory=dict)
    known: dict[Candidate, Figures] = field(default_factory=dict)
    reasons: dict[tuple[Split, tuple[int, ...]], str] = field(default_factory=dict)
    layers: dict[Split, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scenario.cost.source == "unit":
            raise ScenarioError("cost.source", "'unit' does not depend on the chunk: there is nothing to tune")
        if not 1 <= self.num_gpus <= MAX_GPUS:
            raise UsageError(f"--gpus {self.num_gpus}: expected 1 to {MAX_GPUS}")
        self.fast = FastPath(self.scenario, self.probe)

    # --- looking at candidates ------------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        return max(self.probe.prompts)

    @property
    def need_tokens(self) -> int:
        """Cache that the longest prompt needs, its output and the page that admission sets aside included."""
        page = self.scenario.scheduler.page_size
        return -(-(self.longest + SPARE_TOKENS) // page) * page + page

    def feasible(self, split: Split) -> Feasibility:
        """Whether a split can run; looked up once."""
        if split not in self.possible:
            self.possible[split] = feasibility(self.scenario, split, self.need_tokens)
        return self.possible[split]

    def why_not(self, candidate: Candidate) -> str:
        """Why a candidate cannot run, or nothing."""
        key = (candidate.split, candidate.layer_partition)
        if key not in self.reasons:
            found = self.feasible(candidate.split)
            same = candidate.layer_partition == found.partition
            self.reasons[key] = found.why_not if same else why_not(self.scenario, *key, self.need_tokens)
        return self.reasons[key]

    def partitions(self, split: Split) -> tuple[tuple[int, ...], ...]:
        """Ways to cut the layers of a split that can run."""
        if split not in self.layers:
            found = grid.partitions(self.scenario, split, self.feasible(split).partition, self.longest)
            self.layers[split] = found
        return self.layers[split]

    def evaluate(self, candidates: Iterable[Candidate]) -> list[tuple[Candidate, Figures]]:
        """Figures of those that can run, each evaluated once."""
        able = [c for c in dict.fromkeys(candidates) if not self.why_not(c)]
        new = [c for c in able if c not in self.known]
        new.sort(key=lambda c: (c.split.pp_size, c.pp_async_batch_depth))  # these are computed side by side
        for first in range(0, len(new), AT_ONCE):
            some = new[first : first + AT_ONCE]
            self.known.update(zip(some, self.fast.figures(some)))
            if self.progress is not None:
                self.progress(len(self.known), 0)
        return [(c, self.known[c]) for c in able]

    def best_of(self, candidates: Iterable[Candidate]) -> tuple[Candidate, Figures] | None:
        """The best one, the simplest of equals; None if none can run."""
        found = self.evaluate(candidates)
        return min(found, key=lambda f: self.order(*f)) if found else None

    def order(self, candidate: Candidate, figures: Figures) -> tuple[object, ...]:
        return (score_of(self.probe.objective, figures), *candidate.simplicity)

    # --- the path ---------------------------------------------------------------------------------------------------

    def path(self, split: Split) -> list[Step]:
        """Fixed chunk, initial size, smooth factor, layers; empty if the split cannot run."""
        found = self.feasible(split)
        if found.why_not:
            return []
        s, sizes = self.scenario, grid.chunk_sizes(self.scenario, self.longest)
        start = Candidate(split, s.cluster.pp_async_batch_depth, sizes[0], 0.0, found.partition)
        steps: list[Step] = []
        self._step(steps, "best fixed chunk", [start.but(chunked_prefill_size=n) for n in sizes])
        base = steps[-1].candidate.chunked_prefill_size
        initial = [grid.aligned(s, m * base) for m in grid.INITIAL_MULTIPLES]
        dynamic = start.but(smooth_factor=DEFAULT_FACTOR)
        self._step(
            steps,
            f"dynamic, initial size 2 to 4 times {base}",
            [dynamic.but(chunked_prefill_size=n) for n in initial if n <= max(sizes[-1], base)],
        )
        if steps[-1].candidate.is_dynamic:
            swept = [steps[-1].candidate.but(smooth_factor=f) for f in grid.SWEPT_FACTORS]
            self._step(steps, "smooth factor 0.6 to 0.85", swept)
        kept = min(steps, key=lambda step: self.order(step.candidate, step.figures)).candidate
        self._step(steps, "layers of each stage", [kept.but(layer_partition=p) for p in self.partitions(split)])
        return steps

    def _step(self, steps: list[Step], name: str, candidates: list[Candidate]) -> None:
        best = self.best_of(candidates)
        if best is None:
            return
        before = min((step.figures for step in steps), key=self._score, default=best[1])
        gain = gain_over(self.probe.objective, best[1], before)
        steps.append(Step(name, best[0], best[1], len(set(candidates)), gain))

    def _score(self, figures: Figures) -> float:
        return score_of(self.probe.objective, figures)

    # --- the joint search -------------------------------------------------------------------------------------------

    def splits(self) -> list[Split]:
        """All ways to use the GPUs."""
        return [s for s in splits(self.num_gpus) if not self.max_cp or s.cp_size <= self.max_cp]

    def chunk_grid(self, split: Split, depth: int, partition: tuple[int, ...]) -> list[Candidate]:
        """Fixed and dynamic chunks of all sizes."""
        sizes = grid.chunk_sizes(self.scenario, self.longest)
        factors = (0.0, *grid.SMOOTH_FACTORS)
        return [Candidate(split, depth, n, f, partition) for n in sizes for f in factors]

    def joint(self) -> None:
        """Evaluate all splits, then refine the best ones. What was found is in ``known``."""
        depth = self.scenario.cluster.pp_async_batch_depth
        able = [split for split in self.splits() if not self.feasible(split).why_not]
        self.evaluate(c for split in able for c in self.chunk_grid(split, depth, self.feasible(split).partition))
        for split, best in self.best_by_split()[:NUM_REFINED]:
            self.evaluate(c for d in grid.DEPTHS for c in self.chunk_grid(split, d, best.layer_partition))
        for split, best in self.best_by_split()[:NUM_REFINED]:
            self.evaluate(self.refinements(split, best))
        self.climb()

    def best_by_split(self) -> list[tuple[Split, Candidate]]:
        """The best candidate of each split, the best split first."""
        best: dict[Split, tuple[tuple[object, ...], Candidate]] = {}
        for candidate, figures in self.known.items():
            key = self.order(candidate, figures)
            if candidate.split not in best or key < best[candidate.split][0]:
                best[candidate.split] = (key, candidate)
        ordered = sorted(best.items(), key=lambda item: item[1][0])
        return [(split, candidate) for split, (_, candidate) in ordered]

    def refinements(self, split: Split, best: Candidate) -> list[Candidate]:
        """Depths and layers, with chunks and factors around the best ones."""
        sizes = grid.chunk_sizes(self.scenario, self.longest)
        near = neighbours(sizes, best.chunked_prefill_size)
        factors = {best.smooth_factor, *(f for f in grid.SMOOTH_FACTORS if abs(f - best.smooth_factor) < 0.11)}
        depths = sorted({*grid.DEPTHS, best.pp_async_batch_depth})
        return [
            Candidate(split, depth, size, factor, partition)
            for depth in depths
            for size in (*near, best.chunked_prefill_size)
            for factor in sorted(factors)
            for partition in self.partitions(split)
        ]

    def steps_from(self, c: Candidate) -> list[tuple[str, Candidate]]:
        """Every knob of a candidate moved by one step, the split left alone."""
        sizes = grid.chunk_sizes(self.scenario, self.longest)
        near = neighbours(sizes, c.chunked_prefill_size)
        steps = [(f"chunk {n}", c.but(chunked_prefill_size=n)) for n in near]
        if c.is_dynamic:
            for factor in (round(c.smooth_factor + d, 4) for d in (-grid.FACTOR_STEP, grid.FACTOR_STEP)):
                if 0.0 < factor <= 1.0:
                    steps.append((f"smooth factor {factor:.2f}", c.but(smooth_factor=factor)))
            steps.append(("fixed chunks", c.but(smooth_factor=0.0)))
        else:
            steps.append((f"dynamic, factor {DEFAULT_FACTOR}", c.but(smooth_factor=DEFAULT_FACTOR)))
        for depth in (c.pp_async_batch_depth - 1, c.pp_async_batch_depth + 1):
            if depth >= 0:
                steps.append((f"depth {depth}", c.but(pp_async_batch_depth=depth)))
        for name, source, target in (("first to last", 0, -1), ("last to first", -1, 0)):
            partition = grid.moved(c.layer_partition, source, target)
            if partition is not None:
                steps.append((f"one layer from {name} stage", c.but(layer_partition=partition)))
        return steps

    def climb(self, split: Split | None = None, depth: int | None = None) -> Candidate:
        """Step from the best candidate as long as a step of one knob, or another chunk and factor, makes it better.

        ``split`` and ``depth``: among those that have both.
        """

        def is_asked_for(c: Candidate) -> bool:
            return split is None or (c.split, c.pp_async_batch_depth) == (split, depth)

        best = min(((c, f) for c, f in self.known.items() if is_asked_for(c)), key=lambda item: self.order(*item))
        for _ in range(MAX_CLIMBS):
            steps = [*(c for row in self.surface(best[0]) for c in row), *(c for _, c in self.steps_from(best[0]))]
            found = self.best_of(filter(is_asked_for, steps))
            if found is None or self.order(*found) >= self.order(*best):
                break
            best = found
        return best[0]

    def shallow(self) -> tuple[Candidate, float]:
        """The winner: of the best split the smallest depth that costs at most ``DEPTH_TOLERANCE``, at its best; and
        what the fastest depth would gain over it.

        A depth delays every output, and with it the client's tokens and the news that a request has ended; the times
        of a search see little of that.
        """
        best, figures = min(self.known.items(), key=lambda item: self.order(*item))
        for depth in range(best.pp_async_batch_depth):
            same = best.but(pp_async_batch_depth=depth)
            if self.best_of([same]) is None:
                continue
            found = self.climb(best.split, depth)
            gain = gain_over(self.probe.objective, figures, self.known[found])
            if gain <= DEPTH_TOLERANCE:
                return found, gain
        return best, 0.0

    def surface(self, c: Candidate) -> list[list[Candidate]]:
        """All chunks (columns) and smooth factors (rows, fixed chunks first), its own among them; the rest as it is."""
        sizes = sorted({*grid.chunk_sizes(self.scenario, self.longest), c.chunked_prefill_size})
        factors = sorted({0.0, *grid.SMOOTH_FACTORS, c.smooth_factor})
        return [[c.but(chunked_prefill_size=n, smooth_factor=f) for n in sizes] for f in factors]

    def table(self, winner: Candidate | None = None) -> list[Row]:
        """The winner, everything else that was evaluated, best first, then the splits that cannot run."""
        found = sorted(self.known.items(), key=lambda item: (item[0] != winner, self.order(*item)))
        rows = [Row(c.split, c, figures) for c, figures in found]
        impossible = [self.feasible(split) for split in self.splits()]
        return rows + [Row(f.split, None, None, f.why_not) for f in impossible if f.why_not]

    def given(self) -> Row:
        """The scenario as it is, if its split can run; in the table only if it uses as many GPUs."""
        own = given_candidate(self.scenario)
        if own.chunked_prefill_size < 1:  # no chunking: one chunk holds the longest prompt
            unit = grid.alignment(self.scenario)
            own = own.but(chunked_prefill_size=-(-self.longest // unit) * unit)
        reason = self.why_not(own)
        if reason:
            return Row(own.split, own, None, reason)
        same_gpus = own.split.num_gpus == self.num_gpus
        return Row(own.split, own, self.evaluate([own])[0][1] if same_gpus else self.fast.figures([own])[0])

    def require_any(self) -> None:
        """Raise ScenarioError if no split can run, with every reason."""
        reasons = [self.feasible(split) for split in self.splits()]
        if all(f.why_not for f in reasons):
            shown = "; ".join(f"{f.split}: {f.why_not}" for f in reasons[:3])
            more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            told = f"none of the {len(reasons)} splits of {self.num_gpus} GPUs can run"
            raise ScenarioError("--gpus", f"{told}: {shown}{more}")


def neighbours(sizes: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The next smaller and the next larger one."""
    below = [n for n in sizes if n < size][-1:]
    above = [n for n in sizes if n > size][:1]
    return (*below, *above)
