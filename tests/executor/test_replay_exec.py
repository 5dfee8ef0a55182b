"""A failure that was found in simulation comes back on real processes: the same rule, the same circle of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.fed import FedChoices, fit_to_feed
from ppsim.cli.replay_exec import Ends, both_ends, cycle_of, unlike_gloo
from ppsim.errors import EXIT_LIVENESS, EXIT_SAFETY, PpsimError, ScenarioError
from ppsim.fuzz.experiment import Chooser, Experiment, Terms, run_experiment
from ppsim.fuzz.repro import Repro, load, save
from ppsim.plugin import load as load_change
from ppsim.scenario.load import validate
from ppsim.scenario.tree import Links

TIGHT: dict[str, Any] = {
    "name": "saved",
    "cluster": {"pp_size": 2},
    "scheduler": {"chunked_prefill_size": 8, "page_size": 4, "max_total_tokens": 96, "max_running_requests": 8},
    "cost": {"source": "unit", "unit_ms": 1.0},
    "workload": {
        "source": "requests",
        "requests": [{"rid": f"R{i}", "prompt": 12 + i, "output": 6, "at_ms": 1.5 * i} for i in range(4)],
        "aborts": [{"rid": "R1", "at_ms": 7.0}],
    },
    "chance": {"max_lost_pages": 4, "max_failed_allocations": 2, "stops": True, "max_arrival_delay": 3},
    "run": {"invariants": True, "max_iterations": 500},
}


def saved(tmp_path: Path, bug: str, raw: dict[str, Any] = TIGHT, seed: int = 3) -> tuple[str, Repro]:
    """A file as ``ppsim fuzz`` writes it, of one seeded run with a planted bug."""
    outcome = run_experiment(Experiment(raw, (), Chooser("seeded", seed)), load_change((bug,)).change)
    assert outcome.signature is not None, "it does not fail"
    repro = Repro(Experiment(raw, outcome.tape), outcome.signature, outcome.digest, outcome.verdict.iteration, (bug,))
    save(tmp_path / "repro.json", repro)
    return str(tmp_path / "repro.json"), load(str(tmp_path / "repro.json"))


def ends_of(tmp_path: Path, bug: str, raw: dict[str, Any] = TIGHT) -> Ends:
    return both_ends(*saved(tmp_path, bug, raw), Terms(), "forkserver")


def one_request(**request: Any) -> dict[str, Any]:
    """The same ranks with one request and nothing left to chance."""
    row = {"rid": "R0", "prompt": 12, "output": 3, **request}
    return {**TIGHT, "chance": {}, "workload": {"source": "requests", "requests": [row]}}


SKIPS = {**TIGHT, "scheduler": {**TIGHT["scheduler"], "skip_pure_chunked_output_comm": True}}


@pytest.mark.parametrize(
    ("bug", "raw"),
    [
        ("local_capacity", TIGHT),
        ("buffers_given_up", TIGHT),
        ("no_message_for_the_last_token", TIGHT),  # the bug looks at tokens, which are a tensor here
        ("skipped_output_sent", SKIPS),
        ("idle_reset_left_out", one_request(at_iteration=9)),  # in simulation it ends before anything arrives
    ],
)
def test_a_broken_rule_is_found_by_the_same_rule_at_the_same_place(
    bug: str, raw: dict[str, Any], tmp_path: Path
) -> None:
    ends = ends_of(tmp_path, bug, raw)
    assert ends.same
    assert ends.real.exit_code == EXIT_SAFETY
    found = [(v.invariant, v.rank, v.iteration, v.slot) for v in (ends.real, ends.simulated)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("bug", "raw", "cycle"),
    [
        ("collective_before_send", TIGHT, (0, 1, 0)),
        ("barrier_in_each_iteration", TIGHT, (0, 1, 0)),
        ("silent_rank", one_request(output=60), (0, 0)),  # it waits for a message from itself
    ],
)
def test_a_hang_is_a_hang_with_the_same_circle(
    bug: str, raw: dict[str, Any], cycle: tuple[int, ...], tmp_path: Path
) -> None:
    ends = ends_of(tmp_path, bug, raw)
    assert ends.same
    assert (ends.real.invariant, ends.real.exit_code) == ("INV-40", EXIT_LIVENESS)
    assert ends.cycles == (cycle, cycle)


def test_a_limit_in_milliseconds_of_simulated_time_is_none_here_unless_it_was_reached() -> None:
    """Nobody knows how many of them a real rank takes for what a simulated one does in one."""
    raw = {**TIGHT, "chance": {}, "run": {"max_wait_ms": 5.0, "max_agreement_wait_ms": 6.0}}
    runs = {rule: fit_to_feed(validate(raw), 1.0, rule).run for rule in ("INV-84", "INV-85", "INV-72")}
    limits = {rule: (run.max_wait_ms, run.max_agreement_wait_ms) for rule, run in runs.items()}
    assert limits == {"INV-84": (0.0, 0.0), "INV-85": (5.0, 0.0), "INV-72": (0.0, 6.0)}


def test_a_rule_that_is_not_checked_on_processes_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(PpsimError, match=r"INV-08 is not checked on real processes: it compares where two ranks"):
        ends_of(tmp_path, "inputs_not_committed", one_request(output=9))


def test_links_on_which_others_wait_are_told_where_the_ends_differ() -> None:
    assert unlike_gloo(Links()) == ()
    assert unlike_gloo(Links(commit="requests", latency_us=5.0)) == (
        "links.commit was 'requests'; between processes it is 'all'",
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"disaggregation": {"role": "decode"}}, "disaggregation.role"),
        ({"cluster": {"pp_size": 2, "tp_size": 2, "tp_replicas": 2}}, "cluster.tp_size"),
        ({"hicache": {"enabled": True, "host_tokens": 256}}, "hicache.enabled"),
    ],
)
def test_what_processes_lack_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    from executor.prepare import prepared

    with pytest.raises(ScenarioError, match=named):
        prepared(fit_to_feed(validate({**TIGHT, "chance": {}, **changes}), 1.0), None, "cpu")


def test_a_file_that_is_no_longer_the_saved_failure_is_refused(tmp_path: Path) -> None:
    file, repro = saved(tmp_path, "local_capacity")
    other = Repro(repro.experiment, repro.signature, "0" * 16, repro.iteration, repro.bugs)
    with pytest.raises(PpsimError, match="not the saved failure any more"):
        both_ends(file, other, Terms(), "forkserver")


def test_a_lock_of_sends_that_wait_is_refused_by_the_key(tmp_path: Path) -> None:
    raw = {**TIGHT, "cluster": {"pp_size": 3}, "links": {"send": "rendezvous"}, "chance": {}}
    raw["workload"] = {"source": "chunks", "num_chunks": 8}
    with pytest.raises(PpsimError, match=r"links\.send 'rendezvous': ranks lock where a send waits"):
        ends_of(tmp_path, "all_send_first", raw)


def test_streams_are_answered_in_order_whoever_asks_in_between() -> None:
    choices = FedChoices({"delay grammar R1 0": (2, 5), "delay grammar R1 1": (7,)})
    asked = [("delay grammar R1 0", 9), ("delay grammar R1 1", 4), ("delay grammar R1 0", 9), ("delay grammar R1 0", 9)]
    assert [choices.below(*question) for question in asked] == [2, 3, 5, 0]


def test_a_circle_is_read_from_a_report() -> None:
    from ppsim.core.outcome import Verdict

    assert cycle_of(Verdict("fail", 3, "INV-40: x\n  rank 0 waits\n  wait-for cycle: 0 -> 2 -> 0")) == (0, 2, 0)
    assert cycle_of(Verdict("fail", 3, "INV-40: x")) == ()
