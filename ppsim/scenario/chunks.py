"""The chunk table of a scenario: computed once with floats, replicated as integers (design decision 4).

A table is a list of (first prefix length, chunk size) in rising order; size 0 means the static chunk size. ``sglang``
answers for every prefix, exactly as the engine's predictor would; ``equal_time`` and ``optimal`` are made for the
longest prompt of the workload, whose plan they follow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.context_parallel import ContextParallelCost
from ppsim.cost.plan import Pipeline, Plan, fixed, sglang
from ppsim.cost.planners import FIXED_SIZES, equal_time, optimal
from ppsim.cost.roofline import RooflineCost
from ppsim.cost.sglang_chunks import ALIGN_TOKENS, ChunkPredictor, fit_profile, profile_lengths
from ppsim.cost.slot_loop import HostAndLink, slot_loop
from ppsim.cost.stage import NS_PER_MS
from ppsim.errors import ScenarioError
from ppsim.scenario.layers import changed_at, partition_of
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Scenario

Table: TypeAlias = tuple[tuple[int, int], ...]


def chunk_table(s: Scenario) -> Table:
    """The replicated table; empty where dynamic chunking is off."""
    c = s.scheduler
    if not c.enable_dynamic_chunking or c.dynamic_chunking_smooth_factor == 0:
        return ()
    return dynamic_table(s, *(changed_at(Path(key)) if key else 0 for key in (s.model.key, s.gpu.key)))


@lru_cache(maxsize=8)  # every rank asks for it
def dynamic_table(s: Scenario, model_changed_ns: int, gpu_changed_ns: int) -> Table:
    """Likewise, where it is on. The other two: when the files of model and GPU were written; a changed one counts."""
    c = s.scheduler
    if c.chunk_planner == "sglang":
        predictor = sglang_predictor(s)
        return breakpoints(lambda prefix: predictor.next_chunk(prefix) or 0, c.context_length)
    return plan_table(planned(s))


def first_chunk(s: Scenario) -> int | None:
    """Tokens of a prompt's first chunk; None: no chunking."""
    c = s.scheduler
    if c.chunked_prefill_size == -1:
        return None
    table = () if c.chunk_planner == "sglang" else chunk_table(s)
    return table[0][1] if table else c.chunked_prefill_size


def sglang_predictor(s: Scenario) -> ChunkPredictor:
    """Profile the first stage, fit, predict: what SGLang does when it starts (protocol.md 5)."""
    c, cost = s.scheduler, stage_cost(s)
    lengths = profile_lengths(c.chunked_prefill_size)
    times = [cost.batch_ns(0, 0, [(0, n, False)]) / NS_PER_MS for n in lengths]
    return ChunkPredictor.from_fit(
        fit_profile(lengths, times),
        c.chunked_prefill_size,
        page_size=c.page_size,
        context_length=c.context_length,
        max_prefill_tokens=c.max_prefill_tokens,
        smooth_factor=c.dynamic_chunking_smooth_factor,
    )


def breakpoints(size_at: Callable[[int], int], stop: int) -> Table:
    """Where a falling step function of the prefix changes, by bisection: exact for every prefix below ``stop``."""
    found = [(0, size_at(0))]

    def between(low: int, low_size: int, high: int, high_size: int) -> None:
        if low_size == high_size:
            return
        if high - low == 1:
            found.append((high, high_size))
            return
        middle = (low + high) // 2
        size = size_at(middle)
        between(low, low_size, middle, size)
        between(middle, size, high, high_size)

    between(0, found[0][1], stop, size_at(stop))
    return tuple(found)


def planned(s: Scenario) -> Plan:
    """The plan of one of our own planners for the longest prompt."""
    c, length = s.scheduler, longest_prompt(s)
    cost = coefficients(s)
    host_ms = (s.host.schedule_us + s.host.process_us) / 1000
    pipeline = Pipeline.of(partition_of(s), host_ms, s.links.latency_us / 1000, s.cluster.pp_async_batch_depth)
    align = max(c.page_size, ALIGN_TOKENS)
    if c.chunk_planner == "equal_time":
        return equal_time(length, cost, pipeline, align=align)
    rivals = [sglang(length, sglang_predictor(s)), equal_time(length, cost, pipeline, align=align)]
    rivals += [fixed(length, size) for size in (c.chunked_prefill_size, *FIXED_SIZES)]
    best = optimal(length, cost, pipeline, rivals=rivals, align=align)
    # Coefficients are those of the mean layer; the last word has the loop with the times of the stages as they are.
    ends = [loop_end_ns(s, plan) for plan in (best, *rivals)]
    return (best, *rivals)[ends.index(min(ends))]


def loop_end_ns(s: Scenario, plan: Plan) -> float:
    """When the first rank has the first token of a prompt cut so, on free links."""
    cost, stages = stage_cost(s), range(s.cluster.pp_size)
    times = [[cost.batch_ns(k, 0, [(prefix, size, False)]) for k in stages] for prefix, size in plan.pieces]
    around = HostAndLink(
        schedule=s.host.schedule_us * 1e3,
        process=s.host.process_us * 1e3,
        comm_overlap=s.cluster.comm_overlap,
        one_stream=s.links.order == "stream",
    )
    return float(slot_loop(times, s.cluster.pp_async_batch_depth, around)[-1])


def longest_prompt(s: Scenario) -> int:
    """Length of the longest prompt of a scripted or chunked workload."""
    w = s.workload
    if w.source == "requests":
        return max(r.prompt for r in w.requests)
    if w.source == "chunks":
        return w.num_chunks * s.scheduler.chunked_prefill_size
    raise ScenarioError(
        "scheduler.chunk_planner",
        f"{s.scheduler.chunk_planner!r} plans one known prompt, but the workload is {w.source!r}",
        "use 'sglang' for mixed prompts",
    )


def coefficients(s: Scenario) -> Coefficients:
    """Coefficients of the whole model in milliseconds."""
    cost = stage_cost(s)
    if isinstance(cost, ContextParallelCost):
        return cost.coefficients(coefficients(alone(s)))
    if isinstance(cost, RooflineCost):
        return cost.coefficients()
    c = s.cost
    if c.source == "unit":
        raise ScenarioError(
            "scheduler.chunk_planner", "unit costs do not depend on the chunk", "use another cost.source"
        )
    return Coefficients(
        c_ms=c.prefill_c_ms,
        first_ms=c.prefill_first_ms,
        gamma_ms=c.prefill_gamma_ms_per_token,
        b_ms=c.prefill_b_ms_per_token,
        a_ms=c.prefill_a_ms_per_token2,
        floor_ms=c.prefill_floor_ms,
    )


def alone(s: Scenario) -> Scenario:
    """The same with one context-parallel rank."""
    return s.model_copy(update={"cluster": s.cluster.model_copy(update={"cp_size": 1})})


def plan_table(plan: Plan) -> Table:
    """(prefix, size) of each chunk; a prefix in between gets the size of the chunk that begins before it."""
    return plan.pieces
