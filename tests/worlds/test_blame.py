"""Who is to blame for a failure, and what is owed: the rank that parts from a right rank with the same replies.

Which rank a bug sits on is known here from the bug itself, so no expectation comes from what the judge says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppsim.check.verdicts import judged
from ppsim.core.effects import Effect, Effects, Send
from ppsim.core.loop import Loop
from ppsim.core.messages import Kind
from ppsim.core.outcome import Verdict
from ppsim.core.parts import Change
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import Request
from ppsim.plugin import load, planted
from ppsim.plugin.plans import behind, does, instead, named
from ppsim.plugin.right import without_bugs
from ppsim.scenario.load import load_scenario
from ppsim.world import simulate
from ppsim.world.choices import ExhaustiveChoices, FirstChoice, PctChoices, RecordingChoices, SeededChoices, same_again
from tests.planted.catalogue import entries
from tests.planted.test_invariants import DECODE, PREFILL, TABLE, outcome
from tests.worlds.making import MS, requests, run

CASES = Path(__file__).resolve().parents[1] / "data" / "rules"


PLUGINS = Path(__file__).resolve().parents[1] / "regressions" / "plugins"


def of_case(name: str, bug: str = "", *sets: str) -> Verdict:
    """The verdict of a case, with its bug on."""
    change = load([bug], str(PLUGINS / f"{name}.py")).change if bug else None
    return simulate(load_scenario(str(CASES / f"{name}.toml"), sets), change=change).verdict


def with_classes(*classes: type) -> Change:
    return load(classes=classes).change


# --- the guilty rank is who differs from its replay, not who differs from the first ---------------------------------


def test_the_first_rank_is_to_blame_where_it_alone_asks_storage_twice() -> None:
    assert of_case("second_ticket").kind == "pass"
    verdict = of_case("second_ticket", "second_ticket")
    assert (verdict.invariant, verdict.rank) == ("INV-25", 0), verdict.message
    assert verdict.phase == "schedule"
    assert verdict.message.startswith(f"INV-25 at rank 0, iteration {verdict.iteration}, slot {verdict.slot}, phase ")
    assert "what followed from it: INV-25 at rank 1" in verdict.message
    assert str(verdict.expected).startswith("has radix tree operations (")
    assert str(verdict.came).startswith("has radix tree operations (")
    assert verdict.came != verdict.expected


def odd_one(guilty: int) -> Change:
    """One rank tries waiting requests in another order than the rest; a bug, not a policy."""

    @planted("odd_one", breaks="INV-10", profile="plain", source="test")
    class OddOne(Policy):
        def admission_order(self, waiting: list[Request]) -> list[Request]:
            return waiting[::-1] if self.pp_rank == guilty else waiting

    return with_classes(OddOne)


@pytest.mark.parametrize("guilty", range(4))
def test_any_rank_is_found_by_its_replay(guilty: int) -> None:
    changes = {"cluster.pp_size": 4, "workload.requests": requests(3), "run.invariants": True}
    verdict = run(changes, change=odd_one(guilty)).verdict
    assert (verdict.kind, verdict.rank, verdict.iteration, verdict.slot) == ("fail", guilty, 0, 0), verdict.message


def loses_a_row(guilty: int, at: int) -> type[Loop]:
    """One rank loses a free row of its request table."""

    @planted("free_row_lost", breaks="INV-24", profile="plain", source="test")
    class LosesARow(Loop):
        def plan(self) -> Plan:
            def lose(rank: Rank) -> None:
                if rank.iteration == at and rank.config.pp_rank == guilty:
                    rank.scheduler.kv.free_rows.pop()

            return behind(super().plan(), "apply_inputs", does(lose))

    return LosesARow


class Reversed(Policy):
    """A policy of the user's, the same on all ranks."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        return waiting[::-1]


@pytest.mark.parametrize("guilty", range(3))
def test_a_right_rank_has_the_policy_of_the_user(guilty: int) -> None:
    """The policy alone would part every rank from a rank without one; the bug on top of it parts one rank only."""

    changes = {"cluster.pp_size": 3, "workload.requests": requests(3, output=6), "run.invariants": True}
    assert run(changes, change=with_classes(Reversed)).verdict.kind == "pass"
    verdict = run(changes, change=with_classes(loses_a_row(guilty, 5), Reversed)).verdict
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-24", guilty, 5), verdict.message


@pytest.mark.parametrize("guilty", range(3))
def test_of_a_policy_that_differs_between_ranks_the_one_is_to_blame_that_is_unlike_no_policy(guilty: int) -> None:
    class Differs(Policy):
        def admission_order(self, waiting: list[Request]) -> list[Request]:
            return waiting[::-1] if self.pp_rank == guilty else waiting

    changes = {"cluster.pp_size": 3, "workload.requests": requests(3), "run.invariants": True}
    assert run(changes, change=with_classes(Differs)).verdict.rank == guilty


