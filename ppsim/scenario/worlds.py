"""What each key of a scenario means in each world: honoured, refused, told, or the other world's alone.

Rule: no key is passed over in silence. ``WORLDS`` has a row for each; ``tests/unit/test_worlds.py`` fails on a key
without one. Simulation honours every key but the two that only say which model the executor loads; of keys that matter
in some modes alone ``effects.py`` and ``warn.py`` tell. On real processes stages, links and hosts take the time that
they take: what would give them a time is told, what the executor has no part for is refused.

    honoured   it does what it says
    refused    exit code 2 before a process starts, if it is set to what the world lacks (``executor/prepare.py``)
    told       a warning at the start, if it is not the default
    other      describes something to the other world, and means nothing here: one file is for both
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from ppsim.scenario.effects import value_at
from ppsim.scenario.tree import Scenario


class Fate(StrEnum):
    """What becomes of a key in a world."""

    HONOURED = "honoured"
    REFUSED = "refused"
    TOLD = "told"
    OTHER = "other"


class Row(NamedTuple):
    """A key in both worlds. ``why``: not honoured in ``exec``. ``unless``: scenarios in which it is honoured there."""

    run: Fate
    exec: Fate
    why: str = ""
    unless: Callable[[Scenario], bool] | None = None
    when: str = ""  # ``unless`` in words


def chunks_follow_costs(s: Scenario) -> bool:
    c = s.scheduler
    return c.enable_dynamic_chunking and c.chunked_prefill_size != -1


def pool_follows_memory(s: Scenario) -> bool:
    return s.scheduler.max_total_tokens is None


def costs_follow_gpu(s: Scenario) -> bool:
    return chunks_follow_costs(s) and s.cost.source == "roofline"


def decides_or_costs(s: Scenario) -> bool:
    return pool_follows_memory(s) or costs_follow_gpu(s)


HONOURED = """
    name description engine launch_line seed bugs
    cluster.pp_size cluster.pp_async_batch_depth cluster.cuda_graph
    scheduler.rules scheduler.reopen_empty_slots scheduler.defer_empty_visits scheduler.empty_chunk_pieces
    scheduler.chunk_counts_as_row scheduler.evict_ahead scheduler.schedule_policy scheduler.chunked_prefill_size
    scheduler.enable_dynamic_chunking scheduler.dynamic_chunking_smooth_factor scheduler.chunk_planner
    scheduler.max_prefill_tokens scheduler.prefill_max_requests scheduler.enable_mixed_chunk
    scheduler.prefill_decode_interval scheduler.max_consecutive_prefills scheduler.max_consecutive_chunks
    scheduler.schedule_conservativeness scheduler.max_running_requests scheduler.pp_max_micro_batch_size
    scheduler.max_total_tokens scheduler.page_size scheduler.disable_radix_cache scheduler.context_length
    scheduler.clip_max_new_tokens scheduler.reserve_decode scheduler.hidden_send
    scheduler.skip_pure_chunked_output_comm scheduler.exchange_order
    model.num_hidden_layers model.hidden_size model.intermediate_size model.num_attention_heads
    model.num_key_value_heads model.head_dim model.vocab_size model.tie_word_embeddings model.layer_partition
    links.early_send
    workload.source workload.requests.rid workload.requests.at_iteration workload.requests.at_ms
    workload.requests.prompt workload.requests.output workload.requests.prefix_blocks workload.requests.stop_after
    workload.requests.ignore_eos workload.requests.priority workload.requests.return_logprob workload.requests.grammar
    workload.aborts.rid workload.aborts.abort_all workload.aborts.at_iteration workload.aborts.at_ms
    workload.flushes.rid workload.flushes.at_iteration
    workload.num_chunks workload.num_requests workload.arrival workload.rate_per_s
    workload.input_length.kind workload.input_length.value workload.input_length.mean workload.input_length.sigma
    workload.input_length.min workload.input_length.max
    workload.output_length.kind workload.output_length.value workload.output_length.mean workload.output_length.sigma
    workload.output_length.min workload.output_length.max
    workload.num_prefixes workload.prefix_tokens workload.block_tokens workload.trace workload.time_unit
    workload.columns.time workload.columns.prompt workload.columns.output workload.tokenizer workload.skip_bad_lines
    workload.time_scale workload.concurrency workload.num_sessions workload.num_turns
    workload.turn_input_length.kind workload.turn_input_length.value workload.turn_input_length.mean
    workload.turn_input_length.sigma workload.turn_input_length.min workload.turn_input_length.max
    workload.think_time_ms workload.think_time workload.ignore_eos workload.eos_probability
    disaggregation.bootstrap disaggregation.variant
    observations.max_delay observations.listed.what observations.listed.rid observations.listed.at
    observations.listed.failed observations.tick_ms
    timeouts.waiting_ms timeouts.running_ms
    faults.clock_skew_ms faults.pauses.rank faults.pauses.at_iteration faults.pauses.ms
    run.compress run.check run.max_iterations run.max_wait_iterations run.max_retractions run.max_wait_ms
    run.max_agreement_wait_ms run.watchdog_ms run.consensus_check_interval
    expect.verdict expect.rule expect.rank expect.iteration expect.rid expect.figures.value expect.figures.tolerance
    expect.bugs.verdict expect.bugs.rule expect.bugs.rank expect.bugs.iteration expect.bugs.rid
    expect.bugs.figures.value expect.bugs.figures.tolerance expect.changed
