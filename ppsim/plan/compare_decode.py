"""Decode in ``ppsim compare``: so many requests generate at once.

    steady    between two tokens of a request every slot is served once. With P stages and n = min(P, requests) busy
              slots, t(k, s) the time of slot s on stage k and of its hop to the next stage:
                  inter-token latency = max(sum over k of t(k, s) of the largest slot, max over k of sum over s t(k, s))
              the first is a token's way through the pipeline, the second the work of the busiest stage; all requests
              have the prompt and half of the output behind them. Output tokens/s = requests / inter-token latency
    serving   the event simulation, with the real scheduler: so many requests, all there from the start, at most
              ``concurrency`` running, prefill and decode in turns (what a benchmark with a concurrency measures)

Hosts cost nothing in either. Context parallelism gains nothing in decode (``ppsim.cost.context_parallel``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ppsim.cost.memory import model_capacity
from ppsim.cost.stage import StageCost, Work
from ppsim.errors import PpsimError
from ppsim.plan.candidate import Split
from ppsim.plan.compare_field import MEM_FRACTION, Field
from ppsim.plan.compare_links import PUBLISHED
from ppsim.plan.compare_question import Decode
from ppsim.plan.crossing import REACH_GB_PER_S, crossing
from ppsim.recording.summary import summarize
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import validate
from ppsim.scenario.tree import Scenario
from ppsim.world import simulate

Progress: TypeAlias = Callable[[int, int], None]
NS_PER_S = 1e9
SERVED_CHUNK = 8192  # tokens, where --chunk does not say: SGLang's own for GPUs of this memory


@dataclass(frozen=True, slots=True)
class Served:
    """A simulated benchmark; times in seconds, means over requests and tokens."""

    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: float
    itl_s: float
    num_retracted: int


@dataclass(frozen=True, slots=True)
class DecodeStanding:
    """One way at one bandwidth. ``num_fit``: requests of full length that memory holds; None: nothing is kept."""

    way: str
    split: Split
    link_gb_per_s: float | None
    itl_s: float
    output_tokens_per_s: float
    speedup: float
    num_fit: int | None
    served: Served | None
    not_served: str = ""


@dataclass(slots=True)
class DecodeComparison:
    """The base and every way at every bandwidth; ``swaps``: (way, rival, bandwidth or None, who is ahead)."""

    asked: Decode
    base: DecodeStanding
    standings: list[DecodeStanding] = field(default_factory=list)
    swaps: list[tuple[str, str, float | None, str]] = field(default_factory=list)
    is_cut: bool = False  # Ctrl-C: what was not simulated any more says so


def compare_decode(
    field_: Field, links: Sequence[float], progress: Progress | None = None, fast: bool | None = None
) -> DecodeComparison:
    """Everything about decode. Raises PpsimError if a simulated run does not pass.

    Only the simulated benchmark takes long. Ctrl-C ends it: the formulas of all ways are there all the same.
    """
    total, done, is_cut = 1 + len(links) * len(field_.ways), 0, False

    def one(way: str, split: Split, gb_per_s: float | None, base: DecodeStanding | None) -> DecodeStanding:
        nonlocal done, is_cut
        if progress is not None:
            progress(done, total)
        try:
            found = standing(field_, way, split, gb_per_s, base, simulates=not is_cut, fast=fast)
        except KeyboardInterrupt:
            is_cut = True
            found = standing(field_, way, split, gb_per_s, base, simulates=False)
        done += 1
        return found

    base = one("base", Split(1, field_.tp_size), None, None)
    found = DecodeComparison(field_.decode_asked, base)
    for gb_per_s in links:
        for way in field_.ways:
            found.standings.append(one(way, field_.splits[way], gb_per_s, base))
    found.swaps = swaps(field_)
    found.is_cut = is_cut
    return found


def standing(
    field_: Field,
    way: str,
    split: Split,
    gb_per_s: float | None,
    base: DecodeStanding | None,
    *,
    simulates: bool = True,
    fast: bool | None = None,
) -> DecodeStanding:
    """Steady state, memory and, if asked, the simulated benchmark of one way."""
    asked = field_.decode_asked
    itl_s = steady_itl_s(field_, split, gb_per_s)
    rate = asked.concurrency / itl_s
    # How many could be held, states by SGLang's ratio; the served scenario has a slot for each of the concurrency.
    room = model_capacity(field_.shape, field_.gpu, field_.partition(split), split.tp_size, MEM_FRACTION)
    num_fit = room.num_requests(field_.q.prompt + asked.output)
    served, why_not = None, ""
    if asked.num_served and num_fit != 0 and not simulates:
        why_not = "interrupted before it was simulated"
    elif asked.num_served and num_fit != 0:
        served = serve(serving_scenario(field_, split, gb_per_s), fast)
    elif asked.num_served:
        why_not = "no request fits into the memory"
    speedup = rate / base.output_tokens_per_s if base else 1.0
    return DecodeStanding(way, split, gb_per_s, itl_s, rate, speedup, num_fit, served, why_not)


def steady_itl_s(field_: Field, split: Split, gb_per_s: float | None) -> float:
    """Seconds between two tokens of every request."""
    asked, stages = field_.decode_asked, range(split.pp_size)
    cost = field_.cost(split, gb_per_s, decode=True)
    context = field_.q.prompt + asked.output // 2
    slots = slot_sizes(asked.concurrency, split.pp_size)
    hop_s = field_.hidden_bytes * field_.joint.hop_s_per_byte(split.tp_size, gb_per_s)
    latency_s = field_.hop_latency_us(split) * 1e-6
    times = {rows: [stage_s(cost, k, rows, context) for k in stages] for rows in dict.fromkeys(slots)}
    hops = [0.0 if k == split.pp_size - 1 else hop_s for k in stages]
    largest = slots[0]
    way_s = sum(times[largest]) + sum(h * largest for h in hops) + split.pp_size * latency_s
    work_s = max(sum(times[rows][k] + hops[k] * rows for rows in slots) for k in stages)
    return max(way_s, work_s)


def slot_sizes(concurrency: int, num_slots: int) -> list[int]:
    """Requests of each busy slot, the largest first."""
    busy = min(concurrency, num_slots)
    return [concurrency // busy + (i < concurrency % busy) for i in range(busy)]


def stage_s(cost: StageCost, stage: int, rows: int, context: int) -> float:
    """Seconds of a decode batch of ``rows`` requests that have ``context`` tokens behind them each."""
    work: list[Work] = [(context, 1, True)] * rows
    return cost.batch_ns(stage, 0, work) / NS_PER_S


def swaps(field_: Field) -> list[tuple[str, str, float | None, str]]:
    """Where the order of two ways changes with the bandwidth, by steady tokens a second."""
    out: list[tuple[str, str, float | None, str]] = []
    for way, rival in (("tp", "pp"), ("cp", "pp"), ("tp", "cp")):
        if way not in field_.ways or rival not in field_.ways:
            continue

        def gains(links: Sequence[float], way: str = way, rival: str = rival) -> list[float]:
            mine, other = field_.splits[way], field_.splits[rival]
            return [steady_itl_s(field_, other, b) / steady_itl_s(field_, mine, b) - 1.0 for b in links]

        found = crossing(gains)
        ahead = way if gains(REACH_GB_PER_S[1:])[0] > 0 else rival
        out.append((way, rival, found, "" if found else ahead))
    return out


# --- the simulated benchmark ---------------------------------------------------------------------------------------


def serving_scenario(field_: Field, split: Split, gb_per_s: float | None) -> Scenario:
    """A benchmark at a concurrency as a scenario, with the very costs of ``Field.cost``. Raises ScenarioError."""
    q, asked, joint = field_.q, field_.decode_asked, field_.joint
    rates = joint.rates(field_.efficiency, split.tp_size, gb_per_s, decode=True)
    alone = not joint.nodes and split.cp_size > 1  # one link: whatever leaves the group takes it
    hop = joint.hop_s_per_byte(split.tp_size, gb_per_s) if split.pp_size > 1 else 0.0
    cost: dict[str, Any] = {name: getattr(rates, name) for name in ("efficiency", "tp_gb_per_s", *PUBLISHED)}
    gpu: dict[str, Any] = {"key": q.gpu, "mem_fraction_static": MEM_FRACTION}
    if gb_per_s is not None:
        gpu["nic_gb_per_s"] = gb_per_s
    raw = {
        "name": f"compare {split}",
        "cluster": {
            "pp_size": split.pp_size,
            "tp_size": split.tp_size,
            "cp_size": split.cp_size,
            "gpus_per_node": split.tp_size if alone else joint.gpus_per_node,
            "nics_per_node": None if alone else joint.nics_per_node,
        },
        "scheduler": {
            "chunked_prefill_size": q.chunk or SERVED_CHUNK,
            "max_running_requests": asked.concurrency,
            "context_length": q.prompt + asked.output + 1,
            "disable_radix_cache": True,
        },
        "model": {"key": q.model, "kv_cache_dtype": q.kv_cache_dtype},
        "gpu": gpu,
        "cost": {"source": "roofline", **cost},
        "links": {"bandwidth_gb_per_s": 1e-9 / hop if hop else 0.0, "latency_us": field_.hop_latency_us(split)},
        "workload": {
            "source": "generated",
            "num_requests": asked.num_served,
            "arrival": "burst",
            "input_length": {"value": q.prompt},
            "output_length": {"value": asked.output},
        },
    }
    return validate(raw)


def serve(scenario: Scenario, fast: bool | None = None) -> Served:
    """Simulate it, ``fast`` as for ``simulate``. Raises PpsimError if the run does not pass."""
    check_scenario(scenario)
    result = simulate(scenario, fast=fast)
    if result.verdict.kind != "pass":
        error = PpsimError(f"{scenario.name}: the event simulation does not pass: {result.verdict.message}")
        error.exit_code = result.verdict.exit_code
        raise error
    summary = summarize(result.recording, result.verdict)
    return Served(
        requests_per_s=summary["num_finished"] / summary["makespan_s"],
        output_tokens_per_s=float(summary["output_tokens_per_s"]),
        ttft_s=float(summary["ttft_s"]["mean"]),
        itl_s=float(summary["tpot_s"]["mean"]),
        num_retracted=int(summary["num_retracted"]),
    )
