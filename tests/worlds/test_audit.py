"""Faults that all ranks have alike, and others that the planted bugs do not reach: each names the rule that it breaks.

Replicas that agree can all be wrong. The comparison of ranks sees nothing of such a fault: the audit holds every rank
against what it launched itself, and against its own transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ppsim.check.lockstep import Lockstep
from ppsim.core.agreed import agree
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.effects import Harvest
from ppsim.core.errors import InvariantViolation
from ppsim.core.loop import Loop
from ppsim.core.messages import AbortReq, NewRequest, Shutdown
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.slots import Slot, SlotRing
from ppsim.core.tokens import pack
from ppsim.plugin import load
from ppsim.plugin.plans import before, behind, does
from ppsim.recording import Verdict
from ppsim.world.simulate import Given
from tests.worlds.making import changed, requests, run

WATCHED = {"run.invariants": True, "run.max_iterations": 200}


def with_fault(where: str, fault: Callable[[Rank], None], changes: dict[str, Any], *, late: bool = False) -> Verdict:
    """The verdict of a run in which all ranks do this before (or behind) one of their phases."""

    class Faulty(Loop):
        def plan(self) -> Plan:
            return (behind if late else before)(super().plan(), where, does(fault))

    return with_part(Faulty, changes)


def with_part(part: type, changes: dict[str, Any]) -> Verdict:
    """The verdict of a run in which all ranks have this part; with the right one it passes."""
    assert run({**WATCHED, **changes}).verdict.kind == "pass"
    return run({**WATCHED, **changes}, change=changed(part)).verdict


def test_a_batch_that_all_ranks_harvest_an_iteration_early_is_found() -> None:
    """b + L - 2 on every rank: outputs, tokens and replies fit together, only the iteration is wrong (invariant 5)."""

    class Early(SlotRing):
        def to_harvest(self, iteration: int) -> Slot:
            return super().to_harvest(iteration + 1)

    changes = {"cluster.pp_size": 4, "workload.requests": requests(4, output=3)}
    verdict = with_part(Early, changes)
    assert (verdict.kind, verdict.invariant) == ("fail", "INV-05")
    assert "the batch of iteration 0 is harvested, that of -1 was due" in verdict.message


def test_rows_of_a_launched_batch_that_change_places_on_all_ranks_are_found() -> None:
    """Two requests of one batch are exchanged between its launch and its harvest: as many rows, other owners."""

    def exchange(rank: Rank) -> None:
        batch = rank.scheduler.slots.current(rank.iteration - 1).launched
        if rank.iteration == 1 and batch is not None:
            batch.requests = batch.requests[::-1]

    two = {"scheduler.pp_max_micro_batch_size": 4, "scheduler.chunked_prefill_size": 24}
    verdict = with_fault("apply_inputs", exchange, {**two, "workload.requests": requests(2, output=3)})
    assert (verdict.kind, verdict.invariant, verdict.iteration) == ("fail", "INV-59", 1)
    assert "the launched batch held ('R1', 'R2'), at its harvest it holds ('R2', 'R1')" in verdict.message


def test_kv_that_all_ranks_release_before_any_transfer_is_over_is_found() -> None:
    """No conclusion says so and no rank differs from another; each one's own transfer is still under way (52)."""

    def release(rank: Rank) -> None:
        role = rank.scheduler.role
        assert isinstance(role, PrefillRole)
        if rank.iteration == 8:
            assert [r.rid for r in role.inflight] == ["R1"]
            role.apply_release(agree(("R1",), "test"), agree((), "test"))

    late = {"what": "transfer", "rid": "R1", "at": [20, 20]}
    changes = {"disaggregation.role": "prefill", "observations.listed": [late]}
    verdict = with_fault("report_harvest", release, changes)
    assert (verdict.kind, verdict.invariant, verdict.iteration) == ("fail", "INV-52", 8)
    assert "KV of R1 is given up or used while its transfer is in state 3" in verdict.message


def test_a_queue_of_a_role_in_another_order_is_told_from_one_with_other_members() -> None:
    """Same members in another order is the mark of an unordered container (62), a member more is an orphan (51)."""

    def turn_round(rank: Rank) -> None:
        role = rank.scheduler.role
        assert isinstance(role, PrefillRole)
        if rank.config.pp_rank == 1 and rank.iteration == 1:
            role.bootstrap.reverse()

    late = [{"what": "bootstrap", "rid": rid, "at": [9, 9]} for rid in ("R1", "R2")]
    changes = {
        "disaggregation.role": "prefill",
        "observations.listed": late,
        "workload.requests": requests(2),
    }
    verdict = with_fault("apply_inputs", turn_round, changes, late=True)
    assert (verdict.kind, verdict.invariant, verdict.rank) == ("fail", "INV-62", 1)


FOUR_LAUNCHED = requests(4, output=9)


@pytest.mark.parametrize("bug", ["abort_reaches_two_slots", None])
def test_an_id_that_comes_again_while_it_is_here_does_not_lift_its_abort(bug: str | None) -> None:
    """R1 is aborted in iteration 6 while it is launched, and comes again in the same list: refused, for it is still
    here. The abort holds for the first one all the same (invariant 60)."""
    first = tuple(NewRequest(f"R{n}", pack([n] * 4), 9, ignore_eos=True) for n in range(1, 5))
    again = NewRequest("R1", pack([1] * 4), 9, ignore_eos=True)
    inputs = {0: first, 6: (AbortReq("R1"), again), 60: (Shutdown(),)}
    given = Given(inputs_by_iteration=inputs, tokens={f"R{n}": (7,) * 9 for n in range(1, 5)})
    result = run(
        {**WATCHED, "cluster.pp_size": 4, "workload.requests": FOUR_LAUNCHED},
        change=load([bug] if bug else []).change,
        given=given,
    )
    if bug:
        assert (result.verdict.kind, result.verdict.invariant) == ("fail", "INV-60"), result.verdict.message
        return
    assert result.verdict.kind == "pass", result.verdict.message
    ends = sorted(r.status for r in result.recording.replies if r.rid == "R1" and r.status != "token")
    assert ends == ["aborted", "refused"]


def test_the_right_tokens_in_the_wrong_rows_are_told_from_other_tokens() -> None:
    """Between two ranks: 34 says that rows changed places on the way, 41 that somebody sampled by itself."""

    def harvest(*tokens: int) -> Harvest:
        return Harvest(3, 1, 2, (("R1", 1), ("R2", 1)), (), tokens, 90, 0)

    for mine, invariant, rid in ((harvest(6, 5), "INV-34", "R1"), (harvest(5, 7), "INV-41", "R2")):
        lockstep = Lockstep(2)
        lockstep.harvest(0, harvest(5, 6))
        with pytest.raises(InvariantViolation) as caught:
            lockstep.harvest(1, mine)
        assert (caught.value.invariant, caught.value.rid) == (invariant, rid)
