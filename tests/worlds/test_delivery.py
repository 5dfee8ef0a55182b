"""A batch launched in iteration b is harvested in b + L - 1, so tokens come at iterations that a formula gives.

bugs.md, unit model: a one-chunk prompt launched in i delivers its n-th token in i + n L - 1; K chunks launched from i
on deliver the first in i + K + L - 2, and one more every L iterations. Costs, links and hosts do not matter.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.recording import Recording
from tests.worlds.making import deliveries, launches, passed

CHUNK = 4


def one_request(pp_size: int, depth: int, at_iteration: int, chunks: int, output: int, **changes: Any) -> Recording:
    request = {"rid": "R1", "at_iteration": at_iteration, "prompt": CHUNK * chunks, "output": output}
    return passed(
        {
            "cluster.pp_size": pp_size,
            "cluster.pp_async_batch_depth": depth,
            "scheduler.chunked_prefill_size": CHUNK,
            "workload.requests": [{**request, "ignore_eos": True}],
            **changes,
        }
    )


@pytest.mark.parametrize(("depth", "num_slots"), [(0, 4), (2, 6)])
def test_at_pp_4_a_one_chunk_prompt_read_in_iteration_3_delivers_its_nth_token_in_2_plus_n_L(
    depth: int, num_slots: int
) -> None:
    recording = one_request(4, depth, at_iteration=3, chunks=1, output=5)
    for rank in range(4):
        assert deliveries(recording, rank) == {"R1": {n: 3 + n * num_slots - 1 for n in range(1, 6)}}


@given(
    pp_size=st.integers(1, 8),
    depth=st.integers(0, 3),
    at_iteration=st.integers(0, 20),
    chunks=st.integers(1, 9),
    output=st.integers(1, 4),
    latency_us=st.sampled_from([0.0, 30.0]),
    process_us=st.sampled_from([0.0, 700.0]),
    order=st.sampled_from(["stream", "none"]),
)
@settings(max_examples=40, deadline=None)
def test_k_chunks_launched_from_i_deliver_the_nth_token_in_i_plus_K_plus_n_L_minus_2_on_every_rank(
    pp_size: int,
    depth: int,
    at_iteration: int,
    chunks: int,
    output: int,
    latency_us: float,
    process_us: float,
    order: str,
) -> None:
    recording = one_request(
        pp_size,
        depth,
        at_iteration,
        chunks,
        output,
        **{"links.latency_us": latency_us, "host.process_us": process_us, "links.order": order},
    )
    num_slots = pp_size + depth
    first = at_iteration + chunks + num_slots - 2
    for rank in range(pp_size):
        assert deliveries(recording, rank) == {"R1": {n: first + (n - 1) * num_slots for n in range(1, output + 1)}}
    # Chunks run in consecutive iterations, through different slots; then the last chunk's slot decodes.
    prefill = list(range(at_iteration, at_iteration + chunks))
    decode = [prefill[-1] + n * num_slots for n in range(1, output)]
    assert launches(recording)["R1"] == prefill + decode


@given(pp_size=st.integers(1, 4), depth=st.integers(0, 3), chunks=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_a_last_chunk_that_is_not_full_counts_as_a_chunk(pp_size: int, depth: int, chunks: int) -> None:
    request = {"rid": "R1", "prompt": CHUNK * (chunks - 1) + 1, "output": 1, "ignore_eos": True}
    recording = passed(
        {"cluster.pp_size": pp_size, "cluster.pp_async_batch_depth": depth, "workload.requests": [request]}
    )
    assert deliveries(recording)["R1"][1] == chunks + pp_size + depth - 2


def test_requests_in_different_slots_deliver_one_iteration_apart() -> None:
    """Six slots, six requests, one place a slot: the m-th request is launched in iteration m."""
    rows = [{"rid": f"R{m}", "prompt": CHUNK, "output": 3, "ignore_eos": True} for m in range(6)]
    recording = passed({"cluster.pp_size": 4, "cluster.pp_async_batch_depth": 2, "workload.requests": rows})
    assert deliveries(recording) == {f"R{m}": {n: m + n * 6 - 1 for n in (1, 2, 3)} for m in range(6)}
