"""Coefficients of a decode step from measurements:  time = c + r n + k K,  of n rows over K tokens of KV in all.

``K`` counts the token that is computed in each row, as the cost of a scenario does (``cost.decode_reads_own_token``).
The choice of terms and the intervals are those of ``least_squares.py``; steps of one batch size cannot tell r from c,
and contexts of one length cannot tell k from r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ppsim.cost.fit import MAX_TIME_MS, Floats
from ppsim.cost.least_squares import MAX_MISFIT, choose, misfit
from ppsim.cost.samples import DecodeStep

TERMS = ("c", "row", "kv")
PREFERENCE = ("c", "kv", "row")  # of two terms that are alike in the samples the first is taken


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """A result, good or not; fields as in ``ppsim.cost.fit.Fit``. Milliseconds, a row, a token."""

    c_ms: float
    row_ms: float
    kv_ms: float
    reason: str
    num_samples: int
    terms: tuple[str, ...] = ()
    left_out: dict[str, str] | None = None
    errors: dict[str, float] | None = None
    intervals: dict[str, tuple[float, float]] | None = None
    dof: int = 0
    rms_ms: float = math.nan
    relative_rms: float = math.nan
    notes: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return not self.reason

    def step_ms(self, num_rows: int, kv_tokens: int) -> float:
        """Time of one step."""
        return self.c_ms + self.row_ms * num_rows + self.kv_ms * kv_tokens

    def to_dict(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        return asdict(self) | {"accepted": self.accepted}


def columns_of(steps: Sequence[DecodeStep]) -> dict[str, Floats]:
    """The column of each term."""
    return {
        "c": np.ones(len(steps)),
        "row": np.asarray([s.num_rows for s in steps], dtype=np.float64),
        "kv": np.asarray([s.kv_tokens for s in steps], dtype=np.float64),
    }


def fit_decode(steps: Sequence[DecodeStep], max_relative_rms: float = MAX_MISFIT) -> DecodeFit:
    """The terms that the steps can tell. Never raises for bad measurements: a refusal is a result."""
    bad = [s for s in steps if not 0 <= s.time_ms <= MAX_TIME_MS or s.num_rows < 1 or s.kv_tokens < 0]
    if bad:
        return refused(f"a measurement is negative, not a number, or takes years: {bad[0]}", len(steps))
    distinct = len({(s.num_rows, s.kv_tokens) for s in steps})
    if distinct < 2:
        return refused(f"{distinct} distinct decode step{'' if distinct == 1 else 's'}, 2 are needed", len(steps))
    columns, y = columns_of(steps), np.asarray([s.time_ms for s in steps], dtype=np.float64)
    solved = choose(columns, y, PREFERENCE)
    if not solved.values:
        return refused("all times are 0, or fall with every term", len(steps))
    relative = misfit(solved, columns, y)
    too_far = f"residuals of {relative:.0%} (at most {max_relative_rms:.0%}): the formula does not describe these steps"
    return DecodeFit(
        solved.values.get("c", 0.0),
        solved.values.get("row", 0.0),
        solved.values.get("kv", 0.0),
        "" if relative <= max_relative_rms else too_far,
        len(steps),
        tuple(t for t in TERMS if t in solved.values),
        solved.left_out,
        {t: solved.errors[t] for t in TERMS if t in solved.values},
        {t: solved.interval(t) for t in TERMS if t in solved.values},
        solved.dof,
        float(np.sqrt(np.mean((solved.predict(columns) - y) ** 2))),
        relative,
        tuple(notes(columns)),
    )


def notes(columns: dict[str, Floats]) -> list[str]:
    """What a reader of an accepted fit must know before using it elsewhere."""
    rows, kv = columns["row"], columns["kv"]
    if np.ptp(rows) == 0:
        return [f"all steps have {rows[0]:.0f} rows: what another batch size costs is not measured"]
    each = kv / rows
    if np.max(each) <= 1.02 * np.min(each):
        return [f"every row has about {each[0]:.0f} tokens of KV: what a longer context costs is not measured apart"]
    return []


def refused(reason: str, num_samples: int) -> DecodeFit:
    return DecodeFit(0.0, 0.0, 0.0, reason, num_samples, (), {}, {}, {})
