"""The ways of ``ppsim compare``: their costs at each bandwidth, and the figures of prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.cost.context_parallel import NODE_GPUS, ContextParallelCost, exchange_ns
from ppsim.cost.gpu import Gpu, load_gpu
from ppsim.cost.memory import model_capacity, stage_kv_bytes
from ppsim.cost.model import ModelShape
from ppsim.cost.partition import even_partition
from ppsim.cost.roofline import RooflineCost
from ppsim.cost.sglang_chunks import ChunkFit, ChunkPredictor
from ppsim.cost.stage import StageCost
from ppsim.errors import ScenarioError
from ppsim.plan.array_cost import array_cost
from ppsim.plan.candidate import Candidate, Split
from ppsim.plan.chunk_rule import ChunkRule
from ppsim.plan.compare_question import PAGE_SIZE, Decode, Question, check_numbers, group_size, joint_of
from ppsim.plan.evaluate import Figures, block_width, profiled, stream_figures
from ppsim.plan.prompt_feed import Limits
from ppsim.plan.stream_loop import Surroundings
from ppsim.plan.trial_load import Probe

ASSUMED_EFFICIENCY = 0.57
FIXED_CHUNKS = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
MAX_CHUNKS = 64  # of a prompt: 2048 to 16384 for one of 128K, as in the published sweep
DYNAMIC_CHUNKS = ((8192, 0.85), (12288, 0.65), (12288, 0.85), (16384, 0.85))
PLENTY_TOKENS = 1 << 40  # pools are no part of the comparison; whether a way fits is told beside its figures
ASKED_GB_PER_S = (25.0, 50.0, 100.0, 200.0, 400.0)  # where neither the user nor the GPU table names the link
MEM_FRACTION = 0.85
WAYS = ("pp", "tp", "cp")


@dataclass(frozen=True, slots=True)
class Standing:
    """One way at one bandwidth. ``chunk`` and ``ttft_chunk`` are the settings behind throughput and TTFT."""

    way: str
    split: Split
    link_gb_per_s: float | None
    input_tokens_per_s: float
    ttft_s: float
    chunk: str
    ttft_chunk: str
    gpu_multiple: int
    speedup: float
    ttft_speedup: float

    @property
    def efficiency(self) -> float:
        """Speed-up for each of the GPUs that it took."""
        return self.speedup / self.gpu_multiple

    @property
    def ttft_efficiency(self) -> float:
        return self.ttft_speedup / self.gpu_multiple


class Field:
    """Model, GPU and groups of a question, and the ways that can be computed at all."""

    def __init__(self, q: Question) -> None:
        check_numbers(q)
        self.q = q
        self.shape: ModelShape = q.shape()
        self.gpu: Gpu = load_gpu(q.gpu)
        self.tp_size = group_size(self.shape, q)
        self.multiple = q.num_gpus // self.tp_size
        given = q.efficiency if q.efficiency is not None else self.gpu.efficiency
        self.assumed_efficiency = given is None
        self.efficiency = ASSUMED_EFFICIENCY if given is None else given
        self.joint = joint_of(q, self.gpu, self.tp_size)
        self.splits = {
            "pp": Split(self.multiple, self.tp_size),
            "tp": Split(1, q.num_gpus),
            "cp": Split(1, self.tp_size, self.multiple),
        }
        self.cannot_run: dict[str, str] = {}
        if self.multiple > self.shape.num_layers:
            self.cannot_run["pp"] = f"{self.multiple} stages cannot be cut from {self.shape.num_layers} layers"
        try:
            self.shape.check_tp(q.num_gpus)
        except ScenarioError as error:
            self.cannot_run["tp"] = f"{error.problem} ({error.hint})"
        self.ways = [way for way in WAYS if way not in self.cannot_run]
        self.fits: dict[int, ChunkFit] = {}
        self.cache: dict[tuple[str, float, int], tuple[Candidate, Figures]] = {}
        self.base = self._base()

    def partition(self, split: Split) -> tuple[int, ...]:
        return even_partition(self.shape.num_layers, split.pp_size)

    def cost(self, split: Split, gb_per_s: float | None, decode: bool = False) -> StageCost:
        """Stage times when the groups are joined by this link or these NICs; None: there is one group."""
        rates = self.joint.rates(self.efficiency, split.tp_size, gb_per_s, decode)
        gpu = self.joint.gpu_at(gb_per_s)
        inner = RooflineCost(self.shape, gpu, split.tp_size, self.partition(split), rates)
        if split.cp_size == 1 or gb_per_s is None:
            return inner
        kv = stage_kv_bytes(self.shape, inner.partition, split.tp_size)
        ring = self.joint.exchange_gb_per_s(split.tp_size * split.cp_size, gb_per_s)
        return ContextParallelCost(inner, split.cp_size, exchange_ns(kv, split.cp_size, ring))

    @cached_property
    def hidden_bytes(self) -> int:
        """Of a token between two stages."""
        return round(self.shape.hidden_size * self.shape.activation_bytes)

    @property
    def decode_asked(self) -> Decode:
        """What is asked of decode."""
        assert self.q.decode is not None
        return self.q.decode

    def hop_latency_us(self, split: Split) -> float:
        """Of a message from one stage to the next: that of a step between nodes, or inside one."""
        name = "nic_latency_us" if self.joint.nodes else "link_latency_us"
        return self.joint.overheads.values(published=True)[name] if split.pp_size > 1 else 0.0

    def best(self, split: Split, links: Sequence[float | None], num_prompts: int) -> list[tuple[Candidate, Figures]]:
        """The best chunk setting of one way at each bandwidth, with so many prompts at once."""
        settings, partition = self.chunks(split), self.partition(split)
        rows = [(b, Candidate(split, 0, n, factor, partition)) for b in links for n, factor in settings]
        figures: list[Figures] = []
        width = block_width(split.pp_size)
        for first in range(0, len(rows), width):
            figures += self._block(split, rows[first : first + width], num_prompts)
        pairs = list(zip((c for _, c in rows), figures))
        size = len(settings)

        def order(pair: tuple[Candidate, Figures]) -> tuple[object, ...]:
            candidate, f = pair
            return (f.ttft_s if num_prompts == 1 else -f.input_tokens_per_s, *candidate.simplicity)

        return [min(pairs[i : i + size], key=order) for i in range(0, len(pairs), size)]

    def _block(self, split: Split, rows: Sequence[tuple[float | None, Candidate]], num_prompts: int) -> list[Figures]:
        known = {b: i for i, b in enumerate(dict.fromkeys(b for b, _ in rows))}
        costs = [self.cost(split, b) for b in known]
        index = np.array([known[b] for b, _ in rows], dtype=np.int64)
        many = np.ones(len(rows))
        limits = Limits(float(PAGE_SIZE), 16384.0, 4096.0 * many, 4096.0 * many, float(PLENTY_TOKENS) * many)
        hop_ns = {b: 1e9 * self.joint.hop_s_per_byte(split.tp_size, b) for b in known}
        byte_ns = np.array([hop_ns[b] for b, _ in rows]) if split.pp_size > 1 else 0.0
        around = Surroundings(byte_ns=byte_ns, hidden_bytes=self.hidden_bytes)
        predictors = [self.predictor(costs[i], c) for i, (_, c) in zip(index, rows)]
        rule = ChunkRule.of(predictors, [c.chunked_prefill_size for _, c in rows])
        probe = Probe("throughput", (self.q.prompt,) * num_prompts, (0,) * num_prompts)
        return stream_figures(array_cost(costs).take(index), rule, limits, probe, around, split.pp_size, 0)

    def predictor(self, cost: StageCost, c: Candidate) -> ChunkPredictor | None:
        """SGLang's predictor for a dynamic setting."""
        if not c.is_dynamic:
            return None
        if c.chunked_prefill_size not in self.fits:  # only pipelines have them, and the link is no part of their cost
            self.fits[c.chunked_prefill_size] = profiled(cost, c.chunked_prefill_size)
        return ChunkPredictor.from_fit(
            self.fits[c.chunked_prefill_size],
            c.chunked_prefill_size,
            page_size=PAGE_SIZE,
            context_length=2 * self.q.prompt + 4096,
            smooth_factor=c.smooth_factor,
        )

    def chunks(self, split: Split) -> list[tuple[int, float]]:
        """Chunk settings that a way chooses from; dynamic ones only where there is a pipeline to balance."""
        if self.q.chunk is not None:
            return [(self.q.chunk, 0.0)]
        whole = -(-self.q.prompt // PAGE_SIZE) * PAGE_SIZE
        sizes = sorted(
            {min(n, whole) for n in FIXED_CHUNKS if n * MAX_CHUNKS >= self.q.prompt or n == FIXED_CHUNKS[-1]}
        )
        dynamic = DYNAMIC_CHUNKS if split.pp_size > 1 else ()
        return [(n, 0.0) for n in sizes] + [(n, factor) for n, factor in dynamic if n < whole]

    def throughputs(self, way: str, links: Sequence[float]) -> list[tuple[Candidate, Figures]]:
        """Many prompts in a row, at each bandwidth."""
        return self._looked_up(way, links, self.q.num_requests)

    def ttfts(self, way: str, links: Sequence[float]) -> list[tuple[Candidate, Figures]]:
        """One prompt, at each bandwidth."""
        return self._looked_up(way, links, 1)

    def _looked_up(self, way: str, links: Sequence[float], num_prompts: int) -> list[tuple[Candidate, Figures]]:
        new = [b for b in dict.fromkeys(links) if (way, b, num_prompts) not in self.cache]
        for b, found in zip(new, self.best(self.splits[way], new, num_prompts) if new else ()):
            self.cache[way, b, num_prompts] = found
        return [self.cache[way, b, num_prompts] for b in links]

    def standings(self, way: str, links: Sequence[float]) -> list[Standing]:
        """A way at several bandwidths, against the base."""
        pairs = zip(links, self.throughputs(way, links), self.ttfts(way, links))
        return [standing(way, b, many, one, self.base, self.multiple) for b, many, one in pairs]

    def _base(self) -> Standing:
        split = Split(1, self.tp_size)
        many, one = (self.best(split, [None], n)[0] for n in (self.q.num_requests, 1))
        return standing("base", None, many, one, None, 1)

    def known_links(self) -> tuple[float, ...]:
        """What the GPU table says of the link between the groups, or of a NIC; a row of bandwidths where it says
        nothing."""
        inside = not self.joint.nodes and self.q.num_gpus <= NODE_GPUS
        known = self.gpu.link_gb_per_s if inside else self.gpu.nic_gb_per_s
        return ASKED_GB_PER_S if known is None else (known,)

    def does_not_fit(self) -> dict[str, str]:
        """Ways, and the base, whose memory does not hold the model and one prompt."""
        out = {}
        for name, split in {"base": Split(1, self.tp_size), **{w: self.splits[w] for w in self.ways}}.items():
            room = model_capacity(self.shape, self.gpu, self.partition(split), split.tp_size, MEM_FRACTION)
            try:
                room.require(self.q.prompt + 1)
            except ScenarioError as error:
                out[name] = error.problem
        return out


def standing(
    way: str,
    gb_per_s: float | None,
    many: tuple[Candidate, Figures],
    one: tuple[Candidate, Figures],
    base: Standing | None,
    multiple: int,
) -> Standing:
    """Figures of a way beside those of the base; None: it is the base."""
    speedup = many[1].input_tokens_per_s / base.input_tokens_per_s if base else 1.0
    ttft_speedup = base.ttft_s / one[1].ttft_s if base else 1.0
    return Standing(
        way=way,
        split=many[0].split,
        link_gb_per_s=gb_per_s,
        input_tokens_per_s=many[1].input_tokens_per_s,
        ttft_s=one[1].ttft_s,
        chunk=chunk_text(many[0]),
        ttft_chunk=chunk_text(one[0]),
        gpu_multiple=multiple,
        speedup=speedup,
        ttft_speedup=ttft_speedup,
    )


def chunk_text(c: Candidate) -> str:
    return f"dynamic {c.chunked_prefill_size} x {c.smooth_factor:g}" if c.is_dynamic else f"{c.chunked_prefill_size}"
