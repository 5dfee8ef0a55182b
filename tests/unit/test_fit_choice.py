"""Which terms a fit takes, how sure it says they are, and the term of a first chunk, against data whose truth is known.

The data come from formulas written down here; standard errors from the textbook's formula of a straight line, Student's
quantiles from printed tables.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.cost.coefficients import Coefficients
from ppsim.cost.decode_fit import DecodeFit, fit_decode
from ppsim.cost.fit import Fit, fit_samples
from ppsim.cost.least_squares import student
from ppsim.cost.samples import DecodeStep, Sample
from ppsim.scenario.chunks import coefficients
from ppsim.scenario.load import load_scenario
from ppsim.scenario.stagecost import stage_cost

NUM_SETS = 60


def milliseconds(truth: dict[str, float], past: int, new: int) -> float:
    """The formula, written a second time: attention as the difference of two squares."""
    growth = truth.get("a", 0.0) * ((past + new) ** 2 - past**2)
    opening = truth.get("first", 0.0) if past == 0 else 0.0
    return truth.get("c", 0.0) + opening + truth.get("gamma", 0.0) * past + truth.get("b", 0.0) * new + growth


def drawn(seed: int) -> tuple[dict[str, float], list[Sample]]:
    """Any of the terms, and 12 to 50 chunks with up to 1 % of noise, proportional or alike everywhere."""
    draw = random.Random(seed)
    truth = {"b": draw.uniform(0.02, 0.1)}
    for term, low, high in (("c", 20, 60), ("first", 30, 80), ("gamma", 1e-3, 5e-3), ("a", 1e-6, 4e-6)):
        if draw.random() < 0.5:
            truth[term] = draw.uniform(low, high)
    noise, relative = draw.choice([0.0, 0.003, 0.01]), draw.random() < 0.5
    samples = []
    for _ in range(draw.randint(12, 50)):
        past = draw.choice([0, draw.randint(1, 40_000), draw.randint(1, 40_000)])
        new = draw.randint(64, 8192)
        time = milliseconds(truth, past, new)
        samples.append(Sample(past, new, max(0.1, time + noise * draw.gauss(0, time if relative else 50.0))))
    return truth, samples


def test_the_terms_that_made_the_data_are_found_and_no_others() -> None:
    """Of 60 sets: every term of every set without noise; with noise hardly one is missed or made up."""
    wrong = 0
    for seed in range(NUM_SETS):
        truth, samples = drawn(seed)
        fit = fit_samples(samples)
        assert fit.accepted, (seed, fit.reason)
        assert set(fit.terms) | set(fit.left_out) == {"c", "first", "gamma", "b", "a"}
        assert not set(fit.terms) & set(fit.left_out)
        wrong += len(set(fit.terms) ^ set(truth))
        if fit.relative_rms < 1e-9:
            assert set(fit.terms) == set(truth), seed
            for term, value in truth.items():
                assert getattr(fit.coefficients, f"{term}_ms") == pytest.approx(value, rel=1e-6)
    assert wrong <= 0.03 * 5 * NUM_SETS


def test_the_interval_covers_the_truth_about_nineteen_times_in_twenty() -> None:
    inside = total = 0
    for seed in range(NUM_SETS):
        truth, samples = drawn(seed)
        fit = fit_samples(samples)
        if fit.relative_rms > 1e-9 and set(fit.terms) == set(truth):
            total += len(truth)
            inside += sum(low <= truth[term] <= high for term, (low, high) in fit.intervals.items())
    assert total > 60
    assert 0.88 <= inside / total <= 0.999


def test_no_term_is_taken_that_may_be_nothing() -> None:
    """Eight noisy chunks: by BIC alone many a term would be taken whose interval reaches below 0."""
    draw = random.Random(11)
    for _ in range(60):
        chunks = [(draw.choice([0, draw.randint(1, 9000)]), draw.randint(64, 8192)) for _ in range(8)]
        fit = fit_samples([Sample(p, x, 40 + 0.02 * x + draw.gauss(0, 6)) for p, x in chunks])
        assert all(low > 0 for low, _ in fit.intervals.values()), fit


def test_standard_errors_are_those_of_the_textbook() -> None:
    """A straight line: se(b)^2 = s^2 / Sxx, se(c)^2 = s^2 (1/n + mean^2 / Sxx). HC3 is hardly larger here."""
    x = np.arange(1, 41) * 200.0
    error = np.where(np.arange(40) % 2 == 0, 1.0, -1.0)  # of one size everywhere
    y = 30 + 0.05 * x + error
    fit = fit_samples([Sample(0, int(a), float(b)) for a, b in zip(x, y)])
    assert fit.terms == ("c", "b")
    slope = float(np.sum((x - x.mean()) * (y - y.mean())) / np.sum((x - x.mean()) ** 2))
    residual = y - (y.mean() + slope * (x - x.mean()))
    s2 = float(residual @ residual) / (len(x) - 2)
    sxx = float(np.sum((x - x.mean()) ** 2))
    assert fit.coefficients.b_ms == pytest.approx(slope, rel=1e-9)
    assert fit.errors["b"] == pytest.approx(math.sqrt(s2 / sxx), rel=0.06)
    assert fit.errors["c"] == pytest.approx(math.sqrt(s2 * (1 / len(x) + x.mean() ** 2 / sxx)), rel=0.06)
    assert fit.errors["b"] >= math.sqrt(s2 / sxx) * (1 - 1e-9)
    half = (fit.intervals["b"][1] - fit.intervals["b"][0]) / 2
    assert half == pytest.approx(2.024 * fit.errors["b"], rel=1e-3)  # Student's table, 38 degrees of freedom


def test_errors_that_grow_with_the_time_make_the_interval_wider() -> None:
    """Only the largest chunks are noisy: the usual error of the slope is far too small, HC3 is not."""
    draw = random.Random(3)
    slopes, claimed = [], []
    for _ in range(150):
        rows = [(x, 30 + 0.05 * x + draw.gauss(0, 40 if x == 8000 else 0.1)) for x in (500, 1000, 2000, 8000) * 6]
        fit = fit_samples([Sample(0, x, t) for x, t in rows], ("c", "b"))
        slopes.append(fit.coefficients.b_ms)
        claimed.append(fit.errors["b"])
    assert float(np.mean(claimed)) >= 0.9 * float(np.std(slopes))


@pytest.mark.parametrize(
    ("dof", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)]
)
def test_quantiles_are_those_of_students_table(dof: int, quantile: float) -> None:
    assert student(dof) == pytest.approx(quantile, rel=2e-3)


# --- few samples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "terms"),
    [
        ([(0, 1000, 30.0), (0, 2000, 50.0)], {"c": 10.0, "b": 0.02}),
        ([(0, 1000, 10.0), (0, 2000, 20.0)], {"b": 0.01}),
        ([(0, 4096, 120.0), (8192, 4096, 140.0)], {"c": 120.0, "gamma": 20 / 8192}),
    ],
)
def test_two_points_are_enough_and_their_uncertainty_is_told(
    rows: list[tuple[int, int, float]], terms: dict[str, float]
) -> None:
    fit = fit_samples([Sample(*row) for row in rows])
    assert fit.accepted
    assert set(fit.terms) == set(terms)
    for term, value in terms.items():
        assert getattr(fit.coefficients, f"{term}_ms") == pytest.approx(value)
    told = [math.isnan(error) for error in fit.errors.values()]
    assert told == [len(terms) == 2] * len(terms)  # one term of two points leaves a degree of freedom


def test_a_few_noisy_points_of_a_line_stay_a_line() -> None:
    fit = fit_samples([Sample(0, x, 10 + 0.02 * x + e) for x, e in ((1000, 0.2), (2000, -0.3), (4000, 0.1))])
    assert fit.terms == ("c", "b")
    assert fit.dof == 1
    assert fit.intervals["b"][0] < 0.02 < fit.intervals["b"][1]


def test_of_terms_that_are_alike_in_the_samples_one_is_taken_and_the_others_are_named() -> None:
    """One size of chunk: b is c, and a is c and gamma."""
    fit = fit_samples([Sample(4096 * i, 4096, 80 + 1e-3 * 4096 * i) for i in range(8)])
    assert fit.accepted
    assert fit.terms == ("c", "gamma")
    assert fit.left_out["b"] == "cannot be told from c in these samples"
    assert "cannot be told from c and gamma" in fit.left_out["a"]
    assert "all chunks have about 4096 new tokens: the fit holds for chunks of this size only" in fit.notes


# --- the first chunk -----------------------------------------------------------------------------------------------

FIRST = {"cost.prefill_c_ms": 4.0, "cost.prefill_first_ms": 25.0, "cost.prefill_b_ms_per_token": 0.01}


def scenario_of(keys: dict[str, float], **more: object) -> object:
    sets = [f"{key}={value!r}" for key, value in {**keys, **more}.items()]
    return load_scenario("unit", ["cost.source='quadratic'", *sets])


def test_a_first_chunk_costs_its_extra_in_the_run_and_in_the_plan() -> None:
    s = scenario_of({**FIRST, "cost.prefill_a_ms_per_token2": 0.0, "cluster.pp_size": 2})
    cost, plan = stage_cost(s), coefficients(s)  # type: ignore[arg-type]
    assert cost.batch_ns(0, 0, [(0, 1000, False)]) == round((4 + 25 + 10) / 2 * 1e6)
    assert cost.batch_ns(0, 0, [(64, 1000, False)]) == round((4 + 10) / 2 * 1e6)
    assert cost.batch_ns(0, 0, [(0, 1000, False), (64, 100, False)]) == round((39 + 5) / 2 * 1e6)
    assert (plan.chunk_ms(0, 1000), plan.chunk_ms(64, 1000)) == (39.0, 14.0)
    assert float(plan.largest_chunk(0, 39.0)) == pytest.approx(1000)
    assert float(plan.largest_chunk(64, 14.0)) == pytest.approx(1000)


def test_a_rank_of_a_context_parallel_stage_pays_for_the_first_chunk_too() -> None:
    """Its share of the chunk begins behind the prompt's start, and is of the first chunk all the same."""
    extra = {"cost.prefill_a_ms_per_token2": 0.0, "cluster.pp_size": 1, "cluster.cp_size": 2, "gpu.nic_gb_per_s": 1e6}
    cost = stage_cost(scenario_of({**FIRST, **extra}))  # type: ignore[arg-type]
    assert cost.batch_ns(0, 0, [(0, 1000, False)]) == pytest.approx(1e6 * (4 + 25 + 5), rel=1e-4)
    assert cost.batch_ns(0, 0, [(64, 1000, False)]) == pytest.approx(1e6 * (4 + 5), rel=1e-4)


