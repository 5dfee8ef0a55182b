"""The scenario: everything that a run depends on, as one frozen tree.

Names are SGLang's where SGLang has one; units come last; 0 means "free" for a cost or a link and "none" for a limit
only where a key says so. A key that does nothing is a bug: ``tests/unit/test_scenario_keys.py`` walks all of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ppsim.scenario.bounds import (
    MAX_AMOUNT,
    MAX_COUNT,
    MAX_ROWS,
    MAX_STAGES,
    MAX_TOKENS,
    Bandwidth,
    Cost,
    Delay,
    Figure,
    Fraction,
    Iteration,
    KvCacheType,
    LimitMs,
    NonNegative,
    Positive,
    PositiveRate,
    Rows,
    Size,
    Stages,
    Tokens,
)
from ppsim.scenario.expect import Expect
from ppsim.scenario.section import Section
from ppsim.scenario.workload_keys import Workload


class Cluster(Section):
    """Ranks and devices."""

    pp_size: Stages = 4
    tp_size: Positive = 1  # enters the cost
    cp_size: Positive = 1  # context-parallel ranks of a stage; enters the cost, as an estimate
    gpus_per_node: Positive = 8  # that gpu.link_gb_per_s joins; what leaves the node goes over its NICs
    nics_per_node: Positive | None = None  # each of gpu.nic_gb_per_s; None: one a GPU
    tp_replicas: Stages = 1  # tensor-parallel ranks of a stage that run as scheduler replicas of their own
    pp_async_batch_depth: Annotated[int, Field(ge=0, le=MAX_STAGES)] = 0
    comm_overlap: bool = False  # a communication stream of its own (SGLANG_PP_COMM_OVERLAP)
    cuda_graph: bool = True  # decode batches run as a graph: their hidden states live in a static buffer


class Scheduler(Section):
    """Limits and policies that every rank must share (protocol.md 4 and 10.1)."""

    rules: Literal["sglang", "mended"] = "sglang"  # whose rules decide; the five keys below take their default from it
    reopen_empty_slots: bool | None = None  # a slot with nothing running is open; else it can close for ever (mended)
    defer_empty_visits: bool | None = None  # prefill_decode_interval holds up slots with nothing to decode too (sglang)
    empty_chunk_pieces: bool | None = None  # a chunk that decodes leave no budget is launched with 0 tokens (sglang)
    chunk_counts_as_row: bool | None = None  # a continued chunk counts among the rows its batch takes (sglang)
    evict_ahead: bool | None = None  # allocations evict a page a request, and 20 steps behind a retraction (sglang)
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    chunked_prefill_size: Annotated[int, Field(le=MAX_TOKENS)] = 8192  # -1: no chunking
    enable_dynamic_chunking: bool = False  # chunks of equal time for a prompt that is being continued
    dynamic_chunking_smooth_factor: Annotated[float, Field(ge=0, le=1)] = 0.75  # 0: off, 1: follows the model
    chunk_planner: Literal["sglang", "equal_time", "optimal"] = "sglang"  # who makes the chunk table
    max_prefill_tokens: Positive = 16384
    prefill_max_requests: NonNegative = 0  # requests in a prefill batch; 0: no limit
    enable_mixed_chunk: bool = False
    prefill_decode_interval: NonNegative = 0  # iterations of decode forced after a prefill
    max_consecutive_prefills: NonNegative = 0  # prefill batches in a row of a slot that has requests to decode; 0: any
    max_consecutive_chunks: NonNegative = 0  # chunks in a row of one prompt while others wait; 0: any number
    schedule_conservativeness: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = 1.0
    max_running_requests: Rows = 256
    pp_max_micro_batch_size: Annotated[int, Field(ge=0, le=MAX_ROWS)] = 0  # 0: max(max_running_requests // pp_size, 1)
    max_total_tokens: Positive | tuple[Positive, ...] | None = None  # KV pool of each rank; None: from the memory
    max_mamba_cache_size: Rows | None = None  # states of requests that a rank holds; None: from the memory
    mamba_full_memory_ratio: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = (
        0.9  # memory of states over that of KV
    )
    page_size: Tokens = 1
    disable_radix_cache: bool = False
    context_length: Tokens = 131072
    clip_max_new_tokens: Tokens = 4096
    reserve_decode: Literal["slot", "all_slots"] = "slot"  # whose decode growth an admission reserves
    hidden_send: Literal["after_harvest", "after_launch"] = "after_harvest"
    skip_pure_chunked_output_comm: bool = False
    exchange_order: Literal["send_first", "parity", "paired"] = "send_first"


class Model(Section):
    """Shape of the model. ``path`` is a local checkpoint folder for the executor (config.json and safetensors)."""

    architecture: Literal["llama", "qwen3"] = "llama"
    num_hidden_layers: Annotated[int, Field(gt=0, le=4096)] = 32
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 8
    head_dim: Size = 128
    vocab_size: Annotated[int, Field(gt=0)] = 128256
    tie_word_embeddings: bool = False
    dtype_bytes: Literal[1, 2, 4] = 2
    layer_partition: tuple[Positive, ...] | None = None  # layers of each stage; None: even, remainder to the last
    path: str | None = None
    key: str | None = None  # a known model or a config.json: its shape replaces the fields above, whatever cost.source
    kv_cache_dtype: KvCacheType = "auto"  # of the KV pool; auto: the model's own type
    quantization: str | None = None  # of weights that a checkpoint has in full: quantised while they are loaded


class Gpu(Section):
    """One GPU: a row of the table or a file, and figures of its own that replace those of the row.

    Without ``key``, ``bf16_tflops``, ``hbm_gb_per_s`` and ``link_gb_per_s`` make a GPU of one's own for cost.source
    "roofline". The memory gives, with the model, the KV pool where scheduler.max_total_tokens is not set.
    """

    key: str | None = None  # a GPU of the table (ppsim list gpus), or a TOML file with a [gpu] of the figures below
    bf16_tflops: Figure | None = None  # dense peak rates
    fp8_tflops: Figure | None = None
    fp4_tflops: Figure | None = None
    memory_gb: Figure | None = None  # None: that of the key, else 80
    hbm_gb_per_s: Figure | None = None
    link_gb_per_s: Figure | None = None  # to the other GPUs of its node, one direction
    nic_gb_per_s: Figure | None = None  # of one NIC, one direction (cluster.nics_per_node); None: the table
    mem_fraction_static: Fraction = 0.85


class CostTree(Section):
    """Time of one forward pass, for the whole model; a stage takes its share of the layers.

    ``unit``: every stage needs ``unit_ms`` for any non-empty batch (``slot_ms``: for a batch in slot s).
    ``quadratic``: a prefill piece of x tokens after a prefix of L costs
    max(floor, c + first [L = 0] + gamma L + b x + a (2 L x + x^2)); a decode batch of n rows over K tokens of KV costs
    c + r n + k K.
    ``roofline``: from ``model.key`` and ``gpu.key``, first principles with one efficiency constant.
    """

    source: Literal["unit", "quadratic", "roofline"] = "quadratic"
    unit_ms: Cost = 1000.0
    efficiency: Annotated[float, Field(ge=1e-6, le=1, allow_inf_nan=False)] = (
        0.6  # roofline: reached share of the peak arithmetic rate
    )
    tp_gb_per_s: PositiveRate | None = None  # roofline: all-reduces are one flat ring; None: link and NICs of a node
    # roofline: latencies of an all-reduce, a step inside a node, a step between nodes, and the start of a call. NCCL's
    # tuning table for small messages has 0.6, 5.0 and 6.8; with 0 short batches are a lower bound
    link_latency_us: Cost = 0.0
    nic_latency_us: Cost = 0.0
    all_reduce_us: Cost = 0.0
    # roofline: of each layer in each forward pass, starts and ends of its kernels. About 35 in a published measurement
    # of vLLM and SGLang on an H100 (ppsim.cost.roofline); with 0 decode is a lower bound, and a run says so
    layer_overhead_us: Cost = 0.0
    slot_ms: tuple[Cost, ...] = ()
    prefill_floor_ms: Cost = 0.0
    prefill_c_ms: Cost = 2.0
    prefill_first_ms: Cost = (
        0.0  # besides, of a piece with nothing before it: a prompt's first chunk, none of it cached
    )
    prefill_gamma_ms_per_token: Cost = 0.0
    prefill_b_ms_per_token: Cost = 0.02
    prefill_a_ms_per_token2: Cost = 2e-7
    prefill_c_once: Literal["piece", "batch"] = "piece"
    decode_c_ms: Cost = 6.0
    decode_row_ms: Cost = 0.01
    decode_kv_ms_per_token: Cost = 2e-5
    decode_reads_own_token: bool = True
    tp_comm_ms_per_token: Cost = 0.0  # all-reduce volume of one token at tp_size -> infinity; ring factor applied


class Links(Section):
    """Links between neighbouring stages. Bandwidth 0 is infinite. docs/streams.md is the table behind these keys."""

    latency_us: Cost = 0.0
    control_latency_us: Cost | None = None  # None: control messages pay the link's latency
    bandwidth_gb_per_s: Bandwidth = 0.0
    jitter_us: Cost = 0.0  # each message: a uniform extra delay from the seed, never out of order
    # rendezvous: the host is held in a tensor send (rendezvous_hold), and its payload leaves once it is asked for
    send: Literal["eager", "rendezvous"] = "eager"
    # Behind what a payload's send and receive queue on a rank: stream: behind all that the rank posted before; link:
    # behind the sends of the same link; none: behind nothing, but messages of one kind stay in order.
    order: Literal["stream", "link", "none"] = "stream"
    commit: Literal["all", "requests", "none"] = "all"  # which commits make the host wait for the peer
    # A committed control or metadata send is over when the peer has asked for it, or when it has it, latency included.
    commit_over: Literal["posted", "received"] = "posted"
    latency_on_stream: bool = False  # latency occupies the sender's stream too
    # With overlap, the graph's buffer is free at the end of its own send, or of all before its commit on the stream.
    graph_fence: Literal["send", "commit"] = "send"
    # Without overlap, forwards wait for a send that was committed before them, or already for one that was posted.
    schedule_hold: Literal["commit", "post"] = "commit"
    # A payload leaves when its stream comes to it (of a rendezvous: once it is asked for). Matched, without overlap:
    # not before the receiver's stream has come to the matching receive as well.
    payload: Literal["eager", "matched"] = "eager"
    # Without overlap, the host reads sampled tokens once they are there, or after all that the schedule stream holds.
    token_read: Literal["arrival", "schedule_stream"] = "arrival"
    # hidden_send "after_launch" at depth 0: hidden states are posted behind the exchange of outputs, or before it.
    early_send: Literal["after_exchange", "before_exchange"] = "after_exchange"
    # A rendezvous send holds its sender until the receiver has asked for the message, or until the receiver's stream
    # has received it, latency included; whether payload is eager or matched. A pair holds until both halves let go.
    rendezvous_hold: Literal["posted", "received"] = "posted"


class Host(Section):
    """CPU time of a rank."""

    schedule_us: Cost = 0.0  # each visit of a slot, before the launch
    process_us: Cost = 0.0  # each harvested batch
    free_empty_visit: bool = False  # an empty visit costs nothing
    idle_poll_us: Cost = 50.0  # an idle first rank looks for input this often
    stage_jitter_percent: Annotated[float, Field(ge=0, le=100)] = 0.0  # each forward: uniform extra time from the seed


class KvFault(Section):
    """The ``nth`` KV write of a request on a prefill rank goes wrong (from 1; chunks are numbered in order).

    ``failed``: it cannot be posted, and the sender knows. ``lost``: it never arrives and its sender falls silent.
    """

    rid: str
    rank: NonNegative
    nth: Positive = 1
    what: Literal["failed", "lost"] = "failed"


class Disaggregation(Section):
    """Prefill-decode disaggregation. A single role runs against a modelled peer (section ``observations``).

    Role ``pd`` runs both pipelines: ``cluster`` and ``scheduler`` are the prefill side's, what the decode side has of
    its own is named ``decode_*``. KV goes from each prefill rank over a link of its own, in order. Times are of the
    wire between the sides; limits are of a waiting sender, a waiting receiver, and of one that gave up and drains.
    """

    role: Literal["plain", "prefill", "decode", "pd"] = "plain"
    bootstrap: Literal["store", "vote"] = "store"  # consensus store and leader chain, or two passes round the ring
    # How a conclusion of a ring vote is applied and passed on (core/votes.py); released: as SGLang did, both ways.
    variant: Literal["agreed", "fresh_poll", "forwards_applied", "released"] = "agreed"
    num_reserved_decode_tokens: NonNegative = 512
    store_lag_us: Cost = 0.0  # until a rank's status is visible to the first rank
    decode_pp_size: Positive | None = None  # as cluster.pp_size, or 1; None: as cluster.pp_size
    decode_pp_async_batch_depth: Annotated[int, Field(ge=0, le=MAX_STAGES)] = 0
    decode_max_total_tokens: Positive | None = None  # KV pool of each decode rank; None: from the memory
    decode_max_running_requests: Rows | None = None  # None: as scheduler.max_running_requests
    control_latency_us: Cost = 0.0  # of a message from one side to the other
    kv_bandwidth_gb_per_s: Bandwidth = 0.0  # of each prefill rank's KV link; 0 is infinite
    kv_latency_us: Cost = 0.0
    bootstrap_timeout_ms: LimitMs = 300_000.0  # a sender without a place on the decode side fails; 0: never
    receive_timeout_ms: LimitMs = 300_000.0  # a receiver that asked for KV and did not get all of it gives up; 0: never
    lease_ms: LimitMs = 30_000.0  # one that gave up waits so long for the word that nothing is under way; 0: for ever
    kv_faults: tuple[KvFault, ...] = ()


class StorageHit(Section):
    """What storage has of a request's prompt: ``tokens[rank]`` leading tokens on each rank; unlisted requests: none."""

    rid: str
    tokens: Annotated[tuple[NonNegative, ...], Field(min_length=1)]


