"""batch_is_full in whole runs: rule 1a on one stage, and how a run ends in which a rule lets nothing run any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppsim.check.client_watch import MAX_EMPTY_ITERATIONS, StopRun, Watch
from ppsim.core.effects import CLOSED
from ppsim.errors import EXIT_LIVENESS
from ppsim.scenario.load import load_scenario
from ppsim.world import simulate
from tests.unit.handmade import decision
from tests.worlds.making import launches

FLAG = Path(__file__).resolve().parents[1] / "data" / "flag.toml"


@pytest.mark.parametrize("rules", ["sglang", "mended"])
def test_a_request_that_no_token_kept_out_of_an_empty_slot_starts_in_the_next_iteration(rules: str) -> None:
    """Iteration 0: b counts 22 of 30, c needs 9, the slot is full. Iteration 1: [b] becomes the running batch; 29 free
    minus 19 x 0.7 = 13.3 leaves 15.7 >= 9."""
    result = simulate(load_scenario(str(FLAG), [f"scheduler.rules={rules}"]))
    assert result.verdict.kind == "pass"
    assert launches(result.recording)["c"][0] == 1


def test_a_run_in_which_rules_let_nothing_run_ends_as_a_livelock_that_names_them() -> None:
    """A batch of no token is no progress, and neither is a closed slot's visit."""
    watch = Watch(0, 1, None)

    def goes_round() -> None:
        for n in range(0, 2 * MAX_EMPTY_ITERATIONS, 2):
            watch.ingested(n, (), False)
            watch.decided(decision(n, 0, ("R1", 8, 0)))
            watch.decided(decision(n + 1, 1)._replace(stall=CLOSED))

    with pytest.raises(StopRun) as caught:
        goes_round()
    assert caught.value.exit_code == EXIT_LIVENESS
    said = "(livelock); held up by scheduler.rules: slot 0 is a piece of 0 tokens, slot 1 is closed"
    assert said in str(caught.value)
