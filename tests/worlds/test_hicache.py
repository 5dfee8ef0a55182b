"""Cache tiers in whole runs: what load-back saves, what the ranks agree on, delays, aborts, and the planted bugs."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ppsim.core.memory.hicache import HiRadixCache
from ppsim.errors import ScenarioError
from ppsim.plugin import load
from ppsim.recording import PASS, Recording
from ppsim.recording.summary import summarize
from ppsim.report.table import summary_text
from ppsim.scenario.load import load_scenario
from ppsim.world import SimulationResult, simulate
from tests.worlds.making import MS, UNIT, forward_starts, passed, run, situations, tokens_of

ROOT = Path(__file__).resolve().parents[2]
KV_BYTES = 2 * 8 * 128 * 2 * 16  # of a token in the 16 layers of a stage of the default model, at pp_size 2


def row(rid: str, at: int, block: int, **more: Any) -> dict[str, Any]:
    base = {"rid": rid, "prompt": 20, "output": 2, "at_iteration": at, "prefix_blocks": [block], "ignore_eos": True}
    return {**base, **more}


TIERS: dict[str, Any] = {
    **UNIT,
    "scheduler.chunked_prefill_size": 32,
    "scheduler.max_total_tokens": 32,  # one request at a time
    "scheduler.pp_max_micro_batch_size": 4,
    "workload.block_tokens": 16,
    "workload.requests": [row("A1", 0, 1), row("B1", 20, 2), row("A2", 40, 1), row("B2", 60, 2)],
    "hicache.enabled": True,
    "hicache.host_tokens": 128,
    "hicache.device_host_gb_per_s": 1.0,
    "run.invariants": True,
    "run.max_iterations": 2000,
}
STORED: dict[str, Any] = {
    **TIERS,
    "hicache.storage": True,
    "hicache.storage_gb_per_s": 0.5,
    "hicache.storage_hits": [{"rid": "A1", "tokens": [16, 9]}, {"rid": "B2", "tokens": [20, 20]}],
}
POLICIES = ("write_through", "write_back")


def tiers_of(result: SimulationResult, rank: int = 0) -> HiRadixCache:
    tiers = result.setting.ranks[rank].rank.scheduler.kv.tiers
    assert tiers is not None
    return tiers


def first_prefixes(recording: Recording, rank: int = 0) -> dict[str, int]:
    """Tokens that each request found in the cache at its first admission."""
    found: dict[str, int] = {}
    for decision in recording.decisions[rank]:
        for rid, prefix, _ in decision.pieces:
            found.setdefault(rid, prefix)
    return found


# --- what it is for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_an_evicted_prefix_comes_back_from_host_memory(policy: str) -> None:
    changes = {**TIERS, "hicache.write_policy": policy}
    with_host = passed(changes)
    without = passed({**TIERS, "hicache.enabled": False})
    assert first_prefixes(with_host) == {"A1": 0, "B1": 0, "A2": 16, "B2": 16}
    assert set(first_prefixes(without).values()) == {0}
    assert tokens_of(with_host) == tokens_of(without)


def test_a_launch_waits_on_the_device_for_its_load() -> None:
    """A2 is alone: it starts when the copy of its 16 tokens at 1 GB/s (a byte a nanosecond) is over."""
    slow, free = passed(TIERS), passed({**TIERS, "hicache.device_host_gb_per_s": 0.0})
    at = next(d.iteration for d in slow.decisions[0] if any(rid == "A2" for rid, _, _ in d.pieces))
    read = next(i.time_ns for i in slow.ingestions if any(item.rid == "A2" for item in i.inputs))
    assert forward_starts(slow, 0)[at] == read + 16 * KV_BYTES
    at = next(d.iteration for d in free.decisions[0] if any(rid == "A2" for rid, _, _ in d.pieces))
    assert forward_starts(free, 0)[at] == next(
        i.time_ns for i in free.ingestions if any(item.rid == "A2" for item in i.inputs)
    )


def test_the_shipped_scenario_finds_every_document_again() -> None:
    """Four documents of 16384 tokens: a load of 1.07 GB a stage at 50 GB/s (21.5 ms) replaces four chunks."""
    scenario = load_scenario(str(ROOT / "scenarios" / "hicache.toml"))
    recording = simulate(scenario).recording
    assert first_prefixes(recording) == {f"{d}{n}": 16384 * (n - 1) for n in (1, 2) for d in "ABCD"}
    first = {r.rid: r.time_ns for r in reversed(recording.replies) if r.status == "token"}
    ttft = {a.rid: first[a.rid] - a.at_ns for a in recording.arrivals}
    load_ns = 16384 * KV_BYTES // 50
    assert load_ns < ttft["A2"] < ttft["A1"] / 4


def test_the_report_says_how_long_the_links_between_the_tiers_were_busy() -> None:
    """Four loads of 16384 tokens at 50 GB/s; each is a span of its rank as well."""
    result = simulate(load_scenario(str(ROOT / "scenarios" / "hicache.toml")))
    summary = summarize(result.recording, result.verdict)
    load_s = 16384 * KV_BYTES / 50e9
    assert summary["tier_copies"]["load"] == {"num": 4, "busy_s": pytest.approx(4 * load_s)}
    assert f"tiers       4 loads from host {4000 * load_s:.2f} ms, " in summary_text(summary)
    without = summarize(passed(), PASS)
    assert "tier_copies" not in without
    assert "tiers" not in summary_text(without)


def test_storage_fills_the_host_tier_with_what_all_ranks_have() -> None:
    result = run(STORED)
    assert result.verdict.kind == "pass", result.verdict.message
    found = first_prefixes(result.recording)
    assert found["A1"] == 9, "the shorter of 16 and 9"
    assert found["B2"] == 19, "all but the last token of the prompt"


# --- what the ranks agree on -------------------------------------------------------------------------------------


def test_the_smallest_host_capacity_is_everybodys() -> None:
    result = run({**TIERS, "hicache.host_tokens": [100, 60]})
    assert [tiers_of(result, r).host.capacity_tokens for r in (0, 1)] == [60, 60]


def test_bytes_become_the_tokens_of_the_stage_with_most_layers() -> None:
    """3 of 4 layers: 3 * 4096 bytes a token, so 123 KB hold 10 tokens."""
    layers = {"model.num_hidden_layers": 4, "model.layer_partition": [1, 3]}
    changes = {**TIERS, **layers, "hicache.host_tokens": None, "hicache.host_gb": 123e-6}
    assert tiers_of(run(changes), 0).host.capacity_tokens == 123_000 // (3 * 4096)


@pytest.mark.parametrize(("rank", "policy"), list(product((0, 1), POLICIES)))
def test_no_delay_of_any_observation_lets_the_ranks_diverge(rank: int, policy: str) -> None:
    expected = None
    for what, delay in product(("write", "load", "prefetch"), (0, 1, 2, 5, 10)):
        at = [10 * delay if r == rank else 0 for r in (0, 1)]
        facts = [{"what": what, "rid": rid, "at": at} for rid in ("A1", "A2", "B1", "B2")]
        recording = passed({**STORED, "hicache.write_policy": policy, "observations.listed": facts})
        expected = expected or tokens_of(recording)
        assert tokens_of(recording) == expected


def test_a_decode_that_needs_locked_pages_waits_for_the_copy_instead_of_being_aborted() -> None:
    """A1 ends and is being copied for long while A2's output needs the pages that it holds locked."""
    changes = {
        **TIERS,
        "scheduler.max_total_tokens": 48,
        "scheduler.clip_max_new_tokens": 1,
        "workload.requests": [row("A1", 0, 1), row("B1", 0, 2, output=20)],
        "observations.listed": [{"what": "write", "rid": "A1", "at": [60, 60]}],
    }
    result = run(changes)
    assert result.verdict.kind == "pass", result.verdict.message
    assert situations(result.setting.ranks[0].rank)["decode waits for a copy"] > 0
    assert len(tokens_of(result.recording)["B1"]) == 20


