"""Coefficients of max(floor, c + first [L = 0] + gamma L + b x + a (2 L x + x^2)) from measured chunks.

Without ``terms`` those are taken that the samples can tell apart and that are surely not 0, by least squares (the rule
is in ``least_squares.py``). What was left out is said with its reason, and each coefficient has a standard error and a
95 % interval where the samples are more than the terms. Two chunks of different shape are enough. ``first`` is the
extra time of a chunk with nothing before it. ``a`` is the cumulative coefficient; ``alpha = 2 a`` (cost of a query per
position) has its own name.

A fit that cannot be trusted is refused with the reason, and what was found is shown all the same: one chunk only, terms
asked for that the samples cannot tell apart, a <= 0 where a was asked for, residuals too large, a negative or undefined
time. Of terms that were asked for, those that come out negative are dropped one at a time, the worst first, and the
rest is fitted again, since no part of a forward pass takes negative time; a is never dropped but refused. A floor is
searched for only when asked: the smallest times are taken as the floor, as many of them as make the sum of squares
least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.least_squares import MAX_CONDITION, MAX_MISFIT, Solved, choose, solve
from ppsim.cost.samples import Sample
from ppsim.errors import ScenarioError

Floats = npt.NDArray[np.float64]

TERMS = ("c", "first", "gamma", "b", "a")
PREFERENCE = ("c", "b", "a", "gamma", "first")  # of two terms that are alike in the samples the first is taken
ONE_SIZE = ("c", "gamma", "first", "b", "a")  # chunks of one size: what is said of them holds for no other
SAME_SIZE = 1.02
MIN_FLOOR_POINTS = 3
MAX_TIME_MS = 1e12


@dataclass(frozen=True, slots=True)
class Fit:
    """A result, good or not. ``reason`` is empty for an accepted one. Times are milliseconds.

    ``terms`` have a coefficient; ``left_out`` says why the others have none; ``dropped`` were asked for and came out
    negative. ``errors``: standard errors by term, NaN where too few samples tell none. ``intervals``: 95 %.
    ``condition`` is that of the design matrix with columns of unit length; ``relative_rms`` is over predicted times.
    """

    coefficients: Coefficients
    reason: str
    num_samples: int
    terms: tuple[str, ...]
    dropped: tuple[str, ...]
    left_out: dict[str, str]
    errors: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    dof: int
    rms_ms: float
    relative_rms: float
    worst_ms: float
    worst_sample: Sample | None
    condition: float
    found_a_ms: float
    notes: tuple[str, ...] = ()

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
            "standard_errors": self.errors,
            "intervals": {term: list(interval) for term, interval in self.intervals.items()},
            "degrees_of_freedom": self.dof,
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
            "left_out": self.left_out,
            "notes": list(self.notes),
        }


def fit_samples(
    samples: Sequence[Sample],
    terms: Sequence[str] | None = None,
    *,
    with_floor: bool = False,
    max_relative_rms: float = MAX_MISFIT,
    source: str = "measurements",
) -> Fit:
    """Fit the named terms, or those that the samples can tell. Raises ScenarioError for an unknown term; a bad
    measurement is a refusal."""
    wanted = None if terms is None else checked_terms(terms)
    bad = [s for s in samples if not 0 <= s.time_ms <= MAX_TIME_MS or s.prefix_len < 0 or s.new_tokens < 1]
    if bad:
        what = f"a measurement is negative, not a number, or takes years: {bad[0]}"
        return _refusal(what, len(samples), wanted or TERMS)
    needed = (2 if wanted is None else len(wanted)) + (MIN_FLOOR_POINTS if with_floor else 0)
    distinct = len({(s.prefix_len, s.new_tokens) for s in samples})
    if distinct < needed:
        count = "1 distinct chunk" if distinct == 1 else f"{distinct} distinct chunks"
        what = f"{len(wanted)} terms" if wanted else "any fit"
        what += " and a floor" if with_floor else ""
        return _refusal(f"{count}, {needed} are needed for {what}", len(samples), wanted or TERMS)
    x = np.asarray([(s.prefix_len, s.new_tokens) for s in samples], dtype=np.float64)
    y = np.asarray([s.time_ms for s in samples], dtype=np.float64)
    found = _chosen(x, y) if wanted is None else _solve(x, y, wanted)
    if with_floor and found.solved.values:
        found = _with_floor(x, y, wanted or tuple(found.solved.values), found)
    return _judge(samples, x, y, found, wanted, max_relative_rms, source)


def checked_terms(terms: Sequence[str]) -> tuple[str, ...]:
    """The terms in the order of the formula. Raises ScenarioError for an unknown one, or for none."""
    unknown = [t for t in terms if t not in TERMS]
    if unknown or not terms:
        raise ScenarioError(
            "cost fit terms", f"unknown: {', '.join(unknown) or 'none given'}", f"of {', '.join(TERMS)}"
        )
    return tuple(t for t in TERMS if t in terms)


@dataclass(frozen=True, slots=True)
class _Found:
    """The solution, what was dropped, and the floor."""

    solved: Solved
    dropped: tuple[str, ...] = ()
    floor_ms: float = 0.0

    def predict(self, x: Floats) -> Floats:
        return np.asarray(np.maximum(self.floor_ms, self.solved.predict(columns_of(x))))


def columns_of(x: Floats) -> dict[str, Floats]:
    """The column of each term: what its coefficient is multiplied with, by sample."""
    past, new = x[:, 0], x[:, 1]
    return {
        "c": np.ones(len(x)),
        "first": np.asarray(past == 0, dtype=np.float64),
        "gamma": past,
        "b": new,
        "a": new * (2.0 * past + new),
    }


def _chosen(x: Floats, y: Floats) -> _Found:
    return _Found(choose(columns_of(x), y, ONE_SIZE if one_size(x) else PREFERENCE))


def one_size(x: Floats) -> bool:
    return bool(np.max(x[:, 1]) <= SAME_SIZE * np.min(x[:, 1]))


def _solve(x: Floats, y: Floats, terms: tuple[str, ...]) -> _Found:
    """All terms that were asked for; negative ones but a are dropped one by one, the worst in units of time first."""
    columns = columns_of(x)
    live, dropped = list(terms), list[str]()
    condition = math.nan
    while True:
        solved = solve(columns, y, live)
        condition = solved.condition if math.isnan(condition) else condition
        weight = {t: solved.values[t] * float(np.linalg.norm(columns[t])) for t in live}
        negative = [t for t in live if solved.values[t] < 0 and t != "a"]
        if not negative or len(live) == 1:
            return _Found(replace(solved, condition=condition), tuple(dropped))
        worst = min(negative, key=lambda t: weight[t])
        live.remove(worst)
        dropped.append(worst)


def _with_floor(x: Floats, y: Floats, terms: tuple[str, ...], best: _Found) -> _Found:
    """The best split into points on the floor (the smallest times) and points above it; no floor if none is better."""
    least = float(np.sum((best.predict(x) - y) ** 2))
    order = np.argsort(y, kind="stable")
    for count in range(MIN_FLOOR_POINTS, len(y) - len(terms) + 1):
        above = np.sort(order[count:])
        if len({tuple(row) for row in x[above]}) < len(terms):
            break
        part = _solve(x[above], y[above], terms)
        solved = replace(part, floor_ms=float(np.mean(y[order[:count]])))
        squares = float(np.sum((solved.predict(x) - y) ** 2))
        if squares < least:
            best, least = solved, squares
    return best


def _judge(
    samples: Sequence[Sample],
    x: Floats,
    y: Floats,
    found: _Found,
    wanted: tuple[str, ...] | None,
    max_relative_rms: float,
    source: str,
) -> Fit:
    solved = found.solved
    if not solved.values:
        return _refusal("all times are 0, or fall with every term", len(samples), TERMS)
    predicted = found.predict(x)
    error = predicted - y
    rms = float(np.sqrt(np.mean(error**2)))
    relative = float(np.sqrt(np.mean((error / np.maximum(predicted, 1e-9)) ** 2)))
    worst = int(np.argmax(np.abs(error)))
    values = {t: solved.values.get(t, 0.0) for t in TERMS}
    reason = ""
    if wanted is not None and not solved.condition <= MAX_CONDITION:
        reason = f"ill-conditioned ({solved.condition:.1e} > {MAX_CONDITION:.0e}): {_same(x, wanted)}"
    elif wanted is not None and "a" in wanted and not values["a"] > 0:
        a = values["a"]
        reason = f"a = {a:g} ms/token^2 is not positive: the time does not grow with attention in these samples"
    elif not relative <= max_relative_rms:
        reason = (
            f"residuals of {relative:.0%} (at most {max_relative_rms:.0%}): the formula does not describe these samples"
        )
    clean = {f"{t}_ms": max(0.0, value) for t, value in values.items()}
    return Fit(
        coefficients=Coefficients(**clean, floor_ms=found.floor_ms, source=f"fit of {len(samples)} {source}"),
        reason=reason,
        num_samples=len(samples),
        terms=tuple(t for t in TERMS if t in solved.values),
        dropped=found.dropped,
        left_out={t: why for t, why in solved.left_out.items() if t not in solved.values},
        errors={t: solved.errors[t] for t in TERMS if t in solved.values},
        intervals={t: solved.interval(t) for t in TERMS if t in solved.values},
        dof=solved.dof,
        rms_ms=rms,
        relative_rms=relative,
        worst_ms=float(error[worst]),
        worst_sample=samples[worst],
        condition=solved.condition,
        found_a_ms=values["a"],
        notes=tuple(_notes(x, values)),
    )


def _notes(x: Floats, values: dict[str, float]) -> list[str]:
    """What a reader of an accepted fit must know before using it elsewhere."""
    found = []
    if one_size(x):
        found.append(f"all chunks have about {x[0, 1]:.0f} new tokens: the fit holds for chunks of this size only")
    elif np.ptp(x[:, 0]) == 0:
        found.append(f"all prefixes are {x[0, 0]:.0f}: what a longer prefix costs is not measured")
    if not values["a"] > 0:
        found.append("no time of attention (a) was found: SGLang's dynamic chunking refuses such a cost")
    return found


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
    return Fit(nothing, reason, num_samples, terms, (), {}, {}, {}, 0, nan, nan, nan, None, nan, nan)


def coefficients_of_alpha(alpha_ms: float, b_ms: float = 0.0, c_ms: float = 0.0, gamma_ms: float = 0.0) -> Coefficients:
    """Coefficients from a per-query slope ``alpha_ms``: the cumulative a is half of it."""
    return Coefficients(c_ms=c_ms, gamma_ms=gamma_ms, b_ms=b_ms, a_ms=alpha_ms / 2.0)
