"""KV links: bytes over bandwidth, in order, behind the forward pass that writes; and what chunks hide behind compute.

bugs.md B34: a transfer that begins before its forward pass has ended sends half-written KV.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.core.surroundings import Surroundings
from tests.worlds.making import changed, launches
from tests.worlds.pd_making import MS, US, at, pair, passed_pair, prefill_of, writes_of

CHUNK = 4
BYTES = 2 * 8 * 128 * 2  # keys and values of one token in one layer: 8 heads of 128 in two bytes


def test_a_write_takes_the_bytes_of_its_stages_layers_over_the_bandwidth() -> None:
    """Layers 10 and 22, 4 tokens, 0.5 GB/s: 4 * 10 * 4096 bytes are 327.68 us, 4 * 22 * 4096 are 720.896 us."""
    result = passed_pair(
        {
            "model.layer_partition": [10, 22],
            "disaggregation.kv_bandwidth_gb_per_s": 0.5,
            "workload.requests": [at(0, 8)],
        }
    )
    for rank, layers in ((0, 10), (1, 22)):
        assert [w.duration_ns for w in writes_of(result, rank)] == [CHUNK * layers * BYTES * 2] * 2


def test_tensor_parallelism_divides_the_bytes_of_a_rank() -> None:
    result = passed_pair(
        {
            "cluster.tp_size": 4,
            "disaggregation.kv_bandwidth_gb_per_s": 0.5,
            "workload.requests": [at(0, 4)],
        }
    )
    assert [w.duration_ns for w in writes_of(result, 0)] == [CHUNK * 16 * BYTES * 2 // 4]


@pytest.mark.parametrize("bandwidth", [0.02, 0.05, 1.0, 0.0])
@pytest.mark.parametrize("latency_us", [0.0, 700.0])
def test_writes_of_a_rank_leave_in_order_one_at_a_time_and_as_early_as_possible(
    bandwidth: float, latency_us: float
) -> None:
    """A recurrence: begin = max(asked, computed, end of the one before); landed = begin + wire + latency."""
    requests = [at(0.3 * n, 5 * n + 3, 2, f"R{n}") for n in range(4)]
    result = passed_pair(
        {
            "disaggregation.kv_bandwidth_gb_per_s": bandwidth,
            "disaggregation.kv_latency_us": latency_us,
            "workload.requests": requests,
        }
    )
    for rank in (0, 1):
        free_ns = 0
        writes = writes_of(result, rank)
        assert len(writes) > 6
        for write in writes:
            assert write.begin_ns == max(write.asked_ns, write.computed_ns, free_ns)
            free_ns = write.begin_ns + write.duration_ns
            assert write.landed_ns == free_ns + latency_us * US
        spans = [(s.start_ns, s.end_ns) for s in prefill_of(result).spans[rank] if s.stream == "kv"]
        assert spans == [(w.begin_ns, w.begin_ns + w.duration_ns) for w in writes]


THREE_CHUNKS: dict[str, Any] = {
    "cluster.pp_async_batch_depth": 1,
    "cost.unit_ms": 10.0,
    "workload.requests": [at(0, 3 * CHUNK)],
}


class AtLaunch(Surroundings):
    """Planted: the completion event of the forward pass is not waited for."""

    def write_begins_ns(self, room: int, rank: int, num_tokens: int, computed_ns: int) -> int:
        return 0


def test_b34_every_write_waits_for_its_forward_pass_and_the_fault_would_break_chunks_0_and_1_only() -> None:
    result = passed_pair(THREE_CHUNKS)
    for rank in (0, 1):
        writes = writes_of(result, rank)
        assert all(write.begin_ns >= write.computed_ns for write in writes)
        # Asked for when the next chunk is scheduled, while the pass still runs; the last one after the harvest.
        # (At depth 0 the harvest of chunk 0 comes before chunk 1 is scheduled again, so only chunk 0 could be early.)
        assert [write.asked_ns < write.computed_ns for write in writes] == [True, True, False]


def test_b34_a_transfer_that_does_not_wait_is_named() -> None:
    verdict = pair(THREE_CHUNKS, change=changed(AtLaunch)).verdict
    assert verdict.kind == "fail"
    assert (verdict.invariant, verdict.rank, verdict.rid) == ("INV-65", 0, "R1")
    assert "write 1 (tokens 0:4): its transfer begins at" in verdict.message
    assert "the forward pass that computes it ends at 10080000 ns" in verdict.message


# --- what chunks hide ------------------------------------------------------------------------------------------


def first_token_ns(changes: dict[str, Any]) -> int:
    recording = passed_pair(changes).recording
    return recording.replies[0].time_ns - recording.arrivals[0].at_ns


def gb_per_s(load: float, layers: int, tau_ms: float) -> float:
    """Bandwidth at which a chunk's KV keeps the link busy for ``load`` of a forward pass. 1 GB/s is a byte a ns."""
    return CHUNK * layers * BYTES / (load * tau_ms * MS)