def test_a_run_is_longer_by_the_extra_of_its_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ends = []
    for first in (0.0, 25.0):
        keys = {**FIRST, "cost.prefill_first_ms": first, "workload.num_chunks": 4, "cluster.pp_size": 1}
        sets = ["cost.source='quadratic'", *(f"{key}={value}" for key, value in keys.items())]
        out = CliRunner().invoke(app, ["run", "unit", "--json", *[part for one in sets for part in ("--set", one)]])
        assert out.exit_code == 0, out.stderr
        ends.append(json.loads(out.stdout)["ttft_s"]["mean"])
    assert ends[1] - ends[0] == pytest.approx(0.025)


# --- decode --------------------------------------------------------------------------------------------------------


def steps_of(c: float, row: float, kv: float, seed: int, noise: float = 0.0) -> list[DecodeStep]:
    draw = random.Random(seed)
    found = []
    for _ in range(30):
        rows = draw.choice([1, 2, 4, 8, 16, 32, 64])
        tokens = rows * draw.randint(100, 8000)
        time = c + row * rows + kv * tokens
        found.append(DecodeStep(rows, tokens, time * (1 + noise * draw.gauss(0, 1))))
    return found


@pytest.mark.parametrize("truth", [(6.0, 0.0, 0.0), (6.0, 0.05, 0.0), (6.0, 0.0, 2e-5), (6.0, 0.05, 2e-5)])
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_decode_finds_its_terms(truth: tuple[float, float, float], noise: float) -> None:
    fit = fit_decode(steps_of(*truth, seed=1, noise=noise))
    assert fit.accepted
    assert fit.terms == tuple(t for t, v in zip(("c", "row", "kv"), truth) if v)
    for got, value in zip((fit.c_ms, fit.row_ms, fit.kv_ms), truth):
        assert got == pytest.approx(value, rel=1e-6 if noise == 0 else 0.1)


