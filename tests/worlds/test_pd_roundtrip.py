"""Two pipelines deliver what one plain server delivers, in any shape, and each token of KV crosses once a stage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppsim.world.choices import SeededChoices
from tests.worlds.making import UNIT, passed, tokens_of
from tests.worlds.pd_making import at, both, ends, passed_pair, prefill_of, writes_of

REQUESTS = [
    at(0, 10, 5, "R1"),
    at(0, 6, 1, "R2"),
    at(1.3, 17, 4, "R3", stop_after=1),
    at(1.3, 9, 6, "R4", stop_after=3, ignore_eos=False, prefix_blocks=[1]),
    at(9, 12, 3, "R5", prefix_blocks=[1]),
]


def plain(requests: list[dict[str, Any]], **changes: Any) -> dict[str, tuple[int, ...]]:
    """What one server of one stage delivers: another loop, another scheduler path, no votes, no transfers."""
    base = {**UNIT, "cluster.pp_size": 1, "scheduler.pp_max_micro_batch_size": 8, "workload.block_tokens": 4}
    return tokens_of(passed({"workload.requests": requests, **changes}, base))


SHAPES = [(1, 1), (2, 2), (2, 1), (3, 3), (4, 1)]


@pytest.mark.parametrize(("pp_size", "decode_pp_size"), SHAPES)
@pytest.mark.parametrize("bootstrap", ["store", "vote"])
@pytest.mark.parametrize("depth", [0, 2])
def test_the_client_gets_the_tokens_of_a_plain_server(
    pp_size: int, decode_pp_size: int, bootstrap: str, depth: int
) -> None:
    result = passed_pair(
        {
            "cluster.pp_size": pp_size,
            "cluster.pp_async_batch_depth": depth,
            "disaggregation.decode_pp_size": decode_pp_size,
            "disaggregation.decode_pp_async_batch_depth": depth // 2,
            "disaggregation.bootstrap": bootstrap,
            "disaggregation.kv_bandwidth_gb_per_s": 1.0,
            "workload.requests": REQUESTS,
            "workload.block_tokens": 4,
            "run.invariants": True,
        }
    )
    assert tokens_of(result.recording) == plain(REQUESTS)
    # The prefill side answers each request with its first token only.
    assert tokens_of(prefill_of(result)) == {rid: tokens[:1] for rid, tokens in plain(REQUESTS).items()}


@pytest.mark.parametrize(("pp_size", "decode_pp_size"), SHAPES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_each_stage_sends_every_token_of_a_prompt_once_and_in_order(
    pp_size: int, decode_pp_size: int, page_size: int
) -> None:
    result = passed_pair(
        {
            "cluster.pp_size": pp_size,
            "disaggregation.decode_pp_size": decode_pp_size,
            "scheduler.page_size": page_size,
            "workload.requests": REQUESTS,
            "workload.block_tokens": 4,
        }
    )
    for rank in range(pp_size):
        sent: dict[str, list[tuple[int, int, bool]]] = {}
        for write in writes_of(result, rank):
            sent.setdefault(write.rid, []).append((write.start, write.stop, write.is_last))
        for request in REQUESTS:
            parts = sent[request["rid"]]
            assert [start for start, _, _ in parts] == [0, *(stop for _, stop, _ in parts[:-1])]
            assert parts[-1][1:] == (request["prompt"], True)
            assert not any(last for _, _, last in parts[:-1])
            assert all(stop % page_size == 0 for _, stop, _ in parts[:-1])


@pytest.mark.parametrize("tp_replicas", [2, 4])
def test_tensor_parallel_replicas_send_side_by_side(tp_replicas: int) -> None:
    changes = {
        "cluster.tp_size": 4,
        "cluster.tp_replicas": tp_replicas,
        "disaggregation.decode_pp_size": 1,
        "disaggregation.kv_bandwidth_gb_per_s": 1.0,
        "workload.requests": REQUESTS,
        "workload.block_tokens": 4,
        "run.invariants": True,
    }
    result = passed_pair(changes)
    assert tokens_of(result.recording) == plain(REQUESTS)
    ranges = [sorted((w.rid, w.start, w.stop) for w in writes_of(result, r)) for r in range(2 * tp_replicas)]
    assert all(mine == ranges[0] for mine in ranges)


@given(
    seed=st.integers(0, 10**6),
    pp_size=st.integers(1, 3),
    one_stage=st.booleans(),
    bootstrap=st.sampled_from(["store", "vote"]),
    pool=st.sampled_from([48, 64, 1024]),
    schedule_us=st.sampled_from([0.0, 40.0]),
    bandwidth=st.sampled_from([0.0, 0.2]),
    latency_us=st.sampled_from([0.0, 600.0]),
    requests=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 24), st.integers(1, 8)), min_size=1, max_size=5),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_small_load_ends_with_the_plain_tokens_and_the_same_bytes_in_any_order_of_equal_events(
    seed: int,
    pp_size: int,
    one_stage: bool,
    bootstrap: str,
    pool: int,
    schedule_us: float,
    bandwidth: float,
    latency_us: float,
    requests: list[tuple[int, int, int]],
) -> None:
    rows = [at(ms, prompt, output, f"R{n}") for n, (ms, prompt, output) in enumerate(requests)]
    changes = {
        "seed": seed,
        "cluster.pp_size": pp_size,
        "disaggregation.decode_pp_size": 1 if one_stage else pp_size,
        "disaggregation.bootstrap": bootstrap,
        "disaggregation.decode_max_total_tokens": pool,
        "scheduler.max_total_tokens": pool,
        "scheduler.page_size": 2,
        "host.schedule_us": schedule_us,
        "disaggregation.kv_bandwidth_gb_per_s": bandwidth,
        "disaggregation.control_latency_us": latency_us,
        "links.jitter_us": 30.0,
        "workload.requests": rows,
    }
    result = passed_pair(changes)
    replies = ends(result.recording)
    for rid, tokens in plain(rows, seed=seed).items():
        got = tokens_of(result.recording)[rid]
        cut_short = replies[rid][0][1].startswith("out of KV memory")  # alone in its slot of a full decode pool
        assert got == (tokens[: len(got)] if cut_short else tokens)
    shuffled = passed_pair(changes, choices=SeededChoices(seed, shuffle_order=True))
    assert both(shuffled) == both(result)
