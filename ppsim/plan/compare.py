"""``ppsim compare``: pipeline against tensor against context parallelism, with the same GPUs and the same link.

    base   one group of ``tp_size`` GPUs (a node), the whole model, one stage: GPU multiple 1
    PP     a stage a group: hidden states cross the link once a seam
    TP     all GPUs in one group: every all-reduce of every layer crosses the link
    CP     the groups share the tokens of a chunk: keys and values of new tokens cross the link once a layer (estimate)

Every figure is at a stated bandwidth of the link that joins the groups; inside a group the GPUs' own link holds. A
speed-up is over the base and is divided by the GPU multiple: that is the efficiency. Each way takes the best of its own
chunk settings. What the ranking depends on most is the link, so the answer is the bandwidth at which it changes, found
by bisection, and not a percentage at an unknown one (published.md E2: +30.5 % of that report is no prediction).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ppsim.cost.config_json import load_model
from ppsim.cost.context_parallel import NODE_GPUS, ContextParallelCost, exchange_ns
from ppsim.cost.gpu import Gpu, load_gpu
from ppsim.cost.memory import model_capacity, stage_kv_bytes
from ppsim.cost.model import ModelShape
from ppsim.cost.partition import even_partition
from ppsim.cost.roofline import Rates, RooflineCost
from ppsim.cost.sglang_chunks import ChunkFit, ChunkPredictor
from ppsim.cost.stage import StageCost
from ppsim.errors import ScenarioError, UsageError
from ppsim.plan.array_cost import array_cost
from ppsim.plan.candidate import Candidate, Split
from ppsim.plan.chunk_rule import ChunkRule
from ppsim.plan.evaluate import Figures, block_width, profiled, stream_figures
from ppsim.plan.probe import NUM_REQUESTS, Probe
from ppsim.plan.prompt_feed import Limits
from ppsim.plan.stream_loop import Surroundings
from ppsim.scenario.tree import MAX_TOKENS

MAX_GPUS = 1024
ASSUMED_EFFICIENCY = 0.57
FIXED_CHUNKS = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
MAX_CHUNKS = 64  # of a prompt: 2048 to 16384 for one of 128K, as in the published sweep
DYNAMIC_CHUNKS = ((8192, 0.85), (12288, 0.65), (12288, 0.85), (16384, 0.85))
PAGE_SIZE = 64
PLENTY_TOKENS = 1 << 40  # pools are no part of the comparison; whether a way fits is told beside its figures
ASKED_GB_PER_S = (25.0, 50.0, 100.0, 200.0, 400.0)  # where neither the user nor the GPU table names the link
DRAWN_GB_PER_S = (5.0, 1000.0)  # the axis of the picture, where nothing that it has to show lies beyond
NUM_DRAWN = 15  # points of a curve, at even distances of the axis
REACH_GB_PER_S = (0.1, 1e4)
SECTIONS = (24, 12)  # points of each round of the search for a crossover
MEM_FRACTION = 0.85
WAYS = ("pp", "tp", "cp")

Gains: TypeAlias = Callable[[Sequence[float]], list[float]]
"""Of each bandwidth: how far one way is ahead; rising with the bandwidth."""


@dataclass(frozen=True, slots=True)
class Question:
    """``tp_size`` None: the largest group of a node that divides heads and GPUs. Bandwidths of one direction."""

    model: str
    gpu: str
    num_gpus: int
    prompt: int = 131072
    tp_size: int | None = None
    link_gb_per_s: tuple[float, ...] = ()
    efficiency: float | None = None
    chunk: int | None = None
    num_requests: int = NUM_REQUESTS
    speedup: float | None = None


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


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where ``way`` overtakes ``rival``; None: nowhere within the reach, and ``ahead`` is in front throughout."""

    way: str
    rival: str
    by: str
    gb_per_s: float | None
    ahead: str = ""


@dataclass(slots=True)
class Comparison:
    """Everything that ``ppsim compare`` prints. ``curves`` are the standings of the plot."""

    question: Question
    base: Standing
    gpu_multiple: int
    standings: list[Standing]
    curves: list[Standing]
    crossovers: list[Crossover]
    cannot_run: dict[str, str]  # way -> why it is not among the standings
    does_not_fit: dict[str, str]  # way or "base" -> which stage lacks how much memory
    speedup_gb_per_s: float | None = None
    notes: list[str] = field(default_factory=list)


