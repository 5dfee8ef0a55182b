"""Closed loops and sessions on real processes: the same clients, real tokens, and the simulator repeats it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.launch import ExecutionResult, execute
from ppsim.core.messages import NewRequest
from ppsim.core.tokens import unpack
from ppsim.recording.summary import summarize
from ppsim.scenario import Scenario
from ppsim.world.simulate import Given, simulate
from tests.executor.small import small_scenario

MIXED: dict[str, Any] = {
    "source": "generated",
    "num_requests": 9,
    "input_length": {"kind": "uniform", "min": 1, "max": 40},
    "output_length": {"kind": "uniform", "min": 1, "max": 6},
}
SESSIONS: dict[str, Any] = {
    "source": "generated",
    "num_sessions": 3,
    "num_turns": 3,
    "think_time_ms": 2.0,
    "input_length": {"kind": "fixed", "value": 13},
    "output_length": {"kind": "fixed", "value": 5},
}


def stays(result: ExecutionResult) -> list[tuple[int, int]]:
    ends = {reply.rid: reply.time_ns for reply in result.recording.replies if reply.status != "token"}
    return [(a.at_ns, ends[a.rid]) for a in result.recording.arrivals]


def repeated(scenario: Scenario, real: ExecutionResult) -> None:
    simulated = simulate(scenario, given=Given(real.inputs_by_iteration, real.tokens))
    assert simulated.verdict.kind == "pass", simulated.verdict.message
    assert simulated.recording.decisions == real.recording.decisions


@pytest.mark.parametrize(("num_clients", "role"), [(1, "plain"), (3, "plain"), (2, "prefill")])
def test_real_clients_send_one_request_after_the_other(num_clients: int, role: str) -> None:
    scenario = small_scenario(workload={**MIXED, "concurrency": num_clients}, disaggregation={"role": role})
    real = execute(scenario)
    assert real.verdict.kind == "pass", real.verdict.message
    times = stays(real)
    assert len(times) == 9
    assert max(sum(begin <= now < end for begin, end in times) for now, _ in times) == num_clients
    if num_clients == 1:
        assert [begin for begin, _ in times[1:]] == [end for _, end in times[:-1]]
    assert summarize(real.recording, real.verdict)["concurrency"]["clients"] == num_clients
    if role == "plain":
        repeated(scenario, real)


def test_a_turn_begins_with_what_the_model_really_said() -> None:
    scenario = small_scenario(workload={**SESSIONS, "concurrency": 2})
    real = execute(scenario)
    assert real.verdict.kind == "pass", real.verdict.message
    inputs = [item for items in real.inputs_by_iteration.values() for item in items if isinstance(item, NewRequest)]
    prompts = {item.rid: unpack(item.prompt) for item in inputs}
    assert len(prompts) == 9
    for n in (1, 2, 3):
        assert len(prompts[f"R{n}.1"]) == 13
        for turn in (2, 3):
            history = prompts[f"R{n}.{turn - 1}"] + list(real.tokens[f"R{n}.{turn - 1}"])
            assert prompts[f"R{n}.{turn}"][: len(history)] == history
            assert len(prompts[f"R{n}.{turn}"]) == len(history) + 13
    assert summarize(real.recording, real.verdict)["cached_tokens"] > 0
    repeated(scenario, real)
