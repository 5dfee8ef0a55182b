"""Keys that do nothing in a mode of the scenario: each is told, because whoever wrote it expects something of it.

A rule is a set of keys, a condition of the scenario, and the reason in words. A key counts as written if its value is
not the default of the tree. ``tests/unit/test_key_effects.py`` changes every key in every mode: one that changes
nothing must be told here, and one that is told must change nothing.

Not told: what describes the model to the executor (``model.path``, ``architecture``, the fields of ``[model]`` beside a
pool that was given), because the same file is for both worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pydantic import BaseModel

from ppsim.cost.model import BF16_BYTES
from ppsim.cost.roofline import Rates
from ppsim.scenario.gpu import scenario_gpu
from ppsim.scenario.layers import known_shape, model_shape
from ppsim.scenario.tree import CostTree, HiCache, Links, Scenario


@dataclass(frozen=True, slots=True)
class Rule:
    """``why`` may name the scenario's own values in braces: {s.cost.source!r}."""

    keys: tuple[str, ...]
    holds: Callable[[Scenario], bool]
    why: str


def names(section: type[BaseModel], prefix: str, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in section.model_fields if name not in but)


UNIT = ("cost.unit_ms", "cost.slot_ms")
ROOFLINE = ("cost.efficiency", "cost.tp_gb_per_s")
OVERHEADS = ("link_latency_us", "nic_latency_us", "all_reduce_us", "layer_overhead_us")  # told by warn.idle_node_keys
QUADRATIC = tuple(key for key in names(CostTree, "cost", ("source", *OVERHEADS)) if key not in (*UNIT, *ROOFLINE))
PREFILL_COSTS = tuple(key for key in QUADRATIC if key.startswith("cost.prefill"))
DECODE_COSTS = tuple(key for key in QUADRATIC if key.startswith("cost.decode"))
RATES = tuple(f"gpu.{name}" for name in ("bf16_tflops", "fp8_tflops", "fp4_tflops", "hbm_gb_per_s", "link_gb_per_s"))
DYNAMIC = ("scheduler.enable_dynamic_chunking", "scheduler.dynamic_chunking_smooth_factor", "scheduler.chunk_planner")
SHAPE = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
    "dtype_bytes",
)
PREFIXES = ("workload.num_prefixes", "workload.prefix_tokens")
GENERATED = (
    "workload.arrival",
    "workload.rate_per_s",
    *(
        f"workload.{length}.{leaf}"
        for length in ("input_length", "output_length")
        for leaf in ("kind", "value", "mean")
    ),
    *(f"workload.{length}.{leaf}" for length in ("input_length", "output_length") for leaf in ("sigma", "min", "max")),
    *PREFIXES,
)
CHUNKING = (
    *DYNAMIC,
    "scheduler.max_consecutive_chunks",
    "scheduler.skip_pure_chunked_output_comm",
    "scheduler.chunk_counts_as_row",
    "scheduler.empty_chunk_pieces",
)
DEFERS = "scheduler.defer_empty_visits"
ONLY_PREFILL = (
    "cluster.cp_size",
    "scheduler.schedule_policy",
    "scheduler.chunked_prefill_size",
    *CHUNKING,
    "scheduler.max_prefill_tokens",
    "scheduler.prefill_max_requests",
    "scheduler.prefill_decode_interval",
    DEFERS,
    "scheduler.max_consecutive_prefills",
    "scheduler.disable_radix_cache",
    "scheduler.evict_ahead",
    *PREFIXES,
    "workload.block_tokens",
    "disaggregation.store_lag_us",
)
ONLY_DECODE = (
    "scheduler.prefill_decode_interval",
    DEFERS,
    "scheduler.empty_chunk_pieces",
    "scheduler.max_consecutive_prefills",
    "scheduler.enable_mixed_chunk",
    "scheduler.reserve_decode",
    "scheduler.clip_max_new_tokens",
    "cluster.cuda_graph",
    "disaggregation.num_reserved_decode_tokens",
    "chance.stops",
    "run.max_retractions",
)
MIXED = (
    "scheduler.prefill_decode_interval",
    DEFERS,
    "scheduler.max_consecutive_prefills",
    "scheduler.enable_mixed_chunk",
    "scheduler.empty_chunk_pieces",
)
NEEDS_NEIGHBOURS = (
    "scheduler.exchange_order",
    "scheduler.hidden_send",
    "cluster.comm_overlap",
    "cluster.cuda_graph",
    "disaggregation.store_lag_us",
    "run.max_agreement_wait_ms",
)
STREAM_KEYS = (  # told with reasons of their own (warn.idle_link_keys)
    "send",
    "order",
    "commit",
    "commit_over",
    "graph_fence",
    "schedule_hold",
    "payload",
    "token_read",
    "early_send",
    "rendezvous_hold",
)
STATES = ("scheduler.max_mamba_cache_size", "scheduler.mamba_full_memory_ratio")
NEEDS_PD = tuple(
    f"disaggregation.{name}"
    for name in (
        "decode_pp_size",
        "decode_pp_async_batch_depth",
        "decode_max_total_tokens",
        "decode_max_running_requests",
        "kv_bandwidth_gb_per_s",
        "kv_latency_us",
        "kv_faults",
        "control_latency_us",
        "bootstrap_timeout_ms",
        "receive_timeout_ms",
        "lease_ms",
    )
)


