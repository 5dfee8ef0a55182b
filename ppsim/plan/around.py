"""Around the winner: what a step of each knob costs, when dynamic chunks lose to fixed ones, and the heat maps."""

from __future__ import annotations

from dataclasses import replace
from math import nan

from ppsim.plan import grid
from ppsim.plan.candidate import DEFAULT_FACTOR, Candidate, Split
from ppsim.plan.evaluate import FastPath, Figures
from ppsim.plan.search import Search
from ppsim.plan.trial_load import Probe
from ppsim.plan.tuning import Change, Contest, HeatMap, score_of

CONCURRENCIES = (1, 4)
LENGTH_STEPS = (4, 2, 1)  # the longest prompt divided by these, and twice itself
SHORTEST_PROMPT = 256
RULE_MULTIPLE = 3


def changes(search: Search, winner: Candidate) -> list[Change]:
    """Each knob one step down and up; of another split its own best chunk."""
    found = [_change(search, name, candidate, winner) for name, candidate in search.steps_from(winner)]
    return found + _other_splits(search, winner)


def _change(search: Search, name: str, candidate: Candidate, winner: Candidate) -> Change:
    reason = search.why_not(candidate)
    if reason:
        return Change(name, candidate, None, reason)
    objective = search.probe.objective
    before, after = (search.evaluate([c])[0][1] for c in (winner, candidate))
    return Change(name, candidate, score_of(objective, after) / score_of(objective, before) - 1.0)


def _other_splits(search: Search, winner: Candidate) -> list[Change]:
    """Splits that differ by one doubling: stages against tensor-parallel ranks, either against context parallelism."""
    s = winner.split
    shapes: list[tuple[float, float, float]] = [
        (2 * s.pp_size, s.tp_size / 2, s.cp_size),
        (s.pp_size / 2, 2 * s.tp_size, s.cp_size),
    ]
    shapes += [(s.pp_size / 2, s.tp_size, 2 * s.cp_size), (s.pp_size, s.tp_size / 2, 2 * s.cp_size)]
    shapes += [(2 * s.pp_size, s.tp_size, s.cp_size / 2), (s.pp_size, 2 * s.tp_size, s.cp_size / 2)]
    best = dict(search.best_by_split())
    out = []
    for split in search.splits():
        if (split.pp_size, split.tp_size, split.cp_size) not in shapes:
            continue
        if split in best:
            out.append(_change(search, f"{split} at its best", best[split], winner))
        else:
            out.append(Change(str(split), None, None, search.feasible(split).why_not))
    return out


# --- dynamic against fixed ---------------------------------------------------------------------------------------