def test_steps_of_one_batch_size_do_not_tell_rows_from_the_constant() -> None:
    fit = fit_decode([DecodeStep(8, 8 * n, 6.4 + 8 * n * 2e-5) for n in (100, 1000, 4000, 9000)])
    assert fit.terms == ("c", "kv")
    assert (fit.left_out or {})["row"] == "cannot be told from c in these samples"
    assert "all steps have 8 rows: what another batch size costs is not measured" in fit.notes
    assert fit_decode([DecodeStep(8, 80, 6.0)] * 9).reason == "1 distinct decode step, 2 are needed"


def fitted(text: str, tmp_path: Path) -> dict[str, object]:
    path = tmp_path / "rows.txt"
    path.write_text(text)
    result = CliRunner().invoke(app, ["fit", str(path), "--json"])
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("how", ["total", "each", "json"])
def test_rows_of_decode_steps_are_read_and_a_scenario_takes_what_they_give(how: str, tmp_path: Path) -> None:
    rows = [(n, n * context, 6 + 0.05 * n + 2e-5 * n * context) for n in (1, 4, 16, 64) for context in (200, 3000)]
    if how == "json":
        text = "".join(json.dumps({"batch_size": n, "kv_tokens": k, "step_ms": t}) + "\n" for n, k, t in rows)
    else:
        name = "kv_tokens" if how == "total" else "context_len"
        text = f"batch_size,{name},time_ms\n"
        text += "".join(f"{n},{k if how == 'total' else k // n},{t}\n" for n, k, t in rows)
    found = fitted(text, tmp_path)
    keys = found["scenario"]
    assert isinstance(keys, dict)
    assert set(keys) == {"cost.decode_c_ms", "cost.decode_row_ms", "cost.decode_kv_ms_per_token"}
    s = scenario_of({**keys, "cluster.pp_size": 1})
    assert stage_cost(s).batch_ns(0, 0, [(999, 1, True)] * 4) == pytest.approx(  # type: ignore[arg-type]
        1e6 * (6 + 0.05 * 4 + 2e-5 * 4000), rel=1e-6
    )


