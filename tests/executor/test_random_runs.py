"""Law: what real ranks record, whatever the scenario, is what the simulator does with the same inputs, and back."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from tests.executor.random_runs import run_back, run_one


@pytest.mark.parametrize("seed", range(10))
def test_a_random_run_replays_record_by_record_with_the_tokens_of_transformers(seed: int, tmp_path: Path) -> None:
    """200 of them: ``python -m tests.executor.random_runs 200``."""
    run_one(seed, tmp_path)


@pytest.mark.parametrize("seed", [0, 2, 7, 8, 9, 11, 12, 15, 17, 18])  # the first that processes have all parts for
def test_a_simulated_run_is_made_again_record_by_record_by_real_ranks(seed: int) -> None:
    """200 of them: ``python -m tests.executor.random_runs 200 --way back``."""
    run_back(seed)
