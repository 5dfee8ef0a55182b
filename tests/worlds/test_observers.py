"""Law: whoever looks at a rank sees each effect once before it is answered and once after, however often it is
tried."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ppsim.check.observers import EFFECTS, Observers, phase_of
from ppsim.core.effects import Commit, Effect, Harvested, Ingest, Recv, Send
from ppsim.core.errors import InvariantViolation
from ppsim.scenario import load_scenario
from ppsim.world import simulate
from ppsim.world.run_setting import Setting


class Looker:
    """Takes down what it sees of one rank, with the instant on the rank's clock."""

    def __init__(self) -> None:
        self.open: Effect | None = None
        self.seen: Counter[type] = Counter()
        self.num_waited = 0
        self.since = 0

    def hang(self, r: Any) -> None:
        def before(effect: Effect) -> None:
            assert self.open is None, "the effect before was not looked back at"
            self.open, self.since = effect, r.now

        def after(effect: Effect, reply: object) -> None:
            assert self.open is effect
            self.open = None
            self.seen[type(effect)] += 1
            self.num_waited += r.now > self.since

        r.observers.before(before)
        r.observers.after(after)


def test_each_effect_is_seen_once_on_both_sides_also_where_a_rank_waits() -> None:
    lookers: list[Looker] = []

    def began(setting: Setting) -> None:
        for r in setting.ranks:
            lookers.append(Looker())
            lookers[-1].hang(r)

    scenario = load_scenario("unit", ("links.send=rendezvous", "scheduler.exchange_order=parity"))
    result = simulate(scenario, began=began)
    assert result.verdict.kind == "pass"
    assert len(lookers) == scenario.cluster.pp_size
    for rank, looker in enumerate(lookers):
        assert looker.open is None
        assert looker.num_waited > 0
        assert looker.seen[Send] == looker.seen[Commit] > 0
        assert looker.seen[Harvested] == len(result.recording.harvests[rank])
    received = sum(looker.seen[Recv] for looker in lookers)
    assert received == sum(looker.seen[Send] for looker in lookers)
    assert [looker.seen[Ingest] > 0 for looker in lookers] == [True, False, False, False]


def test_an_observer_ends_the_run_and_changes_no_decision() -> None:
    plain = simulate(load_scenario("unit"))

    def watched(setting: Setting) -> None:
        setting.ranks[2].observers.after(stops, Harvested)

    def stops(effect: Harvested, _: object) -> None:
        if effect.harvest.iteration == 5:
            raise InvariantViolation("INV-23", 2, 5, 1, "", "enough")

    verdict = simulate(load_scenario("unit"), began=watched).verdict
    assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-23", 2, 5)
    quiet = simulate(load_scenario("unit"), began=lambda setting: Looker().hang(setting.ranks[1]))
    assert quiet.recording.decisions == plain.recording.decisions
    assert quiet.recording.replies == plain.recording.replies


def test_observers_are_called_in_the_order_in_which_they_were_hung_for_the_effects_that_they_named() -> None:
    observers, told = Observers(), list[str]()
    observers.before(lambda effect: told.append("first"), Recv)
    observers.before(lambda effect: told.append("all"))
    observers.before(lambda effect: told.append("last"), Recv, Send)
    for effect in (Recv, Send, Commit):
        told.clear()
        for look in observers.befores[effect]:
            look(None)
        assert told == {Recv: ["first", "all", "last"], Send: ["all", "last"], Commit: ["all"]}[effect]
    assert set(observers.befores) == set(observers.afters) == set(EFFECTS)


def test_the_phase_of_a_loop_is_the_generator_right_below_it() -> None:
    def phase() -> Any:
        yield from deeper()

    def deeper() -> Any:
        yield 1

    def loop() -> Any:
        yield from phase()

    running = loop()
    next(running)
    assert phase_of(running) == "phase"
    with pytest.raises(StopIteration):
        next(running)
