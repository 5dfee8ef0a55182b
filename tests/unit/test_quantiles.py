"""Percentiles of values that are not kept: numpy's, exactly while they are few, and within the stated error of many."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from ppsim.recording.quantiles import MAX_RELATIVE_ERROR, NS_PER_S, Buckets, Quantiles
from ppsim.recording.summary import statistics

DISTRIBUTIONS = ("uniform", "lognormal", "pareto", "two humps", "equal", "small", "huge")


def drawn(name: str, num: int) -> npt.NDArray[np.int64]:
    """Times in ns of a shape, some with many equal values, some over nine orders of magnitude."""
    draw = np.random.Generator(np.random.PCG64(7))
    shapes: dict[str, npt.NDArray[np.float64]] = {
        "uniform": draw.uniform(0, 5e8, num),
        "lognormal": draw.lognormal(16, 3, num),
        "pareto": 1e6 * (1 + draw.pareto(1.1, num)),
        "two humps": np.where(draw.uniform(size=num) < 0.9, draw.normal(5e7, 1e6, num), draw.normal(9e9, 1e8, num)),
        "equal": np.full(num, 123_456_789.0),
        "small": draw.integers(0, 6, num).astype(np.float64),
        "huge": draw.uniform(1e17, 9e17, num),
    }
    return np.clip(shapes[name], 0, 9e17).astype(np.int64)


def filled(values: npt.NDArray[np.int64], max_exact: int) -> Quantiles:
    found = Quantiles(max_exact)
    for value in values.tolist():
        found.add(value)
    return found


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("num", [11, 1000, 30_001])
def test_percentiles_of_many_are_numpys_within_the_stated_error(name: str, num: int) -> None:
    values = drawn(name, num)
    found = filled(values, 10)
    assert not found.is_exact
    got = found.statistics()
    for q in (50, 90, 99):
        right = float(np.percentile(values, q)) / NS_PER_S
        came = got[f"p{q}"]
        assert came is not None
        # a unit of the buckets is 2**-10 ns, and a float has 53 bits
        assert abs(came - right) <= right * (MAX_RELATIVE_ERROR + 1e-12) + 2e-12


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_mean_of_many_is_exact(name: str) -> None:
    values = drawn(name, 5000)
    assert filled(values, 10).statistics()["mean"] == float(Fraction(sum(values.tolist()), 5000 * NS_PER_S))


def test_the_mean_of_quotients_is_exact_too() -> None:
    draw = np.random.Generator(np.random.PCG64(3))
    pairs = [(int(draw.integers(0, 10**10)), int(draw.integers(1, 300))) for _ in range(3000)]
    found = Quantiles(10)
    for elapsed, divisor in pairs:
        found.add(elapsed, divisor)
    right = sum((Fraction(elapsed, divisor) for elapsed, divisor in pairs), Fraction(0)) / (3000 * NS_PER_S)
    assert found.statistics()["mean"] == float(right)
    p90 = float(np.percentile([elapsed / divisor for elapsed, divisor in pairs], 90)) / NS_PER_S
    assert found.statistics()["p90"] == pytest.approx(p90, rel=MAX_RELATIVE_ERROR)


def test_up_to_a_number_of_values_they_are_kept_as_they_are() -> None:
    values = drawn("lognormal", 500)
    few, more = filled(values, 500), filled(values, 499)
    assert (few.is_exact, more.is_exact) == (True, False)
    assert statistics(few.elapsed)["p99"] == pytest.approx(float(np.percentile(values, 99)) / NS_PER_S, rel=1e-15)
    assert len(more.elapsed) == 0


def test_the_order_of_values_changes_nothing() -> None:
    values = drawn("two humps", 2000)
    assert filled(values, 10).statistics() == filled(values[::-1], 10).statistics()


@pytest.mark.parametrize("value", [0, 1, 511, 512, 513, 2**20 - 1, 2**20, 2**20 + 1, 3**40, 2**63 - 1])
def test_a_value_alone_is_told_as_the_middle_of_its_bucket(value: int) -> None:
    buckets = Buckets()
    buckets.add(value)
    told = buckets.percentile(50)
    assert abs(told - value) <= value * MAX_RELATIVE_ERROR
    assert value >= 512 or told == value


def test_buckets_follow_from_the_greatest_value_and_not_from_how_many_there_are() -> None:
    """512 for the smallest values, then 256 for each doubling."""
    values, found = drawn("uniform", 50_000).tolist(), Buckets()
    for value in values:
        found.add(value)
    assert len(found.counts) <= 512 + 256 * (max(values).bit_length() - 9) < len(values) / 8


def test_a_time_that_goes_back_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 cannot be counted"):
        Buckets().add(-1)