def test_all_keys_of_a_fit_are_taken_and_give_the_measured_times_back(tmp_path: Path) -> None:
    truth = {"c": 5.0, "first": 12.0, "gamma": 1e-3, "b": 0.02, "a": 1e-6}
    chunks = [(p, x) for p in (0, 2048, 8192, 30_000) for x in (256, 1024, 4096)]
    text = "prefix,new_tokens,time_ms\n" + "".join(f"{p},{x},{milliseconds(truth, p, x)!r}\n" for p, x in chunks)
    keys = fitted(text, tmp_path)["scenario"]
    assert isinstance(keys, dict)
    cost = stage_cost(scenario_of({**keys, "cluster.pp_size": 1}))  # type: ignore[arg-type]
    for past, new in chunks:
        assert cost.batch_ns(0, 0, [(past, new, False)]) == pytest.approx(
            1e6 * milliseconds(truth, past, new), rel=1e-6
        )


def test_a_row_of_several_requests_is_no_sample_and_other_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prefix,new_tokens,time_ms,batch_size\n0,64,1,8\n")
    result = CliRunner().invoke(app, ["fit", str(path)])
    assert result.exit_code == 2
    assert "rows.csv:2: field 'batch_size': is 8: a sample is one chunk of one request" in result.stderr
    path.write_text("prefix,new_tokens,time_ms,clock_mhz\n0,64,1,1980\n0,128,2,1980\n")
    assert "columns that are not used: clock_mhz" in CliRunner().invoke(app, ["fit", str(path)]).stderr


def test_what_people_read_has_an_interval_or_the_reason_for_every_term(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prefix,new_tokens,time_ms\n0,1000,30\n0,2000,50\n")
    text = CliRunner().invoke(app, ["fit", str(path)]).stdout
    assert "cost.prefill_b_ms_per_token = 0.02  (uncertainty cannot be told: 2 samples for 2 terms)" in text
    assert "cost.prefill_gamma_ms_per_token = 0  (left out: no sample has anything of it)" in text
    path.write_text(
        "prefix,new_tokens,time_ms\n" + "".join(f"0,{x},{10 + 0.02 * x + x % 3}\n" for x in range(100, 5000, 301))
    )
    assert "  +- " in CliRunner().invoke(app, ["fit", str(path)]).stdout


def test_fits_are_values_alike_in_any_order_of_the_samples() -> None:
    _, samples = drawn(5)
    there, back = fit_samples(samples), fit_samples(samples[::-1])
    assert isinstance(there, Fit)
    assert there.terms == back.terms
    assert there.coefficients.b_ms == pytest.approx(back.coefficients.b_ms, rel=1e-9)
    assert isinstance(fit_decode([]), DecodeFit)
    assert Coefficients(first_ms=1.0).chunk_ms(0, 1) == 1.0
