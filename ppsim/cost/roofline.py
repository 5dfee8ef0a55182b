"""Time of a forward pass from first principles: model shape x GPU x tensor parallelism x layers of the stage.

    time = max(arithmetic + expansion, memory) + all-reduce + overhead

    arithmetic   linear layers at the rate of the weights' type, attention at the rate of the cache's type, layer by
                 layer: pairs within the reach of a query (``attention.Reach``: (2 L x + x^2) / 2 where it sees all,
                 about x w in a window of w), an indexer's over all tokens, a state's FLOPs a token whatever the prefix
                 (``state``, at the rate of BF16); all divided by tp and by ONE efficiency constant
    tiles        expert matrices are multiplied in tiles of rows; half a tile of each hit expert is padding, in every
                 chunk: this is the constant c of a mixture-of-experts model
    expansion    MLA makes the keys and values of the prefix again in each chunk (gamma L): arithmetic at the rate of
                 the cache's type, and the copies written and read through memory
    memory       weights of the hit experts and the rest once, the cache of the prefix within reach once, the state of
                 each request read and written
    all-reduce   one a block of a layer (two a layer in most models), not overlapped: a ring inside a node, factor
                 2(tp-1)/tp; beyond it the hierarchy of ``network``, or one flat ring of a given bandwidth
    overhead     what a layer costs whatever the batch (starts and ends of its kernels), and the latencies of its
                 all-reduces. Zero unless given: short batches, decode above all, are then a lower bound

What is not fitted comes from a source named at the constant. Only ``efficiency`` is fitted (one measurement, validated
on others: published.md E, ``ppsim.cost.published``); it is a property of a GPU type and its kernels: about 0.90 on H20,
about 0.57 for attention on H200 (published.md C). Do not carry it from one GPU to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ppsim.cost.attention import Reach, Scan
from ppsim.cost.coefficients import Coefficients
from ppsim.cost.gpu import Gpu
from ppsim.cost.model import BF16_BYTES, Attention, FeedForward, ModelShape
from ppsim.cost.network import GPUS_PER_NODE, Network
from ppsim.cost.partition import check_partition
from ppsim.cost.stage import Work
from ppsim.errors import ScenarioError

NS_PER_S = 1e9
MS_PER_S = 1e3
US_PER_S = 1e6
DECODE_LAYER_US = 35.0
"""What a layer of decode costs above its bytes, from one published measurement: vLLM and SGLang reach at most half of
an H100's memory bandwidth on Llama-3.2-1B at batch 1 (Hazy Research, "Look Ma, No Bubbles", 2025-05-27: about a hundred
kernels a pass, each with a start and an end in which nothing is loaded). Its 1.24e9 weights of two bytes at half of
3.35 TB/s take 1.48 ms, at ``hbm_fraction`` 0.8 of it 0.92 ms; the rest over 16 layers is 35 us each."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Constants of the roofline.

    efficiency     reached share of the peak arithmetic rate; the one fitted constant
    hbm_fraction   reached share of the memory bandwidth: 0.8, aiconfigurator's empirical factor
    moe_tile_rows  rows of an expert tile: 64, BLOCK_SIZE_M of SGLang's H20 table for E=256, N=256, FP8 at 4096 tokens
    expand_passes  times the expanded keys and values cross the memory bus: written by the projection, copied into place
    expand_at      arithmetic rate of the expansion: that of the "kv" type (the cached latents are BF16) or of "weight"
    tp_gb_per_s    bandwidth of an all-reduce ring that is flat over all GPUs; None: the GPU link inside a node, the
                   NICs of ``network`` beyond ``node_gpus``
    node_gpus      GPUs of a node
    nics_per_node  NICs of a node; None: one a GPU
    link_latency_us, nic_latency_us, all_reduce_us   of an all-reduce: a step inside a node, one between nodes, a call
    layer_overhead_us   of each layer in each forward pass. ``DECODE_LAYER_US`` is what one published figure says
    """

    efficiency: float = 1.0
    hbm_fraction: float = 0.8
    moe_tile_rows: int = 64
    expand_passes: float = 2.0
    expand_at: str = "kv"
    tp_gb_per_s: float | None = None
    node_gpus: int = GPUS_PER_NODE
    nics_per_node: int | None = None
    link_latency_us: float = 0.0
    nic_latency_us: float = 0.0
    all_reduce_us: float = 0.0
    layer_overhead_us: float = 0.0

    def __post_init__(self) -> None:
        if not self.efficiency > 0.0:
            raise ScenarioError("cost.efficiency", f"must be positive, got {self.efficiency}")
        if self.tp_gb_per_s is not None and not self.tp_gb_per_s > 0.0:
            raise ScenarioError("cost.tp_gb_per_s", f"must be positive, got {self.tp_gb_per_s}")
        for name in ("link_latency_us", "nic_latency_us", "all_reduce_us", "layer_overhead_us"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ScenarioError(f"cost.{name}", f"must not be negative, got {getattr(self, name)}")
        if not 0.0 < self.hbm_fraction <= 1.0:
            raise ScenarioError("cost.hbm_fraction", f"must be in (0, 1], got {self.hbm_fraction}")
        if self.expand_at not in ("kv", "weight"):
            raise ScenarioError("cost.expand_at", f"must be 'kv' or 'weight', got {self.expand_at!r}")


@dataclass(frozen=True, slots=True)
class StageShape:
    """What a stage's layers add up to; whole layers, before tensor parallelism cuts them. Layers that are alike are
    counted: ``attentions`` and ``experts`` are pairs of one and how many layers have it."""

    num_layers: int
    num_blocks: int  # each ends in an all-reduce
    active_params: int
    fixed_bytes: float  # weights read by every batch
    attentions: tuple[tuple[Attention, int], ...]
    experts: tuple[tuple[FeedForward, int], ...]
    state_flops: int  # of a token
    state_bytes: float  # of a request
    head_params: int  # on the last stage only

    @property
    def num_moe_layers(self) -> int:
        return sum(n for _, n in self.experts)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of a forward pass on a stage, by what they are spent on."""

    linear_s: float
    attention_s: float
    expand_s: float
    memory_s: float
    comm_s: float
    overhead_s: float = 0.0

    @property
    def total_s(self) -> float:
        return max(self.linear_s + self.attention_s + self.expand_s, self.memory_s) + self.comm_s + self.overhead_s

    @property
    def bound(self) -> str:
        """Which of the two limits holds."""
        return "memory" if self.memory_s > self.linear_s + self.attention_s + self.expand_s else "compute"