def test_a_flush_is_refused_while_a_copy_is_under_way() -> None:
    late = [{"what": "write", "rid": "A1", "at": [15, 15]}]
    for at, status in ((12, "refused"), (18, "finished")):
        recording = passed(
            {
                **TIERS,
                "workload.requests": [row("A1", 0, 1)],
                "observations.listed": late,
                "workload.flushes": [{"rid": "flush", "at_iteration": at}],
            }
        )
        assert [r.status for r in recording.replies if r.rid == "flush"] == [status]


# --- aborts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pp_size", "depth", "policy"), list(product((2, 4), (0, 1, 2), POLICIES)))
def test_an_abort_at_any_iteration_leaves_both_pools_full(pp_size: int, depth: int, policy: str) -> None:
    """Fetching, waiting, loading, running, writing: the end of a run checks pools, locks and copies."""
    ranks = range(pp_size)
    base = {
        **STORED,
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": depth,
        "hicache.write_policy": policy,
        "hicache.storage_hits": [{"rid": rid, "tokens": [16] * pp_size} for rid in ("A1", "A2")],
        "observations.listed": [
            {"what": "prefetch", "rid": "A1", "at": [3 + r for r in ranks]},
            {"what": "load", "rid": "A1", "at": [9 + r for r in ranks]},
            {"what": "write", "rid": "A1", "at": [14 + r for r in ranks]},
        ],
        "workload.requests": [row("A1", 0, 1), row("A2", 24, 2)],
    }
    for at in range(0, 24, 2):
        result = run({**base, "workload.aborts": [{"rid": "A1", "at_iteration": at}]})
        assert result.verdict.kind == "pass", f"abort at {at}: {result.verdict.message}"


