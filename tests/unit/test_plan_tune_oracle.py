"""The tuner against exhaustive simulation: every candidate of a small grid is run by one rank for all ranks, with the
real scheduler. The oracle has no search, no recurrence and no arrays: it is ``simulate`` and ``min``."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from ppsim.errors import EXIT_LIVENESS, PpsimError
from ppsim.plan import grid
from ppsim.plan.candidate import Candidate, with_candidate, with_probe
from ppsim.plan.evaluate import Figures
from ppsim.plan.search import Search
from ppsim.plan.trial_load import Objective
from ppsim.plan.tune import Wish, tune
from ppsim.plan.tuning import DEPTH_TOLERANCE, score_of
from ppsim.recording.summary import summarize
from ppsim.scenario.load import put, validate
from ppsim.scenario.tree import Scenario
from ppsim.world import simulate

FACTORS = (0.75, 1.0)  # of the grid here, beside fixed chunks; the tuner's own has nine
DEPTHS = (0, 1)


@dataclass(frozen=True)
class Drawn:
    """A cluster with its workload, and what is asked."""

    scenario: Scenario
    objective: Objective
    rate_per_s: float | None


def drawn(seed: int, **more: Any) -> Drawn:
    """A random one: a dense model of 12 layers on 2 to 4 GPUs, prompts of up to 700 tokens. ``a__b=c``: the key a.b."""
    draw = Random(seed)
    pp_size, tp_size = draw.choice([(2, 1), (3, 1), (4, 1), (2, 2)])
    prompts = [draw.randint(40, 700) for _ in range(draw.randint(2, 5))]
    objective = draw.choice(["ttft", "throughput", "ttft_at_rate"])
    keys: dict[str, Any] = {
        "name": f"drawn {seed}",
        "seed": seed,
        "model.num_hidden_layers": 12,
        "model.hidden_size": 1000,
        "cluster.pp_size": pp_size,
        "cluster.tp_size": tp_size,
        "cluster.comm_overlap": draw.random() < 0.5,
        "scheduler.rules": draw.choice(["sglang", "mended"]),
        "scheduler.page_size": draw.choice([1, 16]),
        "scheduler.chunked_prefill_size": draw.choice([128, 256]),
        "scheduler.max_total_tokens": draw.choice([1200, 8192]),
        "scheduler.max_running_requests": draw.choice([2, 64]),
        "scheduler.disable_radix_cache": draw.random() < 0.5,
        "cost.prefill_c_ms": draw.choice([0.05, 0.3, 1.0]),
        "cost.prefill_first_ms": draw.choice([0.0, 0.4]),
        "cost.prefill_gamma_ms_per_token": 1e-4,
        "cost.prefill_b_ms_per_token": draw.choice([2e-3, 1e-2]),
        "cost.prefill_a_ms_per_token2": draw.choice([1e-6, 2e-5]),
        "cost.tp_comm_ms_per_token": draw.choice([1e-4, 2e-3]),
        "links.latency_us": draw.choice([0.0, 30.0]),
        "links.bandwidth_gb_per_s": draw.choice([0.0, 0.1, 10.0]),
        "links.order": draw.choice(["stream", "link"]),
        "host.schedule_us": draw.choice([0.0, 40.0, 200.0]),
        "host.process_us": draw.choice([0.0, 100.0]),
        "workload.source": "requests",
        "workload.requests": [{"rid": f"R{n}", "prompt": length, "output": 1} for n, length in enumerate(prompts)],
    }
    raw: dict[str, Any] = {}
    for key, value in {**keys, **{k.replace("__", "."): v for k, v in more.items()}}.items():
        put(raw, key, value)
    rate = draw.choice([50.0, 200.0, 1000.0]) if objective == "ttft_at_rate" else None
    return Drawn(validate(raw), objective, rate)  # type: ignore[arg-type]


def whole_grid(search: Search) -> list[Candidate]:
    """Every split, depth, cut of the layers, chunk and factor that can run."""
    found: dict[Candidate, None] = {}
    for split in search.splits():
        for layers in search.partitions(split) if not search.feasible(split).why_not else ():
            for depth in grid.DEPTHS:
                found.update(dict.fromkeys(search.chunk_grid(split, depth, layers)))
    return [c for c in found if not search.why_not(c)]


def by_one_rank(s: Scenario, search: Search, c: Candidate) -> Figures:
    """A candidate in the representative world, which is refused where it would not be exact."""
    pool = search.fast.pool(c.split, c.layer_partition)
    ran = simulate(with_probe(with_candidate(s, c, pool), search.probe), fast=True)
    assert ran.verdict.kind == "pass"
    summary = summarize(ran.recording, ran.verdict)
    return Figures(summary["ttft_s"]["mean"], summary["input_tokens_per_s"], summary["bubble_ratio"])


SEEDS = {  # two of each objective, 2 to 4 GPUs
    "ttft": (4, 44),
    "throughput": (27, 39),
    "ttft_at_rate": (13, 29),
}


@pytest.mark.parametrize("seed", [seed for seeds in SEEDS.values() for seed in seeds])
def test_the_winner_is_the_best_of_the_whole_grid(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most ``DEPTH_TOLERANCE`` behind it: so much may a smaller depth cost. And the loop on arrays has the very
    figures of every candidate."""
    monkeypatch.setattr(grid, "SMOOTH_FACTORS", FACTORS)
    monkeypatch.setattr(grid, "DEPTHS", DEPTHS)
    case = drawn(seed)
    s, cluster = case.scenario, case.scenario.cluster
    found = tune(s, Wish(case.objective, rate_per_s=case.rate_per_s, num_requests=4, max_cp=1))
    search = Search(s, found.probe, cluster.pp_size * cluster.tp_size, max_cp=1)
    every = whole_grid(search)
    assert len(every) > 100
    simulated = [by_one_rank(s, search, c) for c in every]
    best = min(score_of(case.objective, figures) for figures in simulated)
    assert score_of(case.objective, found.judged[0].simulated) <= best * (1.0 + DEPTH_TOLERANCE)
    for c, fast, slow in zip(every, search.fast.figures(every), simulated):
        assert fast.ttft_s == pytest.approx(slow.ttft_s, rel=1e-12), c
        assert fast.input_tokens_per_s == pytest.approx(slow.input_tokens_per_s, rel=1e-12), c