class Field:
    """Model, GPU and groups of a question, and the ways that can be computed at all."""

    def __init__(self, q: Question) -> None:
        check_numbers(q)
        self.q = q
        self.shape: ModelShape = load_model(q.model)
        self.gpu: Gpu = load_gpu(q.gpu)
        self.tp_size = group_size(self.shape, q)
        self.multiple = q.num_gpus // self.tp_size
        given = q.efficiency if q.efficiency is not None else self.gpu.efficiency
        self.assumed_efficiency = given is None
        self.rates = Rates(efficiency=ASSUMED_EFFICIENCY if given is None else given)
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

    def cost(self, split: Split, gb_per_s: float | None) -> StageCost:
        """Stage times when the groups are joined by this link; None: there is one group."""
        ring = gb_per_s if split.tp_size > self.tp_size else None
        rates = Rates(efficiency=self.rates.efficiency, tp_gb_per_s=ring)
        inner = RooflineCost(self.shape, self.gpu, split.tp_size, self.partition(split), rates)
        if split.cp_size == 1 or gb_per_s is None:
            return inner
        kv = stage_kv_bytes(self.shape, inner.partition, split.tp_size)
        return ContextParallelCost(inner, split.cp_size, exchange_ns(kv, split.cp_size, gb_per_s))

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
        limits = Limits(float(PAGE_SIZE), 16384.0, 4096.0, 4096.0 * many, float(PLENTY_TOKENS) * many)
        byte_ns = np.array([1.0 / b if b else 0.0 for b, _ in rows]) if split.pp_size > 1 else 0.0
        around = Surroundings(byte_ns=byte_ns, hidden_bytes=round(self.shape.hidden_size * self.shape.activation_bytes))
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
        """What the GPU table says of the link between the groups; a row of bandwidths where it says nothing."""
        known = self.gpu.link_gb_per_s if self.q.num_gpus <= NODE_GPUS else self.gpu.nic_gb_per_s
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


def check_numbers(q: Question) -> None:
    """Raise UsageError for numbers that mean nothing."""
    if not 1 <= q.num_gpus <= MAX_GPUS:
        raise UsageError(f"--gpus {q.num_gpus}: expected 2 to {MAX_GPUS}")
    if not 1 <= q.prompt <= MAX_TOKENS:
        raise UsageError(f"--prompt {q.prompt}: expected 1 to {MAX_TOKENS} tokens")
    if not 1 <= q.num_requests <= 4096:
        raise UsageError(f"--requests {q.num_requests}: expected 1 to 4096 prompts")
    for value in q.link_gb_per_s:
        if not REACH_GB_PER_S[0] <= value <= REACH_GB_PER_S[1]:
            low, high = REACH_GB_PER_S
            raise UsageError(f"--link-gb-per-s {value:g}: expected {low:g} to {high:g} GB/s in one direction")
    if q.efficiency is not None and not 0.0 < q.efficiency <= 1.0:
        raise UsageError(f"--efficiency {q.efficiency:g}: expected a share of the peak, more than 0 and at most 1")
    if q.chunk is not None and (q.chunk < PAGE_SIZE or q.chunk % PAGE_SIZE):
        raise UsageError(f"--chunk {q.chunk}: expected a multiple of {PAGE_SIZE} tokens")
    if q.speedup is not None and not 0.0 < q.speedup < 1e6:
        raise UsageError(f"--speedup {q.speedup:g}: expected a positive factor over the base")


def group_size(shape: ModelShape, q: Question) -> int:
    """GPUs of a group. Raises UsageError or ScenarioError if there are fewer than two groups."""
    if q.tp_size is not None:
        shape.check_tp(q.tp_size)
        size = q.tp_size
    else:
        most = min(NODE_GPUS, q.num_gpus - 1) if q.num_gpus > NODE_GPUS else 1
        heads = shape.num_heads
        size = max(n for n in range(1, max(most, 1) + 1) if heads % n == 0 and q.num_gpus % n == 0)
    if q.num_gpus % size or q.num_gpus == size:
        raise UsageError(
            f"--gpus {q.num_gpus}: expected two or more groups of {size} GPUs each; give a multiple of it, or --tp"
        )
    return size


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


