"""The pipeline recurrence against closed forms, and SGLang's loop against the event simulation, to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ppsim.cost.partition import even_partition
from ppsim.cost.plan import fixed
from ppsim.cost.published import stage_matrix
from ppsim.cost.recurrence import (
    free_running,
    makespan,
    pad,
    slot_window,
    stage_times,
)
from ppsim.cost.slot_loop import HostAndLink, slot_loop
from ppsim.errors import ScenarioError
from ppsim.recording.summary import summarize
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Cluster, CostTree, Host, Links, Model, Scenario, Scheduler
from ppsim.scenario.workload_keys import ScriptedRequest, Workload
from ppsim.world.simulate import simulate

positive = st.integers(1, 50)


@pytest.mark.parametrize("num_stages", range(1, 9))
@pytest.mark.parametrize("num_chunks", [1, 2, 7, 64])
def test_equal_chunks_have_the_textbook_bubble_in_all_three_forms(num_stages: int, num_chunks: int) -> None:
    times = np.ones((num_chunks, num_stages))
    expected = num_stages - 1 + num_chunks
    assert makespan(free_running(times)) == expected
    assert makespan(slot_window(times)) == expected
    assert slot_loop(times)[-1] == expected
    bubble = 1 - num_chunks / float(makespan(free_running(times)))
    assert bubble == pytest.approx((num_stages - 1) / (num_stages - 1 + num_chunks))


def test_chunked_over_monolithic_is_p_k_over_p_plus_k_minus_1() -> None:
    """7.78 at P = 8 and k = 244 with linear cost (seed 002)."""
    chunked = float(makespan(free_running(np.ones((244, 8)))))
    whole = float(makespan(free_running(np.full((1, 8), 244.0))))
    assert whole / chunked == pytest.approx(8 * 244 / (8 + 244 - 1))
    assert whole / chunked == pytest.approx(7.78, abs=0.005)


@given(st.lists(positive, min_size=1, max_size=12), st.integers(1, 6))
def test_identical_stages_take_the_sum_and_p_minus_1_times_the_longest(chunks: list[int], num_stages: int) -> None:
    times = stage_times(chunks, np.ones(num_stages))
    assert makespan(free_running(times)) == sum(chunks) + (num_stages - 1) * max(chunks)


@given(st.lists(st.lists(positive, min_size=3, max_size=3), min_size=1, max_size=8))
def test_free_running_is_the_longest_path_through_the_grid(rows: list[list[int]]) -> None:
    longest: dict[tuple[int, int], int] = {}
    for c, row in enumerate(rows):
        for k, t in enumerate(row):
            longest[c, k] = t + max(longest.get((c - 1, k), 0), longest.get((c, k - 1), 0))
    assert makespan(free_running(np.array(rows))) == longest[len(rows) - 1, 2]


@given(st.lists(positive, min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 3))
def test_a_slot_window_never_helps_and_a_deep_one_never_hurts(chunks: list[int], stages: int, depth: int) -> None:
    times = stage_times(chunks, np.ones(stages))
    free = makespan(free_running(times))
    assert makespan(slot_window(times, depth)) >= free
    assert makespan(slot_window(times, depth + 1)) <= makespan(slot_window(times, depth))
    assert makespan(slot_window(times, len(chunks))) == free


def test_host_and_link_are_paid_per_chunk_and_per_hop() -> None:
    finish = free_running(np.ones((5, 3)), host=0.5, link=0.25)
    assert makespan(finish) == (5 + 2) * 1.5 + 2 * 0.25


@given(
    st.lists(positive, min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_round_period_in_the_steady_state_is_the_sum_or_p_times_the_longest(
    slot_times: list[int], num_stages: int, depth: int
) -> None:
    """Slots s = 0..L-1 with times t_s, again and again: max(sum t_s, P max t_s) a round (issue 2)."""
    slots = (slot_times * 6)[: num_stages + depth]
    rounds = 150  # close to balance it takes many rounds until the slowest slot sets the pace
    ends = slot_loop(stage_times(slots * rounds, np.ones(num_stages)), depth, HostAndLink(comm_overlap=True))
    period = float(ends[145 * len(slots)] - ends[133 * len(slots)]) / 12  # neither filling nor draining
    assert period == pytest.approx(max(sum(slots), num_stages * max(slots)))


def test_hidden_states_behind_the_harvest_cost_a_host_time_each_round() -> None:
    """P = 2, depth 0, equal t: 2 (t + h) a round; right after the exchange 2 t + h (decision 0001), but for
    one stream, in which the last rank's harvest stands behind its own output (tests/worlds/test_round_period.py)."""
    times = np.full((200, 2), 10.0)
    late, early = 2 * (10 + 3), 2 * 10 + 3
    for after_harvest, one_stream, expected in (
        (True, True, late),
        (True, False, late),
        (False, True, late),
        (False, False, early),
    ):
        ends = slot_loop(times, 0, HostAndLink(process=3.0, after_harvest=after_harvest, one_stream=one_stream))
        assert float(ends[199] - ends[99]) / 50 == pytest.approx(expected)


