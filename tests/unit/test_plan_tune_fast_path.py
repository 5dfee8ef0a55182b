"""The tuner's fast path against the event simulation with the real scheduler, and its arrays against the scalars."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppsim.plan.candidate import Candidate, Split
from ppsim.plan.evaluate import FastPath, not_in_fast_path
from ppsim.plan.probe import Probe
from ppsim.plan.rerun import rerun
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import put, validate
from ppsim.scenario.tree import Scenario

AGREEMENT = 0.005  # what the project asks for
ROUNDING_S = 2e-8  # what is left in practice: payload times are rounded up to a nanosecond, once a message


def scenario(**changes: Any) -> Scenario:
    """A small dense model with quadratic costs, one prompt; ``a__b=c`` sets the key a.b."""
    raw: dict[str, Any] = {}
    base = {
        "name": "test",
        "model.num_hidden_layers": 12,
        "model.hidden_size": 1000,
        "scheduler.max_total_tokens": 8192,
        "cost.prefill_floor_ms": 0.5,
        "cost.prefill_c_ms": 0.3,
        "cost.prefill_gamma_ms_per_token": 1e-4,
        "cost.prefill_b_ms_per_token": 5e-3,
        "cost.prefill_a_ms_per_token2": 1e-6,
        "workload.source": "requests",
        "workload.requests": [{"rid": "R1", "prompt": 1000, "output": 1}],
    }
    for key, value in {**base, **{k.replace("__", "."): v for k, v in changes.items()}}.items():
        put(raw, key, value)
    made = validate(raw)
    check_scenario(made)
    return made


# --- the loop ----------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[Scenario, Candidate, Probe, int]:
    """A random scenario within the reach of the fast path, a candidate, a probe, and the pool."""
    pp_size = draw(st.integers(1, 5))
    page_size = draw(st.sampled_from([1, 1, 16, 64]))
    tp_size, cp_size = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2, 3]))
    prompts = draw(st.lists(st.integers(1, 1500), min_size=1, max_size=7))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1_000, 700_000, 9_000_000, 200_000_000]), min_size=7, max_size=7))
    arrivals = [sum(gaps[:i]) for i in range(len(prompts))]
    s = scenario(
        cluster__tp_size=tp_size,
        cluster__comm_overlap=draw(st.booleans()),
        cost__tp_comm_ms_per_token=1e-3,
        cost__prefill_c_once=draw(st.sampled_from(["piece", "batch"])),
        gpu__nic_gb_per_s=0.5,
        scheduler__page_size=page_size,
        scheduler__max_prefill_tokens=draw(st.sampled_from([256, 1024, 16384])),
        scheduler__prefill_max_requests=draw(st.sampled_from([0, 0, 1, 2])),
        scheduler__max_running_requests=draw(st.sampled_from([1, 2, 64])),
        scheduler__pp_max_micro_batch_size=draw(st.sampled_from([0, 0, 1, 3])),
        scheduler__disable_radix_cache=draw(st.booleans()),
        scheduler__context_length=draw(st.sampled_from([1600, 4096])),
        scheduler__hidden_send=draw(st.sampled_from(["after_harvest", "after_launch"])),
        links__latency_us=draw(st.sampled_from([0.0, 0.0, 50.0, 3000.0])),
        links__control_latency_us=draw(st.sampled_from([None, 0.0, 50.0, 2000.0])),
        links__bandwidth_gb_per_s=draw(st.sampled_from([0.0, 1.0, 0.1, 1e-3])),
        links__commit=draw(st.sampled_from(["all", "all", "requests", "none"])),
        links__order=draw(st.sampled_from(["stream", "link"])),
        host__schedule_us=draw(st.sampled_from([0.0, 0.0, 300.0, 2000.0])),
        host__process_us=draw(st.sampled_from([0.0, 0.0, 200.0, 1500.0])),
        host__free_empty_visit=draw(st.booleans()),
        host__idle_poll_us=draw(st.sampled_from([0.0, 50.0, 777.0])),
    )
    first = draw(st.integers(1, 12 - pp_size + 1)) if pp_size > 1 else 12
    rest = 12 - first
    partition = (first, *(rest // (pp_size - 1) + (k < rest % (pp_size - 1)) for k in range(pp_size - 1)))
    candidate = Candidate(
        Split(pp_size, tp_size, cp_size),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([64, 128, 256, 512])),
        draw(st.sampled_from([0.0, 0.0, 0.4, 0.75, 1.0])),
        partition,
    )
    pool = max(*prompts, candidate.chunked_prefill_size) + 3 * page_size + draw(st.sampled_from([0, 500, 9000]))
    return s, candidate, Probe("ttft_at_rate", tuple(prompts), tuple(arrivals)), pool


@given(cases())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_fast_path_is_the_event_simulation(case: tuple[Scenario, Candidate, Probe, int]) -> None:
    s, candidate, probe, pool = case
    assert not_in_fast_path(s) == ()
    place = (candidate.split, candidate.layer_partition)
    fast = FastPath(s, probe, pools={place: pool}).figures([candidate])[0]
    simulated = rerun(s, candidate, probe, pool)
    assert fast.ttft_s == pytest.approx(simulated.ttft_s, rel=1e-6, abs=ROUNDING_S)
    assert fast.input_tokens_per_s == pytest.approx(simulated.input_tokens_per_s, rel=1e-6)
    assert fast.bubble_ratio == pytest.approx(simulated.bubble_ratio, abs=1e-6)
