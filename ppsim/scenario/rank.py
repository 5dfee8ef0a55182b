"""From the scenario to what a rank is started with: integers and exact fractions, the same in both worlds."""

from __future__ import annotations

from fractions import Fraction

from ppsim.core.config import RankConfig
from ppsim.cost.memory import NO_LIMIT, SLOTS_PER_RUNNING, Capacity, StatePool, capacities, model_capacity, usable_bytes
from ppsim.errors import ScenarioError
from ppsim.scenario.chunks import chunk_table, first_chunk
from ppsim.scenario.gpu import memory_gb
from ppsim.scenario.layers import known_shape, partition_of
from ppsim.scenario.stagecost import kv_bytes_per_token
from ppsim.scenario.tree import Scenario, Scheduler

INIT_NEW_TOKEN_RATIO = Fraction(7, 10)  # SGLANG_INIT_NEW_TOKEN_RATIO
MIN_NEW_TOKEN_RATIO_FACTOR = Fraction(14, 100)  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
DECAY_STEPS = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
RETRACT_DECODE_STEPS = 20  # SGLANG_RETRACT_DECODE_STEPS


def rank_config(s: Scenario, pp_rank: int, tp_rank: int = 0) -> RankConfig:
    """Configuration of one rank."""
    c, k = s.scheduler, s.cluster
    running = running_limit(s)
    init = min(INIT_NEW_TOKEN_RATIO * Fraction(str(c.schedule_conservativeness)), Fraction(1))
    return RankConfig(
        pp_rank=pp_rank,
        pp_size=k.pp_size,
        tp_rank=tp_rank,
        layers=partition_of(s),
        tp_replicas=k.tp_replicas,
        pp_async_batch_depth=k.pp_async_batch_depth,
        schedule_policy=c.schedule_policy,
        chunked_prefill_size=first_chunk(s),
        max_prefill_tokens=c.max_prefill_tokens,
        prefill_max_requests=c.prefill_max_requests or None,
        enable_mixed_chunk=c.enable_mixed_chunk,
        prefill_decode_interval=c.prefill_decode_interval,
        max_consecutive_prefills=c.max_consecutive_prefills,
        max_consecutive_chunks=c.max_consecutive_chunks,
        max_running_requests=running,
        max_micro_batch_size=c.pp_max_micro_batch_size or max(running // k.pp_size, 1),
        page_size=c.page_size,
        enable_radix_cache=not c.disable_radix_cache and s.disaggregation.role != "decode",
        hicache_write_policy=s.hicache.write_policy if s.hicache.enabled else "",
        hicache_storage=s.hicache.enabled and s.hicache.storage,
        context_length=c.context_length,
        clip_max_new_tokens=c.clip_max_new_tokens,
        **rule_set(c),
        reserve_all_slots=c.reserve_decode == "all_slots",
        hidden_after_launch=c.hidden_send == "after_launch",
        hidden_before_exchange=s.links.early_send == "before_exchange",
        skip_pure_chunk_output=c.skip_pure_chunked_output_comm,
        exchange_order=c.exchange_order,
        cuda_graph=k.cuda_graph,
        init_new_token_ratio=init,
        min_new_token_ratio=init * MIN_NEW_TOKEN_RATIO_FACTOR,
        chunk_table=chunk_table(s),
        role=s.disaggregation.role,
        bootstrap_consensus=s.disaggregation.bootstrap,
        vote_variant=s.disaggregation.variant,
        num_reserved_decode_tokens=s.disaggregation.num_reserved_decode_tokens,
        waiting_timeout_ms=s.timeouts.waiting_ms,
        running_timeout_ms=s.timeouts.running_ms,
        new_token_ratio_decay_steps=DECAY_STEPS,
        retract_decode_steps=RETRACT_DECODE_STEPS,
        consensus_check_interval=s.run.consensus_check_interval,
    )


SGLANG = {
    "reopen_empty_slots": False,
    "defer_empty_visits": True,
    "empty_chunk_pieces": True,
    "chunk_counts_as_row": True,
    "evict_ahead": True,
}
RULE_SETS = {"sglang": SGLANG, "mended": {key: not value for key, value in SGLANG.items()}}
"""What ``scheduler.rules`` sets (docs/batches.md). ``mended`` differs in every rule that has a key."""


def rule_set(scheduler: Scheduler) -> dict[str, bool]:
    """The rules that have a key of their own: as given, else those of ``scheduler.rules``."""
    given = {key: getattr(scheduler, key) for key in SGLANG}
    return {key: RULE_SETS[scheduler.rules][key] if value is None else value for key, value in given.items()}


def local_capacity_tokens(s: Scenario, pp_rank: int) -> int:
    """KV tokens that a rank can hold alone, before the ranks agree on the minimum.

    Set by hand, or what is left of the GPU memory after the weights of the stage. Raises ScenarioError if the weights
    do not fit or less than one chunk is left: such a server could never serve anything.
    """
    given = s.scheduler.max_total_tokens
    if isinstance(given, tuple):
        return given[pp_rank]
    if given is not None:
        return given
    return held_tokens(s, gpu_capacity(s).require(least_tokens(s)))[pp_rank]


def held_tokens(s: Scenario, capacity: Capacity) -> tuple[int, ...]:
    """Tokens of the pool of each stage; one without a cache of keys and values is said to hold all that could ever be
    there."""
    everything = s.scheduler.max_running_requests * s.scheduler.context_length
    return tuple(at.num_tokens if at.num_tokens < NO_LIMIT else everything for at in capacity.stages)


def given_pool(s: Scenario) -> int | None:
    """Tokens of the pool that the scenario gives by hand: all ranks have the smallest. None: the memory says it."""
    given = s.scheduler.max_total_tokens
    return min(given) if isinstance(given, tuple) else given


def least_tokens(s: Scenario) -> int:
    """Tokens of a pool with which a server can serve anything: a chunk, and on a decode server a page."""
    chunk = 1 if s.disaggregation.role == "decode" else s.scheduler.chunked_prefill_size
    return max(chunk, s.scheduler.page_size)


def stage_weight_bytes(s: Scenario, pp_rank: int) -> int:
    """Weights of a stage over all its tensor-parallel ranks: its layers, embedding on the first, head on the last."""
    m = s.model
    heads = m.num_attention_heads * m.head_dim
    kv_heads = m.num_key_value_heads * m.head_dim
    attention = m.hidden_size * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * m.hidden_size * m.intermediate_size + 2 * m.hidden_size
    total = layer * partition_of(s)[pp_rank]
    table = m.vocab_size * m.hidden_size
    if pp_rank == 0:
        total += table
    if pp_rank == s.cluster.pp_size - 1 and not (m.tie_word_embeddings and pp_rank == 0):
        total += table
    return total * m.dtype_bytes


def kv_bytes_of_tokens(s: Scenario, pp_rank: int, num_tokens: int) -> int:
    """Keys and values of so many tokens in the layers of a stage, on one of its tensor-parallel ranks."""
    return int(num_tokens * kv_bytes_per_token(s)[pp_rank])


def gpu_capacity(s: Scenario) -> Capacity:
    """Memory of one GPU of each stage, whatever pool the scenario gives by hand."""
    k, fraction, shape = s.cluster, s.gpu.mem_fraction_static, known_shape(s)
    if shape is not None:
        return model_capacity(shape, memory_gb(s), partition_of(s), k.tp_size, fraction, pool=state_pool(s))
    usable = [usable_bytes(memory_gb(s), fraction)] * k.pp_size
    weights = [stage_weight_bytes(s, pp_rank) / k.tp_size for pp_rank in range(k.pp_size)]
    return capacities(usable, weights, kv_bytes_per_token(s), partition_of(s))


def state_pool(s: Scenario) -> StatePool:
    """How much memory the states of requests get."""
    c = s.scheduler
    slots = c.max_mamba_cache_size
    if slots is None and c.disable_radix_cache:
        slots = c.max_running_requests  # SGLang: a slot for each, where no state is kept for later
    return StatePool(slots, c.mamba_full_memory_ratio)


def running_limit(s: Scenario) -> int:
    """Requests that may run at once: as many as the scenario allows and as every rank has states for.

    The pool of states is a number of slots, and all ranks have the smallest number of any, as they have the smallest KV
    pool. A running request takes one; with a radix cache three are set aside for each, because states of prefixes are
    kept for later hits (SGLang's own ratio). Raises ScenarioError if no request could ever run.
    """
    limit = s.scheduler.max_running_requests
    if known_shape(s) is None:  # a model that is given by its fields has no such states
        return limit
    slots = [stage.num_slots for stage in gpu_capacity(s).stages if stage.num_slots is not None]
    if not slots:
        return limit
    each = 1 if s.scheduler.disable_radix_cache else SLOTS_PER_RUNNING
    if min(slots) < each:
        raise ScenarioError(
            "scheduler.max_mamba_cache_size",
            f"the smallest rank holds the states of {min(slots)} requests, and a running one needs {each}",
            "more memory, more stages, a larger scheduler.mamba_full_memory_ratio, or scheduler.disable_radix_cache",
        )
    return min(limit, min(slots) // each)
