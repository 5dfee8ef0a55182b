"""Linear least squares that says which terms the samples can tell, and how sure each coefficient is.

A model is a sum of terms, each a coefficient that must not be negative times a column of the samples. The choice:

1. A term takes part if the samples tell it from the terms before it, in the caller's order: the condition of the table
   of their columns, each of unit length, stays below ``MAX_CONDITION``.
2. Of all subsets of these terms, those count whose every coefficient is positive and has a 95 % interval above zero.
   The one with the least BIC (Schwarz 1978: n ln(RSS / n) + k ln n) is taken.
3. So few samples that no test decides: where the largest subset leaves fewer than ``SURE_DOF`` degrees of freedom and
   the choice misses the samples by more than ``TOLERANCE``, the fewest terms are taken that do not, and if none come
   close but a set without a degree of freedom, that one.

Intervals are the coefficient plus and minus Student's quantile times its standard error, the larger of two: the usual
one, of an error alike everywhere, and HC3 (MacKinnon and White 1985), which allows for errors that grow with the time.
Without a degree of freedom there is none. They hold for the chosen terms, as if the choice had been made beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, Floats]

MAX_CONDITION = 1e4
TOLERANCE = 0.02
SURE_DOF = 3
MAX_MISFIT = 0.25  # beyond, a model does not describe the samples
CONFIDENCE = 0.95
ROUNDING = 1e-9  # share of the times below which a residual is an error of the arithmetic


@dataclass(frozen=True, slots=True)
class Solved:
    """Coefficients by term, in the unit of the times; ``errors`` are standard errors, NaN where none can be told.

    ``condition`` is that of the table of all terms that were asked for. ``left_out``: why a term is not among them.
    """

    values: dict[str, float]
    errors: dict[str, float]
    dof: int
    rss: float
    condition: float
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def quantile(self) -> float:
        """Half the width of the interval, in standard errors; NaN without a degree of freedom."""
        return student(self.dof)

    def interval(self, term: str) -> tuple[float, float]:
        """95 % interval of a coefficient; NaN where it cannot be told."""
        half = self.quantile * self.errors[term]
        return self.values[term] - half, self.values[term] + half

    def predict(self, columns: Columns) -> Floats:
        """Times of the columns' rows."""
        total = np.zeros(len(next(iter(columns.values()))))
        for term, value in self.values.items():
            total = total + value * columns[term]
        return total


def student(dof: int) -> float:
    """The 97.5 % quantile of Student's t; NaN below one degree of freedom.

    Closed for one and two degrees, else the expansion of Cornish and Fisher (Abramowitz and Stegun, 26.7.5).
    """
    level = (1 + CONFIDENCE) / 2
    if dof < 1:
        return math.nan
    if dof == 1:
        return math.tan(math.pi * (level - 0.5))
    if dof == 2:
        return (2 * level - 1) * math.sqrt(2 / (4 * level * (1 - level)))
    z = NormalDist().inv_cdf(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / dof ** (i + 1) for i, term in enumerate(terms)))


def solve(columns: Columns, y: Floats, terms: Sequence[str]) -> Solved:
    """All of these terms, whatever sign their coefficients have."""
    scale = {t: float(np.linalg.norm(columns[t])) or 1.0 for t in terms}
    design = np.stack([columns[t] / scale[t] for t in terms], axis=1)
    solution, _, rank, singular = np.linalg.lstsq(design, y, rcond=None)
    residual = design @ solution - y
    # a residual of the arithmetic alone must not pass for certainty
    rss = max(float(residual @ residual), len(y) * (ROUNDING * float(np.sqrt(np.mean(y**2)))) ** 2)
    dof = len(y) - len(terms)
    errors = standard_errors(design, residual, rss, dof) if dof > 0 and rank == len(terms) else [math.nan] * len(terms)
    lowest = float(singular[-1]) if rank == len(terms) and len(singular) == len(terms) else 0.0
    return Solved(
        {t: float(v) / scale[t] for t, v in zip(terms, solution)},
        {t: error / scale[t] for t, error in zip(terms, errors)},
        dof,
        rss,
        float(singular[0]) / lowest if lowest else math.inf,
    )


def standard_errors(design: Floats, residual: Floats, rss: float, dof: int) -> list[float]:
    """The larger of the usual standard error and HC3, for each column."""
    inverse = np.linalg.inv(design.T @ design)
    usual = np.diagonal(inverse) * rss / dof
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    left = 1.0 - leverage
    pulled = np.where(left > ROUNDING, residual / np.maximum(left, ROUNDING), 0.0)  # a point of its own tells nothing
    robust = np.diagonal(inverse @ (design.T * pulled**2) @ design @ inverse)
    return [math.sqrt(max(float(a), float(b), 0.0)) for a, b in zip(usual, robust)]


