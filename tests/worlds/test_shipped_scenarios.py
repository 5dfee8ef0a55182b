"""Every scenario that comes with ppsim gives what its own ``[expect]`` says, also with each planted bug it names there.

The figures there are derived beside them: formulas, schedules worked out by hand, published measurements.
"""

from __future__ import annotations

import pytest

from ppsim.plugin import all_bugs, load
from ppsim.recording.summary import summarize
from ppsim.scenario.expect_judged import expectations
from ppsim.scenario.load import known_scenarios, load_scenario
from ppsim.world import simulate

SHIPPED = [name for name, path in known_scenarios().items() if path.is_absolute() or path.parts[0] == "scenarios"]
LONG = ("mooncake",)  # more than ten seconds


def runs() -> list[object]:
    """(scenario, planted bug or none) of every run that a shipped scenario speaks of."""
    found = []
    for name in SHIPPED:
        marks = [pytest.mark.slow] if name in LONG else []
        expect = load_scenario(name).expect
        for bug in ("", *(expect.bugs if expect is not None else ())):
            found.append(pytest.param(name, bug, id=f"{name} {bug}".strip(), marks=marks))
    return found


@pytest.mark.parametrize(("name", "bug"), runs())
def test_a_scenario_gives_what_it_expects(name: str, bug: str) -> None:
    scenario = load_scenario(name, bugs=(bug,) if bug else ())
    result = simulate(scenario, change=load(scenario.bugs).change)
    found = expectations(scenario, summarize(result.recording, result.verdict), result.verdict, known_bugs=all_bugs())
    assert found is not None, f"{name} expects nothing"
    assert not found.notes
    assert found.met, "\n".join(found.lines())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_scenario_expects_requests_to_be_answered_and_of_a_bug_the_rule_it_breaks(name: str) -> None:
    """A verdict alone says little of a run in which nobody is served."""
    expect = load_scenario(name).expect
    assert expect is not None
    assert "num_finished" in expect.figures
    for bug, outcome in expect.bugs.items():
        assert outcome.verdict == "fail"
        assert outcome.rule is not None, bug