# --- planted bugs ------------------------------------------------------------------------------------------------

HOST = {**TIERS, "hicache.host_tokens": [100, 60]}
UNEVEN = {**STORED, "host.schedule_us": 100.0}


@pytest.mark.parametrize(
    ("changes", "bug", "rule"),
    [(HOST, "local_host_capacity", "INV-22"), (UNEVEN, "own_storage_readiness", "INV-28")],
)
def test_a_planted_bug_breaks_what_is_said_here(changes: dict[str, Any], bug: str, rule: str) -> None:
    assert run(changes).verdict.kind == "pass"
    assert run(changes, change=load([bug]).change).verdict.invariant == rule


def test_b07_both_ranks_consume_two_loads_in_iteration_6() -> None:
    """The leader's count 2 is taken over; the second rank, which would see its load in 9, waits 3 ticks of 1 ms."""
    result = simulate(load_scenario(str(ROOT / "scenarios/bugs/b07_load_acks.toml")))
    seen = [o for o in result.recording.observations[0] if o.what == "hicache" and o.iteration == 6]
    assert [o.values for o in seen] == [(1, 1)]
    starts = [r.iteration_starts for r in result.setting.ranks]
    assert starts[1][6] - starts[1][5] >= 3 * MS
    assert [tiers_of(result, r).num_acks[1] for r in (0, 1)] == [2, 2]


def test_b08_all_ranks_use_8192_tokens_and_compute_4096_4096_3616() -> None:
    recording = simulate(load_scenario(str(ROOT / "scenarios/bugs/b08_storage_hits.toml"))).recording
    for rank in range(4):
        pieces = [p for d in recording.decisions[rank] for p in d.pieces]
        assert pieces == [("R1", 8192, 4096), ("R1", 12288, 4096), ("R1", 16384, 3616)]


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hicache.host_tokens": 0}, "less than one page"),
        ({"hicache.host_tokens": [64, 0]}, "stage 1 a host capacity of 0"),
        ({"hicache.host_tokens": None, "hicache.host_gb": 0.0}, "less than one page"),
        ({"hicache.host_gb": 1.0}, "either host_tokens or host_gb"),
        ({"hicache.host_tokens": None}, "either host_tokens or host_gb"),
        ({"hicache.host_tokens": [1, 2, 3]}, "3 entries for 2 stages"),
        ({"hicache.storage_hits": [{"rid": "A1", "tokens": [1, 2]}]}, "hicache.storage is off"),
        ({"hicache.storage": True, "hicache.storage_hits": [{"rid": "A1", "tokens": [1]}]}, "1 entries for 2 ranks"),
        ({"scheduler.disable_radix_cache": True}, "needs the radix cache"),
        ({"disaggregation.role": "decode"}, "not possible with disaggregation.role 'decode'"),
    ],
)
def test_a_contradiction_is_refused_with_a_clear_message(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        run({**TIERS, **changes})