@pytest.mark.parametrize("pp_size", [2, 4])
def test_chunk_by_chunk_the_transfer_hides_behind_compute(pp_size: int) -> None:
    """32 chunks; a tenth of the link: only the last chunk's transfer shows, 0.1 of 32 + P - 1 passes."""
    chunks, tau_ms = 32, 1.0
    layers = 32 // pp_size
    changes = {"cluster.pp_size": pp_size, "workload.requests": [at(0, chunks * CHUNK)]}
    free = first_token_ns(changes)
    loaded = first_token_ns({**changes, "disaggregation.kv_bandwidth_gb_per_s": gb_per_s(0.1, layers, tau_ms)})
    print(f"pp {pp_size}: TTFT {free / MS:.3f} ms without transfer, {loaded / MS:.3f} ms at a tenth of the link")
    assert loaded <= 1.02 * free
    assert loaded - free == pytest.approx(0.1 * tau_ms * MS, abs=40 * US)  # 40 us: the next visit that looks


def test_without_chunks_the_whole_transfer_shows() -> None:
    """The same bytes behind one pass: all 32 tenths of a pass are seen."""
    whole = {
        "scheduler.chunked_prefill_size": -1,
        "scheduler.max_prefill_tokens": 1024,
        "workload.requests": [at(0, 128)],
    }
    excess = first_token_ns({**whole, "disaggregation.kv_bandwidth_gb_per_s": gb_per_s(0.1, 16, 1.0)})
    excess -= first_token_ns(whole)
    assert excess == pytest.approx(32 * 0.1 * MS, abs=40 * US)


def test_a_link_that_is_slower_than_compute_sets_the_time() -> None:
    """Load 3: from the end of the first pass on the link is never idle, and 32 chunks take 96 passes."""
    result = passed_pair(
        {
            "disaggregation.kv_bandwidth_gb_per_s": gb_per_s(3.0, 16, 1.0),
            "workload.requests": [at(0, 32 * CHUNK)],
        }
    )
    writes = writes_of(result, 1)
    assert len(launches(prefill_of(result))["R1"]) == 32
    assert writes[-1].landed_ns - writes[0].begin_ns == pytest.approx(96 * MS, rel=1e-4)
    assert result.recording.replies[0].time_ns > writes[-1].landed_ns


def test_the_first_token_never_leaves_before_all_kv_has_landed() -> None:
    for latency_us in (0.0, 3000.0):
        result = passed_pair({"disaggregation.kv_latency_us": latency_us, "workload.requests": [at(0, 12)]})
        landed = max(w.landed_ns for rank in (0, 1) for w in writes_of(result, rank))
        assert result.recording.replies[0].time_ns > landed


def test_kv_that_is_lost_is_a_liveness_failure_where_nothing_limits_the_wait() -> None:
    verdict = pair(
        {
            "disaggregation.kv_faults": [{"rid": "R1", "rank": 1, "what": "lost"}],
            "disaggregation.receive_timeout_ms": 0.0,
            "disaggregation.lease_ms": 0.0,
            "workload.requests": [at(0, 12)],
        }
    ).verdict
    assert (verdict.kind, verdict.exit_code) == ("fail", 3)
    assert "1 requests wait for something that will never happen" in verdict.message
    assert "queue inflight: 1 (R1)" in verdict.message
