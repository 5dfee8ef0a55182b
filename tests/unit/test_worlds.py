"""Each key is honoured, refused or told in each world: one table, over all keys of the tree."""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.errors import ScenarioError
from ppsim.scenario.effects import value_at
from ppsim.scenario.tree import Scenario
from ppsim.scenario.worlds import LISTS, WORLDS, Fate, not_on_processes
from tests.unit.test_scenario_keys import KEYS, keys_of
from tests.worlds.making import UNIT, scenario

BY_EXEC = {fate: sorted(key for key, row in WORLDS.items() if row.exec == fate) for fate in Fate}
SMALL: dict[str, Any] = {**UNIT, "model.num_hidden_layers": 2, "model.hidden_size": 64, "model.intermediate_size": 64}
LACKING: dict[str, dict[str, Any]] = {  # where the case of the key has other things that are refused first
    "cluster.tp_replicas": {**SMALL, "cluster.tp_size": 2, "cluster.tp_replicas": 2},
    "disaggregation.role": {**SMALL, "disaggregation.role": "decode"},
    "hicache.enabled": {**SMALL, "hicache.enabled": True, "hicache.host_tokens": 64},
    "model.dtype_bytes": {**SMALL, "model.dtype_bytes": 1},
    "model.key": {**SMALL, "model.key": "qwen3-8b"},
}


def test_every_key_has_a_row_and_no_row_is_of_nothing() -> None:
    assert sorted(WORLDS) == sorted(keys_of(Scenario))


def test_every_row_that_is_not_honoured_on_processes_says_why() -> None:
    assert [key for key, row in WORLDS.items() if bool(row.why) != (row.exec in (Fate.REFUSED, Fate.TOLD))] == []
    assert [key for key, row in WORLDS.items() if bool(row.unless) != bool(row.when)] == []


def base_of(key: str) -> str:
    return next((name for name in LISTS if key.startswith(f"{name}.")), key)


@pytest.mark.parametrize("key", [key for key in BY_EXEC[Fate.TOLD] if key != "run.invariants"])
def test_a_key_that_processes_do_not_honour_is_told_when_it_is_set(key: str) -> None:
    """In the situation and with the value by which ``test_scenario_keys`` shows that simulation does honour it."""
    row = WORLDS[key]
    for made in written(key):
        honoured = row.unless is not None and row.unless(made)
        assert (base_of(key) in told_of(made)) == (not honoured)
        if honoured:  # then in another situation
            c = made.scheduler.model_copy(update={"enable_dynamic_chunking": False, "max_total_tokens": 4096})
            assert base_of(key) in told_of(made.model_copy(update={"scheduler": c}))


def written(key: str) -> list[Scenario]:
    """The two scenarios of the key's case, but for one in which it is its default."""
    case, usual = KEYS[key], Scenario()
    both = [scenario(raw, base={}) for raw in (case.base, {**case.base, **case.change})]
    found = [made for made in both if value_at(made, base_of(key)) != value_at(usual, base_of(key))]
    assert found, f"{key} is never set"
    return found


def told_of(made: Scenario) -> list[str]:
    return [key for sentence in not_on_processes(made) for key in sentence.partition(" ha")[0].split(", ")]


def test_what_is_as_usual_is_not_told_of() -> None:
    assert not_on_processes(Scenario()) == []


@pytest.mark.parametrize("key", BY_EXEC[Fate.HONOURED])
def test_a_key_that_processes_honour_is_not_told_of(key: str) -> None:
    case = KEYS[key]
    before, after = (not_on_processes(scenario(raw, base={})) for raw in (case.base, {**case.base, **case.change}))
    keys = [word.rstrip(",") for sentence in after for word in sentence.split()]
    assert key not in keys
    assert set(after) - set(before) == set() or key == "scheduler.max_total_tokens"


@pytest.mark.parametrize("key", BY_EXEC[Fate.REFUSED])
def test_a_key_that_processes_cannot_have_is_refused_before_one_starts(key: str) -> None:
    pytest.importorskip("torch", reason="the executor extra is not installed")
    from executor.prepare import prepared

    case = KEYS[key]
    made = scenario(LACKING.get(key, {**case.base, **case.change}), base={})
    with pytest.raises(ScenarioError) as caught:
        prepared(made, None, "cpu")
    named = "chance" if key.startswith("chance.") else "cluster.tp_size" if key == "cluster.tp_replicas" else key
    assert str(caught.value).startswith((named, "disaggregation.role"))  # a replica needs tensor parallelism