def choose(columns: Columns, y: Floats, order: Sequence[str]) -> Solved:
    """The terms that the samples can tell, by the rule above. ``order``: which of two that are the same comes first.

    Needs at least one sample; times must be finite. Nothing may be left, where all times are zero.
    """
    apart, left_out = told_apart(columns, order)
    found = [
        solved
        for count in range(1, min(len(apart), len(y)) + 1)
        for terms in combinations(apart, count)
        if (solved := solve(columns, y, terms)).condition <= MAX_CONDITION and min(solved.values.values()) > 0
    ]
    best = chosen_of(found, columns, y, len(y) - len(apart))
    if best is None:
        return Solved({}, {}, len(y), float(y @ y), math.nan, dict.fromkeys(order, "the times do not grow with it"))
    for term in apart:
        if term not in best.values:
            left_out[term] = why_not(columns, y, best, term)
    kept = {t: best.values[t] for t in order if t in best.values}
    reasons = {t: left_out[t] for t in order if t in left_out}
    return Solved(kept, best.errors, best.dof, best.rss, best.condition, reasons)


def told_apart(columns: Columns, order: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The terms that differ from those before them in these samples, and of the others why not.

    With fewer distinct samples than terms, no more of them than samples are held against each other at once.
    """
    rows = len(np.unique(np.stack(list(columns.values()), axis=1), axis=0))
    apart: list[str] = []
    left_out: dict[str, str] = {}
    for term in order:
        if not np.any(columns[term]):
            left_out[term] = "no sample has anything of it"
            continue
        others = combinations(apart, min(len(apart), rows - 1))
        same = next((terms for terms in others if condition_of(columns, [*terms, term]) > MAX_CONDITION), None)
        if same is None:
            apart.append(term)
            continue
        twin = next((t for t in apart if condition_of(columns, [t, term]) > MAX_CONDITION), None)
        left_out[term] = f"cannot be told from {twin or ' and '.join(same)} in these samples"
    return apart, left_out


def condition_of(columns: Columns, terms: Sequence[str]) -> float:
    """Condition of the table of these columns, each of unit length."""
    table = np.stack([columns[t] / (float(np.linalg.norm(columns[t])) or 1.0) for t in terms], axis=1)
    return math.inf if table.shape[0] < table.shape[1] else float(np.linalg.cond(table))


def chosen_of(found: Sequence[Solved], columns: Columns, y: Floats, largest_dof: int) -> Solved | None:
    """Steps 2 and 3 of the rule; None if every set has a coefficient that is not positive."""
    sure = [s for s in found if s.dof > 0 and all(s.interval(t)[0] > 0 for t in s.values)]
    best = min(sure, key=lambda s: round(bic(s, len(y)), 6), default=None)  # of equals the first in the order
    if best is not None and (largest_dof >= SURE_DOF or misfit(best, columns, y) <= TOLERANCE):
        return best
    # Few samples: two terms may use up two or three of them, more leave two degrees of freedom.
    most = 2 if len(y) <= 3 else len(y) - 2
    for count in range(1, most + 1):
        close = [s for s in found if len(s.values) == count and misfit(s, columns, y) <= TOLERANCE]
        if close:
            return min(close, key=lambda s: round(misfit(s, columns, y), 7))
    if best is None or misfit(best, columns, y) > MAX_MISFIT:
        best = min(found, key=lambda s: misfit(s, columns, y), default=None)
    return best


def bic(solved: Solved, num_samples: int) -> float:
    """Schwarz's criterion, without what is alike for all sets."""
    return num_samples * math.log(solved.rss / num_samples) + len(solved.values) * math.log(num_samples)


def misfit(solved: Solved, columns: Columns, y: Floats) -> float:
    """Root mean square of the residuals, relative to the predicted times."""
    predicted = solved.predict(columns)
    return float(np.sqrt(np.mean(((predicted - y) / np.maximum(predicted, 1e-9)) ** 2)))


def why_not(columns: Columns, y: Floats, best: Solved, term: str) -> str:
    """What the coefficient would be if the term were put beside the chosen ones."""
    with_it = solve(columns, y, [*best.values, term])
    value = with_it.values[term]
    if with_it.dof < 1 or math.isnan(with_it.errors[term]):
        return "too few samples to tell it from 0"
    if value <= 0:
        return f"would be {value:.3g}: not above 0"
    low, high = with_it.interval(term)
    return f"between {low:.3g} and {high:.3g}: " + ("not told from 0" if low <= 0 else "the chosen terms do without it")