class HiCache(Section):
    """Host memory and storage behind the radix cache of the device (HiCache). Bandwidth 0 is infinite.

    Host capacity is given in tokens or bytes of each stage's ranks; the ranks agree on the smallest number of tokens.
    With two pipelines it belongs to the prefill side.
    """

    enabled: bool = False
    write_policy: Literal["write_through", "write_back"] = "write_through"  # a copy at insertion, or at eviction
    host_tokens: NonNegative | tuple[NonNegative, ...] | None = None
    host_gb: Cost | tuple[Cost, ...] | None = None  # of one rank: its share of a token's KV makes them tokens
    device_host_gb_per_s: Bandwidth = 0.0  # of each rank, each way
    storage: bool = False  # look there when a request arrives
    storage_gb_per_s: Bandwidth = 0.0  # of each rank
    storage_latency_us: Cost = 0.0  # of each look
    storage_hits: tuple[StorageHit, ...] = ()


class Observation(Section):
    """When a rank sees a local fact: in its own iteration ``at[rank]``. ``failed``: what it sees is a failure.

    ``failed`` may say it of each rank: a handshake that fails on one and succeeds on the others is put to the vote.
    With two pipelines ``at`` and ``failed`` are of all ranks, the prefill side's first.

    ``write``, ``load``, ``prefetch``: every copy between the tiers of the cache on behalf of the request.
    """

    what: Literal["grammar", "bootstrap", "transfer", "handshake", "receive", "write", "load", "prefetch"]
    rid: str
    at: Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_COUNT)], ...], Field(min_length=1)]  # far off: never
    failed: bool | tuple[bool, ...] = False

    def fails_on(self, rank: int) -> bool:
        return self.failed if isinstance(self.failed, bool) else self.failed[rank]


