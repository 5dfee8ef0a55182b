"""What only the last rank can promise: who failed while it waits leaves all ranks, and a flush is done everywhere.

Times are worked out by hand: a millisecond a stage and batch, free links and hosts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppsim.core.disagg.prefill import MAX_LOOKS
from ppsim.plugin import all_bugs, load
from ppsim.recording import Recording
from ppsim.scenario.load import load_scenario
from ppsim.world import SimulationResult, simulate
from tests.worlds.making import MS, requests, run

CASE = Path(__file__).resolve().parents[1] / "data" / "rules" / "abort_while_waiting.toml"


def abort_while_waiting(*sets: str, bug: str = "") -> SimulationResult:
    return simulate(load_scenario(str(CASE), sets), change=load([bug] if bug else []).change)


def first_token_ms(recording: Recording, rid: str) -> float:
    return min(r.time_ns for r in recording.replies if r.rid == rid and r.token_ids) / MS


def launches(recording: Recording, rid: str) -> int:
    """Batches of the prefill side's first rank with the request in it."""
    assert recording.peer is not None
    return sum(rid == piece[0] for decision in recording.peer.decisions[0] for piece in decision.pieces)


# --- who failed on the other side while it waits ---------------------------------------------------------------------


def test_a_request_that_decode_aborts_while_it_waits_is_not_computed() -> None:
    """R0 has 40 chunks of 16 tokens, a millisecond each; R1 would have 10 more before R2's one.

    R1 is aborted at 15 ms, so R2 comes behind R0 at once: 10 ms earlier than behind the ten chunks of R1 (52 ms).
    """
    result = abort_while_waiting()
    assert result.verdict.kind == "pass", result.verdict.message
    recording = result.recording
    assert launches(recording, "R1") == 0
    assert launches(recording, "R0") == 40
    assert launches(recording, "R2") == 1
    assert first_token_ms(recording, "R2") == pytest.approx(52 - 10, abs=1)
    assert [r.status for r in recording.replies if r.rid == "R1"] == ["aborted"]


def test_it_leaves_all_prefill_ranks_by_one_conclusion_in_one_iteration() -> None:
    result = abort_while_waiting()
    assert result.recording.peer is not None
    ended = [[h.iteration for h in harvests if "R1" in h.finished] for harvests in result.recording.peer.harvests]
    assert ended[0] == ended[1]
    assert len(ended[0]) == 1
    starts = result.recording.peer.visits[0]
    assert 15 <= starts[ended[0][0]] / MS <= 15 + 8  # the abort, a message, a vote of two ranks


