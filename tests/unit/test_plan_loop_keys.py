"""Every key of a scenario, one at a time: the tuner's loop on arrays has the figures of the simulation, or says that it
leaves the key out. The oracle is the simulation with the real scheduler, by one rank where that can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from ppsim.errors import ScenarioError
from ppsim.plan.candidate import Split, given_candidate
from ppsim.plan.evaluate import FastPath, not_in_fast_path
from ppsim.plan.feasible import feasibility
from ppsim.plan.rerun import rerun
from ppsim.plan.trial_load import Probe
from ppsim.plan.tune import Wish, tune
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import put, validate
from ppsim.scenario.tree import Scenario

BASE: dict[str, Any] = {
    "name": "every key",
    "model.num_hidden_layers": 12,
    "model.hidden_size": 1000,
    "cluster.pp_size": 3,
    "cluster.pp_async_batch_depth": 1,
    "scheduler.max_total_tokens": 2000,
    "scheduler.chunked_prefill_size": 128,
    "scheduler.page_size": 16,
    "cost.prefill_c_ms": 0.3,
    "cost.prefill_b_ms_per_token": 5e-3,
    "cost.prefill_a_ms_per_token2": 1e-6,
    "gpu.nic_gb_per_s": 50.0,
    "links.latency_us": 50.0,
    "links.bandwidth_gb_per_s": 0.1,
    "host.schedule_us": 300.0,
    "host.process_us": 200.0,
    "workload.source": "requests",
    "workload.requests": [{"rid": "R1", "prompt": 300, "output": 1}],
}
PROBE = Probe("ttft_at_rate", (700, 300, 20, 20, 500, 64), (0, 0, 1000, 2000, 3_000_000, 200_000_000))
POOL = 2000
NOT_TUNED = ("workload", "run", "expect", "bugs", "name", "description", "engine", "launch_line")
SAMPLES: dict[type, tuple[Any, ...]] = {bool: (True, False), int: (1, 3, 50), float: (0.5, 300.0)}


def leaves(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their types."""
    for name, found in model.model_fields.items():
        inner = found.annotation
        if not before and name in NOT_TUNED:
            continue
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from leaves(inner, f"{before}{name}.")
        else:
            yield before + name, inner


def values(kind: Any) -> tuple[Any, ...]:
    """A few of a type; none of what is no number, switch or choice."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) is Annotated:
        return values(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(value for inner in get_args(kind) for value in values(inner))
    return SAMPLES.get(kind, ())


def scenario(changes: dict[str, Any]) -> Scenario | None:
    """None: no such scenario."""
    raw: dict[str, Any] = {}
    try:
        for key, value in {**BASE, **changes}.items():
            put(raw, key, value)
        made = validate(raw)
        check_scenario(made)
    except ScenarioError:
        return None
    return made if made.scheduler.context_length > max(PROBE.prompts) and made.cost.source != "unit" else None


KEYS = list(leaves(Scenario))
SECTIONS = sorted({key.partition(".")[0] for key, _ in KEYS if "." in key})


def agrees(s: Scenario) -> bool:
    own = given_candidate(s)
    fast = FastPath(s, PROBE, pools={(own.split, own.layer_partition): POOL}).figures([own])[0]
    return fast.ttft_s == pytest.approx(rerun(s, own, PROBE, POOL).ttft_s, rel=1e-9)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_changes_both_alike_or_is_told(section: str) -> None:
    silent = []
    for key, kind in KEYS:
        for value in values(kind) if key.startswith(f"{section}.") else ():
            s = scenario({key: value})
            if s is not None and not not_in_fast_path(s) and not agrees(s):
                silent.append((key, value))
    assert not silent, "the loop leaves these out, and nobody is told"


def test_most_keys_are_tried() -> None:
    tried = {key for key, kind in KEYS for value in values(kind) if scenario({key: value}) is not None}
    assert len(tried) > 100
    assert {"scheduler.exchange_order", "chance.max_arrival_delay", "links.order", "model.vocab_size"} <= tried


# --- limits that depend on the model and the split -----------------------------------------------------------------

STATES = {  # layers with a state a request: a pool of so many of them says how many requests may run
    "cluster.pp_size": 2,
    "cost.source": "roofline",
    "model.key": str(Path(__file__).parents[1] / "data" / "models" / "state_space_hybrid.json"),
    "gpu.key": "h100",
    "scheduler.chunked_prefill_size": 512,
    "scheduler.max_running_requests": 64,
}


@pytest.mark.parametrize(("slots", "limit"), [(100, 33), (6, 2), (3, 1)])
def test_no_more_prompts_run_than_states_are_there(slots: int, limit: int) -> None:
    """With a radix cache a running request has three of them."""
    s = scenario({**STATES, "scheduler.max_mamba_cache_size": slots})
    assert s is not None
    own, probe = given_candidate(s), Probe("throughput", (300,) * 6, (0,) * 6)
    fast = FastPath(s, probe)
    assert fast.config(own.split, own.layer_partition).max_running_requests == limit
    figures = fast.figures([own])[0]
    simulated = rerun(s, own, probe, fast.pool(own.split, own.layer_partition))
    assert figures.input_tokens_per_s == pytest.approx(simulated.input_tokens_per_s, rel=1e-6)


def test_a_split_with_too_few_states_for_one_request_cannot_run_and_says_so() -> None:
    s = scenario({**STATES, "scheduler.max_mamba_cache_size": 3})
    assert s is not None
    short = s.model_copy(update={"scheduler": s.scheduler.model_copy(update={"max_mamba_cache_size": 2})})
    assert "holds the states of 2 requests, and a running one needs 3" in feasibility(short, Split(2, 1), 512).why_not
    assert not feasibility(s, Split(2, 1), 512).why_not


def test_an_order_for_two_stages_keeps_the_tuning_to_them() -> None:
    """Paired exchange is refused for any other number: these are named at the end of the table, and two are taken."""
    s = scenario(
        {
            "cluster.pp_size": 2,
            "cluster.tp_size": 2,
            "scheduler.exchange_order": "paired",
            "cost.tp_comm_ms_per_token": 1e-2,  # so dear that four stages look best
        }
    )
    assert s is not None
    found = tune(s, Wish("throughput", num_requests=4, max_cp=1))
    assert found.best.split == Split(2, 2)
    refused = [row for row in found.table if "'paired' needs cluster.pp_size 2" in row.why_not]
    assert refused
    assert all(row.split.pp_size != 2 for row in refused)
    assert all(judged.row.split == Split(2, 2) for judged in found.judged)
