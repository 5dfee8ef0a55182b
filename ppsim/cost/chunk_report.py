"""All planners on one prompt: what ``ppsim chunks`` prints.

The cost is a roofline of a model on a GPU, or a fit of measured chunks; the plans are judged by the same pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.config_json import load_model
from ppsim.cost.fit import fit_samples
from ppsim.cost.gpu import load_gpu
from ppsim.cost.model import ModelShape
from ppsim.cost.partition import check_partition, even_partition, parse_partition
from ppsim.cost.plan import Pipeline, Plan, fixed, sglang, treat_tail
from ppsim.cost.planners import MIN_UNITS, Judged, best_fixed, equal_time, judge, optimal
from ppsim.cost.roofline import Rates, RooflineCost
from ppsim.cost.samples import read_samples
from ppsim.cost.sglang_chunks import DEFAULT_MAX_PREFILL_TOKENS, DEFAULT_SMOOTH_FACTOR, ChunkPredictor
from ppsim.errors import ScenarioError

PLANNERS = ("fixed", "sglang", "equal_time", "optimal")
ASSUMED_EFFICIENCY = 0.57
MS_PER_S = 1e3


@dataclass(frozen=True, slots=True)
class ChunkQuestion:
    """A prompt, what runs it, and the limits of its chunks. Tokens, milliseconds; ``max_chunk`` 0: no limit."""

    model: str
    num_tokens: int
    gpu: str = "h20"
    tp_size: int = 8
    pp_size: int = 4
    partition: str = ""
    efficiency: float | None = None
    measured: str = ""
    chunk: int = 8192
    smooth_factor: float = DEFAULT_SMOOTH_FACTOR
    page_size: int = 1
    context_length: int = 0
    max_prefill_tokens: int = DEFAULT_MAX_PREFILL_TOKENS
    max_chunk: int = 0
    min_tail: int = 0
    cached_tokens: int = 0
    host_ms: float = 0.0
    depth: int = 0
    tp_gb_per_s: float | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (
            ("num_tokens", 1),
            ("chunk", 1),
            ("max_chunk", 0),
            ("min_tail", 0),
            ("cached_tokens", 0),
            ("depth", 0),
        ):
            if getattr(self, name) < least:
                raise ScenarioError(f"chunks.{name}", f"must be at least {least}, got {getattr(self, name)}")

    def shape(self) -> ModelShape:
        return load_model(self.model, kv_dtype=self.kv_cache_dtype)

    def layers(self) -> tuple[int, ...]:
        """Layers of each stage. Raises ScenarioError."""
        num_layers = self.shape().num_layers
        if self.partition:
            given = parse_partition(self.partition)
            check_partition(given, num_layers, self.pp_size)
            return given
        if not 1 <= self.pp_size <= num_layers:
            raise ScenarioError("cluster.pp_size", f"{self.pp_size} stages cannot be cut from {num_layers} layers")
        return even_partition(num_layers, self.pp_size)

    def cost(self) -> Coefficients:
        """Coefficients of the whole model; from measurements if a file is named. Raises ScenarioError, TraceError."""
        if self.measured:
            samples = read_samples(Path(self.measured))
            return fit_samples(samples, source=f"samples of {Path(self.measured).name}").require()
        gpu = load_gpu(self.gpu)
        given = self.efficiency if self.efficiency is not None else gpu.efficiency
        rates = Rates(efficiency=ASSUMED_EFFICIENCY if given is None else given, tp_gb_per_s=self.tp_gb_per_s)
        return RooflineCost(self.shape(), gpu, self.tp_size, self.layers(), rates).coefficients()

    @property
    def assumed(self) -> str:
        """A sentence for the reader if the efficiency is a guess, or nothing."""
        if self.measured or self.efficiency is not None or load_gpu(self.gpu).efficiency is not None:
            return ""
        return f"efficiency {ASSUMED_EFFICIENCY} is assumed for {self.gpu}; nothing measured is known for it"


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """Plans by planner, judged; ``best fixed`` stands beside them."""

    cost: Coefficients
    pipeline: Pipeline
    judged: dict[str, Judged]

    def rows(self, planner: str) -> list[dict[str, object]]:
        """The plan of a planner for JSON: prefix, size, and the seconds its chunk takes on the slowest stage."""
        plan = self.judged[planner].plan
        seconds = self.pipeline.chunk_ms(plan, self.cost) / MS_PER_S
        return [{"prefix": p, "size": s, "predicted_s": float(t)} for (p, s), t in zip(plan.pieces, seconds)]


def chunk_report(q: ChunkQuestion) -> ChunkReport:
    """Plans of all planners for a prompt. Raises ScenarioError or TraceError for what cannot be."""
    cost, pipeline = q.cost(), Pipeline.of(q.layers(), host_ms=q.host_ms, depth=q.depth)
    predictor = ChunkPredictor(
        a=cost.a_ms,
        b=cost.b_ms,
        base=q.chunk,
        page_size=q.page_size,
        context_length=q.context_length or 2 * (q.cached_tokens + q.num_tokens),
        max_prefill_tokens=q.max_prefill_tokens,
        smooth_factor=q.smooth_factor,
    )
    limit = q.max_chunk or None
    least = MIN_UNITS * predictor.align if limit is None else min(MIN_UNITS * predictor.align, limit)
    plans: dict[str, Plan] = {
        "fixed": fixed(q.num_tokens, q.chunk, q.cached_tokens),
        "sglang": sglang(q.num_tokens, predictor, q.cached_tokens),
        "equal_time": equal_time(
            q.num_tokens,
            cost,
            pipeline,
            start=q.cached_tokens,
            align=predictor.align,
            min_chunk=least // predictor.align * predictor.align,
            max_chunk=limit,
        ),
    }
    if q.min_tail:
        plans = {name: treat_tail(plan, q.min_tail, limit, predictor.align) for name, plan in plans.items()}
    plans["best fixed"] = best_fixed(q.num_tokens, cost, pipeline, start=q.cached_tokens)
    plans["optimal"] = optimal(
        q.num_tokens,
        cost,
        pipeline,
        rivals=list(plans.values()),
        start=q.cached_tokens,
        align=predictor.align,
        max_chunk=limit,
    )
    return ChunkReport(cost, pipeline, dict(zip(plans, judge(list(plans.values()), cost, pipeline))))
