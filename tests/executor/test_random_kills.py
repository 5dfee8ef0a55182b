"""Law: ``ppsim exec`` whose process is killed at whatever moment says so, leaves nothing over, and can be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from tests.executor.random_kills import PARENT, endless_scenario, kill_one, plan_of


def first(*, parent: bool, running: bool) -> int:
    """The first kill of seed 0 that is such a one."""
    sizes = ((number, endless_scenario(number)["cluster"]["pp_size"]) for number in range(100))
    plans = (plan_of(0, number, pp_size) for number, pp_size in sizes)
    return next(p.number for p in plans if ((p.victim == PARENT), (p.iteration is not None)) == (parent, running))


@pytest.mark.slow
@pytest.mark.parametrize(("parent", "running"), [(False, False), (False, True), (True, True)])
def test_a_kill_leaves_what_it_should(parent: bool, running: bool, tmp_path: Path) -> None:
    """50 of them: ``python -m tests.executor.random_kills 50``."""
    row = kill_one(0, first(parent=parent, running=running), tmp_path)
    assert row["processes"] > 1
    assert not running or row["moment"] == "run"
