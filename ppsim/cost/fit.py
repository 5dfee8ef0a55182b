"""Coefficients from measurements:  time = max(floor, c + gamma L + b x + a (2 L x + x^2)),  by least squares.

A fit that cannot be trusted is refused with the reason, and what was found is shown all the same: too few points,
points that cannot tell the terms apart (all chunks of one size, say), a <= 0, residuals too large, a negative or
undefined time. ``a`` is the cumulative coefficient; ``alpha = 2 a`` (cost of a query per position) has its own name.

Terms that come out negative are dropped one at a time, the worst first, and the rest is fitted again, since no part of
a forward pass takes negative time; a is never dropped but refused. A floor is searched for only when asked: the
smallest times are taken as the floor, as many of them as make the sum of squares least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.samples import Sample
from ppsim.errors import ScenarioError

Floats = npt.NDArray[np.float64]

TERMS = ("c", "gamma", "b", "a")
POINTS_PER_TERM = 2
MAX_CONDITION = 1e4
MAX_RELATIVE_RMS = 0.25
MIN_FLOOR_POINTS = 3
MAX_TIME_MS = 1e12


@dataclass(frozen=True, slots=True)
class Fit:
    """A result, good or not. ``reason`` is empty for an accepted one. Times are milliseconds.

    ``condition`` is that of the design matrix with columns of unit length; ``relative_rms`` is over predicted times.
    """

    coefficients: Coefficients
    reason: str
    num_samples: int
    terms: tuple[str, ...]
    dropped: tuple[str, ...]
    rms_ms: float
    relative_rms: float
    worst_ms: float
    worst_sample: Sample | None
    condition: float
    found_a_ms: float

    @property
    def accepted(self) -> bool:
        return not self.reason

    def require(self) -> Coefficients:
        """The coefficients, or ScenarioError with the reason."""
        if self.reason:
            raise ScenarioError("cost fit", f"refused: {self.reason}", "measure more chunk sizes and prefixes")
        return self.coefficients

    def to_dict(self) -> dict[str, object]:
        """Coefficients, residuals, and accepted or why not, for JSON."""
        return {
            "accepted": self.accepted,
            "reason": self.reason,
            "coefficients": self.coefficients.to_dict(),
            "residuals": {
                "rms_ms": self.rms_ms,
                "relative_rms": self.relative_rms,
                "worst_ms": self.worst_ms,
                "worst_sample": asdict(self.worst_sample) if self.worst_sample else None,
            },
            "condition": self.condition,
            "num_samples": self.num_samples,
            "terms": list(self.terms),
            "dropped": list(self.dropped),
        }


def fit_samples(
    samples: Sequence[Sample],
    terms: Sequence[str] = TERMS,
    *,
    with_floor: bool = False,
    max_relative_rms: float = MAX_RELATIVE_RMS,
    source: str = "measurements",
) -> Fit:
    """Fit the named terms. Raises ScenarioError for an unknown term; a bad measurement is a refusal."""
    unknown = [t for t in terms if t not in TERMS]
    if unknown or not terms:
        raise ScenarioError(
            "cost fit terms", f"unknown: {', '.join(unknown) or 'none given'}", f"of {', '.join(TERMS)}"
        )
    wanted = tuple(t for t in TERMS if t in terms)
    bad = [s for s in samples if not 0 <= s.time_ms <= MAX_TIME_MS or s.prefix_len < 0 or s.new_tokens < 1]
    if bad:
        what = f"a measurement is negative, not a number, or takes years: {bad[0]}"
        return _refusal(what, len(samples), wanted)
    needed = POINTS_PER_TERM * len(wanted) + (MIN_FLOOR_POINTS if with_floor else 0)
    distinct = len({(s.prefix_len, s.new_tokens) for s in samples})
    if distinct < needed:
        return _refusal(
            f"{distinct} distinct chunks, {needed} are needed for {len(wanted)} terms", len(samples), wanted
        )
    x = np.asarray([(s.prefix_len, s.new_tokens) for s in samples], dtype=np.float64)
    y = np.asarray([s.time_ms for s in samples], dtype=np.float64)
    solved = _with_floor(x, y, wanted) if with_floor else _solve(x, y, wanted)
    return _judge(samples, x, y, wanted, solved, max_relative_rms, source)


@dataclass(frozen=True, slots=True)
class _Solved:
    """Values of all four terms, the dropped ones, the condition of the whole design, and the floor."""

    values: dict[str, float]
    dropped: tuple[str, ...]
    condition: float
    floor_ms: float = 0.0

    def predict(self, x: Floats) -> Floats:
        smooth = sum(self.values[t] * column for t, column in zip(TERMS, _columns(x)))
        return np.maximum(self.floor_ms, smooth)


def _columns(x: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    past, new = x[:, 0], x[:, 1]
    return np.ones(len(x)), past, new, new * (2.0 * past + new)


def _solve(x: Floats, y: Floats, terms: tuple[str, ...]) -> _Solved:
    """Least squares with columns scaled to unit length; negative terms but a are dropped one by one."""
    table = dict(zip(TERMS, _columns(x)))
    live, condition = list(terms), math.nan
    dropped: list[str] = []
    while True:
        scale = {t: float(np.linalg.norm(table[t])) or 1.0 for t in live}
        design = np.stack([table[t] / scale[t] for t in live], axis=1)
        if math.isnan(condition):
            condition = float(np.linalg.cond(design))
        solution = np.linalg.lstsq(design, y, rcond=None)[0]
        found = {t: float(v) for t, v in zip(live, solution)}  # in units of time: comparable between terms
        negative = [t for t in live if found[t] < 0 and t != "a"]
        if not negative or len(live) == 1:
            values = {t: found[t] / scale[t] if t in found else 0.0 for t in TERMS}
            return _Solved(values, tuple(dropped), condition)
        worst = min(negative, key=lambda t: found[t])
        live.remove(worst)
        dropped.append(worst)


def _with_floor(x: Floats, y: Floats, terms: tuple[str, ...]) -> _Solved:
    """The best split into points on the floor (the smallest times) and points above it; no floor if none is better."""
    best = _solve(x, y, terms)
    least = float(np.sum((best.predict(x) - y) ** 2))
    order = np.argsort(y, kind="stable")
    for count in range(MIN_FLOOR_POINTS, len(y) - len(terms) + 1):
        above = np.sort(order[count:])
        if len({tuple(row) for row in x[above]}) < len(terms):
            break
        part = _solve(x[above], y[above], terms)
        solved = _Solved(part.values, part.dropped, part.condition, float(np.mean(y[order[:count]])))
        squares = float(np.sum((solved.predict(x) - y) ** 2))
        if squares < least:
            best, least = solved, squares
    return best


def _judge(
    samples: Sequence[Sample],
    x: Floats,
    y: Floats,
    terms: tuple[str, ...],
    solved: _Solved,
    max_relative_rms: float,
    source: str,
) -> Fit:
    predicted = solved.predict(x)
    error = predicted - y
    rms = float(np.sqrt(np.mean(error**2)))
    relative = float(np.sqrt(np.mean((error / np.maximum(predicted, 1e-9)) ** 2)))
    worst = int(np.argmax(np.abs(error)))
    a = solved.values["a"]
    reason = ""
    if solved.condition > MAX_CONDITION:
        reason = f"ill-conditioned ({solved.condition:.1e} > {MAX_CONDITION:.0e}): {_same(x, terms)}"
    elif "a" in terms and not a > 0:
        reason = f"a = {a:g} ms/token^2 is not positive: the time does not grow with attention in these samples"
    elif not relative <= max_relative_rms:
        reason = (
            f"residuals of {relative:.0%} (at most {max_relative_rms:.0%}): the formula does not describe these samples"
        )
    clean = {f"{t}_ms": max(0.0, solved.values[t]) for t in TERMS}
    return Fit(
        coefficients=Coefficients(**clean, floor_ms=solved.floor_ms, source=f"fit of {len(samples)} {source}"),
        reason=reason,
        num_samples=len(samples),
        terms=terms,
        dropped=solved.dropped,
        rms_ms=rms,
        relative_rms=relative,
        worst_ms=float(error[worst]),
        worst_sample=samples[worst],
        condition=solved.condition,
        found_a_ms=a,
    )


def _same(x: Floats, terms: tuple[str, ...]) -> str:
    """Why the terms cannot be told apart, in words a user can act on."""
    if np.ptp(x[:, 1]) == 0 and {"b", "a"} & set(terms):
        return f"all chunks have {x[0, 1]:.0f} new tokens; vary them, or fit the terms c and gamma only"
    if np.ptp(x[:, 0]) == 0 and "gamma" in terms:
        return f"all prefixes are {x[0, 0]:.0f}; vary them, or leave out gamma"
    return f"the samples do not tell {', '.join(terms)} apart; vary prefix and new tokens independently"


def _refusal(reason: str, num_samples: int, terms: tuple[str, ...]) -> Fit:
    nothing = Coefficients(source="refused fit")
    nan = math.nan
    return Fit(nothing, reason, num_samples, terms, (), nan, nan, nan, None, nan, nan)


def coefficients_of_alpha(alpha_ms: float, b_ms: float = 0.0, c_ms: float = 0.0, gamma_ms: float = 0.0) -> Coefficients:
    """Coefficients from a per-query slope ``alpha_ms``: the cumulative a is half of it."""
    return Coefficients(c_ms=c_ms, gamma_ms=gamma_ms, b_ms=b_ms, a_ms=alpha_ms / 2.0)
