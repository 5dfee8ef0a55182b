"""What the tuner hands back: rows of the table, the path it took, what each knob is worth, when dynamic chunks lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ppsim.plan.candidate import Candidate, Split
from ppsim.plan.evaluate import Figures
from ppsim.plan.trial_load import Probe

DEPTH_TOLERANCE = 0.001  # a larger depth has to bring more than that

Score = float
"""Seconds to the first token, or seconds of the whole stream for each of its tokens: smaller is better."""


@dataclass(frozen=True, slots=True)
class Row:
    """A configuration with its figures, or a split that cannot run and why."""

    split: Split
    candidate: Candidate | None
    figures: Figures | None
    why_not: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A row of ``ppsim tune --json``."""
        f, split = self.figures, self.split
        no_config = {"pp_size": split.pp_size, "tp_size": split.tp_size, "cp_size": split.cp_size}
        return {
            "config": no_config if self.candidate is None else self.candidate.config(),
            "ttft_s": None if f is None else f.ttft_s,
            "input_tokens_per_s": None if f is None else f.input_tokens_per_s,
            "bubble_ratio": None if f is None else f.bubble_ratio,
            "feasible": f is not None,
            "why_not": self.why_not or None,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the tuning path: what was tried, what was best, and what it brought over the step before."""

    name: str
    candidate: Candidate
    figures: Figures
    num_tried: int
    gain: float  # 0.03: three per cent better


@dataclass(frozen=True, slots=True)
class Change:
    """One knob of the winner moved by one step. ``cost``: 0.03 is three per cent worse; None: impossible."""

    knob: str
    candidate: Candidate | None
    cost: float | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Contest:
    """Dynamic against the best fixed chunks on one load; 0.03 is dynamic three per cent faster.

    ``gain`` of the best dynamic setting; ``rule_gain`` of the one that is recommended before anything is tuned: three
    times the best fixed size, smooth factor 0.75.
    """

    prompt: int
    concurrency: int
    fixed_chunk: int
    dynamic_chunk: int
    smooth_factor: float
    gain: float
    rule_chunk: int
    rule_gain: float


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Figures over two knobs; None: cannot run, NaN: does not exist. ``best`` is (row, column)."""

    title: str
    row_name: str
    column_name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    unit: str
    lower_is_better: bool
    best: tuple[int, int] | None = None
    labels: tuple[tuple[str, ...], ...] = ()
    blank: str = ""  # why there are NaNs


@dataclass(frozen=True, slots=True)
class Judged:
    """A row that the event simulation has run, with SGLang's command for it."""

    name: str
    row: Row
    simulated: Figures
    launch_line: str
    changes: list[str] = field(default_factory=list)  # a diff against the line that was given


@dataclass(slots=True)
class Tuning:
    """Everything that ``ppsim tune`` prints. ``table`` has the best first, impossible splits last."""

    probe: Probe
    num_gpus: int
    given: Row
    table: list[Row]
    path: list[Step]
    changes: list[Change] = field(default_factory=list)
    contests: list[Contest] = field(default_factory=list)
    maps: list[HeatMap] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)  # the winner first, then the runner-up and others
    notes: list[str] = field(default_factory=list)
    assumed: str = ""  # what nobody gave and the figures stand on: nothing is recommended then
    num_evaluated: int = 0
    configs_per_s: float = 0.0  # on one core

    @property
    def best(self) -> Row:
        return self.table[0]

    @property
    def runner_up(self) -> Row | None:
        """The best row that is not the winner by another name: a depth that changes nothing, or next to nothing."""
        return next(iter(self.rivals()), None)

    def rivals(self) -> list[Row]:
        """Likewise, all of them, the best first."""
        rows = shallowest(self.probe.objective, self.table)
        return [row for row in rows if row.figures != self.best.figures and self.is_other(row)]

    def is_other(self, row: Row) -> bool:
        """Not one that beats the winner by a depth which is not worth it (``Search.shallow``)."""
        best = self.best
        if row.candidate is None or row.figures is None or best.candidate is None or best.figures is None:
            return True
        is_deeper = row.candidate.pp_async_batch_depth > best.candidate.pp_async_batch_depth
        is_faster = score_of(self.probe.objective, row.figures) < score_of(self.probe.objective, best.figures)
        return not (row.split == best.split and is_deeper and is_faster)

    @property
    def best_without_cp(self) -> Row | None:
        """The best row that does not rest on the estimate of context parallelism."""
        return next((row for row in self.table if row.figures is not None and row.split.cp_size == 1), None)


def shallowest(objective: str, rows: Sequence[Row]) -> list[Row]:
    """Those that run, without the ones that have next to the same figures with a smaller depth."""
    alike: dict[Candidate, list[tuple[int, Figures]]] = {}
    for row in rows:
        if row.candidate is not None and row.figures is not None:
            depth = row.candidate.pp_async_batch_depth
            alike.setdefault(row.candidate.but(pp_async_batch_depth=0), []).append((depth, row.figures))

    def is_shallow(candidate: Candidate, figures: Figures) -> bool:
        others = alike[candidate.but(pp_async_batch_depth=0)]
        less = [other for depth, other in others if depth < candidate.pp_async_batch_depth]
        return all(gain_over(objective, figures, other) > DEPTH_TOLERANCE for other in less)

    return [row for row in rows if row.candidate and row.figures and is_shallow(row.candidate, row.figures)]


def score_of(objective: str, figures: Figures) -> Score:
    """What is made small."""
    return 1.0 / figures.input_tokens_per_s if objective == "throughput" else figures.ttft_s


def gain_over(objective: str, new: Figures, old: Figures) -> float:
    """How much faster ``new`` is: 0.03 is three per cent."""
    return score_of(objective, old) / score_of(objective, new) - 1.0
