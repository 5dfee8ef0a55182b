"""One choice point: what is not determined asks one object, and every tape of answers is a run (issue 4, item 1)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from ppsim.fuzz.experiment import Chooser, Experiment, Outcome, digest_of, run_experiment, tape_of
from ppsim.world import SimulationResult
from ppsim.world.choices import (
    Choices,
    ExhaustiveChoices,
    FirstChoice,
    PctChoices,
    RecordingChoices,
    SeededChoices,
    TapeChoices,
)
from tests.worlds.making import UNIT, run
from tests.worlds.pd_making import PAIR

AS_WRITTEN: dict[str, Any] = {
    **UNIT,
    "disaggregation.role": "prefill",
    "scheduler.max_total_tokens": 40,
    "host.schedule_us": 100.0,
    "timeouts.waiting_ms": 20,
    "workload.requests": [
        {"rid": "R1", "prompt": 20, "output": 6, "at_iteration": 0},
        {"rid": "R2", "prompt": 12, "output": 6, "at_iteration": 1, "grammar": "json"},
    ],
    "workload.aborts": [{"rid": "R2", "at_iteration": 14}],
}
OPEN: dict[str, Any] = {
    **AS_WRITTEN,
    "observations.max_delay": 5,
    "links.latency_us": 10.0,
    "links.jitter_us": 900.0,
    "host.stage_jitter_percent": 50.0,
    "chance.max_arrival_delay": 9,
    "chance.max_abort_delay": 9,
    "chance.max_clock_skew_ms": 90,
    "chance.pause_iterations": 9,
    "chance.pause_ms": 5.0,
    "chance.max_lost_pages": 12,
    "chance.max_failed_allocations": 2,
    "chance.stops": True,
}
PLAIN = {**OPEN, "disaggregation.role": "plain"}  # where sampled tokens count
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "arrival": ("arrival R2", OPEN),
    "abort time": ("abort R2", OPEN),
    "observation delay": ("delay bootstrap R1", OPEN),
    "link jitter": ("jitter ", OPEN),
    "stage jitter": ("stage jitter 1", OPEN),
    "clock skew": ("skew 0", OPEN),
    "rank pause": ("pause 1", OPEN),
    "allocation failure at the start": ("allocation 1", OPEN),
    "allocation failure after admission": ("memory R1", OPEN),
    "stop token among the sampled": ("stop R1", PLAIN),
}
"""Each thing that is left open, the beginning of the stream by which it is asked, and a scenario in which it counts."""


class Answer:
    """``value`` (at most the largest) for streams that begin so, 0 for all others."""

    def __init__(self, stream: str, value: int) -> None:
        self.stream, self.value = stream, value

    def below(self, stream: str, n: int) -> int:
        return min(self.value, n - 1) if stream.startswith(self.stream) else 0


def asked_by(changes: dict[str, Any], choices: Choices) -> tuple[RecordingChoices, SimulationResult]:
    recorder = RecordingChoices(choices)
    return recorder, run(changes, {}, choices=recorder)


@pytest.mark.parametrize("what", sorted(QUESTIONS))
def test_every_nondeterministic_thing_asks_the_one_object_and_its_answer_counts(what: str) -> None:
    stream, changes = QUESTIONS[what]
    recorder, before = asked_by(changes, FirstChoice())
    assert [name for name, n in recorder.asked if name.startswith(stream) and n > 1], f"{what} is never asked"
    after = run(changes, {}, choices=Answer(stream, 3))
    assert digest_of(before) != digest_of(after)


def test_the_order_of_equal_events_is_asked_and_does_not_count() -> None:
    recorder, before = asked_by(OPEN, FirstChoice())
    assert [n for name, n in recorder.asked if name == "order" and n > 1]
    after = run(OPEN, {}, choices=Answer("order", 3))
    assert digest_of(before) == digest_of(after)


def test_nothing_else_is_asked() -> None:
    known = {stream.split()[0] for stream, _ in QUESTIONS.values()} | {"order"}
    for changes in (OPEN, PLAIN):
        recorder, _ = asked_by(changes, SeededChoices(5))
        assert {name.split()[0] for name, _ in recorder.asked} <= known


def test_answers_of_zero_are_the_scenario_as_written() -> None:
    latency = {"links.latency_us": 10.0}
    left_open = OPEN | {"chance.stops": False}  # a request that may stop says so, wherever it stops
    assert digest_of(run(left_open, {}, choices=FirstChoice())) == digest_of(run(AS_WRITTEN | latency, {}))


def test_both_pipelines_are_told_the_same_of_a_request() -> None:
    changes = {**PAIR, "chance.max_arrival_delay": 7, "chance.stops": True}
    changes["workload.requests"] = [{"rid": f"R{n}", "prompt": 9, "output": 9, "at_ms": 0.5 * n} for n in range(6)]
    for seed in range(5):
        setting = run(changes, {}, choices=SeededChoices(seed)).setting
        assert setting.peer is not None
        assert setting.peer.sampler.stop_after == setting.sampler.stop_after
        sides = [{a.rid: a.at_ns for a in s.recording.arrivals} for s in (setting.peer, setting)]
        assert sides[0] == sides[1]
    assert max(sides[0].values()) > 3_500_000  # seven milliseconds were possible, 2.5 were written


def test_a_clock_may_be_wrong_either_way() -> None:
    changes = {**UNIT, "chance.max_clock_skew_ms": 2}
    skews = [run(changes, {}, choices=Answer("skew", value)).setting.ranks[0].skew_ms for value in range(6)]
    assert skews == [0, 1, -1, 2, -2, -2]  # the last is the largest answer again


def test_a_failed_allocation_leaves_room_for_a_chunk() -> None:
    changes = {**UNIT, "scheduler.page_size": 4, "scheduler.max_total_tokens": 12, "chance.max_lost_pages": 9}
    left = [run(changes, {}, choices=Answer("allocation", value)).setting.ranks[0].local_capacity for value in range(4)]
    assert left == [12, 8, 4, 4]


def test_the_digest_covers_times_both_pipelines_and_the_verdict() -> None:
    whole = digest_of(run(PAIR, {}))
    changed = [run(PAIR, {}) for _ in range(3)]
    assert {digest_of(result) for result in changed} == {whole}
    changed[0].recording.span(0, "forward", 0, 0, 0, 1)
    peer = changed[1].recording.peer
    assert peer is not None
    peer.warn("only here")
    changed[2] = replace(changed[2], verdict=changed[2].verdict._replace(message="another"))
    assert len({whole, *(digest_of(result) for result in changed)}) == 4


# --- implementations ---------------------------------------------------------------------------------------------


def experiment(chooser: Chooser) -> Experiment:
    raw: dict[str, Any] = {}
    for key, value in OPEN.items():
        place = raw
        *sections, leaf = key.split(".")
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return Experiment(raw, chooser=chooser)


CHOOSERS = [Chooser("seeded", 3), Chooser("shuffled", 3), Chooser("pct", 3, 3, 40), Chooser()]


@pytest.mark.parametrize("chooser", CHOOSERS, ids=lambda chooser: chooser.kind)
def test_what_was_recorded_replays_bit_for_bit(chooser: Chooser) -> None:
    first = run_experiment(experiment(chooser))
    again = run_experiment(Experiment(experiment(chooser).raw, first.tape))
    assert (first.digest, first.tape, first.verdict) == (again.digest, again.tape, again.verdict)
    assert first == run_experiment(experiment(chooser))


def test_choosers_make_different_runs_except_where_only_the_order_differs() -> None:
    outcomes: list[Outcome] = [run_experiment(experiment(chooser)) for chooser in CHOOSERS]
    seeded, shuffled, pct, as_written = (outcome.digest for outcome in outcomes)
    assert seeded == shuffled
    assert outcomes[0].tape != outcomes[1].tape
    assert len({seeded, pct, as_written}) == 3


def test_a_tape_is_zero_behind_its_end_and_taken_modulo() -> None:
    tape = TapeChoices((7, 2))
    assert [tape.below("a", 5), tape.below("b", 3), tape.below("c", 9), tape.below("a", 2)] == [2, 2, 0, 0]


def test_named_streams_do_not_shift_each_other() -> None:
    alone, mixed = SeededChoices(1), SeededChoices(1)
    expected = [alone.below("a", 100) for _ in range(5)]
    found = [(mixed.below("b", 7), mixed.below("a", 100))[1] for _ in range(5)]
    assert found == expected
    assert {SeededChoices(seed).below("a", 100) for seed in range(40)} != {expected[0]}


def test_exhaustive_choices_make_every_combination_once() -> None:
    """Sizes 2, 3 and, only behind a first choice of 1, 4: 3 + 3 * 4 branches."""
    choices, seen = ExhaustiveChoices(), []
    while True:
        a, b = choices.below("a", 2), choices.below("b", 3)
        choices.below("order", 6)  # equivalent orders are one execution
        seen.append((a, b, choices.below("c", 4) if a else None))
        if not choices.advance():
            break
    assert seen == [(0, b, None) for b in range(3)] + [(1, b, c) for b, c in product(range(3), range(4))]


def test_few_preemptions_come_first() -> None:
    for seed in range(30):
        choices = PctChoices(seed, depth=2, horizon=20)
        answers = [choices.below("x", 4) for _ in range(50)]
        assert 1 <= sum(1 for answer in answers if answer) <= 2
        assert not any(answers[20:])


def test_a_run_can_be_recorded_and_its_tape_written_short() -> None:
    assert tape_of("3 0x4 1") == (3, 0, 0, 0, 0, 1)
    assert tape_of("") == ()
