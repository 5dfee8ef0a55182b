"""The KV pool: every rank uses the smallest of all; a machine that could never serve anything is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.core.agreed import Agreed, agree
from ppsim.core.rank import Rank
from ppsim.errors import ScenarioError
from ppsim.plan.candidate import Candidate, Split
from ppsim.plan.feasible import pool_tokens
from ppsim.plan.tune import tuned_scenario
from ppsim.scenario.rank import kv_bytes_of_tokens, local_capacity_tokens
from ppsim.world import simulate
from tests.worlds.making import changed, passed, requests, run, scenario, tokens_of

GB = 10**9


@given(pools=st.lists(st.integers(24, 400), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_all_ranks_use_the_smallest_pool(pools: list[int]) -> None:
    result = run(
        {
            "cluster.pp_size": len(pools),
            "scheduler.max_total_tokens": pools,
            "workload.requests": requests(3, prompt=9, output=3),
        }
    )
    assert result.verdict.kind == "pass", result.verdict.message
    assert {r.rank.scheduler.kv.pool.capacity_tokens for r in result.setting.ranks} == {min(pools)}
    same = passed({"cluster.pp_size": len(pools), "scheduler.max_total_tokens": min(pools)} | three_requests())
    assert result.recording.decisions == same.decisions


def three_requests() -> dict[str, Any]:
    return {"workload.requests": requests(3, prompt=9, output=3)}


def test_a_short_pool_retracts_and_every_request_still_gets_its_tokens() -> None:
    """Four requests that grow to 34 tokens each in a pool of 100: some are retracted, none is lost."""
    changes = {
        "scheduler.pp_max_micro_batch_size": 4,
        "scheduler.chunked_prefill_size": 32,
        "scheduler.schedule_conservativeness": 0.1,
        "workload.requests": requests(4, prompt=4, output=30),
    }
    tight = passed({**changes, "scheduler.max_total_tokens": 100})
    wide = passed({**changes, "scheduler.max_total_tokens": 4096})
    assert sum(len(d.retracted) for d in tight.decisions[0]) > 0
    assert sum(len(d.retracted) for d in wide.decisions[0]) == 0
    assert tokens_of(tight) == tokens_of(wide)
    assert all(len(tokens) == 30 for tokens in tokens_of(tight).values())


class OwnPool(Rank):
    """Planted: each rank keeps the pool that its own memory allows (bugs.md B04)."""

    def start(self, capacity_tokens: Agreed[int], host_tokens: Agreed[int] | None = None) -> None:
        super().start(agree(self.local_tokens[0], "nobody else"), host_tokens)


@pytest.mark.parametrize(("pools", "guilty"), [([400, 100], 0), ([100, 400], 1)])
def test_ranks_with_pools_of_their_own_are_found_out_at_once(pools: list[int], guilty: int) -> None:
    """Agreed is the smallest: whoever keeps 400 tokens is to blame, not the rank whose 100 are the agreed pool."""
    made = scenario({"scheduler.max_total_tokens": pools, **three_requests()})
    verdict = simulate(made, change=changed(OwnPool)).verdict
    assert (verdict.exit_code, verdict.rank, verdict.iteration) == (1, guilty, 0)


# --- from the memory of a GPU ------------------------------------------------------------------------------------

LLAMA_8B = {"scheduler.max_total_tokens": None, "scheduler.chunked_prefill_size": 4096, "cost.source": "quadratic"}
LAYER_BYTES = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
TABLE_BYTES = 2 * 128256 * 4096
KV_BYTES_PER_LAYER = 2 * 8 * 128 * 2  # keys and values of 8 heads of 128, BF16: 4 KiB a layer, 128 KiB at 32 layers


@pytest.mark.parametrize("pp_size", [1, 2, 4])
def test_the_pool_is_what_the_weights_leave_of_the_memory(pp_size: int) -> None:
    """Llama-3.1-8B (32 layers, hidden 4096, 8 KV heads): 80 GB at 0.85."""
    made = scenario({**LLAMA_8B, "cluster.pp_size": pp_size})
    layers = 32 // pp_size
    for stage in range(pp_size):
        tables = (stage == 0) + (stage == pp_size - 1)
        left = 68 * GB - layers * LAYER_BYTES - tables * TABLE_BYTES
        assert local_capacity_tokens(made, stage) == left // (KV_BYTES_PER_LAYER * layers)


@pytest.mark.parametrize("tp_size", [8, 16, 32])
def test_heads_of_keys_and_values_are_kept_twice_beyond_their_number(tp_size: int) -> None:
    """8 KV heads on 16 GPUs: each keeps a whole one, so the second 8 hold no more a token (as SGLang cuts them)."""
    made = scenario({**LLAMA_8B, "cluster.tp_size": tp_size})
    left = 68 * GB - (16 * LAYER_BYTES + TABLE_BYTES) / tp_size
    per_token = KV_BYTES_PER_LAYER / 8 * 16  # one head of the 16 layers of half the model
    assert local_capacity_tokens(made, 0) == int(left / per_token)
    assert kv_bytes_of_tokens(made, 0, 100) == 100 * per_token  # what a transfer of such a cache moves
    assert pool_tokens(made, Split(2, tp_size), (16, 16)) == int(left / per_token)


@pytest.mark.parametrize("given", [3000, [3000, 5000], [5000, 3000]])
def test_the_tuner_has_the_pool_that_the_ranks_would_agree_on(given: int | list[int]) -> None:
    """Set by hand, one number or one a rank: the smallest, in whatever split."""
    made = scenario({**LLAMA_8B, "scheduler.chunked_prefill_size": 1024, "scheduler.max_total_tokens": given})
    split = Split(4, 1)
    assert pool_tokens(made, split, (8, 8, 8, 8)) == 3000
    tuned = tuned_scenario(made, Candidate(split, 0, 1024, 0.0, (8, 8, 8, 8)))
    assert tuned.scheduler.max_total_tokens == 3000


def test_the_agreed_pool_is_that_of_the_stage_with_the_largest_table() -> None:
    result = run({**LLAMA_8B, "cluster.pp_size": 4, "scheduler.page_size": 64, "workload.requests": requests(1)})
    locals_ = [local_capacity_tokens(result.setting.scenario, stage) for stage in range(4)]
    assert locals_[1] == locals_[2] > locals_[0]
    agreed = {r.rank.scheduler.kv.pool.capacity_tokens for r in result.setting.ranks}
    assert agreed == {min(locals_) // 64 * 64}


def test_tied_embeddings_are_held_twice_only_where_first_and_last_stage_differ() -> None:
    one, two = ({**LLAMA_8B, "cluster.pp_size": p, "model.tie_word_embeddings": True} for p in (1, 2))
    per_token = KV_BYTES_PER_LAYER * 32
    untied = scenario({**LLAMA_8B, "cluster.pp_size": 1})
    saved = local_capacity_tokens(scenario(one), 0) - local_capacity_tokens(untied, 0)
    assert saved == pytest.approx(TABLE_BYTES / per_token, abs=1)
    plain = scenario({**LLAMA_8B, "cluster.pp_size": 2})
    assert local_capacity_tokens(scenario(two), 1) == local_capacity_tokens(plain, 1)


def test_weights_larger_than_the_memory_are_refused_before_the_run() -> None:
    need = r"16\.06 GB of weights and 0\.54 GB of cache for 4096 tokens, 13\.60 GB are usable"
    with pytest.raises(ScenarioError, match=rf"gpu\.memory_gb: stage 0 lacks 3\.00 GB: 32 layers need {need}"):
        run({**LLAMA_8B, "cluster.pp_size": 1, "gpu.memory_gb": 16.0})


def test_memory_for_less_than_one_chunk_is_refused() -> None:
    enough = (16 * LAYER_BYTES + TABLE_BYTES + 4096 * 16 * KV_BYTES_PER_LAYER) / 0.85 / GB
    run({**LLAMA_8B, "gpu.memory_gb": enough + 0.001})
    with pytest.raises(
        ScenarioError, match=r"16 layers need 8\.03 GB of weights and 0\.27 GB of cache for 4096 tokens"
    ):
        run({**LLAMA_8B, "gpu.memory_gb": enough - 0.001})