@pytest.mark.parametrize(
    ("seed", "key"),
    [(1, "latency_on_stream"), (30, "skip_pure_chunked_output_comm")],
)
def test_what_the_search_leaves_out_is_in_the_simulation_of_its_ten_best(
    seed: int, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one rival alone the winners are 4 % behind the best of the grid."""
    monkeypatch.setattr(grid, "SMOOTH_FACTORS", FACTORS)
    monkeypatch.setattr(grid, "DEPTHS", DEPTHS)
    more = {
        "latency_on_stream": {"links__latency_on_stream": True, "links__latency_us": 300.0},
        "skip_pure_chunked_output_comm": {"scheduler__skip_pure_chunked_output_comm": True},
    }
    case = drawn(seed, **more[key])
    s, cluster = case.scenario, case.scenario.cluster
    found = tune(s, Wish(case.objective, num_requests=4, max_cp=1))
    search = Search(s, found.probe, cluster.pp_size * cluster.tp_size, max_cp=1)
    best = min(score_of(case.objective, by_one_rank(s, search, c)) for c in whole_grid(search))
    assert score_of(case.objective, found.judged[0].simulated) <= best * (1.0 + DEPTH_TOLERANCE)
    assert any(note.startswith("the event simulation prefers number ") for note in found.notes)
    assert any(key in note and note.endswith("of its 10 best has them") for note in found.notes)


def test_what_ends_in_a_deadlock_is_not_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads that wait for their receiver, without communication overlap: every pipeline stands still in a ring."""
    monkeypatch.setattr(grid, "SMOOTH_FACTORS", FACTORS)
    monkeypatch.setattr(grid, "DEPTHS", DEPTHS)
    case = drawn(27, links__payload="matched", cluster__comm_overlap=False)
    found = tune(case.scenario, Wish(case.objective, num_requests=4, max_cp=1))
    assert found.best.split.pp_size == 1
    assert found.judged[0].row is found.best
    assert all("deadlock" not in j.row.why_not for j in found.judged)
    stuck = [row for row in found.table if "deadlock" in row.why_not]
    assert len(stuck) > 1
    assert all(row.candidate is not None and row.split.pp_size > 1 for row in stuck)
    assert found.table[-len(stuck) :] == stuck
    assert sum("deadlock" in note for note in found.notes) == len(stuck)


def test_where_nothing_passes_the_tuning_ends_with_that_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, without a price of tensor parallelism: there is no other split."""
    monkeypatch.setattr(grid, "SMOOTH_FACTORS", FACTORS)
    monkeypatch.setattr(grid, "DEPTHS", DEPTHS)
    case = drawn(27, links__payload="matched", cluster__comm_overlap=False, cost__tp_comm_ms_per_token=0.0)
    with pytest.raises(PpsimError, match=r"INV-40 .* deadlock") as caught:
        tune(case.scenario, Wish(case.objective, num_requests=4, max_cp=1))
    assert caught.value.exit_code == EXIT_LIVENESS
