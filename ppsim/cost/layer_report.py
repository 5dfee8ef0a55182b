"""Ways to cut the layers of a model into stages, side by side: what ``ppsim layers`` prints.

    even     as many layers each, the remainder one each to the last stages (SGLang's default)
    time     the slowest stage is as fast as can be, for a middle chunk of the prompt; embedding and head counted. Where
             another row has its first token earlier, that one
    memory   the stage that holds fewest tokens of cache holds as many as can be
    given    by hand

Each is judged by both: the tokens that the pipeline holds and which stage limits them, and the time to the first token
of a prompt in fixed chunks, in SGLang's own loop. Layers need not be alike: ``layer_kinds`` has what one of each kind
weighs, keeps and takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ppsim.cost.config_json import load_model
from ppsim.cost.gpu import Gpu, load_gpu
from ppsim.cost.memory import GB, Capacity, best_partition, model_capacity
from ppsim.cost.model import ModelShape
from ppsim.cost.partition import check_partition, even_partition, parse_partition, partition_by_cost
from ppsim.cost.plan import fixed
from ppsim.cost.roofline import Rates, RooflineCost
from ppsim.cost.slot_loop import slot_loop
from ppsim.errors import ScenarioError

ASSUMED_EFFICIENCY = 0.57
NS_PER_S = 1e9
NS_PER_MS = 1e6
MIDDLE = 16  # the chunk that stands for a prompt is a sixteenth of it, in its middle


@dataclass(frozen=True, slots=True)
class LayerQuestion:
    """A model, a GPU, and how many stages. ``partition`` by hand is one more row."""

    model: str
    gpu: str = "h20"
    pp_size: int = 4
    tp_size: int = 8
    partition: str = ""
    prompt: int = 131072
    chunk: int = 4096
    mem_fraction: float = 0.85
    efficiency: float | None = None
    tp_gb_per_s: float | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (("pp_size", 1), ("tp_size", 1), ("prompt", 1), ("chunk", 1)):
            if getattr(self, name) < least:
                raise ScenarioError(f"layers.{name}", f"must be at least {least}, got {getattr(self, name)}")
        if not 0.0 < self.mem_fraction <= 1.0:
            raise ScenarioError("gpu.mem_fraction_static", f"must be in (0, 1], got {self.mem_fraction:g}")

    def shape(self) -> ModelShape:
        return load_model(self.model, kv_dtype=self.kv_cache_dtype)

    def rates(self) -> Rates:
        gpu = load_gpu(self.gpu)
        given = self.efficiency if self.efficiency is not None else gpu.efficiency
        return Rates(efficiency=ASSUMED_EFFICIENCY if given is None else given, tp_gb_per_s=self.tp_gb_per_s)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One way. ``why_not`` says which stage lacks how much for one prompt; empty if it fits."""

    how: str
    layers: tuple[int, ...]
    capacity: Capacity
    chunk_s: tuple[float, ...]  # of each stage, for the middle chunk
    ttft_s: float
    why_not: str

    def to_dict(self) -> dict[str, object]:
        """A row of ``ppsim layers --json``."""
        stages = [
            {
                "stage": s.stage,
                "num_layers": s.num_layers,
                "weights_gb": s.weight_bytes / GB,
                "free_gb": s.free_bytes / GB,
                "state_bytes": s.state_bytes,
                "num_states": s.num_slots,
                "num_tokens": s.num_tokens,
                "chunk_s": chunk_s,
            }
            for s, chunk_s in zip(self.capacity.stages, self.chunk_s)
        ]
        return {
            "how": self.how,
            "layers": list(self.layers),
            "num_tokens": self.capacity.num_tokens,
            "limiting_stage": self.capacity.limiting.stage,
            "ttft_s": self.ttft_s,
            "why_not": self.why_not or None,
            "stages": stages,
        }