class Observations(Section):
    """Local facts: what each rank observes alone. Facts that are not listed come after 0..max_delay iterations."""

    max_delay: Delay = 0
    listed: tuple[Observation, ...] = ()
    tick_ms: Cost = 0.0  # time of one iteration, for a rank that blocks until a fact is true


class Timeouts(Section):
    """Limits that the first rank watches by its own clock; 0 is off."""

    waiting_ms: NonNegative = 0
    running_ms: NonNegative = 0


class Pause(Section):
    """A rank stops at the start of an iteration: for ``ms``, or for ever (0). It answers nobody meanwhile."""

    rank: NonNegative  # rank_id: pp_rank * tp_replicas + tp_rank
    at_iteration: Iteration
    ms: LimitMs = 0.0


class Faults(Section):
    """What goes wrong by itself: data, not code."""

    clock_skew_ms: tuple[
        Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)], ...
    ] = ()  # of each rank's clock; empty: none
    pauses: tuple[Pause, ...] = ()


class Chance(Section):
    """What the run's choices may decide beyond what is written; every choice of 0 is "as written". 0: nothing.

    A delay is in iterations of the first rank, or in milliseconds for what names a time. Observations, links and
    stages have bounds of their own (``observations.max_delay``, ``links.jitter_us``, ``host.stage_jitter_percent``).
    """

    max_arrival_delay: Delay = 0  # of each request
    max_abort_delay: Delay = 0  # of each abort and flush
    max_clock_skew_ms: NonNegative = 0  # of each rank's clock, either way
    pause_iterations: Delay = 0  # each rank may stop once, at the start of one of its first so many iterations
    pause_ms: Annotated[float, Field(ge=1e-6, le=MAX_AMOUNT, allow_inf_nan=False)] = 1.0  # for how long
    max_lost_pages: NonNegative = 0  # of each rank's KV pool: that part of its allocation fails at the start
    max_failed_allocations: Annotated[int, Field(ge=0, le=1000)] = 0  # of each admitted request; on all ranks alike
    # So many launches of a request may get their memory before its allocations fail: of later chunks, and of those that
    # follow a retraction. 0: the first ones fail.
    max_good_allocations: Annotated[int, Field(ge=0, le=1000)] = 0
    stops: bool = False  # any sampled token may be the stop token of a request that does not ignore one