def is_source(*sources: str) -> Callable[[Scenario], bool]:
    return lambda s: s.cost.source in sources


def is_role(*roles: str) -> Callable[[Scenario], bool]:
    return lambda s: s.disaggregation.role in roles


def is_workload(*sources: str) -> Callable[[Scenario], bool]:
    return lambda s: s.workload.source in sources


def has_states(s: Scenario) -> bool:
    shape = known_shape(s)
    return shape is not None and shape.state_bytes > 0


def pool_is_given(s: Scenario) -> bool:
    return s.scheduler.max_total_tokens is not None and not has_states(s)


def wire_has_width(s: Scenario) -> bool:
    """Whether bytes of keys and values cost time somewhere else than in memory."""
    tiers = s.hicache.enabled and (s.hicache.device_host_gb_per_s or s.hicache.storage_gb_per_s or s.hicache.host_gb)
    return bool(tiers) or (s.disaggregation.role == "pd" and s.disaggregation.kv_bandwidth_gb_per_s > 0)


def network_is_unused(s: Scenario) -> bool:
    if s.cost.source == "unit":
        return True
    beyond_the_node = s.cost.source == "roofline" and s.cluster.tp_size > Rates().node_gpus and not s.cost.tp_gb_per_s
    return s.cluster.cp_size == 1 and not beyond_the_node


def is_said_otherwise(field: str) -> Callable[[Scenario], bool]:
    """Whether the named model has another value than the field, or none that can be compared."""

    def differs(s: Scenario) -> bool:
        shape = known_shape(s)
        if shape is None:
            return False
        own = {
            "num_hidden_layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
            "tie_word_embeddings": shape.tie_word_embeddings,
        }
        return bool(getattr(s.model, field) != own.get(field))

    return differs


def rate_is_unused(rate: str) -> Callable[[Scenario], bool]:
    """Whether nothing that the model multiplies is narrow enough for a rate."""

    def unused(s: Scenario) -> bool:
        if s.cost.source != "roofline":
            return False  # told by another rule
        shape, gpu = model_shape(s), scenario_gpu(s)
        without = replace(gpu, fp8_tflops=None) if rate == "fp8_tflops" else replace(gpu, fp4_tflops=None)
        widths = (shape.operand_bytes, shape.kv_bytes, BF16_BYTES)
        return all(gpu.flops(width) == without.flops(width) for width in widths)

    return unused


