"""The tuner's fast path against the event simulation with the real scheduler, and its arrays against the scalars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.collectives import volumes
from ppsim.cost.config_json import load_model
from ppsim.cost.context_parallel import ContextParallelCost, exchange_ns, shard
from ppsim.cost.gpu import load_gpu
from ppsim.cost.plan import fixed
from ppsim.cost.published import stage_matrix
from ppsim.cost.roofline import Rates, RooflineCost
from ppsim.cost.sglang_chunks import ChunkPredictor
from ppsim.cost.slot_loop import HostAndLink, slot_loop
from ppsim.cost.stage import QuadraticCost, StageCost, UnitCost
from ppsim.errors import EXIT_LIVENESS, PpsimError, ScenarioError
from ppsim.plan import stream_loop
from ppsim.plan.array_cost import array_cost
from ppsim.plan.candidate import Candidate, Split, given_candidate
from ppsim.plan.chunk_rule import ChunkRule
from ppsim.plan.evaluate import FastPath, not_in_fast_path
from ppsim.plan.rerun import rerun
from ppsim.plan.trial_load import Probe, probe_of
from ppsim.scenario import load_scenario
from ppsim.scenario.check import check_scenario
from ppsim.scenario.chunks import sglang_predictor
from ppsim.scenario.load import put, validate
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Scenario

ROUNDING_S = 2e-8  # payload times are rounded up to a nanosecond, once a message; asked for are 0.5 %


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


# --- the loop ------------------------------------------------------------------------------------------------------


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
        cost__prefill_first_ms=draw(st.sampled_from([0.0, 1.7])),
        cost__prefill_c_once=draw(st.sampled_from(["piece", "batch"])),
        gpu__nic_gb_per_s=0.5,
        scheduler__rules=draw(st.sampled_from(["sglang", "mended"])),
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
        links__bandwidth_gb_per_s=draw(st.sampled_from([0.0, 1.0, 1e-3, 1e-5])),
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


def agree(s: Scenario, candidate: Candidate, probe: Probe, pool: int) -> None:
    """Fast path and event simulation give the same figures."""
    place = (candidate.split, candidate.layer_partition)
    fast = FastPath(s, probe, pools={place: pool}).figures([candidate])[0]
    simulated = rerun(s, candidate, probe, pool)
    assert fast.ttft_s == pytest.approx(simulated.ttft_s, rel=1e-6, abs=ROUNDING_S)
    assert fast.input_tokens_per_s == pytest.approx(simulated.input_tokens_per_s, rel=1e-6)
    assert fast.bubble_ratio == pytest.approx(simulated.bubble_ratio, abs=1e-6)


@given(cases())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_fast_path_is_the_event_simulation(case: tuple[Scenario, Candidate, Probe, int]) -> None:
    assert not_in_fast_path(case[0]) == ()
    agree(*case)


def test_the_wait_for_the_output_that_was_sent_last() -> None:
    """One of the rare cases in which it changes the end (found for cost/slot_loop.py)."""
    s = scenario(
        model__layer_partition=[4, 2, 2, 2, 2],
        cluster__pp_size=5,
        cluster__comm_overlap=True,
        links__order="link",
        host__schedule_us=300.0,
        host__free_empty_visit=True,
    )
    agree(s, Candidate(Split(5, 1), 1, 64, 0.0, (4, 2, 2, 2, 2)), Probe("ttft", (263,), (0,)), 8192)


def test_an_output_on_a_slow_link_holds_the_next_forward_up() -> None:
    """Without communication overlap: 8 bytes at 10 kB/s are 0.8 ms in the way of passes of 0.1 ms."""
    s = scenario(links__bandwidth_gb_per_s=1e-5, model__hidden_size=1, cost__prefill_floor_ms=0.0)
    agree(s, Candidate(Split(3, 1), 1, 64, 0.0, (4, 4, 4)), Probe("throughput", (300, 70, 9), (0, 0, 0)), 8192)


@pytest.mark.parametrize("pool", [201, 202, 203, 204])
def test_a_prompt_is_admitted_when_there_is_one_token_more_than_it_needs(pool: int) -> None:
    """A holds 100 tokens; B needs 100, its output and a page, and must leave a token: 203 in all."""
    s = scenario(scheduler__page_size=1)
    agree(s, Candidate(Split(4, 1), 0, 64, 0.0, (3, 3, 3, 3)), Probe("throughput", (100, 100), (0, 0)), pool)


REAL = [  # scenario, overrides, chunk, smooth factor, depth, cp
    ("paper/qwen3_235b_h20_pp8", [], 18432, 0.8, 0, 1),
    ("paper/qwen3_235b_h20_pp8", ["links.bandwidth_gb_per_s=25", "links.latency_us=20"], 6144, 0.0, 1, 2),
    ("paper/deepseek_v31_h20_pp4", ["host.schedule_us=3000", "host.process_us=1000"], 12288, 0.65, 2, 1),
    ("paper/deepseek_v31_h20_pp4", ["gpu.nic_gb_per_s=50", "cluster.tp_size=4"], 8192, 0.85, 0, 2),
]


@pytest.mark.parametrize(("name", "sets", "chunk", "factor", "depth", "cp"), REAL)
def test_real_models_agree_alone_in_a_row_and_at_a_rate(
    name: str, sets: list[str], chunk: int, factor: float, depth: int, cp: int
) -> None:
    s = load_scenario(name, sets)
    split = Split(s.cluster.pp_size, s.cluster.tp_size, cp)
    candidate = given_candidate(s).but(
        split=split, chunked_prefill_size=chunk, smooth_factor=factor, pp_async_batch_depth=depth
    )
    for objective, n in (("ttft", 1), ("throughput", 3), ("ttft_at_rate", 3)):
        probe = probe_of(s, objective, rate_per_s=0.2, prompt=50_000, num_requests=n)
        agree(s, candidate, probe, FastPath(s, probe).pool(split, candidate.layer_partition))


@pytest.mark.parametrize("key", ["links.jitter_us=900", "host.stage_jitter_percent=5", "links.latency_on_stream=true"])
def test_what_the_fast_path_leaves_out_is_told_and_only_ever_delays(key: str) -> None:
    s = load_scenario("paper/qwen3_235b_h20_pp8", [key, "links.latency_us=9000", "links.bandwidth_gb_per_s=2"])
    assert not_in_fast_path(s) == (key.partition("=")[0],)
    candidate = given_candidate(s).but(chunked_prefill_size=2048, smooth_factor=0.0)
    probe = probe_of(s, "ttft", prompt=32768)
    fast = FastPath(s, probe)
    mine = fast.figures([candidate])[0]
    simulated = rerun(s, candidate, probe, fast.pool(candidate.split, candidate.layer_partition))
    assert mine.ttft_s < simulated.ttft_s
    assert mine.ttft_s == pytest.approx(simulated.ttft_s, rel=0.1)


def test_an_interval_that_defers_chunks_is_told_and_one_that_needs_decodes_is_nothing_here() -> None:
    """Rule 2: without a decode set only SGLang's own rule holds a prompt up; mended, both paths agree."""
    s = scenario(cluster__pp_size=2, scheduler__prefill_decode_interval=2)
    assert not_in_fast_path(s) == ("scheduler.prefill_decode_interval",)
    s = scenario(cluster__pp_size=2, scheduler__prefill_decode_interval=2, scheduler__rules="mended")
    assert not_in_fast_path(s) == ()
    candidate = Candidate(Split(2, 1, 1), 0, 128, 0.0, (6, 6))
    agree(s, candidate, Probe("ttft_at_rate", (700, 300), (0, 1_000)), 4096)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("key", "value", "without_overlap_only"),
    [
        ("links.payload", "matched", False),
        ("links.commit_over", "received", False),
        ("links.early_send", "before_exchange", False),
        ("links.schedule_hold", "post", True),
        ("links.token_read", "schedule_stream", True),
    ],
)
def test_choices_of_the_streams_that_the_fast_path_lacks_are_told_where_they_matter(
    key: str, value: str, without_overlap_only: bool, overlap: bool
) -> None:
    """``graph_fence`` never matters: prefills run without graphs."""
    sets = [f"{key}='{value}'", f"cluster.comm_overlap={str(overlap).lower()}", "scheduler.hidden_send='after_launch'"]
    told = not_in_fast_path(load_scenario("paper/qwen3_235b_h20_pp8", sets))
    assert told == (() if without_overlap_only and overlap else (key,))