class Run(Section):
    """How a run is watched and when it is given up."""

    check: bool = True  # hold every rank's decisions against the others' while running
    invariants: bool = False  # check every invariant that a run can break; slower
    max_iterations: NonNegative = 0  # of every rank; 0: no limit. Reaching it is verdict "unknown"
    max_wait_iterations: NonNegative = 0  # a request that does not move for longer is a liveness failure; 0: no limit
    max_retractions: NonNegative | None = None  # of one request; 0: any number; None: 16 with run.invariants, else any
    max_wait_ms: LimitMs | None = None  # that a request waits for something; 0: any; None: 1 h with run.invariants
    max_agreement_wait_ms: LimitMs = 0.0  # likewise a rank that waits longer for a word of the others in a vote; 0: off
    watchdog_ms: LimitMs = 0.0  # a rank that completes nothing for so long ends the run as a liveness failure; 0: off
    consensus_check_interval: NonNegative = 0  # iterations between comparisons of the ranks' calls (checker.py); 0: off
    # Of the records: all in memory until the run is over, or none, so that memory does not grow with the number of
    # requests: they go to the file as they come, or only the summary is counted. docs/fast.md
    keep: Literal["all", "file", "summary"] = "all"
    compress: Literal["none", "gzip"] = "none"  # of the recording's file: recording.jsonl, or recording.jsonl.gz


class Scenario(Section):
    """One run. Same scenario and seed: the same bytes in the recording."""

    name: str = "unnamed"
    description: str = ""
    engine: Literal["sglang", "vllm"] = "sglang"  # whose server is meant: a run names where vLLM's rules differ
    launch_line: str | None = None  # that it was imported from: export and tune change it, and write no other
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    bugs: tuple[str, ...] = ()  # planted bugs that are switched on (ppsim list bugs)
    cluster: Cluster = Cluster()
    scheduler: Scheduler = Scheduler()
    model: Model = Model()
    gpu: Gpu = Gpu()
    cost: CostTree = CostTree()
    links: Links = Links()
    host: Host = Host()
    workload: Workload = Workload()
    disaggregation: Disaggregation = Disaggregation()
    hicache: HiCache = HiCache()
    observations: Observations = Observations()
    timeouts: Timeouts = Timeouts()
    faults: Faults = Faults()
    chance: Chance = Chance()
    run: Run = Run()
    expect: Expect | None = None  # what must come out; no run depends on it
