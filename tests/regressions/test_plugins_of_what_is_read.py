"""Law: what keeps every flag right is found by the fact, also where the bug is one of a plug-in file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppsim.plugin import load, load_plugin
from ppsim.plugin.declare import bugs_in
from ppsim.scenario.load import load_scenario
from ppsim.world import simulate

PLUGINS = Path(__file__).parent / "plugins"
SCENARIOS = Path(__file__).parents[1] / "planted" / "facts"
OF = {"short_transfer": "transfer", "other_tensor": "shapes", "tokens_twice": "stream", "store_by_leader": "store"}
BUGS = [(name, bug.name, bug.breaks) for name in OF for bug in bugs_in(load_plugin(str(PLUGINS / f"{name}.py")))]


@pytest.mark.parametrize(("name", "bug", "breaks"), BUGS, ids=[bug for _, bug, _ in BUGS])
def test_the_bug_of_a_file_is_found_as_the_file_says_and_has_struck(name: str, bug: str, breaks: str) -> None:
    loaded = load([bug], plugin=str(PLUGINS / f"{name}.py"))
    verdict = simulate(load_scenario(str(SCENARIOS / f"{OF[name]}.toml")), change=loaded.change).verdict
    assert (verdict.kind, verdict.invariant) == ("fail", breaks), verdict.message
    assert loaded.unfired() == []