def test_what_is_left_of_a_policy_without_its_bugs() -> None:
    @planted("mine", breaks="INV-10", profile="plain", source="test")
    class Mine(Policy):
        pass

    @planted("of_hers", breaks="INV-10", profile="plain", source="test")
    class OfHers(Reversed):
        def chunk_size(self, prefix_len: int, planned: int) -> int:
            return 1

    assert without_bugs(Policy) is Policy
    assert without_bugs(with_classes(Mine).policy) is Policy
    for classes in ([Reversed], [Mine, Reversed], [Reversed, Mine], [OfHers], [OfHers, Mine]):
        left = without_bugs(with_classes(*classes).policy)
        assert issubclass(left, Reversed)
        assert not issubclass(left, Mine | OfHers)
        assert left().chunk_size(0, 9) == 9


def test_a_policy_that_reads_the_clock_is_followed_to_the_nanosecond() -> None:
    class Clock(Policy):
        def admission_order(self, waiting: list[Request]) -> list[Request]:
            return waiting[::-1] if self.wall_clock_ns() // MS % 2 else waiting

    changes = {"workload.requests": requests(4, output=3), "run.invariants": True, "host.schedule_us": 700.0}
    assert run(changes, change=with_classes(Clock)).verdict.kind == "pass"
    verdict = run(changes, change=with_classes(loses_a_row(1, 3), Clock)).verdict
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-24", 1, 3), verdict.message


# --- messages that are owed ------------------------------------------------------------------------------------------


def test_the_last_rank_owes_the_output_that_it_has_not_sent() -> None:
    assert of_case("lost_output").kind == "pass"
    verdict = of_case("lost_output", "decode_output_not_sent")
    # R1 is prefilled in iteration 0 and decodes in slot 0 again in iteration 2; without depth that is when it is sent.
    assert (verdict.invariant, verdict.rank, verdict.iteration, verdict.slot) == ("INV-33", 1, 2, 0), verdict.message
    assert "it owes rank 0 the output of iteration 2, slot 0 " in verdict.message
    assert verdict.phase == "exchange_if_shallow"
    assert verdict.exit_code == 1
    assert "INV-40" in verdict.message  # what followed from it


def silent(kind: Kind, guilty: int, at: int, vote: str = "") -> Change:
    """One rank leaves out one kind of message from one iteration on, and does all else as it should."""

    def wanted(send: Send) -> bool:
        return send.message.kind is kind and vote in ("", getattr(send.message, "name", vote))

    @planted("silent", breaks="INV-40", profile="plain", source="test")
    class Silent(Loop):
        def plan(self) -> Plan:
            steps = super().plan()
            return tuple(self.quiet(phase) for phase in steps) if self.config.pp_rank == guilty else steps

        def quiet(self, phase: Any) -> Any:
            def shut(rank: Rank) -> Effects[None]:
                inner, answer = phase(rank), None
                while True:
                    try:
                        effect: Effect = inner.send(answer)
                    except StopIteration:
                        return
                    if isinstance(effect, Send) and wanted(effect) and rank.iteration >= at:
                        answer = -1
                    elif type(effect).__name__ == "Commit" and getattr(effect, "work", 0) == -1:
                        answer = None
                    else:
                        answer = yield effect

            shut.__name__ = phase.__name__
            return shut

    return with_classes(Silent)


THREE = {"cluster.pp_size": 3, "run.invariants": False, "workload.requests": requests(3, output=8)}
SILENCES = [
    (Kind.META, "", 1, {}, "INV-02"),
    (Kind.HIDDEN, "", 1, {}, "INV-32"),
    (Kind.OUTPUT, "", 1, {}, "INV-33"),
    (Kind.OUTPUT, "", 2, {}, "INV-33"),
    (Kind.VOTE, "release", 1, PREFILL, "INV-31"),
    (Kind.CONCLUSION, "release", 2, PREFILL, "INV-37"),
    (Kind.CONCLUSION, "prealloc", 0, DECODE, "INV-37"),
    (Kind.SIDE, "", 0, {"hicache.enabled": True, "hicache.host_tokens": 64}, "INV-28"),
]


@pytest.mark.parametrize(("kind", "vote", "guilty", "changes", "rule"), SILENCES)
def test_who_leaves_a_message_out_is_named_with_its_own_rule(
    kind: Kind, vote: str, guilty: int, changes: dict[str, Any], rule: str
) -> None:
    """Lockstep is on, the audit off, so nobody sees the silence before the ranks wait for each other."""
    base = {**THREE, **changes}
    assert run(base).verdict.kind == "pass"
    verdict = run(base, change=silent(kind, guilty, 4, vote)).verdict
    assert (verdict.invariant, verdict.rank) == (rule, guilty), verdict.message
    assert verdict.iteration is not None
    assert verdict.iteration >= 4 - 1
    assert verdict.slot == verdict.iteration % 3