def contests(search: Search, winner: Candidate) -> list[Contest]:
    """Dynamic against fixed chunks on the winner's split: shorter and longer prompts, alone and four at once."""
    longest, pool = search.longest, search.fast.pool(winner.split, winner.layer_partition)
    limit = min(search.scenario.scheduler.context_length - 2, pool - 2 * search.scenario.scheduler.page_size - 2)
    lengths = [n for n in (*(longest // step for step in LENGTH_STEPS), 2 * longest) if SHORTEST_PROMPT <= n <= limit]
    return [contest(search, winner, n, many) for n in lengths for many in CONCURRENCIES]


def contest(search: Search, winner: Candidate, prompt: int, concurrency: int) -> Contest:
    """One load: ``concurrency`` prompts at once, judged by the time until all have their token."""
    probe = Probe("throughput", (prompt,) * concurrency, (0,) * concurrency)
    fast = replace(search.fast, probe=probe, num_evaluated=0, cpu_s=0.0)
    sizes = grid.chunk_sizes(search.scenario, prompt)
    fixed = [winner.but(chunked_prefill_size=n, smooth_factor=0.0) for n in sizes]
    dynamic = [winner.but(chunked_prefill_size=n, smooth_factor=f) for n in sizes for f in grid.SMOOTH_FACTORS]
    best_fixed, fixed_at = _fastest(fast, fixed)
    rule_chunk = min(grid.aligned(search.scenario, RULE_MULTIPLE * best_fixed.chunked_prefill_size), sizes[-1])
    rule = winner.but(chunked_prefill_size=rule_chunk, smooth_factor=DEFAULT_FACTOR)
    rule_at = fast.figures([rule])[0]
    best_dynamic, dynamic_at = _fastest(fast, [rule, *dynamic])
    search.fast.num_evaluated += fast.num_evaluated
    search.fast.cpu_s += fast.cpu_s
    return Contest(
        prompt,
        concurrency,
        best_fixed.chunked_prefill_size,
        best_dynamic.chunked_prefill_size,
        best_dynamic.smooth_factor,
        dynamic_at.input_tokens_per_s / fixed_at.input_tokens_per_s - 1.0,
        rule_chunk,
        rule_at.input_tokens_per_s / fixed_at.input_tokens_per_s - 1.0,
    )


def _fastest(fast: FastPath, candidates: list[Candidate]) -> tuple[Candidate, Figures]:
    figures = fast.figures(candidates)
    return min(zip(candidates, figures), key=lambda f: (-f[1].input_tokens_per_s, *f[0].simplicity))


# --- heat maps -----------------------------------------------------------------------------------------------------


def maps(search: Search, winner: Candidate) -> list[HeatMap]:
    """Chunk against smooth factor on the winner's split; stages against tensor-parallel ranks, each at its best."""
    return [chunk_map(search, winner), split_map(search, winner)]


def chunk_map(search: Search, winner: Candidate) -> HeatMap:
    rows = search.surface(winner)
    search.evaluate(c for row in rows for c in row)
    sizes = [c.chunked_prefill_size for c in rows[0]]
    factors = [row[0].smooth_factor for row in rows]
    return HeatMap(
        title=f"{split_words(winner.split)}, depth {winner.pp_async_batch_depth}",
        row_name="smooth factor of dynamic chunks",
        column_name="size of a chunk, tokens (chunked_prefill_size)",
        rows=tuple("fixed" if f == 0.0 else f"{f:.2f}" for f in factors),
        columns=tuple(str(n) for n in sizes),
        values=tuple(tuple(shown(search, search.known.get(c)) for c in row) for row in rows),
        unit=unit_of(search),
        lower_is_better=search.probe.objective != "throughput",
        best=(factors.index(winner.smooth_factor), sizes.index(winner.chunked_prefill_size)),
    )


def split_map(search: Search, winner: Candidate) -> HeatMap:
    """What is left of the GPUs after pp x tp is context parallelism."""
    best = {**dict(search.best_by_split()), winner.split: winner}
    tables = {(split.pp_size, split.tp_size): split for split in search.splits()}
    pps, tps = (sorted({place[i] for place in tables}) for i in (0, 1))
    figures = {place: search.known[best[split]] for place, split in tables.items() if split in best}
    return HeatMap(
        title=f"all ways to split {search.num_gpus} GPUs, each at its best",
        row_name="pipeline stages (pp_size)",
        column_name="tensor-parallel GPUs of a stage (tp_size)",
        rows=tuple(str(pp) for pp in pps),
        columns=tuple(str(tp) for tp in tps),
        values=tuple(tuple(split_value(search, tables, figures, (pp, tp)) for tp in tps) for pp in pps),
        unit=unit_of(search),
        lower_is_better=search.probe.objective != "throughput",
        best=(pps.index(winner.split.pp_size), tps.index(winner.split.tp_size)),
        blank=f"{search.num_gpus} GPUs cannot be split so",
        labels=tuple(tuple(cp_label(tables.get((pp, tp))) for tp in tps) for pp in pps),
    )


def split_value(
    search: Search,
    tables: dict[tuple[int, int], Split],
    figures: dict[tuple[int, int], Figures],
    place: tuple[int, int],
) -> float | None:
    """NaN where the GPUs cannot be split so at all."""
    return shown(search, figures.get(place)) if place in tables else nan


def cp_label(split: Split | None) -> str:
    return f"cp {split.cp_size}" if split is not None and split.cp_size > 1 else ""


def split_words(split: Split) -> str:
    """A split as a stranger reads it."""
    cp = f" x {split.cp_size} context-parallel ranks" if split.cp_size > 1 else ""
    stages = "1 stage" if split.pp_size == 1 else f"{split.pp_size} stages"
    return f"{stages} of {split.tp_size} GPU{'s' * (split.tp_size > 1)}{cp}"


def shown(search: Search, figures: Figures | None) -> float | None:
    """The figure that the objective is about."""
    if figures is None:
        return None
    return figures.input_tokens_per_s if search.probe.objective == "throughput" else figures.ttft_s


def unit_of(search: Search) -> str:
    names = {
        "ttft": "time to first token, s",
        "ttft_at_rate": "time to first token (mean), s",
        "throughput": "throughput, input tokens/s",
    }
    return names[search.probe.objective]
