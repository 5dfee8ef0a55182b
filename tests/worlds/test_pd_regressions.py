"""Faults that were found in the votes, roles and limits, each as the smallest run that showed it."""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.core.messages import AbortReq, Input, NewRequest
from ppsim.core.tokens import pack
from ppsim.workload.local_facts import Fact, Facts
from ppsim.world import SimulationResult
from ppsim.world.simulate import Given
from tests.worlds.making import UNIT, launches, run
from tests.worlds.pd_making import MS, ends


def request(rid: str, prompt: int = 4, output: int = 1) -> NewRequest:
    return NewRequest(rid, pack(range(10, 10 + prompt)), output, ignore_eos=True)


def given(inputs: dict[int, tuple[Input, ...]], changes: dict[str, Any]) -> SimulationResult:
    """A run that reads these inputs in these iterations; ids may come again, as they do from real clients."""
    result = run(changes, UNIT, given=Given(inputs_by_iteration=inputs))
    assert result.verdict.kind == "pass", result.verdict.message
    return result


@pytest.mark.parametrize(("bootstrap", "pp_size"), [("vote", 2), ("vote", 3), ("vote", 5), ("store", 3)])
def test_a_conclusion_about_an_aborted_request_does_not_admit_the_next_one_of_that_id(
    bootstrap: str, pp_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vote of iteration 0 names R1; before it has come back, R1 is aborted and the id is used again.

    The handshake of the second R1 is ready in iteration 30; it was admitted in iteration pp_size with the other's.
    """
    own = Facts._fact
    made: set[int] = set()

    def later_for_the_second(self: Facts, rank: int, iteration: int, kind: str, *rest: Any) -> Fact:
        if kind != "bootstrap":
            return own(self, rank, iteration, kind, *rest)
        again = rank in made
        made.add(rank)
        return Fact(30 if again else iteration, False)

    monkeypatch.setattr(Facts, "_fact", later_for_the_second)
    inputs: dict[int, tuple[Input, ...]] = {0: (request("R1"),), pp_size - 1: (AbortReq("R1"), request("R1"))}
    result = given(
        inputs, {"disaggregation.role": "prefill", "disaggregation.bootstrap": bootstrap, "cluster.pp_size": pp_size}
    )
    assert ends(result.recording)["R1"] == [("aborted", "abort"), ("finished", "transferred")]
    assert min(launches(result.recording)["R1"]) >= 30


BLOCKED = {"scheduler.max_running_requests": 1, "host.schedule_us": 1000.0, "cost.unit_ms": 0.1}


def test_the_time_an_aborted_request_has_waited_is_not_counted_for_the_next_one_of_its_id() -> None:
    """One place, taken for 80 ms. R1 waits from about 2 to 17 ms; its namesake from then on: 20 ms more, not 5."""
    inputs: dict[int, tuple[Input, ...]] = {
        0: (request("R0", 4, 80),),
        2: (request("R1"),),
        17: (AbortReq("R1"), request("R1")),
    }
    result = given(inputs, {**BLOCKED, "timeouts.waiting_ms": 20})
    aborted = [r.time_ns for r in result.recording.replies if r.rid == "R1"]
    assert [reason for _, reason in ends(result.recording)["R1"]] == ["abort", "waiting for more than 20 ms"]
    assert aborted[1] - aborted[0] >= 20 * MS


def test_a_request_that_was_put_out_of_memory_has_not_waited_while_it_ran() -> None:
    """It runs for longer than a request may wait, is put out, and waits for less than that: it ends as all others."""
    changes = {
        "scheduler.max_total_tokens": 52,
        "scheduler.chunked_prefill_size": 16,
        "scheduler.page_size": 2,
        "scheduler.pp_max_micro_batch_size": 6,
        "scheduler.schedule_conservativeness": 0.1,
        "scheduler.disable_radix_cache": True,
        "workload.requests": [
            {"rid": "A", "prompt": 8, "output": 11},
            {"rid": "B", "prompt": 8, "output": 9},
            {"rid": "C", "prompt": 7, "output": 7, "at_iteration": 4},
            {"rid": "D", "prompt": 18, "output": 5, "at_iteration": 2},
        ],
    }
    free = run(changes, UNIT)
    put_out = [(rid, d.iteration) for d in free.recording.decisions[0] for rid in d.retracted]
    assert put_out
    starts = free.setting.ranks[0].iteration_starts
    longest = longest_waits_ms(free, put_out)
    total = {rid: starts[iteration] / MS for rid, iteration in put_out}
    limit = max(longest) + 2
    assert any(since_arrival > limit for since_arrival in total.values()), "it must have run for longer than the limit"
    limited = run({**changes, "timeouts.waiting_ms": limit}, UNIT)
    assert ends(limited.recording) == ends(free.recording)


def longest_waits_ms(result: SimulationResult, put_out: list[tuple[str, int]]) -> list[int]:
    """Until the first launch of each request, and until the next one of each request that was put out."""
    starts = result.setting.ranks[0].iteration_starts
    waits = [starts[min(mine)] // MS + 1 for mine in launches(result.recording).values()]
    for rid, iteration in put_out:
        again = min(i for i in launches(result.recording)[rid] if i > iteration)
        waits.append((starts[again] - starts[iteration]) // MS + 1)
    return waits


@pytest.mark.parametrize("pp_size", [1, 2, 4])
def test_a_request_aborted_while_its_grammar_compiles_gives_back_no_buffer_that_it_never_had(pp_size: int) -> None:
    changes = {
        "cluster.pp_size": pp_size,
        "disaggregation.role": "prefill",
        "observations.listed": [{"what": "grammar", "rid": "R1", "at": [9] * pp_size}],
        "workload.requests": [{"rid": "R1", "prompt": 4, "output": 1, "grammar": "json"}],
        "workload.aborts": [{"rid": "R1", "at_iteration": 2}],
    }
    result = run(changes, UNIT)
    assert result.verdict.kind == "pass", result.verdict.message
    for simulated in result.setting.ranks:
        role = simulated.rank.scheduler.role
        assert role.num_buffers == role.total_buffers == 2 * 64