def test_a_run_that_deadlocks_ends_the_tuning_with_its_own_exit_code() -> None:
    s = load_scenario("paper/qwen3_235b_h20_pp8", ["links.send=rendezvous"])
    assert not_in_fast_path(s) == ("links.send",)
    candidate = given_candidate(s).but(chunked_prefill_size=8192, smooth_factor=0.0)
    with pytest.raises(PpsimError, match=r"the event simulation does not pass: INV-40 at .*: deadlock") as caught:
        rerun(s, candidate, probe_of(s, "ttft", prompt=65536), 200_000)
    assert caught.value.exit_code == EXIT_LIVENESS


def test_one_prompt_is_the_static_recurrence() -> None:
    """The other driver of the waves (slot_loop), over chunks that are all there from the start. Their common oracle is
    the event simulation: above, and in test_cost_recurrence.py."""
    s = scenario(host__schedule_us=700.0, host__process_us=300.0, links__latency_us=40.0, links__bandwidth_gb_per_s=0.5)
    candidate = given_candidate(s).but(chunked_prefill_size=128, pp_async_batch_depth=1)
    fast = FastPath(s, Probe("ttft", (1000,), (0,))).figures([candidate])[0]
    plan = fixed(1000, 128)
    around = HostAndLink(schedule=7e5, process=3e5, latency=4e4, control_latency=4e4, output_transfer=8 / 0.5)
    transfer = [size * 2000 / 0.5 for size in plan.sizes]
    ends = slot_loop(stage_matrix(plan, stage_cost(s), 4), 1, around, transfer)
    assert fast.ttft_s * 1e9 == pytest.approx(float(ends[-1]), abs=5)


