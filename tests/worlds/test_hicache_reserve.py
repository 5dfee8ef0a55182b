"""Host memory behind the cache together with the two rules of reserving decode growth, and with a prefill server.

Copies lock device pages until their acknowledgements are consumed, and admission counts only what can be had: with
``all_slots`` each decode step must fit all the same (docs/decisions/0001-open-choices.md), however late they are seen.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.worlds.making import UNIT, run, situations, tokens_of
from tests.worlds.pd_making import at, ends, passed_pair, prefill_of, writes_of


def crowd(seed: int) -> dict[str, Any]:
    """4 to 10 requests that share prompts' beginnings; the pool holds the largest alone, with little to spare."""
    rng = Random(f"tiers and reserves {seed}")
    page, iteration = rng.choice([1, 1, 4]), 0
    rows: list[dict[str, Any]] = []
    for n in range(rng.randint(4, 10)):
        iteration += rng.choice([0, 0, 1, 4])
        size = {"prompt": rng.randint(8, 64), "output": rng.randint(1, 32), "ignore_eos": True}
        rows.append({"rid": f"R{n}", **size, "at_iteration": iteration, "prefix_blocks": [rng.randint(1, 3)]})
    largest = max(row["prompt"] + row["output"] for row in rows)
    return {
        **UNIT,
        "cluster.pp_size": rng.choice([1, 2, 3]),
        "cluster.pp_async_batch_depth": rng.choice([0, 0, 1]),
        "scheduler.page_size": page,
        "scheduler.chunked_prefill_size": rng.choice([16, 32]),
        "scheduler.max_total_tokens": (int(largest * rng.uniform(1.05, 1.6)) // page + 2) * page,
        "scheduler.pp_max_micro_batch_size": rng.choice([2, 4, 8]),
        "workload.block_tokens": 16,
        "workload.requests": rows,
        "hicache.enabled": True,
        "hicache.host_tokens": rng.choice([64, 256]),
        "hicache.device_host_gb_per_s": rng.choice([0.0, 0.05]),
        "observations.max_delay": rng.choice([0, 2, 6]),
        "run.invariants": True,
        "run.max_iterations": 4000,
    }


def counted(seed: int, **changes: Any) -> tuple[int, int, int]:
    """Aborts for want of memory, retractions, parked chunks; the verdict has checked both pools and all replies."""
    result = run({**crowd(seed), **changes})
    assert result.verdict.kind == "pass", f"seed {seed}: {result.verdict.message}"
    met = situations(result.setting.ranks[0].rank)
    return met["unfit"], met["retracted"], met["chunk parked"]


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_with_all_slots_reserved_nobody_is_robbed_of_memory_by_a_copy(policy: str) -> None:
    robbed = 0
    for seed in range(14):
        tiers = {"hicache.write_policy": policy}
        assert counted(seed, **tiers, **{"scheduler.reserve_decode": "all_slots"}) == (0, 0, 0), seed
        robbed += counted(seed, **tiers)[0]
    assert robbed > 0, "else this shows nothing: reserving the slot only must leave somebody without memory"


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_a_prefill_server_with_host_memory_keeps_what_is_sent_until_its_release(policy: str) -> None:
    """Transfers end up to six iterations apart, copies too; the audit holds pages and queues of all ranks together."""
    for seed in range(8):
        counted(seed, **{"hicache.write_policy": policy, "disaggregation.role": "prefill", "observations.max_delay": 6})


@pytest.mark.parametrize("depth", [0, 1])
def test_an_abort_on_a_prefill_server_with_host_memory_leaves_both_pools_full(depth: int) -> None:
    """Handshake, fetch, waiting, loading, launched, sent, written: an abort of A in every second iteration."""
    base = {
        **UNIT,
        "cluster.pp_async_batch_depth": depth,
        "disaggregation.role": "prefill",
        "scheduler.max_total_tokens": 48,
        "workload.block_tokens": 16,
        "workload.requests": [
            {"rid": "A", "prompt": 20, "at_iteration": 0, "prefix_blocks": [1]},
            {"rid": "B", "prompt": 20, "at_iteration": 1, "prefix_blocks": [1]},
        ],
        "hicache.enabled": True,
        "hicache.host_tokens": 64,
        "hicache.storage": True,
        "hicache.storage_hits": [{"rid": rid, "tokens": [16, 12]} for rid in "AB"],
        "observations.listed": [
            {"what": "bootstrap", "rid": "A", "at": [2, 4]},
            {"what": "prefetch", "rid": "A", "at": [5, 6]},
            {"what": "load", "rid": "A", "at": [9, 10]},
            {"what": "transfer", "rid": "A", "at": [14, 17]},
            {"what": "write", "rid": "A", "at": [16, 19]},
        ],
        "run.invariants": True,
    }
    statuses = set()
    for iteration in range(0, 26, 2):
        result = run({**base, "workload.aborts": [{"rid": "A", "at_iteration": iteration}]})
        assert result.verdict.kind == "pass", f"abort at {iteration}: {result.verdict.message}"
        replies = ends(result.recording)
        assert [len(mine) for mine in replies.values()] == [1, 1]
        statuses.add(replies["A"][0][0])
    assert statuses == {"aborted", "finished"}


# --- two pipelines: the host tier is the prefill side's --------------------------------------------------------------

DOCUMENTS: dict[str, Any] = {
    "scheduler.max_total_tokens": 40,
    "scheduler.chunked_prefill_size": 32,
    "workload.block_tokens": 16,
    "workload.requests": [
        at(30.0 * n, 20 + 2 * n, 3, f"{name}{n}", prefix_blocks=[ord(name)]) for n, name in enumerate("ABAB")
    ],
    "disaggregation.kv_bandwidth_gb_per_s": 0.2,
    "hicache.host_tokens": 128,
    "hicache.device_host_gb_per_s": 0.05,
    "run.invariants": True,
}
"""Two documents in turn; the device pool holds one of them and a request."""


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("decode_pp_size", [1, 2])
def test_what_comes_back_from_host_memory_is_sent_like_what_was_computed(policy: str, decode_pp_size: int) -> None:
    shape = {**DOCUMENTS, "disaggregation.decode_pp_size": decode_pp_size}
    with_host = passed_pair({**shape, "hicache.enabled": True, "hicache.write_policy": policy})
    without = passed_pair(shape)
    assert tokens_of(with_host.recording) == tokens_of(without.recording)
    for result, found in ((with_host, 16), (without, 0)):
        prefixes: dict[str, int] = {}
        for decision in prefill_of(result).decisions[0]:
            for rid, prefix, _ in decision.pieces:
                prefixes.setdefault(rid, prefix)
        assert prefixes == {"A0": 0, "B1": 0, "A2": found, "B3": found}
    for rank in (0, 1):
        loads = [s for s in prefill_of(with_host).spans[rank] if s.stream == "load"]
        assert len(loads) == 2
        for load, rid in zip(loads, ("A2", "B3"), strict=True):
            writes = [w for w in writes_of(with_host, rank) if w.rid == rid]
            assert writes[0].start == 0, "all of the prompt goes to the decode side"
            assert min(w.begin_ns for w in writes) >= load.end_ns
    assert [r.rank.scheduler.kv.tiers for r in with_host.setting.ranks] == [None] * decode_pp_size