def compare(q: Question) -> Comparison:
    """Standings, curves and crossovers. Raises UsageError or ScenarioError for what cannot be."""
    field_ = Field(q)
    asked = q.link_gb_per_s or field_.known_links()
    by_way = {way: field_.standings(way, asked) for way in field_.ways}
    crossed = crossovers(field_)
    drawn = drawn_links(q, crossed)
    found = Comparison(
        q,
        field_.base,
        field_.multiple,
        [by_way[way][i] for i in range(len(asked)) for way in field_.ways],
        [s for way in field_.ways for s in field_.standings(way, drawn)],
        crossed,
        field_.cannot_run,
        field_.does_not_fit(),
    )
    if q.speedup is not None and "tp" in field_.ways:
        base, wanted = field_.base.input_tokens_per_s, q.speedup
        found.speedup_gb_per_s = crossing(
            lambda links: [f.input_tokens_per_s / base - wanted for _, f in field_.throughputs("tp", links)]
        )
    found.notes = notes(field_, bool(q.link_gb_per_s))
    return found


def drawn_links(q: Question, crossed: Sequence[Crossover]) -> tuple[float, ...]:
    """Bandwidths of the curves: an axis that reaches every crossover and every link that was given, and these."""
    shown = sorted({*q.link_gb_per_s, *(c.gb_per_s for c in crossed if c.gb_per_s is not None)})
    low = min([DRAWN_GB_PER_S[0], *(b / 1.5 for b in shown[:1])])
    high = max([DRAWN_GB_PER_S[1], *(b * 1.5 for b in shown[-1:])])
    num = round(NUM_DRAWN * np.log(high / low) / np.log(DRAWN_GB_PER_S[1] / DRAWN_GB_PER_S[0]))
    return tuple(sorted({*(float(b) for b in np.geomspace(low, high, num)), *shown}))


def crossovers(field_: Field) -> list[Crossover]:
    """Where each way overtakes each other one, by throughput and by TTFT."""
    out = []
    for way, rival in (("tp", "pp"), ("cp", "pp"), ("tp", "cp")):
        if way not in field_.ways or rival not in field_.ways:
            continue
        for by in ("throughput", "ttft"):
            gains = ahead_by(field_, way, rival, by)
            found = crossing(gains)
            front = way if gains(REACH_GB_PER_S[1:])[0] > 0 else rival
            out.append(Crossover(way, rival, by, found, "" if found else front))
    return out


def ahead_by(field_: Field, way: str, rival: str, by: str) -> Gains:
    """How far ``way`` is ahead of ``rival`` at each bandwidth."""

    def throughput(links: Sequence[float]) -> list[float]:
        mine, other = field_.throughputs(way, links), field_.throughputs(rival, links)
        return [a.input_tokens_per_s / b.input_tokens_per_s - 1.0 for (_, a), (_, b) in zip(mine, other)]

    def ttft(links: Sequence[float]) -> list[float]:
        mine, other = field_.ttfts(way, links), field_.ttfts(rival, links)
        return [b.ttft_s / a.ttft_s - 1.0 for (_, a), (_, b) in zip(mine, other)]

    return throughput if by == "throughput" else ttft


def crossing(gains: Gains) -> float | None:
    """The bandwidth at which ``gains`` become positive; None without a change of sign.

    A bisection with many points at a time, on a logarithmic scale: each round looks at a row of them and keeps the
    interval where the sign changes; between the last two points the gain is a straight line.
    """
    low, high = REACH_GB_PER_S
    before = after = 0.0
    for num_points in SECTIONS:
        links = [float(b) for b in np.geomspace(low, high, num_points)]
        values = gains(links)
        above = next((i for i, value in enumerate(values) if value > 0.0), None)
        if not above:  # never, or from the first point on
            return None
        low, high, before, after = links[above - 1], links[above], values[above - 1], values[above]
    return float(low * (high / low) ** (-before / (after - before)))


def notes(field_: Field, link_given: bool) -> list[str]:
    """What the figures rest on."""
    out = ["efficiency = speed-up over the base, divided by the GPU multiple"]
    if field_.assumed_efficiency:
        out.append(
            f"{ASSUMED_EFFICIENCY} of the peak is assumed for {field_.gpu.key}; nothing measured is known for it"
        )
    if not link_given and len(field_.known_links()) > 1:
        out.append(f"the network of {field_.gpu.key} is not published: no single figure is a prediction, give the link")
    out.append("cp is an estimate: nothing measured stands behind it, and every rank holds all weights of its stage")
    out.append("all-reduce and exchange are not hidden behind compute; the ring of TP is flat over all GPUs")
    return out
