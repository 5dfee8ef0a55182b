"""Tensor-parallel replicas of a stage: same inputs by broadcast, same decisions, the smallest pool of all.

``tp_size`` divides the cost of a stage; ``tp_replicas`` of its ranks run as schedulers of their own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ppsim.core.effects import Send
from ppsim.core.messages import Lane, Meta
from ppsim.core.policy import Policy
from ppsim.core.schedule.request import Request
from ppsim.recording.digest import digests_of
from ppsim.recording.summary import summarize
from ppsim.scenario.rank import local_capacity_tokens
from ppsim.world import simulate
from ppsim.world.driver import SimulatedRank
from tests.worlds.making import changed, forward_starts, passed, requests, run, scenario, tokens_of

LOAD: dict[str, Any] = {
    "cluster.tp_size": 4,
    "scheduler.pp_max_micro_batch_size": 2,
    "workload.requests": [*requests(5, prompt=11, output=4)],
}


@pytest.mark.parametrize("pp_size", [1, 2, 3])
@pytest.mark.parametrize("replicas", [2, 4])
def test_all_replicas_of_all_stages_decide_and_deliver_alike(pp_size: int, replicas: int) -> None:
    recording = passed({**LOAD, "cluster.pp_size": pp_size, "cluster.tp_replicas": replicas})
    assert recording.num_ranks == pp_size * replicas
    assert len(set(digests_of(recording).decisions)) == 1
    assert all(recording.harvests[rank] == recording.harvests[0] for rank in range(recording.num_ranks))
    alone = passed({**LOAD, "cluster.pp_size": pp_size})
    assert tokens_of(recording) == tokens_of(alone)
    assert recording.decisions[0] == alone.decisions[0]
    for rank in range(recording.num_ranks):  # links and hosts are free: replicas keep the pace of their stage
        assert forward_starts(recording, rank) == forward_starts(alone, rank // replicas)


@pytest.mark.parametrize("replicas", [2, 4])
def test_the_request_list_goes_down_the_leaders_and_is_broadcast_inside_each_stage(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int, Lane, int]] = []
    send = SimulatedRank._send

    def watched(rank: SimulatedRank, effect: Send) -> Any:
        if isinstance(effect.message, Meta):
            sent.append((rank.rank_id, effect.dst, effect.message.lane, effect.message.iteration))
        return send(rank, effect)

    monkeypatch.setattr(SimulatedRank, "_send", watched)
    recording = passed({**LOAD, "cluster.pp_size": 3, "cluster.tp_replicas": replicas})
    leaders = [stage * replicas for stage in range(3)]
    routes = {(a, b, Lane.CONTROL) for a, b in pairwise(leaders)}
    routes |= {(leader, leader + t, Lane.TP) for leader in leaders for t in range(1, replicas)}
    num_iterations = len(recording.decisions[0]) + 1  # and the one that says Shutdown
    assert sorted(sent, key=repr) == sorted(
        ((a, b, lane, i) for a, b, lane in routes for i in range(num_iterations)), key=repr
    )


def test_the_smallest_pool_of_any_replica_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 3 (stage 1, replica 1) has room for fewer tokens than the others."""
    make = SimulatedRank.__init__

    def make_smaller(rank: SimulatedRank, *args: Any) -> None:
        make(rank, *args)
        if rank.rank_id == 3:
            rank.local_capacity = 48

    monkeypatch.setattr(SimulatedRank, "__init__", make_smaller)
    result = run({**LOAD, "cluster.pp_size": 2, "cluster.tp_replicas": 2, "scheduler.max_total_tokens": 4096})
    assert result.verdict.kind == "pass", result.verdict.message
    assert [r.rank.scheduler.kv.pool.capacity_tokens for r in result.setting.ranks] == [48] * 4
    assert [r[0].values for r in result.recording.observations] == [(4096,), (4096,), (4096,), (48,)]


def test_a_stage_of_tp_4_takes_a_quarter_of_the_time_plus_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """One prompt of 100 tokens at 0.1 ms each; ring all-reduce of volume 2 (t-1)/t (Patarasuk and Yuan, 2009)."""
    one_prompt = {
        "cluster.pp_size": 1,
        "scheduler.chunked_prefill_size": 128,
        "cost.source": "quadratic",
        "cost.prefill_c_ms": 0.0,
        "cost.prefill_a_ms_per_token2": 0.0,
        "cost.prefill_b_ms_per_token": 0.1,
        "workload.requests": requests(1, prompt=100),
    }

    def forward_ms(tp_size: int, comm_ms: float) -> float:
        recording = passed({**one_prompt, "cluster.tp_size": tp_size, "cost.tp_comm_ms_per_token": comm_ms})
        return float(summarize(recording, run().verdict)["stages"][0]["busy_s"]) * 1000

    assert forward_ms(1, 0.02) == pytest.approx(10.0)
    assert forward_ms(4, 0.0) == pytest.approx(10.0 / 4)
    assert forward_ms(4, 0.02) == pytest.approx(10.0 / 4 + 2 * 3 / 4 * 0.02 * 100)


def test_tp_size_divides_weights_and_kv_in_memory() -> None:
    """Both shrink by tp: what is left of the budget grows by more than tp."""
    unset = {"scheduler.max_total_tokens": None, "scheduler.chunked_prefill_size": 64}
    one, four = (local_capacity_tokens(scenario({**unset, "cluster.tp_size": tp}), 0) for tp in (1, 4))
    layers, kv_heads, head_dim, two_bytes = 16, 8, 128, 2
    assert four == pytest.approx(
        4 * one + (4 - 1) * weight_bytes() / (2 * kv_heads * head_dim * two_bytes * layers), abs=8
    )


def weight_bytes() -> int:
    """First of two stages of the default model: 16 layers and the embedding, two bytes a weight."""
    hidden, intermediate, kv = 4096, 14336, 8 * 128
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * intermediate + 2 * hidden
    return 2 * (16 * layer + 128256 * hidden)


class ReversedOnReplica(Policy):
    """Planted: replica 1 of stage 1 tries waiting requests in another order."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        return list(reversed(waiting)) if (self.pp_rank, self.tp_rank) == (1, 1) else waiting


def test_a_replica_that_decides_otherwise_is_named_in_the_first_iteration_that_differs() -> None:
    made = scenario({**LOAD, "cluster.pp_size": 2, "cluster.tp_replicas": 2})
    verdict = simulate(made, change=changed(ReversedOnReplica)).verdict
    assert (verdict.exit_code, verdict.iteration, verdict.invariant) == (1, 0, "INV-10")
    assert verdict.rank == 3