def layer_report(q: LayerQuestion) -> list[LayerRow]:
    """All ways. Raises ScenarioError for what cannot be."""
    shape, gpu = q.shape(), load_gpu(q.gpu)
    if q.pp_size > shape.num_layers:
        raise ScenarioError("cluster.pp_size", f"{q.pp_size} stages cannot be cut from {shape.num_layers} layers")
    ways = {"even": even_partition(shape.num_layers, q.pp_size)}
    ways["time"] = partition_by_time(shape, gpu, q.tp_size, q.rates(), q.pp_size, q.prompt)
    with suppress(ScenarioError):  # no way fits: the rows of the others say which stage lacks how much
        ways["memory"] = best_partition(shape, gpu, q.pp_size, q.tp_size, q.mem_fraction)
    if q.partition:
        given = parse_partition(q.partition)
        check_partition(given, shape.num_layers, q.pp_size)
        ways["given"] = given
    rows = [row_of(how, layers, q, shape, gpu) for how, layers in ways.items()]
    return [never_slower(row, rows) if row.how == "time" else row for row in rows]


def never_slower(row: LayerRow, rows: list[LayerRow]) -> LayerRow:
    """The way by time, or the one beside it whose first token comes earlier.

    The slowest stage of a middle chunk is what most chunks wait for, but the last chunk crosses every stage, and the
    pieces of a short prompt are of another size: there another split can win, and then it is the one by time.
    """
    best = min(rows, key=lambda other: (other.ttft_s, other is not row))
    return replace(best, how="time")


def row_of(how: str, layers: tuple[int, ...], q: LayerQuestion, shape: ModelShape, gpu: Gpu) -> LayerRow:
    """One way, judged."""
    capacity = model_capacity(shape, gpu, layers, q.tp_size, q.mem_fraction)
    cost = RooflineCost(shape, gpu, q.tp_size, layers, q.rates())
    middle = middle_chunk(q.prompt)
    why_not = ""
    try:
        capacity.require(q.prompt + 1)
    except ScenarioError as error:
        why_not = error.problem
    pieces, stages = fixed(q.prompt, q.chunk).pieces, range(q.pp_size)
    times = [[cost.batch_ns(k, 0, [(prefix, size, False)]) for k in stages] for prefix, size in pieces]
    return LayerRow(
        how,
        layers,
        capacity,
        tuple(cost.batch_ns(k, 0, [middle]) / NS_PER_S for k in stages),
        float(slot_loop(times)[-1]) / NS_PER_S,
        why_not,
    )


@dataclass(frozen=True, slots=True)
class KindRow:
    """One layer of a kind: parameters and those that a token uses, bytes a token leaves in the cache and bytes of a
    request's state before tensor parallelism cuts them, milliseconds of the middle chunk and of one decode token after
    the prompt on the GPUs of the question."""

    kind: str
    num_layers: int
    params: int
    active_params: int
    kv_bytes_per_token: float
    state_bytes: float
    prefill_ms: float
    decode_ms: float


def layer_kinds(q: LayerQuestion) -> list[KindRow]:
    """A row for each kind of layer, in order of appearance."""
    shape, gpu = q.shape(), load_gpu(q.gpu)
    first: dict[str, int] = {}
    for i, layer in enumerate(shape.layers):
        first.setdefault(layer.kind, i)
    rows = []
    for kind, count in shape.kinds().items():
        at = first[kind]
        pair = replace(shape, layers=(shape.layers[at],) * 2)  # of two stages the first has no head
        cost = RooflineCost(pair, gpu, q.tp_size, (1, 1), q.rates())
        prefill, decode = (cost.batch_ns(0, 0, [w]) / NS_PER_MS for w in (middle_chunk(q.prompt), (q.prompt, 1, True)))
        kv, state = shape.layer_kv_bytes(at), shape.layer_state_bytes(at)
        row = KindRow(kind, count, shape.layer_params(at), shape.layer_active_params(at), kv, state, prefill, decode)
        rows.append(row)
    return rows


def middle_chunk(prompt: int) -> tuple[int, int, bool]:
    """(prefix, new tokens, not cached) of the chunk that stands for a prompt."""
    return prompt // 2, max(1, prompt // MIDDLE), False


def partition_by_time(
    shape: ModelShape, gpu: Gpu, tp_size: int, rates: Rates, pp_size: int, prompt: int
) -> tuple[int, ...]:
    """The layers whose slowest stage is fastest, for a middle chunk of a prompt."""
    single = RooflineCost(shape, gpu, tp_size, (1,) * shape.num_layers, rates)
    work: Sequence[tuple[int, int, bool]] = [middle_chunk(prompt)]
    return partition_by_cost([float(single.batch_ns(i, 0, work)) for i in range(shape.num_layers)], pp_size)