@pytest.mark.parametrize("waves", [1, 64])
def test_many_at_once_are_the_same_as_one_by_one(waves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configurations end at different times, with different chunks: none of them may touch another, whether those that
    are done are left out at once or never."""
    monkeypatch.setattr(stream_loop, "WAVES_BETWEEN_LOOKS", waves)
    monkeypatch.setattr(stream_loop, "DONE_SHARE", 0.01)
    s = load_scenario("mooncake")
    probe = probe_of(s, "ttft_at_rate", rate_per_s=8.0, num_requests=6)
    own = given_candidate(s)
    candidates = [
        own.but(chunked_prefill_size=n, smooth_factor=f, pp_async_batch_depth=d, layer_partition=p)
        for n in (1024, 8192)
        for f in (0.0, 0.75)
        for d in (0, 2)
        for p in (own.layer_partition, (7, 8, 8, 9))
    ]
    together = FastPath(s, probe).figures(candidates)
    assert len(set(together)) > 8
    for candidate, figures in zip(candidates, together):
        assert FastPath(s, probe).figures([candidate]) == [figures]


# --- arrays against scalars ----------------------------------------------------------------------------------------

works = st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 40_000)), min_size=1, max_size=4)


def stage_costs(kind: str) -> list[StageCost]:
    """Costs of one kind with different tp, cp and layers, three stages each."""
    if kind.startswith("quadratic"):
        once = "batch" if kind.endswith("once a batch") else "piece"
        shares = ((0.2, 0.3, 0.5), (0.25, 0.25, 0.5))
        quads = [
            QuadraticCost(
                share, 4.0, 1.0, gamma_ms=1e-4, b_ms=2e-3, a_ms=1e-7, c_once=once, tp_size=tp, tp_comm_ms=1e-4
            )
            for share, tp in zip(shares, (1, 4))
        ]
        return [*quads, ContextParallelCost(quads[1], 3, (5.5, 6.5, 7.25))]
    shape, gpu = load_model(kind), load_gpu("h200")
    layers = [(n, n, shape.num_layers - 2 * n) for n in (shape.num_layers // 4, shape.num_layers // 3)]
    roofs = [RooflineCost(shape, gpu, tp, p, Rates(efficiency=0.5)) for tp, p in zip((2, 16), layers)]
    return [*roofs, ContextParallelCost(roofs[0], 4, (3.0, 4.0, 5.0))]


KINDS = ["quadratic", "quadratic, c once a batch", "deepseek-v3.1", "qwen3-235b-a22b-fp8", "llama-3.1-8b"]


@pytest.mark.parametrize("kind", KINDS)
@given(work=works)
@settings(max_examples=25, deadline=None)
def test_stage_times_on_arrays_are_those_of_the_scalars(kind: str, work: list[tuple[int, int]]) -> None:
    costs = stage_costs(kind)
    arrays = array_cost(costs)
    features = np.zeros((arrays.num_features, len(costs)))
    for i, (prefix, new) in enumerate(work):
        first = np.full(len(costs), i == 0)
        features += arrays.piece(np.full(len(costs), float(prefix)), np.full(len(costs), float(new)), first)
    times = arrays.stage_ns(features)
    for j, cost in enumerate(costs):
        for stage in range(3):
            alone = cost.batch_ns(stage, 0, [(prefix, new, False) for prefix, new in work])
            # Of a roofline the last bit of a sum in another order.
            assert abs(times[stage, j] - alone) <= (0 if kind.startswith("quadratic") else 2)


@given(
    base=st.integers(1, 80).map(lambda n: 64 * n),
    prefix=st.integers(1, 9000) | st.integers(1, 90_000),
    context=st.sampled_from([8192, 100_000]),
    smooth=st.sampled_from([0.0, 0.1, 0.5, 0.65, 0.75, 1.0]),
    page=st.sampled_from([1, 64]),
    a=st.sampled_from([0.0, 1e-9, 1e-6, 1e-3]),
    b=st.sampled_from([0.0, 1e-3, 1.0]),
    cap=st.sampled_from([64, 1000, 16384]),
)
@settings(max_examples=250, deadline=None)
def test_the_chunk_rule_on_arrays_is_the_predictor_of_the_scheduler(
    base: int, prefix: int, context: int, smooth: float, page: int, a: float, b: float, cap: int
) -> None:
    predictor = ChunkPredictor(a, b, base, page, context, cap, smooth)
    other = ChunkPredictor(2e-6, 1e-2, 640)
    rule = ChunkRule.of([other, None, predictor], [640, 128, base])
    sizes = rule.next_chunk(np.array([3.0, 5.0, float(prefix)]))
    static = smooth == 0.0 or predictor.next_chunk(prefix) is None
    assert sizes[2] == (base if static else predictor.next_chunk(prefix))
    assert sizes[1] == 128
    assert sizes[0] == other.next_chunk(3)


@pytest.mark.parametrize("name", ["paper/deepseek_v31_h20_pp4", "paper/qwen3_235b_h20_pp8"])
def test_the_profile_is_the_one_that_the_engine_makes_at_its_start(name: str) -> None:
    s = load_scenario(name)
    predictor = FastPath(s, Probe("ttft", (1,), (0,))).predictor(given_candidate(s))
    started = sglang_predictor(s)
    assert predictor is not None
    assert (predictor.a, predictor.b) == pytest.approx((started.a, started.b), rel=1e-9)
    prefixes = range(0, 130_000, 777)
    assert [predictor.next_chunk(n) for n in prefixes] == [started.next_chunk(n) for n in prefixes]


def test_a_cost_without_arrays_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"cost.source: no times over many configurations for UnitCost"):
        array_cost([UnitCost(1)])


# --- context parallelism -------------------------------------------------------------------------------------------


@given(prefix=st.integers(0, 10**6), new=st.integers(1, 10**5), cp=st.integers(1, 64))
def test_shares_of_a_chunk_add_up_to_its_pairs(prefix: int, new: int, cp: int) -> None:
    """cp equal shares see L x + x^2 / 2 pairs together, but for the rounding up of the largest share."""
    share_prefix, share = shard(prefix, new, cp)
    pairs = cp * (share_prefix * share + share * share / 2)
    whole = prefix * new + new * new / 2
    slack = (cp + share) * (prefix + new)
    assert share == -(-new // cp)
    assert abs(pairs - whole) <= slack
    assert shard(prefix, new, 1) == (prefix, new)


@pytest.mark.parametrize("model", ["qwen3-235b-a22b-fp8", "deepseek-v3.1"])
def test_the_exchange_of_a_prompt_is_the_volume_of_the_closed_form_however_it_is_cut(model: str) -> None:
    shape, cp, gb_per_s, tokens = load_model(model), 4, 50.0, 65536
    layers = (shape.num_layers // 2, shape.num_layers - shape.num_layers // 2)
    inner = RooflineCost(shape, load_gpu("h200"), 1, layers, Rates(efficiency=0.5))
    kv = [shape.kv_bytes_per_token / shape.num_layers * n for n in layers]
    cost = ContextParallelCost(inner, cp, exchange_ns(kv, cp, gb_per_s))
    free = ContextParallelCost(inner, cp, (0.0, 0.0))
    expected = volumes(shape, tokens, cp_size=cp, element_bytes=shape.kv_bytes).cp_exact_bytes / gb_per_s
    for chunk in (65536, 8192, 2048):
        pieces = [[(at, chunk, False)] for at in range(0, tokens, chunk)]
        extra = sum(c.batch_ns(k, 0, p) * sign for c, sign in ((cost, 1), (free, -1)) for k in (0, 1) for p in pieces)
        assert extra == pytest.approx(expected, rel=1e-4)


def test_the_coefficients_under_context_parallelism_are_those_of_its_batches() -> None:
    inner = Coefficients(c_ms=2.0, gamma_ms=3e-5, b_ms=2e-2, a_ms=3e-7)
    cost = ContextParallelCost(inner.stage_cost((0.5, 0.5)), 4, (40.0, 60.0))
    whole = cost.coefficients(inner)
    for prefix, new in ((0, 4096), (100_000, 8192), (12_345, 64)):
        both = sum(cost.batch_ns(stage, 0, [(prefix, new, False)]) for stage in (0, 1)) / 1e6
        assert both == pytest.approx(whole.chunk_ms(prefix, new), rel=1e-5)


def test_decode_gains_nothing_from_context_parallelism() -> None:
    inner = QuadraticCost((1.0,), decode_c_ms=5.0, decode_kv_ms=1e-3)
    batch = [(1000, 1, True), (50, 1, True)]
    assert ContextParallelCost(inner, 8, (1e6,)).batch_ns(0, 0, batch) == inner.batch_ns(0, 0, batch)
