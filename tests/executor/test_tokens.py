"""What all of it is for: real processes give the tokens of the unsplit model, and the decisions of the simulator."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.launch import ExecutionResult, execute
from executor.oracle import Oracle
from ppsim.core.tokens import unpack
from ppsim.recording.diff import first_difference
from ppsim.recording.digest import run_digest
from ppsim.scenario import Scenario
from ppsim.workload import build_workload
from ppsim.world.simulate import Given, simulate
from tests.executor.small import small_scenario

# With blocks of 8 tokens: prompts that are a multiple of a chunk and that are not, some with a common start.
REQUESTS: list[dict[str, Any]] = [
    {"rid": "whole-chunks", "at_iteration": 0, "prompt": 48, "output": 6, "prefix_blocks": [1, 2, 3]},
    {"rid": "one-token", "at_iteration": 0, "prompt": 1, "output": 7},
    {"rid": "short", "at_iteration": 1, "prompt": 11, "output": 9},
    {"rid": "odd", "at_iteration": 2, "prompt": 53, "output": 4, "prefix_blocks": [1, 2, 4]},
    {"rid": "one-output", "at_iteration": 4, "prompt": 24, "output": 1, "prefix_blocks": [1, 2, 3]},
    {"rid": "again", "at_iteration": 21, "prompt": 48, "output": 5, "prefix_blocks": [1, 2, 3]},
    {"rid": "late", "at_iteration": 30, "prompt": 37, "output": 8, "prefix_blocks": [1, 5]},
]
PLAIN = {"chunked_prefill_size": 16, "page_size": 4}
VARIANTS: dict[tuple[int, int], dict[str, Any]] = {  # by (pp_size, depth)
    (1, 0): PLAIN,
    (1, 1): {"chunked_prefill_size": 24, "page_size": 8, "enable_mixed_chunk": True},
    (2, 0): {"chunked_prefill_size": 7, "page_size": 1, "exchange_order": "paired"},
    (2, 1): PLAIN,
    (3, 0): {**PLAIN, "enable_mixed_chunk": True, "hidden_send": "after_launch"},
    (3, 1): {"chunked_prefill_size": 10, "page_size": 5, "skip_pure_chunked_output_comm": True},
    (4, 0): {**PLAIN, "skip_pure_chunked_output_comm": True, "exchange_order": "parity"},
    (4, 1): {"chunked_prefill_size": -1, "page_size": 2, "schedule_policy": "lpm"},
}


def scenario_of(architecture: str, pp_size: int, depth: int, **scheduler: Any) -> Scenario:
    return small_scenario(
        architecture,
        cluster={"pp_size": pp_size, "pp_async_batch_depth": depth},
        scheduler={"max_running_requests": 16, **scheduler},
        workload={"source": "requests", "block_tokens": 8, "requests": REQUESTS},
    )


@cache
def expected_tokens(architecture: str) -> dict[str, tuple[int, ...]]:
    """By transformers alone. Neither pp_size nor the scheduler has a say in it."""
    return tokens_of_transformers(scenario_of(architecture, 1, 0))


def tokens_of_transformers(scenario: Scenario) -> dict[str, tuple[int, ...]]:
    oracle = Oracle(scenario)
    requests = [arrival.request for arrival in build_workload(scenario).arrivals]
    return {r.rid: tuple(oracle.generate(unpack(r.prompt), r.max_new_tokens)) for r in requests}


def assert_parity(scenario: Scenario, real: ExecutionResult) -> None:
    """The simulator, given the same inputs and sampled tokens, makes the same records on every rank."""
    simulated = simulate(scenario, given=Given(real.inputs_by_iteration, real.tokens))
    assert simulated.verdict.kind == "pass", simulated.verdict.message
    assert first_difference(real.recording, simulated.recording) is None
    assert run_digest(real.recording) == run_digest(simulated.recording)


@pytest.mark.parametrize(("pp_size", "depth"), VARIANTS)
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_every_request_gets_the_tokens_of_transformers_own_greedy_generate(
    architecture: str, pp_size: int, depth: int
) -> None:
    scenario = scenario_of(architecture, pp_size, depth, **VARIANTS[pp_size, depth])
    real = execute(scenario, start_method="forkserver")
    assert real.verdict.kind == "pass", real.verdict.message
    assert real.tokens == expected_tokens(architecture)
    prefixes = {rid: prefix for d in real.recording.decisions[0] for rid, prefix, _ in reversed(d.pieces)}
    assert prefixes["again"] >= 24  # the radix cache was used
    assert_parity(scenario, real)


def test_retracted_requests_are_computed_again_to_the_same_tokens() -> None:
    """Three retractions in a pool that is too small, and the ranks do not even have the same capacity."""
    greedy = [
        {"rid": f"R{i}", "at_iteration": 0, "prompt": 9 + i, "output": 24, "prefix_blocks": [1]} for i in range(6)
    ]
    scenario = small_scenario(
        "qwen3",
        cluster={"pp_size": 2, "pp_async_batch_depth": 1},
        scheduler={**PLAIN, "max_total_tokens": (104, 100), "schedule_conservativeness": 0.5},
        workload={"source": "requests", "block_tokens": 8, "requests": greedy},
    )
    real = execute(scenario, start_method="forkserver")
    assert real.verdict.kind == "pass", real.verdict.message
    assert sum(len(d.retracted) for d in real.recording.decisions[1]) >= 2
    assert real.tokens == tokens_of_transformers(scenario)
    assert_parity(scenario, real)


def test_a_replay_of_recorded_inputs_makes_the_same_records() -> None:
    scenario = scenario_of("llama", 3, 0, **PLAIN)
    live = execute(scenario, start_method="forkserver")
    again = execute(scenario, inputs_by_iteration=live.inputs_by_iteration, start_method="forkserver")
    assert first_difference(live.recording, again.recording) is None


def test_arrivals_by_wall_time_are_read_when_they_are_due() -> None:
    timed = [
        {"rid": "now", "at_ms": 0.0, "prompt": 20, "output": 3},
        {"rid": "later", "at_ms": 3000.0, "prompt": 9, "output": 3},
    ]
    scenario = small_scenario(workload={"source": "requests", "requests": timed})
    real = execute(scenario, start_method="forkserver")
    assert real.verdict.kind == "pass", real.verdict.message
    read_ns = {i.inputs[0].rid: i.time_ns for i in real.recording.ingestions if i.inputs[0].kind == "new"}
    assert 0 <= read_ns["now"] < 3_000_000_000 <= read_ns["later"]
    ended_ns = {r.rid: r.time_ns for r in real.recording.replies if r.status == "finished"}
    assert ended_ns["now"] < 3_000_000_000  # the rank slept, and was idle by then, also on a busy machine
    assert_parity(scenario, real)
