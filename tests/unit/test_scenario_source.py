"""A workload that does not name its source is what it holds; what is written is never ignored."""

from __future__ import annotations

import pytest

from ppsim.errors import ScenarioError
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import load_scenario, validate

REQUEST = {"rid": "R1", "at_iteration": 3, "prompt": 100, "output": 5}


@pytest.mark.parametrize(
    ("workload", "source"),
    [
        ({"requests": [REQUEST]}, "requests"),
        ({"trace": "trace.jsonl"}, "trace"),
        ({"num_chunks": 3}, "chunks"),
        ({"rate_per_s": 2.0}, "generated"),
        ({"source": "trace", "num_requests": 3}, "trace"),
    ],
)
def test_source_follows_from_what_is_given(workload: dict[str, object], source: str) -> None:
    assert validate({"workload": workload}).workload.source == source


def test_requests_under_another_source_are_refused() -> None:
    scenario = validate({"workload": {"source": "generated", "requests": [REQUEST]}})
    with pytest.raises(ScenarioError, match=r"workload\.requests: would be ignored"):
        check_scenario(scenario)


def test_requests_given_on_the_command_line_replace_the_source_of_a_scenario() -> None:
    scenario = load_scenario("unit", ['workload.requests=[{rid="a", at_iteration=0, prompt=8}]'])
    assert scenario.workload.source == "requests"
