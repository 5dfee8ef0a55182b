"""What SGLang released of the ring votes, as variants: what each of the two differences does, and when it is noticed.

    fresh_poll         what a rank sees when it applies a conclusion decides, not the conclusion (bugs.md B76)
    forwards_applied   a rank passes on what it did; of received KV the failures are left out (protocol.md 6.3)
    released           both, and the bootstrap fails whom no conclusion names if it failed here (bugs.md B75)

The audit names a second look itself (INV-49), so the consequences of one are shown without it.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.scenario import load_scenario
from ppsim.world import SimulationResult, simulate
from tests.worlds.making import UNIT, requests, run
from tests.worlds.pd_making import ends

VARIANTS = ("agreed", "fresh_poll", "forwards_applied", "released")
BARE = {"run.check": False, "run.invariants": False, "run.max_iterations": 400}
BASE = {**UNIT, "disaggregation.num_reserved_decode_tokens": 4}


def outcome(variant: str, changes: dict[str, Any], base: dict[str, Any], **more: Any) -> SimulationResult:
    return run({**changes, "disaggregation.variant": variant, "run.max_iterations": 2000, **more}, base)


def failed(result: SimulationResult) -> tuple[str | None, int | None, int | None]:
    """(invariant, rank, iteration) of a failed run."""
    assert result.verdict.kind == "fail", "nothing was noticed"
    return result.verdict.invariant, result.verdict.rank, result.verdict.iteration


# R1's handshake fails: rank 1 sees it in iteration 5, rank 0 in 9. The vote of 5 says bad (union), applied in 6.
HANDSHAKE = {
    "disaggregation.role": "prefill",
    "disaggregation.bootstrap": "vote",
    "observations.listed": [{"what": "bootstrap", "rid": "R1", "at": [9, 5], "failed": True}],
}
# R1's KV fails to arrive: rank 1 sees it in 6, rank 0 in 9. The vote of 9 says terminal everywhere, applied in 10.
RECEIVED = {
    "disaggregation.role": "decode",
    "observations.listed": [{"what": "receive", "rid": "R1", "at": [9, 6], "failed": True}],
    "workload.requests": requests(3, output=4),
}


def test_the_agreed_way_ends_a_failed_handshake_on_both_ranks_in_the_iteration_of_the_conclusion() -> None:
    for variant in ("agreed", "forwards_applied"):
        recording = outcome(variant, HANDSHAKE, BASE, **{"run.invariants": True}).recording
        assert [[h.iteration for h in rank if "R1" in h.finished] for rank in recording.harvests] == [[6], [6]]


@pytest.mark.parametrize(("variant", "at_iteration"), [("fresh_poll", 6), ("released", 5)])
def test_a_second_look_fails_a_handshake_on_one_rank_and_keeps_it_on_the_other(variant: str, at_iteration: int) -> None:
    """Rank 1 fails R1 with the conclusion of 5; as released with that of 4, which does not name it."""
    assert failed(outcome(variant, HANDSHAKE, BASE)) == ("INV-42", 1, at_iteration)
    assert failed(outcome(variant, HANDSHAKE, BASE, **{"run.invariants": True}))[0] == "INV-49"


@pytest.mark.parametrize("variant", ["forwards_applied", "released"])
def test_a_failure_that_is_not_passed_on_leaves_an_orphan_on_the_later_ranks(variant: str) -> None:
    """Rank 0 ends R1 in 10 and passes nothing on; rank 1 never hears of it again and keeps its KV."""
    assert failed(outcome(variant, RECEIVED, BASE)) == ("INV-42", 1, 10)
    bare = outcome(variant, RECEIVED, BASE, **BARE)
    first, second = (simulated.rank.scheduler for simulated in bare.setting.ranks)
    assert list(second.requests) == ["R1"]
    assert not first.requests
    assert first.kv.pool.free_tokens - second.kv.pool.free_tokens == 4


def small_server(variant: str, *overrides: str) -> SimulationResult:
    """scenarios/pd_released_votes.toml: ten transfers fail, then a request comes that should be served."""
    scenario = load_scenario("pd_released_votes", [f'disaggregation.variant="{variant}"', *overrides])
    return simulate(scenario)


@pytest.mark.parametrize(
    ("variant", "invariant"), [("fresh_poll", "INV-41"), ("forwards_applied", "INV-42"), ("released", "INV-42")]
)
def test_the_shipped_scenario_passes_as_agreed_and_parts_at_the_first_failure_as_released(
    variant: str, invariant: str
) -> None:
    right = small_server("agreed", "run.invariants=true")
    assert right.verdict.kind == "pass", right.verdict.message
    assert ends(right.recording)["last"][0][0] == "finished"
    verdict = small_server(variant).verdict
    assert (verdict.kind, verdict.invariant, verdict.rank, verdict.rid) == ("fail", invariant, 1, "F0")


def test_orphans_fill_the_memory_of_the_later_ranks_until_nothing_moves_any_more() -> None:
    """The later rank keeps what failed, has no room for what comes, and nobody can go on."""
    wrong = small_server("forwards_applied", "run.check=false")
    assert (wrong.verdict.kind, wrong.verdict.exit_code) == ("fail", 3)
    assert "wait for something that will never happen" in wrong.verdict.message
    first, second = (simulated.rank.scheduler for simulated in wrong.setting.ranks)
    assert "last" in first.requests
    assert sorted(set(second.requests) - set(first.requests)) == [f"F{n}" for n in range(6)]


def test_ranks_that_act_on_their_own_view_hang() -> None:
    """One serves F0, the other does not: its hidden states and votes are never taken (as reported, bugs.md B75)."""
    verdict = small_server("fresh_poll", "run.check=false").verdict
    assert (verdict.kind, verdict.exit_code) == ("fail", 3)
    assert "deadlock: the event queue is empty and 2 of 2 ranks wait for ever" in verdict.message


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_where_nothing_fails_all_variants_decide_alike(variant: str, role: str) -> None:
    """Equal state on all ranks: what was applied is what was concluded, and a look once more sees the same."""
    changes = {
        "disaggregation.role": role,
        "disaggregation.bootstrap": "vote",
        "observations.max_delay": 5,
        "cluster.pp_size": 4,
        "workload.requests": requests(6, output=4),
    }
    mine, agreed = outcome(variant, changes, BASE), outcome("agreed", changes, BASE)
    assert mine.verdict.kind == "pass", mine.verdict.message
    assert mine.recording.decisions == agreed.recording.decisions
    assert mine.recording.replies == agreed.recording.replies