def test_depth_hides_host_time() -> None:
    times = np.full((300, 4), 10.0)
    ends = [float(slot_loop(times, depth, HostAndLink(process=4.0))[-1]) for depth in (0, 1, 2)]
    assert ends[0] > 1.1 * ends[1]
    assert ends[1] >= ends[2]


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 2), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_many_configurations_at_once_are_the_same_as_one_by_one(
    seed: int, num_stages: int, depth: int, after_harvest: bool, free_empty_visit: bool
) -> None:
    rng = np.random.default_rng(seed)
    plans = [rng.integers(1, 100, size=(n, num_stages)).astype(float) for n in (3, 9, 1, 6)]
    schedule, process, latency, output = rng.choice([0.0, 2.0, 50.0, 300.0], size=(4, 4))
    stacked, lengths = pad(plans)
    transfer = rng.choice([0.0, 7.0, 90.0], size=stacked.shape[:-1])  # also behind the end of a shorter plan

    def cost(s: object, p: object, ln: object, out: object) -> HostAndLink:
        return HostAndLink(s, p, ln, ln, out, after_harvest=after_harvest, free_empty_visit=free_empty_visit)  # type: ignore[arg-type]

    loop = slot_loop(stacked, depth, cost(schedule, process, latency, output), transfer, lengths)
    window = makespan(slot_window(stacked, np.arange(4), schedule, latency), lengths)
    for i, plan in enumerate(plans):
        around = cost(schedule[i], process[i], latency[i], output[i])
        alone = slot_loop(plan, depth, around, transfer[i, : len(plan)])[-1]
        assert loop[i, len(plan) - 1] == alone
        assert window[i] == makespan(slot_window(plan, i, schedule[i], latency[i]))


def test_a_slow_return_path_paces_a_window_that_is_full() -> None:
    """Two stages, two slots, link 5 and chunks of 1: a chunk comes back after 2 (1 + 5), two at a time."""
    finish = slot_window(np.ones((101, 2)), 0, link=5.0)
    assert finish[100, 1] - finish[50, 1] == pytest.approx(25 * 2 * (1 + 5))


def test_negative_depth_is_refused() -> None:
    for run in (slot_window, slot_loop):
        with pytest.raises(ScenarioError, match=r"pp_async_batch_depth: must not be negative, got -1"):
            run(np.ones((2, 2)), -1)