RULES: tuple[Rule, ...] = (
    Rule(("run.compress",), lambda s: s.run.keep == "summary", "run.keep 'summary' writes no recording"),
    Rule(UNIT, lambda s: s.cost.source != "unit", "cost.source is {s.cost.source!r}"),
    Rule(("cost.unit_ms",), lambda s: s.cost.source == "unit" and bool(s.cost.slot_ms), "cost.slot_ms is set"),
    Rule(QUADRATIC, lambda s: s.cost.source != "quadratic", "cost.source is {s.cost.source!r}"),
    Rule((*ROOFLINE, *RATES), lambda s: s.cost.source != "roofline", "cost.source is {s.cost.source!r}"),
    Rule(("cost.tp_gb_per_s", "cost.tp_comm_ms_per_token"), lambda s: s.cluster.tp_size == 1, "cluster.tp_size is 1"),
    Rule(("gpu.fp8_tflops",), rate_is_unused("fp8_tflops"), "nothing of the model is multiplied at that width"),
    Rule(("gpu.fp4_tflops",), rate_is_unused("fp4_tflops"), "nothing of the model is multiplied at that width"),
    Rule(("gpu.nic_gb_per_s",), network_is_unused, "no group of GPUs leaves its node"),
    Rule(("gpu.memory_gb", "gpu.mem_fraction_static"), pool_is_given, "scheduler.max_total_tokens gives the pool"),
    Rule(
        ("gpu.key",),
        lambda s: s.cost.source != "roofline" and pool_is_given(s) and network_is_unused(s),
        "cost.source is {s.cost.source!r} and scheduler.max_total_tokens gives the pool",
    ),
    *(Rule((f"model.{name}",), is_said_otherwise(name), "model.key {s.model.key!r} says it") for name in SHAPE),
    Rule(("model.quantization",), lambda s: s.model.key is None, "model.key is not set"),
    Rule(
        ("model.kv_cache_dtype",),
        lambda s: s.cost.source != "roofline" and pool_is_given(s) and not wire_has_width(s) and s.cluster.cp_size == 1,
        "scheduler.max_total_tokens gives the pool, and nothing else asks for the bytes of a token",
    ),
    Rule(("cluster.cp_size",), is_source("unit"), "cost.source is 'unit'"),
    Rule(
        ("cluster.tp_size",),
        lambda s: s.cost.source == "unit" and pool_is_given(s) and s.cluster.tp_replicas == 1 and not wire_has_width(s),
        "cost.source is 'unit' and scheduler.max_total_tokens gives the pool",
    ),
    Rule(STATES, lambda s: not has_states(s), "no layer of the model has a state of its own a request"),
    Rule(
        ("scheduler.mamba_full_memory_ratio",),
        lambda s: s.scheduler.max_mamba_cache_size is not None,
        "scheduler.max_mamba_cache_size is set",
    ),
    Rule(
        (*names(Links, "links", STREAM_KEYS), *NEEDS_NEIGHBOURS),
        lambda s: s.cluster.pp_size == 1 and s.disaggregation.role != "pd",
        "cluster.pp_size is 1",
    ),
    Rule(
        ("scheduler.reserve_decode",),
        lambda s: s.cluster.pp_size + s.cluster.pp_async_batch_depth == 1,
        "there is one slot",
    ),
    Rule(MIXED, is_role("pd"), "disaggregation.role is 'pd': neither side has batches of both kinds"),
    Rule(
        ("scheduler.schedule_policy", "scheduler.evict_ahead", *PREFIXES),
        lambda s: s.scheduler.disable_radix_cache,
        "scheduler.disable_radix_cache is set",
    ),
    Rule(
        ("workload.block_tokens",),
        lambda s: s.scheduler.disable_radix_cache and s.workload.source == "requests",
        "scheduler.disable_radix_cache is set",
    ),
    Rule(
        (*CHUNKING, "scheduler.enable_mixed_chunk"),
        lambda s: s.scheduler.chunked_prefill_size == -1,
        "scheduler.chunked_prefill_size is -1",
    ),
    Rule((DEFERS,), lambda s: not s.scheduler.prefill_decode_interval, "scheduler.prefill_decode_interval is 0"),
    Rule(
        ("scheduler.empty_chunk_pieces",),
        lambda s: not s.scheduler.enable_mixed_chunk,
        "scheduler.enable_mixed_chunk is off",
    ),
    Rule(DYNAMIC[1:], lambda s: not s.scheduler.enable_dynamic_chunking, "scheduler.enable_dynamic_chunking is off"),
    Rule(
        (DYNAMIC[0], DYNAMIC[2]),
        lambda s: not s.scheduler.dynamic_chunking_smooth_factor,
        "scheduler.dynamic_chunking_smooth_factor is 0",
    ),
    Rule(DYNAMIC, is_source("unit"), "cost.source is 'unit': all chunks take the same time"),
    Rule((*PREFILL_COSTS, *ONLY_PREFILL), is_role("decode"), "disaggregation.role is 'decode'"),
    Rule((*DECODE_COSTS, *ONLY_DECODE), is_role("prefill"), "disaggregation.role is 'prefill'"),
    Rule(
        ("disaggregation.num_reserved_decode_tokens", "disaggregation.store_lag_us"),
        is_role("plain"),
        "disaggregation.role is 'plain'",
    ),
    Rule(NEEDS_PD, lambda s: s.disaggregation.role != "pd", "disaggregation.role is {s.disaggregation.role!r}"),
    Rule(
        tuple(f"hicache.{name}" for name in HiCache.model_fields if name != "enabled"),
        lambda s: not s.hicache.enabled,
        "hicache.enabled is off",
    ),
    Rule(
        ("hicache.storage_gb_per_s", "hicache.storage_latency_us"),
        lambda s: s.hicache.enabled and not s.hicache.storage,
        "hicache.storage is off",
    ),
    Rule(GENERATED, lambda s: s.workload.source != "generated", "workload.source is {s.workload.source!r}"),
    Rule(
        ("workload.num_requests", "workload.time_scale", "workload.ignore_eos", "workload.eos_probability"),
        is_workload("requests", "chunks"),
        "workload.source is {s.workload.source!r}",
    ),
    Rule(("workload.trace",), lambda s: s.workload.source != "trace", "workload.source is {s.workload.source!r}"),
    Rule(("workload.num_chunks",), lambda s: s.workload.source != "chunks", "workload.source is {s.workload.source!r}"),
    Rule(PREFIXES[1:], lambda s: not s.workload.num_prefixes, "workload.num_prefixes is 0"),
    Rule(("workload.eos_probability",), lambda s: s.workload.ignore_eos, "workload.ignore_eos is set"),
    Rule(
        ("chance.max_good_allocations",),
        lambda s: not s.chance.max_failed_allocations,
        "chance.max_failed_allocations is 0",
    ),
    Rule(("chance.pause_ms",), lambda s: not s.chance.pause_iterations, "chance.pause_iterations is 0"),
    *(
        Rule(
            tuple(f"workload.{length}.{leaf}" for leaf in leaves),
            lambda s, length=length, kinds=kinds: getattr(s.workload, length).kind in kinds,  # type: ignore[misc]
            f"workload.{length}.kind is " + "{s.workload." + length + ".kind!r}",
        )
        for length in ("input_length", "output_length")
        for leaves, kinds in (
            (("value",), ("uniform", "lognormal")),
            (("mean", "sigma"), ("fixed", "uniform")),
        )
    ),
)


def keys_without_effect(s: Scenario) -> Iterator[str]:
    """A sentence for each key that is written and does nothing in this scenario."""
    usual, told = Scenario(), set[str]()
    for rule in RULES:
        written = [key for key in rule.keys if key not in told and value_at(s, key) != value_at(usual, key)]
        if not written or not rule.holds(s):
            continue
        for key in written:
            told.add(key)
            yield f"{key} has no effect: {rule.why.format(s=s)}"


def request_keys_without_effect(s: Scenario) -> Iterator[str]:
    """Likewise for keys of single requests, told once."""
    role, found = s.disaggregation.role, s.workload.requests
    if any(r.prefix_blocks for r in found) and (s.scheduler.disable_radix_cache or role == "decode"):
        yield "workload.requests.prefix_blocks has no effect: there is no radix cache"
    if role == "prefill" and any(r.ignore_eos or r.stop_after for r in found):
        for key in ("ignore_eos", "stop_after"):
            yield f"workload.requests.{key} has no effect: disaggregation.role is 'prefill', which makes one token"


def value_at(s: Scenario, key: str) -> object:
    value: object = s
    for part in key.split("."):
        value = getattr(value, part)
    return value
