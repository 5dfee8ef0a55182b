"""A key without effect in some mode of the scenario is told, and what is told has none.

Every key of the tree in the situation in which it matters (``test_scenario_keys``), moved into every mode: another cost
source, another role, one stage, no radix cache, no chunks. Where the changed key changes nothing that a user can see, a
warning must name it, or ``QUIET`` says why it is the situation and not the mode.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.errors import PpsimError
from ppsim.recording.writer import lines
from ppsim.scenario.effects import RULES, value_at
from ppsim.scenario.tree import Scenario
from tests.unit.test_scenario_keys import KEYS, behaviour
from tests.worlds.making import requests, run

MODES: dict[str, dict[str, Any]] = {
    "unit": {"cost.source": "unit"},
    "quadratic": {"cost.source": "quadratic"},
    "roofline": {"cost.source": "roofline", "model.key": "qwen3-8b", "gpu.key": "h100"},
    "key": {"cost.source": "quadratic", "model.key": "qwen3-8b"},
    "prefill": {"disaggregation.role": "prefill"},
    "decode": {
        "disaggregation.role": "decode",
        "disaggregation.num_reserved_decode_tokens": 4,
        "workload.requests": requests(3, prompt=20, output=6),
    },
    "pd": {"disaggregation.role": "pd"},
    "one stage": {"cluster.pp_size": 1},
    "no radix cache": {"scheduler.disable_radix_cache": True},
    "no chunks": {"scheduler.chunked_prefill_size": -1},
}
QUIET: dict[str, dict[str, str]] = {  # by mode: the situation, not the mode, is why the key does nothing
    "decode": {
        "three requests decode alike in one batch: nothing comes between": """chance.max_failed_allocations
            chance.max_good_allocations
            chance.pause_iterations chance.stops cluster.comm_overlap cluster.cuda_graph host.idle_poll_us links.commit
            links.latency_on_stream links.order run.max_wait_iterations scheduler.clip_max_new_tokens
            run.max_retractions run.max_wait_ms
            links.commit_over links.graph_fence links.token_read scheduler.exchange_order
            scheduler.pp_max_micro_batch_size scheduler.reopen_empty_slots scheduler.reserve_decode scheduler.rules
            workload.requests.priority workload.requests.return_logprob""",
        "a step of three rows waits for memory": "cost.efficiency gpu.bf16_tflops gpu.fp4_tflops gpu.fp8_tflops",
        "the listed fact is a grammar's, and no request has one here": """observations.listed.at
            observations.listed.failed observations.listed.rid observations.listed.what observations.tick_ms""",
    },
    "key": {"messages are too short to block": "links.graph_fence links.send"},
    "quadratic": {"messages are too short to block": "links.graph_fence links.send"},
    "no radix cache": {"no prefix is kept, so there is room": "scheduler.clip_max_new_tokens"},
    "roofline": {"messages are too short to block": "links.order links.send"},
    "no chunks": {
        "a prompt in one piece has no prefix": "cost.prefill_gamma_ms_per_token",
        "nobody waits": "run.max_wait_iterations scheduler.prefill_decode_interval",
        "there is no chunk whose output could be skipped": "workload.requests.return_logprob",
    },
    "one stage": {
        "both sides have one stage": "disaggregation.decode_pp_size",
        "describes the model to the executor": "model.hidden_size",
        "the long prompt ends before anything decodes": "scheduler.enable_mixed_chunk",
        "there is no output to send": "workload.requests.return_logprob",
        "one slot is never passed over": """scheduler.defer_empty_visits scheduler.empty_chunk_pieces
            scheduler.reopen_empty_slots scheduler.rules""",
    },
    "pd": {
        "one request": "cluster.pp_async_batch_depth scheduler.skip_pure_chunked_output_comm",
        "the pools are large": """disaggregation.num_reserved_decode_tokens scheduler.clip_max_new_tokens
            run.max_retractions scheduler.max_total_tokens workload.requests.return_logprob""",
        "messages are too short to block": "links.graph_fence",
        "a chunk fits beside the other row": "scheduler.chunk_counts_as_row",
        "the pause falls into idle time": "faults.pauses.at_iteration faults.pauses.rank",
    },
    "prefill": {
        "chunks are long enough to wait for arithmetic": "gpu.hbm_gb_per_s",
        "one token fits where four do not": "scheduler.context_length",
        "messages are too short to block": "links.graph_fence",
        "a batch ends with its prefill, so no slot closes": """scheduler.chunk_counts_as_row
            scheduler.reopen_empty_slots scheduler.rules""",
    },
    "unit": {"what a stage owns is agreed between the ranks (b64)": "model.layer_partition"},
}
Shown = tuple[tuple[str, ...], str]


RUNS: dict[str, Shown | None] = {}


def shown(changes: dict[str, Any]) -> Shown | None:
    """Lines of the recording without the inputs, and its warnings; None where the scenario is refused."""
    key = repr(sorted(changes.items()))
    if key not in RUNS:
        try:
            result = run({"run.max_iterations": 2000, **changes}, {})
            found = [*lines(result.recording), str(result.setting.network.num_sent), str(result.verdict)]
            seen = tuple(line for line in found if not line.startswith(("{", '["ingested', '["warning')))
            RUNS[key] = (seen, "\n".join(line for line in found if line.startswith('["warning')))
        except PpsimError:
            RUNS[key] = None
    return RUNS[key]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_key_is_told_in_a_mode_just_where_it_does_nothing(mode: str) -> None:
    silent, wrong = [], []
    quiet = {key for keys in QUIET.get(mode, {}).values() for key in keys.split()}
    for key, case in sorted(KEYS.items()):
        switch = {k: v for k, v in MODES[mode].items() if not key.startswith(k)} if "requests" in key else MODES[mode]
        if case.sees is not behaviour or key in switch:
            continue
        before, after = shown({**case.base, **switch}), shown({**case.base, **case.change, **switch})
        if before is None or after is None:
            continue
        is_told = any(f"{k} has no effect" in after[1] for k in (key, key.rpartition(".")[0]) if k)
        if before == after and not is_told and key not in quiet:
            silent.append(key)
        if before[0] != after[0] and is_told:
            wrong.append(key)
    assert not silent, f"nothing changes, and nothing is said: {silent}"
    assert not wrong, f"said to have no effect: {wrong}"


def test_every_rule_names_keys_of_the_tree_and_says_why() -> None:
    usual = Scenario()
    for rule in RULES:
        assert rule.keys
        for key in rule.keys:
            value_at(usual, key)
        assert rule.why.format(s=usual)
