"""Fits from measurements: they find what made the data, and refuse what cannot be trusted."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.fit import coefficients_of_alpha, fit_samples
from ppsim.cost.samples import Sample
from ppsim.errors import ScenarioError

# chunk 1024 of Llama-3.1-8B on a mesh: prefix and milliseconds (tenstorrent/tt-metal PR 56690)
FLAT_THEN_LINEAR = [
    (0, 128.4),
    (1024, 123.0),
    (7168, 123.5),
    (15360, 123.4),
    (31744, 124.4),
    (48128, 139.2),
    (64512, 172.1),
    (80896, 205.5),
    (97280, 237.9),
]
FOUR = ("c", "gamma", "b", "a")
TENSTORRENT = [Sample(prefix, 1024, ms) for prefix, ms in FLAT_THEN_LINEAR]


def samples_of(truth: Coefficients, seed: int = 0, num: int = 40, noise: float = 0.0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    out = []
    for past, new in zip(rng.integers(0, 130_000, num), rng.integers(64, 16_384, num)):
        factor = 1.0 + noise * float(rng.standard_normal())
        out.append(Sample(int(past), int(new), truth.chunk_ms(int(past), int(new)) * factor))
    return out


@given(
    st.floats(0.1, 50.0),
    st.floats(1e-6, 1e-3),
    st.floats(1e-3, 0.2),
    st.floats(1e-7, 1e-5),
    st.integers(0, 50),
)
@settings(max_examples=40)
def test_exact_data_gives_back_its_coefficients(c: float, gamma: float, b: float, a: float, seed: int) -> None:
    truth = Coefficients(c, gamma, b, a)
    fit = fit_samples(samples_of(truth, seed))
    assert fit.accepted
    got = fit.coefficients
    for past, new in ((0, 1000), (100_000, 1000), (0, 16_000), (64_000, 8_000)):
        assert got.chunk_ms(past, new) == pytest.approx(truth.chunk_ms(past, new), rel=1e-6)
    assert got.a_ms == pytest.approx(a, rel=1e-4)


def test_noise_of_two_per_cent_leaves_predictions_within_five() -> None:
    truth = Coefficients(5.0, 1e-4, 0.04, 2.5e-6)
    fit = fit_samples(samples_of(truth, 3, 60, noise=0.02))
    assert fit.accepted
    assert 0.005 < fit.relative_rms < 0.05
    for past, new in ((0, 8192), (120_000, 4096)):
        assert fit.coefficients.chunk_ms(past, new) == pytest.approx(truth.chunk_ms(past, new), rel=0.05)


def test_alpha_is_twice_a_and_has_a_name_of_its_own() -> None:
    truth = Coefficients(0.0, 0.0, 0.02, 3e-7)
    fit = fit_samples(samples_of(truth))
    assert fit.coefficients.alpha_ms == pytest.approx(6e-7)
    assert coefficients_of_alpha(6e-7, b_ms=0.02).a_ms == 3e-7
    # the marginal cost of the token at position p is b + alpha p
    step = truth.chunk_ms(50_000, 1) - truth.b_ms
    assert step == pytest.approx(truth.alpha_ms * 50_000, rel=1e-4)


def test_p15_a_flat_part_and_a_line_are_found_where_a_quadratic_misfits() -> None:
    """published.md E3: max(floor, c + k L) to 0.7 %, the quadratic is 16 % off."""
    floor = fit_samples(TENSTORRENT, ("c", "gamma"), with_floor=True)
    plain = fit_samples(TENSTORRENT, ("c", "a"))
    assert floor.accepted

    def worst(got: Coefficients, points: list[tuple[int, float]]) -> float:
        return max(abs(got.chunk_ms(past, 1024) / ms - 1) for past, ms in points)

    assert worst(floor.coefficients, FLAT_THEN_LINEAR[4:]) < 0.007
    assert worst(floor.coefficients, FLAT_THEN_LINEAR) < 0.04  # the first sample is the cold one
    assert worst(plain.coefficients, FLAT_THEN_LINEAR) > 0.15
    whole = sum(floor.coefficients.chunk_ms(i * 1024, 1024) for i in range(128))
    assert whole / 1e3 == pytest.approx(23.40, rel=0.02)  # published total of 131,072 tokens


def test_no_floor_is_claimed_where_there_is_none() -> None:
    truth = Coefficients(5.0, 1e-4, 0.04, 2.5e-6)
    fit = fit_samples(samples_of(truth), with_floor=True)
    assert fit.accepted
    assert fit.coefficients.chunk_ms(0, 64) == pytest.approx(truth.chunk_ms(0, 64), rel=0.02)


def test_too_few_distinct_points_are_refused_with_their_number() -> None:
    few = samples_of(Coefficients(1, 0, 0.1, 1e-6), num=7)
    fit = fit_samples(few[:3], FOUR)
    assert not fit.accepted
    assert fit.reason == "3 distinct chunks, 4 are needed for 4 terms"
    assert fit_samples([few[0]] * 50).reason == "1 distinct chunk, 2 are needed for any fit"
    assert fit_samples(few[:2], with_floor=True).reason == "2 distinct chunks, 5 are needed for any fit and a floor"
    with pytest.raises(ScenarioError, match="cost fit: refused: 3 distinct chunks"):
        fit.require()


def test_samples_of_one_size_cannot_tell_the_terms_apart() -> None:
    fit = fit_samples(TENSTORRENT, FOUR)
    assert not fit.accepted
    assert "ill-conditioned" in fit.reason
    assert "all chunks have 1024 new tokens; vary them, or fit the terms c and gamma only" in fit.reason


def test_advice_never_asks_to_leave_out_what_is_left_out_already() -> None:
    """Chunks of nearly one size after one prefix: without gamma, too, c, b and a cannot be told apart."""
    data = [Sample(512, 4096 + i, 10 + 0.01 * i) for i in range(12)]
    with_gamma, without = fit_samples(data, FOUR), fit_samples(data, ("c", "b", "a"))
    assert "all prefixes are 512; vary them, or leave out gamma" in with_gamma.reason
    assert "do not tell c, b, a apart" in without.reason
    assert "gamma" not in without.reason


def test_samples_without_a_prefix_cannot_give_gamma() -> None:
    truth = Coefficients(5.0, 0.0, 0.04, 2.5e-6)
    data = [Sample(0, n, truth.chunk_ms(0, n)) for n in range(256, 16_384, 512)]
    assert "all prefixes are 0" in fit_samples(data, FOUR).reason
    fit = fit_samples(data, ("c", "b", "a"))
    assert fit.accepted
    assert fit.coefficients.a_ms == pytest.approx(2.5e-6)


def test_times_that_do_not_grow_with_attention_are_refused() -> None:
    """a <= 0, as a concave measurement gives it."""
    rng = np.random.default_rng(1)
    data = [
        Sample(int(p), int(x), 5 + 0.05 * x - 1e-9 * (2 * p * x + x * x))
        for p, x in zip(rng.integers(0, 9000, 40), rng.integers(64, 9000, 40))
    ]
    fit = fit_samples(data, FOUR)
    assert not fit.accepted
    assert "is not positive" in fit.reason
    assert fit.found_a_ms == pytest.approx(-1e-9, rel=1e-3)


@pytest.mark.parametrize("time_ms", [-1.0, math.nan, math.inf, 1e308])
def test_a_negative_or_undefined_measurement_is_refused_and_shown(time_ms: float) -> None:
    fit = fit_samples([*samples_of(Coefficients(1, 0, 0.1, 1e-6)), Sample(7, 64, time_ms)])
    assert not fit.accepted
    assert "a measurement is negative, not a number, or takes years" in fit.reason
    assert "prefix_len=7" in fit.reason


def test_residuals_that_are_too_large_are_refused() -> None:
    rng = np.random.default_rng(5)
    truth = Coefficients(5.0, 0.0, 0.1, 1e-6)
    data = [Sample(x.prefix_len, x.new_tokens, x.time_ms * float(rng.lognormal(0, 0.7))) for x in samples_of(truth)]
    fit = fit_samples(data, ("b", "a"))
    assert fit.coefficients.a_ms > 0
    assert "residuals of" in fit.reason
    assert fit_samples(data, ("b", "a"), max_relative_rms=10.0).accepted


def test_negative_terms_are_dropped_not_clamped_after_the_fact() -> None:
    """Data with c = -20: a fit with c = 0 refits b and a, clamping alone would leave them wrong."""
    rng = np.random.default_rng(2)
    data = [
        Sample(int(p), int(x), -20 + 0.05 * x + 1e-6 * (2 * p * x + x * x))
        for p, x in zip(rng.integers(0, 30_000, 60), rng.integers(2_000, 16_000, 60))
    ]
    fit = fit_samples(data, ("c", "b", "a"))
    assert fit.dropped == ("c",)
    assert fit.coefficients.c_ms == 0.0
    predicted = np.array([fit.coefficients.chunk_ms(s.prefix_len, s.new_tokens) for s in data])
    measured = np.array([s.time_ms for s in data])
    gradient = [float(np.sum((predicted - measured) * [s.new_tokens for s in data]) / np.sum(measured))]
    assert abs(gradient[0]) < 1e-6  # least squares in b: the residual is orthogonal to x


def test_report_is_plain_json_with_residuals_and_the_worst_sample() -> None:
    data = samples_of(Coefficients(1, 0, 0.1, 1e-6))
    data[5] = Sample(data[5].prefix_len, data[5].new_tokens, data[5].time_ms * 1.2)
    report = json.loads(json.dumps(fit_samples(data).to_dict()))
    assert report["accepted"] is True
    assert report["residuals"]["worst_sample"]["new_tokens"] == data[5].new_tokens
    assert report["residuals"]["worst_ms"] < 0
    assert set(report["coefficients"]) >= {"c_ms", "gamma_ms", "b_ms", "a_ms", "alpha_ms", "floor_ms"}


def test_unknown_terms_and_negative_coefficients_are_refused() -> None:
    with pytest.raises(ScenarioError, match="unknown: alpha"):
        fit_samples(TENSTORRENT, ("c", "alpha"))
    with pytest.raises(ScenarioError, match=r"cost.b_ms: must be a finite number >= 0, got -1"):
        Coefficients(b_ms=-1.0)
    with pytest.raises(ScenarioError, match="got nan"):
        Coefficients(a_ms=math.nan)
