"""The first stage decides and the decision goes down the chain (protocol.md 6.2): grammars, clocks, cache copies.

Inside the first stage a grammar is ready when it is on all its tensor-parallel ranks, failed when it is on one. What a
later rank sees moves no iteration; where the leader says "ready", it stands still until its own compile is done.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from ppsim.core.chain import Answer, Chain, Question
from ppsim.core.consensus import unite
from ppsim.world import SimulationResult
from tests.worlds.making import MS, UNIT, changed, launches, run
from tests.worlds.pd_making import ends

DELAYS = (0, 1, 3, 10)

COMPILED: dict[str, Any] = {
    **UNIT,
    "cluster.tp_size": 2,
    "cluster.tp_replicas": 2,
    "scheduler.pp_max_micro_batch_size": 4,
    "scheduler.chunked_prefill_size": 16,  # both prompts fit in one batch
    "observations.tick_ms": 1.0,
    "workload.requests": [
        {"rid": "G", "prompt": 4, "output": 3, "ignore_eos": True, "grammar": "json"},
        {"rid": "P", "prompt": 4, "output": 9, "ignore_eos": True},
    ],
    "run.invariants": True,
}


def grammar(at: tuple[int, ...], *, failed: bool = False, **changes: Any) -> SimulationResult:
    """Rank k sees the end of G's compile in its iteration at[k]; ranks of a stage are side by side."""
    fact = {"what": "grammar", "rid": "G", "at": list(at), "failed": failed}
    result = run({**COMPILED, "observations.listed": [fact], **changes})
    assert result.verdict.kind == "pass", (at, result.verdict.message)
    assert [len(mine) for mine in ends(result.recording).values()] == [1, 1]
    return result


def test_a_grammar_is_ready_when_it_is_on_all_ranks_of_the_first_stage_whatever_the_others_see() -> None:
    for first, second, later in product(DELAYS, DELAYS, DELAYS):
        result = grammar((first, second, later, 0))
        assert launches(result.recording)["G"][0] == max(first, second), (first, second, later)


def test_a_grammar_has_failed_when_it_has_on_one_rank_of_the_first_stage() -> None:
    for first, second in product(DELAYS, DELAYS):
        recording = grammar((first, second, 0, 20), failed=True).recording
        assert ends(recording)["G"] == [("aborted", "grammar failed to compile")]
        assert {r.iteration for r in recording.replies if r.rid == "G"} == {min(first, second)}
        for harvests in recording.harvests:
            assert [h.iteration for h in harvests if "G" in h.finished] == [min(first, second)]


def test_a_later_rank_stands_still_until_its_own_compile_is_done() -> None:
    """It would see the end 7 iterations later, a millisecond each; the decisions are the same to the last one."""
    together, late = grammar((3, 3, 3, 3)), grammar((3, 3, 10, 10))
    assert late.recording.decisions == together.recording.decisions
    starts = [result.setting.ranks[2].iteration_starts for result in (together, late)]
    assert starts[1][3] - starts[0][3] == 7 * MS


@pytest.mark.parametrize("role", ["plain", "prefill", "decode"])
@pytest.mark.parametrize("pp_size", [2, 4])
def test_every_role_waits_for_a_grammar_in_the_same_iteration_on_all_ranks(role: str, pp_size: int) -> None:
    """The same phase in all three loops; behind it each role has its own first queue."""
    alone = {"cluster.tp_size": 1, "cluster.tp_replicas": 1, "disaggregation.num_reserved_decode_tokens": 2}
    for delays in ((0, 10, 0, 4), (6, 0, 3, 9)):
        shape: dict[str, Any] = {**alone, "cluster.pp_size": pp_size, "disaggregation.role": role}
        result = grammar(delays[:pp_size], **shape)
        for simulated in result.setting.ranks:
            assert simulated.rank.scheduler.grammar_queue == []
        looks = [seen.iteration for seen in result.recording.observations[0] if seen.what == "grammar"]
        assert looks[-1] == delays[0]
        assert not any(seen.what == "grammar" for mine in result.recording.observations[1:] for seen in mine)


def test_only_the_clock_of_the_first_rank_counts() -> None:
    """A limit of 30 ms, and clocks that are up to an hour apart."""
    limited = {"timeouts.running_ms": 30, "host.schedule_us": 100.0, "workload.requests": [
        {"rid": "R", "prompt": 4, "output": 60, "ignore_eos": True}]}  # fmt: skip
    expected = run({**UNIT, **limited}).recording
    assert ends(expected)["R"] == [("aborted", "running for more than 30 ms")]
    for skew in (-3_600_000, -7, 5, 3_600_000):
        mine = run({**UNIT, **limited, "faults.clock_skew_ms": [0, skew], "run.invariants": True})
        assert mine.verdict.kind == "pass", mine.verdict.message
        assert mine.recording.replies == expected.replies


# --- the tests above can fail -----------------------------------------------------------------------------------------


class AnyReplicaIsEnough(Chain):
    """Planted: the first stage unites what its ranks have ready."""

    def reduce(self, question: Question, mine: Answer, theirs: Answer) -> Answer:
        return Answer(tuple(unite(a, b) for a, b in zip(mine.values, theirs.values, strict=True)))


def test_a_union_of_what_is_ready_lets_a_request_run_too_early() -> None:
    fact = {"what": "grammar", "rid": "G", "at": [1, 10, 0, 0]}
    result = run({**COMPILED, "observations.listed": [fact]}, change=changed(AnyReplicaIsEnough))
    assert launches(result.recording)["G"][0] < 10
