"""Law: a workload is what the scenario says, in order of arrival, and each random draw has a stream of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from scipy import stats

from ppsim.core.tokens import common_prefix, count
from ppsim.errors import ScenarioError
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import validate
from ppsim.scenario.tree import Scenario
from ppsim.workload import EOS_TOKEN_ID, Arrival, Workload, build_workload
from ppsim.workload.draws import Stream


def scenario(seed: int = 1, scheduler: dict[str, Any] | None = None, **workload: Any) -> Scenario:
    s = validate({"seed": seed, "workload": workload, "scheduler": scheduler or {}})
    check_scenario(s)
    return s


def built(seed: int = 1, **workload: Any) -> Workload:
    return build_workload(scenario(seed, **workload))


def times(workload: Workload) -> list[int | None]:
    return [a.at_ns for a in workload.arrivals]


def lengths(workload: Workload) -> list[int]:
    return [count(a.request.prompt) for a in workload.arrivals]


def outputs(workload: Workload) -> list[int]:
    return [a.output_length for a in workload.arrivals]


# --- scripted --------------------------------------------------------------------------------------------------


def script(*requests: dict[str, Any], **workload: Any) -> Sequence[Arrival]:
    return built(source="requests", requests=list(requests), **workload).arrivals


def test_a_scripted_request_arrives_as_written() -> None:
    (a,) = script(
        {"rid": "A", "at_iteration": 3, "prompt": 100, "output": 5, "priority": 2, "return_logprob": True},
    )
    r = a.request
    assert (a.at_iteration, a.at_ns, a.output_length, a.stop_after) == (3, None, 5, 0)
    assert (r.rid, count(r.prompt), r.max_new_tokens, r.priority, r.return_logprob) == ("A", 100, 5, 2, True)
    assert (r.stop_token_ids, r.ignore_eos) == ((), False)


def test_iterations_come_before_times_and_ties_keep_their_order() -> None:
    came = script(
        {"rid": "late", "at_ms": 2.5, "prompt": 1},
        {"rid": "i4", "at_iteration": 4, "prompt": 1},
        {"rid": "early", "at_ms": 0.000001, "prompt": 1},
        {"rid": "i0", "prompt": 1},
        {"rid": "i4b", "at_iteration": 4, "prompt": 1},
        {"rid": "zero", "at_ms": 0.0, "prompt": 1},
    )
    assert [(a.request.rid, a.at_iteration, a.at_ns) for a in came] == [
        ("i0", 0, None),
        ("i4", 4, None),
        ("i4b", 4, None),
        ("zero", None, 0),
        ("early", None, 1),
        ("late", None, 2_500_000),
    ]


def test_scripted_prefixes_are_shared_block_by_block() -> None:
    came = script(
        {"rid": "A", "prompt": 100, "prefix_blocks": [1, 2]},
        {"rid": "B", "prompt": 90, "prefix_blocks": [1, 2]},
        {"rid": "C", "prompt": 100, "prefix_blocks": [1, 3]},
        {"rid": "D", "prompt": 10, "prefix_blocks": [1, 2]},
        {"rid": "E", "prompt": 100},
        block_tokens=32,
    )
    prompt = {a.request.rid: a.request.prompt for a in came}
    shared = {pair: common_prefix(prompt[pair[0]], prompt[pair[1]]) for pair in ("AB", "AC", "AD", "AE", "BC")}
    assert shared == {"AB": 64, "AC": 32, "AD": 10, "AE": 0, "BC": 32}


def test_stop_after_gives_the_request_a_stop_token_that_it_may_ignore() -> None:
    stops, ignores = script(
        {"rid": "A", "prompt": 4, "output": 9, "stop_after": 3},
        {"rid": "B", "prompt": 4, "output": 9, "stop_after": 3, "ignore_eos": True},
    )
    assert (stops.stop_after, stops.request.stop_token_ids, stops.request.ignore_eos) == (3, (EOS_TOKEN_ID,), False)
    assert (ignores.stop_after, ignores.request.stop_token_ids, ignores.request.ignore_eos) == (3, (2,), True)


# --- chunks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_chunks", "chunk"), [(1, 8192), (7, 64), (64, 512)])
def test_chunks_is_one_prompt_of_whole_chunks(num_chunks: int, chunk: int) -> None:
    s = scenario(source="chunks", num_chunks=num_chunks, scheduler={"chunked_prefill_size": chunk})
    (a,) = build_workload(s).arrivals
    assert (a.request.rid, a.at_iteration, a.output_length, a.request.max_new_tokens) == ("R1", 0, 1, 1)
    assert count(a.request.prompt) == num_chunks * chunk


# --- generated -------------------------------------------------------------------------------------------------


def test_fixed_arrivals_are_exact_multiples_of_the_gap() -> None:
    assert times(built(arrival="fixed", rate_per_s=3.0, num_requests=4)) == [0, 333_333_333, 666_666_667, 10**9]
    assert times(built(arrival="burst", num_requests=3)) == [0, 0, 0]


def test_time_scale_multiplies_every_time_without_rounding_twice() -> None:
    assert times(built(arrival="fixed", rate_per_s=3.0, num_requests=4, time_scale=0.1)) == [
        0,
        33_333_333,
        66_666_667,
        10**8,
    ]
    plain, slow = (built(num_requests=50, time_scale=scale) for scale in (1.0, 3.0))
    assert [3 * (t or 0) for t in times(plain)] == times(slow)
    (a,) = script({"rid": "A", "prompt": 1, "at_ms": 0.3}, time_scale=0.1)
    assert a.at_ns == 30_000
    (a,) = script({"rid": "A", "prompt": 1, "at_ms": 0.000005}, time_scale=0.1)
    assert a.at_ns == 0  # exactly half a nanosecond goes to the even one; the binary 0.1 is a little more than a tenth


def test_poisson_gaps_are_exponential_with_the_rate() -> None:
    at = [t or 0 for t in times(built(num_requests=4000, rate_per_s=5.0, input_length={"value": 1}))]
    gaps = [(b - a) / 1e9 for a, b in pairwise(at)]
    assert at[0] == 0
    assert stats.kstest(gaps, stats.expon(scale=1 / 5.0).cdf).pvalue > 1e-3


def test_lognormal_lengths_have_the_mean_and_sigma_of_the_scenario() -> None:
    dist = {"kind": "lognormal", "mean": 3000.0, "sigma": 0.8, "max": 10_000_000}
    came = lengths(built(num_requests=3000, input_length=dist))
    # Tokens are whole: compare on the log, where rounding at some thousand tokens is far below the noise.
    logs = [math.log(length) for length in came]
    expected = stats.norm(math.log(3000.0) - 0.8**2 / 2, 0.8)
    assert stats.kstest(logs, expected.cdf).pvalue > 1e-3
    assert sum(came) / len(came) == pytest.approx(3000, rel=4 * math.sqrt(math.expm1(0.8**2) / 3000))


def test_lognormal_lengths_keep_their_bounds() -> None:
    dist = {"kind": "lognormal", "mean": 100.0, "sigma": 3.0, "min": 50, "max": 200}
    came = lengths(built(num_requests=300, input_length=dist))
    assert (min(came), max(came)) == (50, 200)


def test_uniform_lengths_take_every_value_alike() -> None:
    came = outputs(built(num_requests=5000, output_length={"kind": "uniform", "min": 3, "max": 12}))
    assert sorted(set(came)) == list(range(3, 13))
    assert stats.chisquare([came.count(n) for n in range(3, 13)]).pvalue > 1e-3


def test_shared_prefixes_are_chosen_alike_and_shared_exactly() -> None:
    w = built(num_requests=600, num_prefixes=4, prefix_tokens=100, input_length={"value": 130})
    heads = [a.request.prompt[:400] for a in w.arrivals]
    kinds = sorted(set(heads))
    assert len(kinds) == 4
    assert stats.chisquare([heads.count(kind) for kind in kinds]).pvalue > 1e-3
    for a, b in pairwise(w.arrivals):
        equal = a.request.prompt[:400] == b.request.prompt[:400]
        assert common_prefix(a.request.prompt, b.request.prompt) == (100 if equal else 0)


def test_a_prompt_shorter_than_its_prefix_is_cut() -> None:
    w = built(num_requests=5, num_prefixes=1, prefix_tokens=100, input_length={"value": 30})
    assert len({a.request.prompt for a in w.arrivals}) == 1
    assert lengths(w) == [30] * 5


def test_ignore_eos_runs_to_the_output_length() -> None:
    w = built(num_requests=40, eos_probability=0.5, output_length={"value": 64})
    assert {(a.stop_after, a.request.ignore_eos, a.request.max_new_tokens) for a in w.arrivals} == {(0, True, 64)}


@pytest.mark.parametrize(("p", "limit"), [(0.05, 40), (0.5, 4)])
def test_stop_tokens_come_with_the_probability_of_the_scenario(p: float, limit: int) -> None:
    n = 4000
    w = built(
        num_requests=n, ignore_eos=False, eos_probability=p, output_length={"value": limit}, input_length={"value": 1}
    )
    stops = [a.stop_after for a in w.arrivals]
    survive = (1 - p) ** limit
    assert stops.count(0) == pytest.approx(n * survive, abs=4 * math.sqrt(n * survive * (1 - survive)))
    expected = [n * p * (1 - p) ** (k - 1) for k in range(1, limit + 1)]
    scale = (n - stops.count(0)) / sum(expected)
    observed = [stops.count(k) for k in range(1, limit + 1)]
    assert stats.chisquare(observed, [e * scale for e in expected]).pvalue > 1e-3
    assert all(a.request.stop_token_ids == (EOS_TOKEN_ID,) and not a.request.ignore_eos for a in w.arrivals)


@pytest.mark.parametrize(("p", "stop_after"), [(0.0, 0), (1.0, 1), (5e-324, 0)])
def test_certain_and_impossible_stops(p: float, stop_after: int) -> None:
    w = built(num_requests=5, ignore_eos=False, eos_probability=p)
    assert [a.stop_after for a in w.arrivals] == [stop_after] * 5


def test_a_change_in_one_stream_moves_no_other() -> None:
    dist = {"kind": "lognormal", "mean": 300.0}
    base: dict[str, Any] = {"num_requests": 60, "input_length": dist, "output_length": dist}
    base |= {"num_prefixes": 3, "prefix_tokens": 1}
    plain = built(**base)
    assert lengths(plain) != outputs(plain)
    other_inputs = built(**{**base, "input_length": {"kind": "uniform", "max": 500}})
    assert lengths(plain) != lengths(other_inputs)
    assert (times(plain), outputs(plain)) == (times(other_inputs), outputs(other_inputs))
    assert [a.request.prompt[:4] for a in plain.arrivals] == [a.request.prompt[:4] for a in other_inputs.arrivals]
    other_rate = built(**{**base, "rate_per_s": 2.0})
    assert times(plain) != times(other_rate)
    assert (lengths(plain), outputs(plain)) == (lengths(other_rate), outputs(other_rate))
    stopping = built(**base, ignore_eos=False, eos_probability=0.1)
    assert (times(plain), lengths(plain), outputs(plain)) == (times(stopping), lengths(stopping), outputs(stopping))


def test_fewer_requests_are_the_first_of_more() -> None:
    few, many = (built(num_requests=n, output_length={"kind": "lognormal", "mean": 99.0}) for n in (10, 30))
    assert few.arrivals == many.arrivals[:10]
    assert len(built().arrivals) == 32


def test_another_seed_is_another_workload() -> None:
    assert times(built(seed=1)) != times(built(seed=2))


def test_named_streams_differ_and_stay_inside_the_open_interval() -> None:
    first, second = Stream(7, "a"), Stream(7, "b")
    one, two = [first.uniform() for _ in range(2000)], [second.uniform() for _ in range(2000)]
    assert not set(one) & set(two)
    assert all(0 < u < 1 for u in one + two)
    assert stats.kstest(one, "uniform").pvalue > 1e-3


def test_prompts_longer_than_the_context_are_kept_for_the_scheduler_to_refuse() -> None:
    s = scenario(num_requests=1, input_length={"value": 2000}, scheduler={"context_length": 1000})
    assert lengths(build_workload(s)) == [2000]


# --- what the scenario refuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"source": "requests"}, "workload.requests"),
        ({"num_requests": 0}, "workload.num_requests"),
        ({"num_requests": -1}, "workload.num_requests"),
        ({"num_prefixes": 2}, "workload.prefix_tokens"),
        ({"source": "chunks", "num_chunks": 10**6}, "workload.num_chunks"),
        ({"source": "requests", "requests": [{"rid": "A", "prompt": 0}]}, "workload.requests.0.prompt"),
        ({"source": "requests", "requests": [{"rid": "A", "prompt": 2**24 + 1}]}, "workload.requests.0.prompt"),
        (
            {"source": "requests", "requests": [{"rid": "A", "prompt": 1, "prefix_blocks": [2**63]}]},
            "workload.requests.0.prefix_blocks.0",
        ),
        ({"input_length": {"value": 200_000}}, "workload.input_length.value"),
        ({"output_length": {"value": 3, "min": 4}}, "workload.output_length.value"),
        ({"input_length": {"kind": "uniform", "min": 9, "max": 8}}, "workload.input_length.min"),
        ({"rate_per_s": 0.0}, "workload.rate_per_s"),
        ({"time_scale": 0.0}, "workload.time_scale"),
    ],
)
def test_an_impossible_workload_is_refused_with_its_key(workload: dict[str, Any], field: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(**workload)
    assert refused.value.field == field


def test_a_vocabulary_that_four_bytes_cannot_hold_is_refused() -> None:
    with pytest.raises(ScenarioError, match="vocab_size"):
        check_scenario(validate({"model": {"vocab_size": 2**32}}))
