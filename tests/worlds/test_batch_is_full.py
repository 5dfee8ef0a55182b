"""The case of a slot that is full with a running batch that is replaced (rule 1a; tests/data/flag.toml)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppsim.scenario.load import load_scenario
from ppsim.world import simulate
from tests.worlds.making import launches

FLAG = Path(__file__).resolve().parents[1] / "data" / "flag.toml"


@pytest.mark.parametrize("rules", ["sglang", "mended"])
def test_a_request_that_no_token_kept_out_of_an_empty_slot_starts_in_the_next_iteration(rules: str) -> None:
    """Iteration 0: b counts 22 of 30, c needs 9, the slot is full. Iteration 1: [b] becomes the running batch; 29 free
    minus 19 x 0.7 = 13.3 leaves 15.7 >= 9."""
    result = simulate(load_scenario(str(FLAG), [f"scheduler.rules={rules}"]))
    assert result.verdict.kind == "pass"
    assert launches(result.recording)["c"][0] == 1
