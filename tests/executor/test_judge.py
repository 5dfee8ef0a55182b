"""Law: one judge for both worlds. A planted bug is found on real processes under the rule, at the place and in the
words in which the simulated world finds it; what the executor cannot honour it refuses.

The simulated run gets the tokens of the real one, so that a sentence may name them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.ending import deadlock, first_broken, verdict_of_failure, verdict_of_run, verdict_of_stall
from executor.launch import NOT_HERE, execute
from executor.status import CODE, DOING, LOADING, Status
from executor.worker import Report
from ppsim.check.blame import Departure
from ppsim.check.together import Decides, Record, Shown, in_order
from ppsim.core.config import RankConfig
from ppsim.core.effects import Commit, Decision, Recv
from ppsim.core.errors import CallsDiffer, InvariantViolation, ProtocolError
from ppsim.core.loop import Loop
from ppsim.core.messages import Call, CallLog, Kind, Lane
from ppsim.core.outcome import PASS
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import Request
from ppsim.core.surroundings import Surroundings
from ppsim.errors import ScenarioError
from ppsim.plugin import load
from ppsim.plugin.plans import behind, does
from ppsim.recording import Recording, Verdict
from ppsim.scenario import Scenario
from ppsim.world import simulate
from ppsim.world.simulate import Given
from tests.executor.small import small_scenario


def row(rid: str, at: int, prompt: int = 4, output: int = 1, **more: Any) -> dict[str, Any]:
    return {"rid": rid, "at_iteration": at, "prompt": prompt, "output": output, "ignore_eos": True, **more}


def work(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"workload": {"source": "requests", "requests": list(rows), **more}}


LONG = work(row("R1", 0, output=9))
TWO_LONG = work(row("R1", 0, output=9), row("R2", 0, output=9))

BUGS: dict[str, dict[str, Any]] = {
    "inputs_read_backwards": TWO_LONG,
    "zigzag_slots": LONG,
    "harvest_put_off": TWO_LONG,
    "harvest_left_out": TWO_LONG,
    "joins_another_slot": {"cluster": {"pp_size": 3}, **LONG},
    "ratio_decays_twice": LONG,
    "local_capacity": {"scheduler": {"max_total_tokens": [1024, 1000]}, **LONG},
    "page_lost_at_finish": work(row("R1", 0, output=3), row("R2", 0, output=3)),
    "row_returned_late": work(row("R1", 0), row("R2", 0, output=9)),
    "other_tokens": LONG,
    "last_reply_twice": LONG,
    "hash_order": work(row("R1", 0), row("R2", 0)),
    "tokens_told_twice": LONG,
    "second_tokens_untold": LONG,
    "limit_off_by_one": LONG,
    "tensor_of_the_batch_before": {"scheduler": {"pp_max_micro_batch_size": 1}, **TWO_LONG},
    "pages_of_each_other": {"scheduler": {"disable_radix_cache": True, "page_size": 4}, **TWO_LONG},
}


def scenario_of(bug: str = "", run: dict[str, Any] | None = None, **sections: Any) -> Scenario:
    made = small_scenario(**sections, run={"invariants": True, "max_iterations": 200, **(run or {})})
    return made.model_copy(update={"bugs": (bug,) if bug else ()})


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_alike_in_both_worlds(bug: str) -> None:
    scenario = scenario_of(bug, **BUGS[bug])
    real = execute(scenario, start_method="forkserver")
    simulated = simulate(scenario, given=Given(tokens=real.tokens))
    assert real.verdict.kind == "fail"
    assert real.verdict == simulated.verdict  # rule, rank, iteration, slot, request, exit code and sentence
    assert real.recording.warnings == [NOT_HERE]


class Scribbles(Loop):
    """The buffer of the hidden states is written to as soon as their launch is under way."""

    def plan(self) -> Plan:
        return behind(super().plan(), "launch_batch", does(scribble))


def scribble(rank: Rank) -> None:
    if rank.hidden_out is not None and rank.iteration == 2:
        values: Any = rank.hidden_out.payload
        values.numpy()[:] += 1.0


def test_hidden_states_that_are_rewritten_before_they_are_read_are_found_by_their_bytes() -> None:
    """Shapes, addresses and all flags are right, and every rank goes on alike with what it got."""
    result = execute(scenario_of(**LONG), start_method="forkserver", changes=(f"{__name__}:Scribbles",))
    verdict = result.verdict
    assert (verdict.invariant, verdict.rank, verdict.iteration, verdict.rid) == ("INV-78", 1, 2, "R1"), verdict.message
    assert "are not what rank 0 wrote, nor what any launch wrote: they were changed since" in verdict.message


def test_the_right_protocol_passes_under_every_invariant_on_real_processes() -> None:
    rows = [row(f"R{n}", n, 9 + 7 * n, 5) for n in range(5)]
    limits = {"max_wait_iterations": 100, "max_agreement_wait_ms": 60_000.0}
    result = execute(scenario_of(run=limits, cluster={"pp_size": 3}, **work(*rows)), start_method="forkserver")
    assert result.verdict == PASS


def test_without_checks_a_bug_runs_on_and_with_lockstep_alone_it_is_found_by_its_decisions() -> None:
    """The ratio of one rank decays twice: nothing but the digest of its state shows it."""
    quiet = scenario_of("ratio_decays_twice", {"invariants": False, "check": False}, **LONG)
    assert execute(quiet, start_method="forkserver").verdict.kind == "pass"
    lockstep = scenario_of("ratio_decays_twice", {"invariants": False}, **LONG)
    found = execute(lockstep, start_method="forkserver").verdict
    assert (found.invariant, found.rank, found.iteration) == ("INV-14", 1, 1)
    assert found == simulate(lockstep).verdict


class WatermarkOnLaterRanks(Policy):
    """Ranks behind the first one decode before they prefill while something runs."""

    def may_prefill(self, running: Sequence[Request], waiting: Sequence[Request], free_tokens: int) -> bool:
        return self.pp_rank == 0 or not running


class WritesTooEarly(Surroundings):
    """A world that does what only the simulated one can."""

    def write_begins_ns(self, room: int, rank: int, num_tokens: int, computed_ns: int) -> int:
        return 0


def test_a_bug_of_the_simulated_world_is_refused_by_name_and_as_a_class() -> None:
    with pytest.raises(
        ScenarioError, match=r"^bugs: 'store_out_of_order' changes store_age_ns, which only the simulat"
    ):
        execute(scenario_of("store_out_of_order", disaggregation={"role": "prefill"}, **LONG))
    mine = f"{__name__}:WritesTooEarly"
    with pytest.raises(ScenarioError, match=rf"^bugs: '{mine}' changes write_begins_ns, which only the simulated"):
        execute(scenario_of(**LONG), changes=(mine,))


def test_a_class_of_the_caller_is_found_alike_in_both_worlds_also_beside_a_bug_of_the_scenario() -> None:
    mine = f"{__name__}:WatermarkOnLaterRanks"
    later = work(row("R1", 0, output=9), row("R2", 4, output=9))
    for bug in ("", "ratio_decays_twice"):
        scenario = scenario_of(bug, scheduler={"pp_max_micro_batch_size": 4}, **later)
        names = (mine, bug) if bug else (mine,)
        real = execute(scenario, start_method="forkserver", changes=(mine,))
        simulated = simulate(scenario, change=load(names).change, given=Given(tokens=real.tokens))
        assert real.verdict.kind == "fail"
        assert real.verdict == simulated.verdict
        assert real.verdict.invariant == ("INV-17" if bug else "INV-19")


# --- what the launcher makes of the reports, without processes ----------------------------------------------------


CONFIGS = [RankConfig(pp_rank=rank, pp_size=2, pp_async_batch_depth=1) for rank in range(2)]


def shown(rank: int, iteration: int, value: int) -> Record:
    return Shown(rank, iteration, iteration % 3, "parts", iteration, (("INV-17", "new_token_ratio", value),))


def decides(rank: int, iteration: int, mode: str = "empty") -> Record:
    decision = Decision(iteration, iteration % 3, mode, (), (), None, "")
    return Decides(rank, iteration, iteration % 3, decision)


def test_records_of_separate_processes_come_by_iteration_then_by_rank_and_of_one_rank_as_they_were_made() -> None:
    records = {1: [shown(1, 0, 1), decides(1, 0), decides(1, 1)], 0: [decides(0, 0), shown(0, 1, 2)]}
    order = [(r.iteration, r.rank, type(r).__name__) for r in in_order(records)]
    assert order == [
        (0, 0, "Decides"),
        (0, 1, "Shown"),
        (0, 1, "Decides"),
        (1, 0, "Shown"),
        (1, 1, "Decides"),
    ]


def test_the_first_difference_is_named_whoever_reported_first() -> None:
    late = Report(0, records=(shown(0, 4, 7), shown(0, 5, 7)))
    early = Report(1, records=(shown(1, 4, 8), shown(1, 5, 9)))
    for reports in ([late, early], [early, late]):
        broken = first_broken(reports)
        assert broken is not None
        assert (broken.invariant, broken.rank, broken.iteration, broken.slot) == ("INV-17", 1, 4, 1)


def test_what_ranks_show_together_goes_before_the_error_that_followed_from_it() -> None:
    followed = ProtocolError(1, 6, 0, "a batch", "none", "rank 0 sent it")
    records = ((decides(0, 5), decides(0, 6)), (decides(1, 5, "decode"),))
    reports = {0: Report(0, records=records[0]), 1: Report(1, error=followed, records=records[1])}
    verdict = verdict_of_failure(reports, reports[1])
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-09", 1, 5)
    first = ProtocolError(1, 4, 1, "a batch", "none", "rank 0 sent it")  # before anything differs
    reports[1] = Report(1, error=first, records=records[1])
    assert verdict_of_failure(reports, reports[1]).message == (
        "INV-31 at rank 1, iteration 4, slot 1: expected a batch, got none; rank 0 sent it"
    )


def test_the_checker_is_more_exact_than_lockstep_in_the_same_iteration() -> None:
    broken = InvariantViolation("INV-23", 1, 5, 2, "", "a page is lost")
    reports = {0: Report(0, records=(decides(0, 5),)), 1: Report(1, error=broken, records=(decides(1, 5, "decode"),))}
    assert verdict_of_failure(reports, reports[1]).invariant == "INV-09"
    calls = tuple(
        CallLog((rank,), str(rank), (Call(5, 2, "INV-23", "Pool.free", f"called({rank})"),)) for rank in (0, 1)
    )
    reports[1] = Report(1, error=CallsDiffer(1, 6, 0, calls), records=reports[1].records)
    verdict = verdict_of_failure(reports, reports[1])
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-23", 1, 5)
    assert verdict.message.endswith("found when the calls up to iteration 6 were compared")


def test_a_deadlock_names_the_least_advanced_rank() -> None:
    status = Status(multiprocessing.get_context("spawn"), 2)
    status.beat(0, Recv(1, Lane.TENSOR), 9)
    status.beat(1, Commit(3), 8)
    verdict = deadlock(status, "both wait", CONFIGS)
    assert (verdict.kind, verdict.exit_code, verdict.invariant, verdict.message) == (
        "fail",
        3,
        "INV-40",
        "INV-40 at rank 1, iteration 8, slot 2: deadlock: both wait",
    )
    assert (verdict.rank, verdict.iteration, verdict.slot) == (1, 8, 2)


def test_a_deadlock_in_which_a_sender_has_passed_its_send_names_the_message_that_it_owes() -> None:
    """Depth 1: the last of two ranks releases the output of iteration 5 in iteration 6, and is in iteration 8."""
    status = Status(multiprocessing.get_context("spawn"), 2)
    status.beat(0, Recv(1, Lane.TENSOR, Kind.OUTPUT, 5, 2), 7)
    status.beat(1, Recv(0, Lane.CONTROL, Kind.META, 8, 2), 8)
    verdict = stalled(status)
    assert (verdict.invariant, verdict.rank, verdict.iteration, verdict.slot) == ("INV-33", 1, 6, 0), verdict.message
    assert "it owes rank 0 the output message of iteration 5, slot 2, on lane tensor" in verdict.message
    status.beat(1, Recv(0, Lane.CONTROL, Kind.META, 7, 1), 6)  # both may still send it
    assert stalled(status).invariant == "INV-40"


def stalled(status: Status, reports: Mapping[int, Report] = {}) -> Verdict:
    """The verdict on two ranks that wait for each other, as the launcher makes it."""
    return verdict_of_stall(reports, 2, deadlock(status, "both wait", CONFIGS), status.waits(CONFIGS))


def test_a_deadlock_behind_a_rank_that_has_parted_from_a_right_one_names_that_rank() -> None:
    """Rank 1 is further on, and has waited since iteration 5 for what nobody sends."""
    status = Status(multiprocessing.get_context("spawn"), 2)
    status.beat(0, Recv(1, Lane.TENSOR), 4)
    status.beat(1, Recv(1, Lane.HICACHE), 5)
    parted = Departure(1, 5, 2, "stop", "", "receives from rank 0", "receives from rank 1")
    verdict = stalled(status, {0: Report(0), 1: Report(1, departure=parted)})
    assert (verdict.invariant, verdict.exit_code, verdict.rank, verdict.iteration) == ("INV-40", 3, 1, 5)
    assert verdict.message.splitlines() == [
        "INV-40 at rank 1, iteration 5, slot 2, phase stop: it receives from rank 1, where a right rank with the same "
        "replies receives from rank 0",
        "what followed from it: INV-40 at rank 0, iteration 4, slot 1: deadlock: both wait",
    ]
    half = stalled(status, {1: Report(1, departure=parted)})  # the other one could not say
    assert half.rank == 0


def test_whoever_has_begun_no_iteration_is_in_none_and_every_effect_has_words() -> None:
    status = Status(multiprocessing.get_context("spawn"), 2)
    assert [status.iteration(rank) for rank in (0, 1)] == [-1, -1]
    assert [(stand.iteration, stand.slot, stand.doing) for stand in status.stands()] == [(-1, None, "starting")] * 2
    assert status.describe(1) == "starting"
    assert set(CODE.values()) < set(DOING)
    status.begins(1, LOADING)
    assert status.describe(1) == "loading its part of the model"


def test_ranks_of_different_length_are_not_alike() -> None:
    recording = Recording(2, world="exec")
    decision = Decision(0, 0, "empty", (), (), None, "")
    recording.decision(0, decision)
    verdict = verdict_of_run(recording, [Report(0), Report(1)])
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-02", 1, 0)
    assert verdict.message == "INV-02 at rank 1, iteration 0, slot 0: it had 0 iterations, rank 0 had 1"
