"""How long a round over all L slots takes in steady decode, and what delays it.

Oracles, for slot times t_s that are the same on every stage, free links, host time h per harvested batch:

    h = 0, communication overlap, depth 0 or 1 or payloads in no order   max(sum t_s, P max t_s)
    anything else                                                        at least max(sum t_s, P max t_s + h)
    equal t, hidden states after the harvest     max(L t, P t + h, L ((P-1) t + h) / (L-1)), for h <= t
    equal t, hidden states after the launch      max(L t, P t + h)
    equal t, depth 0, one stream                 P (t + h)

The first two are those of bugs.md, unit model. The others are circuits of the loop. A slot comes back after P
forward passes and one harvest: P t + h. Hidden states wait for a harvest that is L-1 launches old: from the last
stage's token over the harvest on the first, then P-1 forward passes, to the last stage's token L-1 iterations later.
Without depth the last rank posts the send of the output that it is computing, and in one stream behind it the receive
of the one it harvests: the harvest comes after the forward, the next launch after the harvest, L = P times a round.
Without overlap forwards also wait for receives (docs/streams.md); with equal slots these are there in time.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.recording import Recording
from tests.worlds.making import MS, forward_starts, passed, requests
from tests.worlds.max_plus import Batch, Pipeline, solve

OVERLAP = {"cluster.comm_overlap": True}
WARM_UP = 18  # rounds until circuits that are nearly critical have lost
NUM_ROUNDS = 30


def decode_in_every_slot(pp_size: int, depth: int, slot_ms: tuple[int, ...], rounds: int, **changes: Any) -> Recording:
    """One request in each slot, decoding for ``rounds`` rounds; the invariants are checked elsewhere."""
    return passed(
        {
            "cluster.pp_size": pp_size,
            "cluster.pp_async_batch_depth": depth,
            "cost.slot_ms": [float(ms) for ms in slot_ms],
            "scheduler.chunked_prefill_size": 1,
            "workload.requests": requests(pp_size + depth, prompt=1, output=rounds),
            "run.check": False,
            **changes,
        }
    )


def round_ms(starts: dict[int, int] | list[int], num_slots: int, first: int, last: int) -> Fraction:
    """Mean length of a round between the visits of slot 0 in rounds ``first`` and ``last``."""
    return Fraction(starts[last * num_slots] - starts[first * num_slots], (last - first) * MS)


@st.composite
def loops(draw: st.DrawFn, max_depth: int = 3) -> tuple[int, int, tuple[int, ...]]:
    """pp_size, depth, and a time for each slot."""
    pp_size = draw(st.integers(2, 5))
    depth = draw(st.integers(0, max_depth))
    times = st.integers(1, 9)
    return pp_size, depth, tuple(draw(times) for _ in range(pp_size + depth))


def bound_ms(pp_size: int, slot_ms: tuple[int, ...], process_ms: int = 0) -> int:
    return max(sum(slot_ms), pp_size * max(slot_ms) + process_ms)


# --- the closed form -------------------------------------------------------------------------------------------


@given(loop=loops(max_depth=1))
@settings(max_examples=15, deadline=None)
def test_depth_0_and_1_take_the_greater_of_the_sum_and_p_times_the_slowest_slot(
    loop: tuple[int, int, tuple[int, ...]],
) -> None:
    pp_size, depth, slot_ms = loop
    recording = decode_in_every_slot(pp_size, depth, slot_ms, NUM_ROUNDS, **OVERLAP)
    starts = forward_starts(recording, 0)
    assert round_ms(starts, len(slot_ms), WARM_UP, NUM_ROUNDS - 1) == bound_ms(pp_size, slot_ms)


@given(loop=loops())
@settings(max_examples=15, deadline=None)
def test_any_depth_does_so_where_sends_do_not_queue_behind_each_other(loop: tuple[int, int, tuple[int, ...]]) -> None:
    pp_size, depth, slot_ms = loop
    recording = decode_in_every_slot(pp_size, depth, slot_ms, NUM_ROUNDS, **OVERLAP, **{"links.order": "none"})
    starts = forward_starts(recording, pp_size - 1)
    assert round_ms(starts, len(slot_ms), WARM_UP, NUM_ROUNDS - 1) == bound_ms(pp_size, slot_ms)


@given(
    loop=loops(),
    process_ms=st.integers(0, 9),
    order=st.sampled_from(["stream", "link", "none"]),
    early=st.booleans(),
    overlap=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_no_loop_is_faster_than_the_bound(
    loop: tuple[int, int, tuple[int, ...]], process_ms: int, order: str, early: bool, overlap: bool
) -> None:
    pp_size, depth, slot_ms = loop
    changes = {
        "cluster.comm_overlap": overlap,
        "links.order": order,
        "host.process_us": process_ms * 1000.0,
        "scheduler.hidden_send": "after_launch" if early else "after_harvest",
    }
    starts = forward_starts(decode_in_every_slot(pp_size, depth, slot_ms, NUM_ROUNDS, **changes), 0)
    assert round_ms(starts, len(slot_ms), WARM_UP, NUM_ROUNDS - 1) >= bound_ms(pp_size, slot_ms, process_ms)


def modelled(slot_ms: tuple[int, ...], rounds: int, **keys: Any) -> list[list[int]]:
    """Start of the forward pass of each iteration on each rank, by the max-plus model: result[rank][i]."""
    pipeline = Pipeline(**keys)
    batches = [Batch((ms * MS,) * pipeline.pp_size, graph=n >= len(slot_ms)) for n, ms in enumerate(slot_ms * rounds)]
    times = solve(pipeline, [*batches, *[None] * (2 * pipeline.num_slots)])
    return [[times.forward(rank, i)[0] for i in range(len(batches))] for rank in range(pipeline.pp_size)]


def test_depth_2_with_one_stream_and_unequal_slots_is_slower_than_the_bound() -> None:
    """The relay of an output queues behind hidden states that are not computed yet (bugs.md, unit model)."""
    slot_ms = (1, 1, 9, 9, 9)
    in_order = forward_starts(decode_in_every_slot(3, 2, slot_ms, NUM_ROUNDS, **OVERLAP), 0)
    free = forward_starts(decode_in_every_slot(3, 2, slot_ms, NUM_ROUNDS, **OVERLAP, **{"links.order": "none"}), 0)
    model = modelled(slot_ms, NUM_ROUNDS, pp_size=3, depth=2, overlap=True)[0]
    assert round_ms(free, 5, WARM_UP, NUM_ROUNDS - 1) == 29
    assert round_ms(in_order, 5, WARM_UP, NUM_ROUNDS - 1) == round_ms(model, 5, WARM_UP, NUM_ROUNDS - 1) == 36


# --- host time -------------------------------------------------------------------------------------------------


def equal_times_round_ms(pp_size: int, depth: int, t: int, h: Fraction | int, early: bool, order: str) -> Fraction:
    """The closed form of the docstring above."""
    num_slots = pp_size + depth
    if order == "stream" and depth == 0:
        return pp_size * (t + Fraction(h))
    candidates = [Fraction(num_slots * t), pp_size * t + Fraction(h)]
    if not early and num_slots > 1:
        candidates.append(num_slots * ((pp_size - 1) * t + Fraction(h)) / (num_slots - 1))
    return max(candidates)


@pytest.mark.parametrize("process_ms", [0, 1, 3, 10])
def test_two_stages_without_depth_take_twice_t_plus_h(process_ms: int) -> None:
    recording = decode_in_every_slot(2, 0, (10, 10), 12, **{"host.process_us": process_ms * 1000.0})
    assert round_ms(forward_starts(recording, 0), 2, 6, 11) == 2 * (10 + process_ms)


@pytest.mark.parametrize("order", ["stream", "link"])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("pp_size", [2, 3, 4, 6])
def test_with_equal_slots_host_time_costs_what_the_circuits_say(
    pp_size: int, depth: int, early: bool, order: str
) -> None:
    t, h = 10, 4
    cycle = pp_size + depth - 1  # the circuit of the hidden states closes after L - 1 iterations: so many rounds
    recording = decode_in_every_slot(
        pp_size,
        depth,
        (t,) * (pp_size + depth),
        6 + cycle + 1,
        **{
            "links.order": order,
            "host.process_us": h * 1000.0,
            "scheduler.hidden_send": "after_launch" if early else "after_harvest",
        },
    )
    measured = round_ms(forward_starts(recording, 0), pp_size + depth, 6, 6 + cycle)
    assert measured == equal_times_round_ms(pp_size, depth, t, h, early, order)


@pytest.mark.parametrize("pp_size", [2, 4])
def test_depth_1_and_2_beat_depth_0_when_the_host_needs_time_and_not_otherwise(pp_size: int) -> None:
    """Time per iteration, not per round: a deeper ring has more slots in a round."""

    def iteration_ms(depth: int, process_ms: int, order: str = "link") -> Fraction:
        num_slots = pp_size + depth
        changes = {"host.process_us": process_ms * 1000.0, "links.order": order}
        recording = decode_in_every_slot(pp_size, depth, (10,) * num_slots, 18, **changes)
        return round_ms(forward_starts(recording, 0), num_slots, 5, 5 + 12) / num_slots

    assert iteration_ms(0, 0) == iteration_ms(1, 0) == iteration_ms(2, 0) == 10
    shallow = 10 + Fraction(3, pp_size - 1)
    assert iteration_ms(0, 3) == shallow
    assert iteration_ms(0, 3, "stream") == 10 + 3
    assert iteration_ms(1, 3) == iteration_ms(2, 3) == 10


# --- second oracle ---------------------------------------------------------------------------------------------


@given(
    loop=loops(),
    schedule_ms=st.sampled_from([0, 0, 1, 4]),
    process_ms=st.sampled_from([0, 0, 1, 7]),
    latency_ms=st.sampled_from([0, 0, 1, 3]),
    order=st.sampled_from(["stream", "link", "none"]),
    early=st.booleans(),
    overlap=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_every_forward_starts_when_the_max_plus_model_says(
    loop: tuple[int, int, tuple[int, ...]],
    schedule_ms: int,
    process_ms: int,
    latency_ms: int,
    order: str,
    early: bool,
    overlap: bool,
) -> None:
    """All slots busy, which the drawn scenarios of test_max_plus.py hardly ever are."""
    pp_size, depth, slot_ms = loop
    rounds = 6
    hidden_send = "after_launch" if early else "after_harvest"
    recording = decode_in_every_slot(
        pp_size,
        depth,
        slot_ms,
        rounds,
        **{
            "cluster.comm_overlap": overlap,
            "host.schedule_us": schedule_ms * 1000.0,
            "host.process_us": process_ms * 1000.0,
            "links.latency_us": latency_ms * 1000.0,
            "links.order": order,
            "scheduler.hidden_send": hidden_send,
        },
    )
    expected = modelled(
        slot_ms,
        rounds,
        pp_size=pp_size,
        depth=depth,
        overlap=overlap,
        order=order,
        schedule_ns=schedule_ms * MS,
        process_ns=process_ms * MS,
        latency_ns=latency_ms * MS,
        control_ns=latency_ms * MS,
        hidden_send=hidden_send,
    )
    for rank in range(pp_size):
        assert forward_starts(recording, rank) == dict(enumerate(expected[rank]))


@pytest.mark.parametrize("seed", range(3))
def test_the_max_plus_model_keeps_the_closed_form_over_a_long_run(seed: int) -> None:
    """The model is an oracle only if it is right itself: 200 rounds, where no transient is left."""
    slot_ms = ((7, 3, 5, 8), (2, 9, 4, 4, 1), (6, 6, 1, 5, 2, 8))[seed]
    pp_size, depth = ((4, 0), (4, 1), (3, 3))[seed]
    starts = modelled(slot_ms, 200, pp_size=pp_size, depth=depth, overlap=True, order="none")[0]
    assert round_ms(starts, len(slot_ms), 150, 199) == bound_ms(pp_size, slot_ms)
