"""What the check at the end of a run finds where a reply is missing: everything that was read is owed one."""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.core.hooks import Hooks
from ppsim.core.loop import Plan
from ppsim.core.rank import Rank
from ppsim.planted.plans import before, does
from ppsim.world import SimulationResult
from tests.worlds.making import requests, run

LATE = {"prompt": 4, "output": 1, "ignore_eos": True}


def losing(iteration: int) -> type[Hooks]:
    """Hooks of ranks that forget what they would answer in this iteration, before they answer."""

    class Loses(Hooks):
        def plan(self, steps: Plan) -> Plan:
            def lose(rank: Rank) -> None:
                if rank.iteration == iteration:
                    rank.scheduler.outbox.clear()

            return before(steps, "schedule", does(lose))

    return Loses


def flushed(iterations: tuple[int, ...], lost: int | None, **more: Any) -> SimulationResult:
    """Flushes, all under the id F, and the replies of one iteration lost."""
    changes = {
        "workload.requests": [*requests(1), {"rid": "R2", "at_iteration": 40, **LATE}],
        "workload.flushes": [{"rid": "F", "at_iteration": i} for i in iterations],
        **more,
    }
    return run(changes, hooks=Hooks if lost is None else losing(lost))


@pytest.mark.parametrize(("iterations", "lost"), [((20,), 20), ((20, 30), 20), ((20, 30), 30)])
def test_a_flush_without_a_reply_is_found_also_beside_one_of_the_same_id(
    iterations: tuple[int, ...], lost: int
) -> None:
    """A client that flushes twice waits twice (invariant 61); its id is no request's, so no arrival speaks for it."""
    assert flushed(iterations, None).verdict.kind == "pass"
    verdict = flushed(iterations, lost).verdict
    assert (verdict.kind, verdict.invariant) == ("fail", "INV-61")
    assert "1 requests or flushes got no terminal reply: ['F']" in verdict.message