@dataclass(frozen=True)
class Case:
    """One prompt of fixed chunks in a scenario of the event simulation."""

    pp_size: int
    depth: int
    chunk: int
    prompt: int
    schedule_us: int
    process_us: int
    latency_us: int
    control_latency_us: int
    gb_per_s: float
    comm_overlap: bool
    commit: Literal["all", "requests", "none"]
    hidden_send: Literal["after_harvest", "after_launch"]
    order: Literal["stream", "link"]
    free_empty_visit: bool
    first_stage_layers: int

    def layers(self) -> tuple[int, ...]:
        if self.pp_size == 1:
            return (12,)
        return (self.first_stage_layers, *even_partition(12 - self.first_stage_layers, self.pp_size - 1))

    def scenario(self) -> Scenario:
        request = ScriptedRequest(rid="A", at_ms=0.0, prompt=self.prompt, output=1)
        return Scenario(
            cluster=Cluster(pp_size=self.pp_size, pp_async_batch_depth=self.depth, comm_overlap=self.comm_overlap),
            scheduler=Scheduler(chunked_prefill_size=self.chunk, max_total_tokens=8192, hidden_send=self.hidden_send),
            model=Model(num_hidden_layers=12, hidden_size=1000, layer_partition=self.layers()),
            cost=CostTree(
                prefill_floor_ms=0.5,
                prefill_c_ms=0.3,
                prefill_gamma_ms_per_token=1e-4,
                prefill_b_ms_per_token=5e-3,
                prefill_a_ms_per_token2=1e-6,
            ),
            links=Links(
                latency_us=float(self.latency_us),
                control_latency_us=float(self.control_latency_us),
                bandwidth_gb_per_s=self.gb_per_s,
                commit=self.commit,
                order=self.order,
            ),
            host=Host(
                schedule_us=float(self.schedule_us),
                process_us=float(self.process_us),
                free_empty_visit=self.free_empty_visit,
            ),
            workload=Workload(source="requests", requests=(request,)),
        )


cases = st.builds(
    Case,
    pp_size=st.integers(1, 5),
    depth=st.integers(0, 3),
    chunk=st.sampled_from([64, 128, 256]),
    prompt=st.integers(1, 1500),
    schedule_us=st.sampled_from([0, 0, 300, 2000]),
    process_us=st.sampled_from([0, 0, 200, 1500]),
    latency_us=st.sampled_from([0, 0, 50, 3000]),
    control_latency_us=st.sampled_from([0, 50, 2000]),
    gb_per_s=st.sampled_from([0.0, 1.0, 0.1, 1e-5]),
    comm_overlap=st.booleans(),
    commit=st.sampled_from(["all", "all", "requests", "none"]),
    hidden_send=st.sampled_from(["after_harvest", "after_launch"]),
    order=st.sampled_from(["stream", "link"]),
    free_empty_visit=st.booleans(),
    first_stage_layers=st.integers(1, 6),
)


AWAITED_OUTPUT = Case(5, 1, 64, 263, 300, 0, 0, 0, 0.0, True, "all", "after_harvest", "link", True, 4)
"""One of the rare cases in which the wait for the output that was sent last changes the end."""


@given(cases)
@example(AWAITED_OUTPUT)
@settings(max_examples=150, deadline=None)
def test_the_loop_recurrence_is_the_event_simulation(case: Case) -> None:
    scenario = case.scenario()
    result = simulate(scenario)
    assert result.verdict.kind == "pass"
    simulated_s = summarize(result.recording, result.verdict)["ttft_s"]["mean"]
    plan = fixed(case.prompt, case.chunk)
    byte_ns = 1.0 / case.gb_per_s if case.gb_per_s else 0.0
    cost = HostAndLink(
        schedule=case.schedule_us * 1e3,
        process=case.process_us * 1e3,
        latency=case.latency_us * 1e3,
        control_latency=case.control_latency_us * 1e3,
        output_transfer=8 * byte_ns,
        commit=case.commit,
        after_harvest=case.hidden_send == "after_harvest",
        comm_overlap=case.comm_overlap,
        one_stream=case.order == "stream",
        free_empty_visit=case.free_empty_visit,
    )
    transfer = np.array(plan.sizes) * 1000 * 2 * byte_ns
    ends = slot_loop(stage_matrix(plan, stage_cost(scenario), case.pp_size), case.depth, cost, transfer)
    assert simulated_s == pytest.approx(float(ends[-1]) / 1e9, abs=2e-9)