def test_ranks_that_are_all_before_their_sends_are_a_circle_of_waits() -> None:
    """Nobody owes anything; the rank that sends first although it should receive is to blame."""
    bug, changes = TABLE[40]
    verdict = outcome(changes, bug)
    assert (verdict.invariant, verdict.exit_code) == ("INV-40", 3)
    assert verdict.rank is not None
    assert verdict.rank % 2 == 1
    assert "owes" not in verdict.message
    stopped = entries()["b27_collective_before_send"].run(bug=True).verdict
    assert (stopped.invariant, stopped.rank) == ("INV-40", 0)
    assert "owes" not in stopped.message


def test_a_message_that_comes_late_is_no_debt() -> None:
    """Hidden states that leave behind the end of the iteration: out of order, but they do leave."""

    @planted("late", breaks="INV-32", profile="plain", source="test")
    class Late(Loop):
        def plan(self) -> Plan:
            steps = super().plan()
            if self.config.pp_rank != 0:
                return steps
            first = instead(steps, "send_hidden_late")
            return (*first, *named(steps, "send_hidden_late"))

    verdict = run({**THREE, "run.invariants": True}, change=with_classes(Late)).verdict
    assert verdict.kind == "pass" or verdict.rank == 0


# --- the second run --------------------------------------------------------------------------------------------------


def test_choices_are_the_same_again() -> None:
    def asked(choices: Any) -> list[int]:
        return [choices.below(f"stream {k % 3}", 2 + k % 5) for k in range(40)]

    kinds = [SeededChoices(7), PctChoices(7, 3, 20), RecordingChoices(SeededChoices(3)), FirstChoice()]
    exhaustive = ExhaustiveChoices()
    asked(exhaustive)
    for _ in range(5):
        exhaustive.advance()
    for choices in [*kinds, exhaustive]:
        first = asked(choices)
        again = same_again(choices)
        assert again is not None
        assert asked(again) == first, choices


def test_nobody_is_blamed_by_a_plugin_that_does_not_do_the_same_twice() -> None:
    count = [0]

    @planted("moody", breaks="INV-10", profile="plain", source="test")
    class Moody(Policy):
        def admission_order(self, waiting: list[Request]) -> list[Request]:
            count[0] += self.pp_rank == 0
            return waiting[::-1] if self.pp_rank == 0 and count[0] == 1 else waiting

    verdict = run({"workload.requests": requests(3), "run.invariants": True}, change=with_classes(Moody)).verdict
    assert verdict.rank == 1  # as the first comparison had it: the second run passes
    assert "right rank" not in verdict.message


def test_without_checks_a_failure_is_told_as_it_is_found() -> None:
    changes = {"run.check": False, "run.invariants": False}
    assert run(changes).verdict.kind == "pass"
    sets = ("run.check=false", "run.invariants=false")
    verdict = of_case("lost_output", "decode_output_not_sent", *sets)
    assert verdict.invariant == "INV-40"
    assert verdict.message.startswith("INV-40 at rank 0, iteration 3, slot 1, phase exchange_if_shallow")


def test_a_verdict_stays_where_nobody_has_parted() -> None:
    verdict = Verdict("fail", 1, "INV-10 at rank 1, ...", "INV-10", 1, 3, 0)
    assert judged(verdict, ()) == verdict


# --- every verdict says it all ---------------------------------------------------------------------------------------


def complete(verdict: Verdict) -> None:
    assert verdict.kind == "fail"
    assert verdict.invariant
    assert verdict.rank is not None
    assert verdict.iteration is not None
    assert verdict.slot is not None
    assert verdict.phase
    assert verdict.expected
    assert verdict.came
    assert verdict.expected != verdict.came
    side = verdict.message.removeprefix("decode side: ").removeprefix("prefill side: ")
    about = f", request {verdict.rid}" if verdict.rid else ""
    place = f"rank {verdict.rank}, iteration {verdict.iteration}, slot {verdict.slot}, phase {verdict.phase}{about}: "
    assert side.startswith(f"{verdict.invariant} at {place}"), verdict.message


@pytest.mark.parametrize("number", TABLE)
def test_the_verdict_of_every_invariant_says_request_rank_iteration_slot_phase_rule_expected_and_came(
    number: int,
) -> None:
    bug, changes = TABLE[number]
    complete(outcome(changes, bug))


@pytest.mark.parametrize("name", entries())
def test_the_verdict_of_every_public_bug_says_it_all(name: str) -> None:
    complete(entries()[name].run(bug=True).verdict)