@pytest.mark.parametrize("bootstrap", ["vote", "store"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("decode_stages", [None, 1])
def test_so_it_is_whatever_the_stages_and_the_bootstrap(bootstrap: str, stages: int, decode_stages: int | None) -> None:
    sets = [f"cluster.pp_size={stages}", f"disaggregation.bootstrap={bootstrap}"]
    sets += [f"disaggregation.decode_pp_size={decode_stages}"] if decode_stages else []
    result = abort_while_waiting(*sets)
    assert result.verdict.kind == "pass", result.verdict.message
    assert launches(result.recording, "R1") == 0
    right = first_token_ms(result.recording, "R2")
    released = abort_while_waiting(*sets, "run.invariants=false", bug="failed_request_keeps_its_turn").recording
    assert launches(released, "R1") == 10
    assert first_token_ms(released, "R2") - right == pytest.approx(10, abs=1.5)


def test_an_abort_in_any_millisecond_ends_well() -> None:
    """Before the handshake, while it waits, in its first chunk, between its chunks, while its KV is sent."""
    seen = set()
    for at in (2, 3, 4, 15, 37, 40, 41, 42, 45, 50, 52, 54):
        row = f'workload.aborts=[{{rid="R1", at_ms={at}.0, side="decode"}}]'
        result = abort_while_waiting(row, "cluster.pp_size=3")
        assert result.verdict.kind == "pass", (at, result.verdict.message)
        seen.add(min(launches(result.recording, "R1"), 1))
    assert seen == {0, 1}


def test_one_whose_turn_is_over_in_the_iteration_of_the_conclusion_is_left_to_the_next() -> None:
    """Prompts of one chunk: launched in the iteration of the vote, harvested in that of its conclusion."""
    row = '{rid="R1", prompt=16, output=2, at_ms=2.0}, {rid="R2", prompt=16, output=2, at_ms=3.0}'
    first = '{rid="R0", prompt=160, output=2, at_ms=0.0}'
    for tenth in range(20, 145, 11):
        sets = (
            f"workload.requests=[{first}, {row}]",
            f'workload.aborts=[{{rid="R1", at_ms={tenth / 10}, side="decode"}}]',
        )
        for depth in (0, 1):
            result = abort_while_waiting(*sets, f"cluster.pp_async_batch_depth={depth}")
            assert result.verdict.kind == "pass", (tenth, depth, result.verdict.message)


def test_of_a_long_queue_a_part_is_looked_at_in_turn_and_everybody_is_heard() -> None:
    """Three parts of at most 64: the last request of the queue is looked at in every third vote."""
    num = 2 * MAX_LOOKS + 5
    rows = [{"rid": f"W{n}", "prompt": 16, "output": 1, "at_ms": 2.0} for n in range(num)]
    work = [{"rid": "R0", "prompt": 640, "output": 2, "at_ms": 0.0}, *rows]
    scenario = load_scenario(
        str(CASE),
        (
            "workload.requests=" + toml(work),
            f'workload.aborts=[{{rid="W{num - 1}", at_ms=15.0, side="decode"}}]',
            "scheduler.max_running_requests=256",
        ),
    )
    result = simulate(scenario)
    assert result.verdict.kind == "pass", result.verdict.message
    assert launches(result.recording, f"W{num - 1}") == 0
    observed = result.recording.peer.observations[0] if result.recording.peer is not None else []
    assert max(len(o.keys) for o in observed if o.what == "sender") <= MAX_LOOKS + 256


def toml(rows: list[dict[str, Any]]) -> str:
    tables = (", ".join(f"{key}={json.dumps(value)}" for key, value in row.items()) for row in rows)
    return "[" + ", ".join("{" + table + "}" for table in tables) + "]"


def test_a_rank_that_computes_it_all_the_same_is_found() -> None:
    bug = "failed_request_keeps_its_turn"
    verdict = abort_while_waiting(bug=bug).verdict
    assert (verdict.invariant, verdict.rid) == ("INV-87", "R1"), verdict.message
    assert all_bugs()[bug].breaks == "INV-87"
    assert verdict.message.startswith("prefill side: INV-87 at rank 0, ")


# --- a flush ---------------------------------------------------------------------------------------------------------

FLUSH: dict[str, Any] = {
    "workload.requests": requests(1),
    "workload.flushes": [{"rid": "F", "at_iteration": 30}],
    "run.invariants": True,
}


@pytest.mark.parametrize("role", ["plain", "prefill", "decode"])
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("stages", [1, 3])
def test_a_flush_is_answered_behind_the_iteration_in_which_the_last_rank_does_it(
    role: str, depth: int, width: int, stages: int
) -> None:
    """A message takes 1 ms to the next rank, so list 30 and the word behind it are back after P ms, and not before."""
    changes = {
        "cluster.pp_size": stages,
        "cluster.pp_async_batch_depth": depth,
        "cluster.tp_size": width,
        "cluster.tp_replicas": width,
        "disaggregation.role": role,
        "links.latency_us": 1000.0,
    }
    result = run({**FLUSH, **changes})
    assert result.verdict.kind == "pass", result.verdict.message
    recording = result.recording
    read_ns = next(i.time_ns for i in recording.ingestions if i.iteration == 30)
    answered = [r for r in recording.replies if r.rid == "F"]
    assert [(r.status, r.reason) for r in answered] == [("finished", "flushed")]
    last_ns = max(visits[30] for visits in recording.visits)
    assert answered[0].time_ns >= last_ns
    if stages > 1:
        assert answered[0].time_ns - read_ns >= stages * MS
    assert {len(decisions) for decisions in recording.decisions} == {len(recording.decisions[0])}


def test_a_flush_that_is_refused_is_answered_at_once() -> None:
    changes = {"cluster.pp_size": 4, "workload.requests": requests(1, output=40), "links.latency_us": 1000.0}
    result = run({**FLUSH, **changes})
    assert result.verdict.kind == "pass", result.verdict.message
    answer = next(r for r in result.recording.replies if r.rid == "F")
    read_ns = next(i.time_ns for i in result.recording.ingestions if i.iteration == 30)
    assert (answer.status, answer.time_ns) == ("refused", read_ns)


def test_the_first_rank_is_not_idle_while_it_owes_the_answer_of_a_flush() -> None:
    """The next request comes long after: the flush is answered first."""
    late = [*requests(1), {"rid": "R9", "prompt": 4, "output": 1, "at_ms": 900.0}]
    changes = {"cluster.pp_size": 3, "workload.requests": late, "workload.flushes": [{"rid": "F", "at_iteration": 9}]}
    result = run({**FLUSH, **changes})
    assert result.verdict.kind == "pass", result.verdict.message
    assert next(r.time_ns for r in result.recording.replies if r.rid == "F") < 100 * MS


def test_two_flushes_of_one_id_are_answered_one_by_one() -> None:
    flushes = [{"rid": "F", "at_iteration": at} for at in (30, 30, 31)]
    result = run({**FLUSH, "cluster.pp_size": 3, "workload.flushes": flushes})
    assert result.verdict.kind == "pass", result.verdict.message
    assert [r.status for r in result.recording.replies if r.rid == "F"] == ["finished"] * 3


def test_a_flush_that_is_answered_when_the_first_rank_has_done_it_is_found() -> None:
    bug = "flush_answered_at_once"
    verdict = run({**FLUSH, "cluster.pp_size": 3}, change=load([bug]).change).verdict
    assert (verdict.invariant, verdict.rank, verdict.rid) == (all_bugs()[bug].breaks, 0, "F"), verdict.message
    assert "rank 1 has not emptied its cache" in verdict.message