@dataclass(frozen=True)
class RooflineCost:
    """A StageCost. Raises ScenarioError if the partition, the tp size or a needed bandwidth is impossible."""

    shape: ModelShape
    gpu: Gpu
    tp_size: int
    partition: tuple[int, ...]
    rates: Rates = Rates()
    stages: tuple[StageShape, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.shape.check_tp(self.tp_size)
        check_partition(self.partition, self.shape.num_layers, len(self.partition))
        stages, first = [], 0
        for i, n in enumerate(self.partition):
            stages.append(stage_shape(self.shape, first, n, is_last=i == len(self.partition) - 1))
            first += n
        object.__setattr__(self, "stages", tuple(stages))
        if self.rates.tp_gb_per_s is None and self.tp_size > self.rates.node_gpus and self.gpu.nic_gb_per_s is None:
            raise ScenarioError(
                "cluster.tp_size",
                f"{self.tp_size} leaves the node of {self.rates.node_gpus}; {self.gpu.key} has no known NIC bandwidth",
                "give cost.tp_gb_per_s, or gpu.nic_gb_per_s",
            )

    @cached_property
    def network(self) -> Network:
        """The links that the all-reduces take."""
        r = self.rates
        return Network(
            link_gb_per_s=self.gpu.link_gb_per_s,
            nic_gb_per_s=self.gpu.nic_gb_per_s,
            nics_per_node=r.nics_per_node,
            gpus_per_node=r.node_gpus,
            link_latency_us=r.link_latency_us,
            nic_latency_us=r.nic_latency_us,
            call_us=r.all_reduce_us,
            ring_gb_per_s=r.tp_gb_per_s,
        )

    def batch_ns(self, stage: int, slot: int, work: Sequence[Work]) -> int:
        """Nanoseconds of one forward pass; at least one."""
        return max(1, round(self.breakdown(stage, work).total_s * NS_PER_S))

    def breakdown(self, stage: int, work: Sequence[Work]) -> Breakdown:
        """Seconds of one forward pass, by cause."""
        num_tokens = expanded = 0
        for prefix_len, new_tokens, is_decode in work:
            num_tokens += new_tokens
            expanded += 0 if is_decode else prefix_len
        at = self.stages[stage]
        pairs = {reach: self._pairs(reach, work) for reach in self.reaches}
        attention_s = 0.0
        for attention, count in at.attentions:
            for scan in attention.scans:
                prefill, decode, _ = pairs[scan.reach]
                flops = prefill * scan.pair_flops + decode * scan.decode_pair_flops
                attention_s += flops * count / self._rate(self.shape.kv_bytes)
        if at.state_flops:
            attention_s += float(at.state_flops) * num_tokens / self._rate(BF16_BYTES)
        read = {reach: found[2] for reach, found in pairs.items()}
        return Breakdown(
            linear_s=self._linear_s(at, num_tokens, len(work)),
            attention_s=attention_s,
            expand_s=self.expand_s_per_token(at) * expanded,
            memory_s=self._memory_s(at, num_tokens, len(work), read),
            comm_s=self.comm_s_per_token * at.num_blocks * num_tokens,
            overhead_s=self.overhead_s(at),
        )

    def _pairs(self, reach: Reach, work: Sequence[Work]) -> tuple[float, float, int]:
        """Pairs of prefill, pairs of decode, and tokens of the prefixes that are read, of one reach."""
        prefill = decode = 0.0
        read = 0
        for prefix_len, new_tokens, is_decode in work:
            seen = reach.pairs(prefix_len, new_tokens)
            read += reach.read(prefix_len, new_tokens)
            if is_decode:
                decode += seen
            else:
                prefill += seen
        return prefill, decode, read

    def _rate(self, element_bytes: float) -> float:
        """FLOP/s of a tensor-parallel group."""
        return self.gpu.flops(element_bytes) * self.rates.efficiency * self.tp_size

    @property
    def _hbm(self) -> float:
        """Bytes/s that one GPU reaches."""
        return self.gpu.hbm_gb_per_s * 1e9 * self.rates.hbm_fraction

    def _linear_s(self, at: StageShape, num_tokens: int, num_rows: int) -> float:
        params = float(at.active_params) * num_tokens
        for block, count in at.experts:
            padding = block.hit_experts(num_tokens) * self.rates.moe_tile_rows / 2.0
            params += padding * block.expert_params * count
        head = 2.0 * at.head_params * num_rows / self._rate(BF16_BYTES)
        return 2.0 * params / self._rate(self.shape.operand_bytes) + head

    def _memory_s(self, at: StageShape, num_tokens: int, num_rows: int, read: Mapping[Reach, int]) -> float:
        weights = at.fixed_bytes + at.head_params * BF16_BYTES
        for block, count in at.experts:
            weights += self.expert_bytes(block, count) * block.hit_experts(num_tokens)
        seconds = weights / self.tp_size / self._hbm
        for attention, count in at.attentions:
            shards = attention.kv_shards(self.tp_size)
            for scan in attention.scans:
                seconds += self.scan_bytes(scan) * count * read[scan.reach] / shards / self._hbm
        return seconds + 2.0 * at.state_bytes * num_rows / self.tp_size / self._hbm

    def expert_bytes(self, block: FeedForward, count: int) -> float:
        """Bytes of one expert in so many layers."""
        return block.expert_params * self.shape.weight_bytes * count

    def scan_bytes(self, scan: Scan) -> float:
        """Bytes of a key that a scan reads, in one layer."""
        return scan.elements * self.shape.kv_bytes

    @cached_property
    def reaches(self) -> tuple[Reach, ...]:
        """How far the queries of any layer look back, each once."""
        found = (scan.reach for at in self.stages for attention, _ in at.attentions for scan in attention.scans)
        return tuple(dict.fromkeys(found))

    def expand_s_per_token(self, at: StageShape) -> float:
        """Seconds per prefix token of making MLA's keys and values of a stage again; 0 without latents."""
        width = self.shape.kv_bytes if self.rates.expand_at == "kv" else self.shape.operand_bytes
        seconds = 0.0
        for attention, count in at.attentions:
            moved = self.rates.expand_passes * attention.expand_elements_per_token * self.shape.activation_bytes
            one = attention.expand_flops_per_token / self._rate(width) + moved / self.tp_size / self._hbm
            seconds += one * count
        return seconds

    @cached_property
    def comm_s_per_token(self) -> float:
        """Seconds per block and token of its all-reduce."""
        return self.network.all_reduce_moving_s(self.shape.hidden_size * self.shape.activation_bytes, self.tp_size)

    def overhead_s(self, at: StageShape) -> float:
        """Seconds of a forward pass of a stage that do not depend on its batch."""
        layers_s = at.num_layers * self.rates.layer_overhead_us / US_PER_S
        return layers_s + at.num_blocks * self.network.all_reduce_fixed_s(self.tp_size)

    def coefficients(self) -> Coefficients:
        """c, gamma, b, a and floor of the whole model for chunks large enough to hit every expert.

        Five numbers know no window: layers that look back no further than one are charged as if it were full, which is
        where a chunk after a long prefix is; their pairs are linear in x and go into b, as do those of a state.
        """
        whole = stage_shape(self.shape, 0, self.shape.num_layers, is_last=True)
        weight_rate, kv_rate = self._rate(self.shape.operand_bytes), self._rate(self.shape.kv_bytes)
        padding = pair_s = 0.0
        linear_s = float(whole.state_flops) / self._rate(BF16_BYTES)
        weights = whole.fixed_bytes + whole.head_params * BF16_BYTES
        for block, count in whole.experts:
            padding += block.num_experts * self.rates.moe_tile_rows / 2.0 * block.expert_params * count
            weights += self.expert_bytes(block, count) * block.num_experts
        for attention, count in whole.attentions:
            for scan in attention.scans:
                if scan.reach.kind == "full":
                    pair_s += scan.pair_flops * count / kv_rate
                else:
                    mean = scan.reach.size / (2.0 if scan.reach.kind == "chunk" else 1.0)
                    linear_s += mean * scan.pair_flops * count / kv_rate
        b_s = 2.0 * whole.active_params / weight_rate + self.comm_s_per_token * whole.num_blocks + linear_s
        overhead_s = self.overhead_s(whole)
        head_s = 2.0 * whole.head_params / self._rate(BF16_BYTES)
        return Coefficients(
            c_ms=(2.0 * padding / weight_rate + head_s + overhead_s) * MS_PER_S,
            gamma_ms=self.expand_s_per_token(whole) * MS_PER_S,
            b_ms=b_s * MS_PER_S,
            a_ms=pair_s / 2.0 * MS_PER_S,
            floor_ms=(weights / self.tp_size / self._hbm + overhead_s) * MS_PER_S,
            source=f"roofline: {self.shape.name} on {self.gpu.name}, tp {self.tp_size}, "
            f"efficiency {self.rates.efficiency:.4f}",
        )

    def shares(self) -> tuple[float, ...]:
        """Each stage's part of the layers; what a cost in whole-model coefficients is multiplied with."""
        return tuple(n / self.shape.num_layers for n in self.partition)


def stage_shape(shape: ModelShape, first: int, num_layers: int, is_last: bool) -> StageShape:
    """Sums over layers [first, first + num_layers)."""
    numbers = range(first, first + num_layers)
    layers = shape.layers[first : first + num_layers]
    experts = Counter(block for at in layers if (block := at.feed_forward) is not None and block.num_experts)
    routed = sum(block.num_experts * (block.expert_params * shape.weight_bytes * n) for block, n in experts.items())
    return StageShape(
        num_layers=num_layers,
        num_blocks=sum(at.num_blocks for at in layers),
        active_params=sum(shape.layer_active_params(i) for i in numbers),
        fixed_bytes=sum(shape.layer_weight_bytes(i) for i in numbers) - routed,
        attentions=tuple(Counter(mixer for at in layers for mixer in at.attentions).items()),
        experts=tuple(experts.items()),
        state_flops=sum(state.token_flops for at in layers for state in at.states),
        state_bytes=sum((shape.layer_state_bytes(i) for i in numbers), 0.0),
        head_params=shape.embedding_params if is_last else 0,
    )
