"""Fill and drain: with P equal stages and M microbatches, (P-1)/(P-1+M) of the time is bubble, exactly.

GPipe (Huang et al., 2019, section 2.3). In the unit model each rank is busy for M units of the M + P - 1 that the run
lasts, so the ratio is the same double as the quotient of the two integers.
"""

from __future__ import annotations

import pytest

from ppsim.recording.summary import bubble_ratio, makespan, stage_times
from tests.worlds.making import MS, forward_starts, passed, requests

LEAN = {"run.check": False, "scheduler.disable_radix_cache": True}
"""Many runs, and nothing here depends on what is cached or compared."""


@pytest.mark.parametrize("pp_size", range(1, 9))
def test_bubble_is_p_minus_1_over_p_minus_1_plus_m_for_up_to_64_chunks(pp_size: int) -> None:
    for num_chunks in range(1, 65):
        recording = passed(
            {
                "cluster.pp_size": pp_size,
                "scheduler.chunked_prefill_size": 1,
                "workload.source": "chunks",
                "workload.num_chunks": num_chunks,
                **LEAN,
            }
        )
        stages = [stage_times(recording, k) for k in range(pp_size)]
        total = (num_chunks + pp_size - 1) * MS
        assert makespan(recording) == total
        assert [stage.busy_ns for stage in stages] == [num_chunks * MS] * pp_size
        assert bubble_ratio(stages) == (pp_size - 1) / (pp_size - 1 + num_chunks)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_chunks_run_through_the_stages_like_a_staircase_at_every_depth(depth: int) -> None:
    recording = passed(
        {
            "cluster.pp_size": 4,
            "cluster.pp_async_batch_depth": depth,
            "workload.source": "chunks",
            "workload.num_chunks": 9,
        }
    )
    for rank in range(4):
        assert forward_starts(recording, rank) == {i: (i + rank) * MS for i in range(9)}


@pytest.mark.parametrize(("pp_size", "num_chunks"), [(1, 5), (2, 3), (4, 16), (8, 1), (8, 244)])
def test_chunked_over_monolithic_prefill_is_p_k_over_p_plus_k_minus_1(pp_size: int, num_chunks: int) -> None:
    """With linear cost (a = c = gamma = 0) a chunk of x tokens takes x / total of the whole prompt."""
    chunk = 64
    common = {
        "cluster.pp_size": pp_size,
        "model.num_hidden_layers": 8,
        "scheduler.max_total_tokens": 32768,
        "scheduler.max_prefill_tokens": 32768,
        **LEAN,
        "cost.source": "quadratic",
        "cost.prefill_c_ms": 0.0,
        "cost.prefill_a_ms_per_token2": 0.0,
        "cost.prefill_b_ms_per_token": 1.0,
        "workload.requests": requests(1, prompt=chunk * num_chunks),
    }
    chunked = passed({**common, "scheduler.chunked_prefill_size": chunk})
    whole = passed({**common, "scheduler.chunked_prefill_size": -1})
    speed_up = makespan(whole) / makespan(chunked)
    assert speed_up == pp_size * num_chunks / (pp_size + num_chunks - 1)
    if (pp_size, num_chunks) == (8, 244):
        assert round(speed_up, 2) == 7.78


def test_fewer_microbatches_than_stages_run_and_use_one_eighth_of_the_stages() -> None:
    """bugs.md B117: one chunk on eight stages."""
    recording = passed({"cluster.pp_size": 8})
    assert bubble_ratio([stage_times(recording, k) for k in range(8)]) == 7 / 8


@pytest.mark.parametrize(("places", "busy_share"), [(8, 1 / 8), (1, 1.0)])
def test_one_batch_of_eight_decodes_keeps_one_stage_busy_and_eight_batches_of_one_keep_all(
    places: int, busy_share: float
) -> None:
    """bugs.md B106: the limit counts per slot, and in the steady state it decides how many stages work."""
    recording = passed(
        {
            "cluster.pp_size": 8,
            "scheduler.pp_max_micro_batch_size": places,
            "scheduler.chunked_prefill_size": 64,
            "workload.requests": requests(8, output=20),
        }
    )
    begin, end = 40 * MS, 120 * MS  # ten rounds of eight units in the steady state
    for rank in range(8):
        spans = [s for s in recording.spans[rank] if begin <= s.start_ns < end]
        assert sum(s.end_ns - s.start_ns for s in spans) == busy_share * (end - begin)