"""

REFUSED = {
    "model.dtype_bytes": "weights and KV are float32 or bfloat16, not of one byte",
    "model.key": "what it names must be the model that is computed: that of [model], or the checkpoint",
    "model.kv_cache_dtype": "keys and values are kept as they are computed",
    "model.quantization": "no weights are quantised",
    "cluster.tp_size": "one process computes a stage",
    "cluster.tp_replicas": "one process computes a stage",
    "disaggregation.role": "there is no KV transport between two servers: 'plain' and 'prefill' run",
    "hicache.enabled": "KV is kept on the device only",
    **dict.fromkeys(
        (
            *("chance.max_arrival_delay", "chance.max_abort_delay", "chance.max_clock_skew_ms"),
            *("chance.pause_iterations", "chance.pause_ms", "chance.max_lost_pages", "chance.max_failed_allocations"),
            *("chance.max_good_allocations", "chance.stops"),
        ),
        "nobody decides by chance here what a scenario leaves open",
    ),
    "workload.aborts.side": "one server has no sides",
}
ALL_BUT_TWO = "INV-07 and INV-08 compare where two ranks are at one moment, which nobody knows here"

STAGE = "a stage takes the time that it takes"
MESSAGE = "a message takes the time that it takes, gloo sends and receives as it does"
OWN_TIME = "a process takes the time that it takes"
TWO_SIDES = "there is one server, whose peer is modelled by observations"
TIERS = "KV is kept on the device only"
STATES = "the executor's models keep no states of requests"
TOLD: tuple[tuple[str, str, Callable[[Scenario], bool] | None, str], ...] = (
    ("cluster.cp_size cluster.gpus_per_node cluster.nics_per_node cluster.comm_overlap", STAGE, None, ""),
    ("scheduler.max_mamba_cache_size scheduler.mamba_full_memory_ratio", STATES, None, ""),
    (
        "gpu.memory_gb gpu.mem_fraction_static",
        "the pool is given by scheduler.max_total_tokens",
        pool_follows_memory,
        "without scheduler.max_total_tokens",
    ),
    ("run.keep", "each process writes its records as they come, and the recording keeps them all", None, ""),
    ("gpu.key", STAGE, decides_or_costs, "without scheduler.max_total_tokens, or with dynamic chunks of a roofline"),
    (
        "gpu.bf16_tflops gpu.fp8_tflops gpu.fp4_tflops gpu.hbm_gb_per_s gpu.link_gb_per_s gpu.nic_gb_per_s",
        STAGE,
        costs_follow_gpu,
        "with dynamic chunks of a roofline",
    ),
    (
        """cost.source cost.unit_ms cost.efficiency cost.tp_gb_per_s cost.link_latency_us cost.nic_latency_us
        cost.all_reduce_us cost.layer_overhead_us cost.prefill_floor_ms cost.prefill_c_ms cost.prefill_first_ms
        cost.prefill_gamma_ms_per_token cost.prefill_b_ms_per_token cost.prefill_a_ms_per_token2 cost.prefill_c_once
        cost.tp_comm_ms_per_token""",
        STAGE,
        chunks_follow_costs,
        "with scheduler.enable_dynamic_chunking",
    ),
    (
        "cost.slot_ms cost.decode_c_ms cost.decode_row_ms cost.decode_kv_ms_per_token cost.decode_reads_own_token",
        STAGE,
        None,
        "",
    ),
    (
        """links.latency_us links.control_latency_us links.bandwidth_gb_per_s links.jitter_us links.send links.order
        links.commit links.commit_over links.latency_on_stream links.graph_fence links.schedule_hold links.payload
        links.token_read links.rendezvous_hold""",
        MESSAGE,
        None,
        "",
    ),
    (
        "host.schedule_us host.process_us host.free_empty_visit host.idle_poll_us host.stage_jitter_percent",
        OWN_TIME,
        None,
        "",
    ),
    (
        """disaggregation.num_reserved_decode_tokens disaggregation.decode_pp_size
        disaggregation.decode_pp_async_batch_depth disaggregation.decode_max_total_tokens
        disaggregation.decode_max_running_requests disaggregation.control_latency_us
        disaggregation.kv_bandwidth_gb_per_s disaggregation.kv_latency_us disaggregation.bootstrap_timeout_ms
        disaggregation.receive_timeout_ms disaggregation.lease_ms disaggregation.kv_faults.rid
        disaggregation.kv_faults.rank disaggregation.kv_faults.nth disaggregation.kv_faults.what""",
        TWO_SIDES,
        None,
        "",
    ),
    ("disaggregation.store_lag_us", "the store's words take the time that they take", None, ""),
    (
        """hicache.write_policy hicache.host_tokens hicache.host_gb hicache.device_host_gb_per_s hicache.storage
        hicache.storage_gb_per_s hicache.storage_latency_us hicache.storage_hits.rid hicache.storage_hits.tokens""",
        TIERS,
        None,
        "",
    ),
)

WORLDS: dict[str, Row] = {
    **{key: Row(Fate.HONOURED, Fate.HONOURED) for key in HONOURED.split()},
    **{key: Row(Fate.HONOURED, Fate.REFUSED, why) for key, why in REFUSED.items()},
    **{
        key: Row(Fate.HONOURED, Fate.TOLD, why, unless, when)
        for keys, why, unless, when in TOLD
        for key in keys.split()
    },
    "run.invariants": Row(Fate.HONOURED, Fate.TOLD, ALL_BUT_TWO),  # told by executor/launch.py
    "model.architecture": Row(Fate.OTHER, Fate.HONOURED),
    "model.path": Row(Fate.OTHER, Fate.HONOURED),
}


def not_on_processes(s: Scenario) -> list[str]:
    """Keys that are set and that real processes do not honour, a sentence for each reason."""
    usual, by_reason = Scenario(), dict[str, list[str]]()
    for key, row in WORLDS.items():
        if row.exec != Fate.TOLD or key == "run.invariants" or (row.unless is not None and row.unless(s)):
            continue
        written = written_key(s, usual, key)
        if written and written not in by_reason.setdefault(row.why, []):
            by_reason[row.why].append(written)
    return [
        f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect on real processes: {why}"
        for why, keys in by_reason.items()
        if keys
    ]


LISTS = ("disaggregation.kv_faults", "hicache.storage_hits")


def written_key(s: Scenario, usual: Scenario, key: str) -> str:
    """The key if it is not its default, of a list the list's; else empty."""
    key = next((name for name in LISTS if key.startswith(f"{name}.")), key)
    return key if value_at(s, key) != value_at(usual, key) else ""
