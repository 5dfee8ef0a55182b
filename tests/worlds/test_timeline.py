"""The timeline at the head of ``ppsim/core/loop.py``: which rank does what, in which order, while both slots are busy.

Two decodes, one a slot, on two stages at depth 0; a pass takes 10 ms and a decision 0.1 ms. The order of a rank is read
from its effects, and who waits for whom from its clock.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.core import effects as fx
from ppsim.core.messages import Hidden, Meta, Output
from ppsim.world.driver import SimulatedRank
from tests.worlds.making import MS, passed

BUSY: dict[str, Any] = {
    "cluster.pp_size": 2,
    "cost.unit_ms": 10.0,
    "host.schedule_us": 100.0,
    "scheduler.pp_max_micro_batch_size": 1,
    "workload.requests": [
        {"rid": rid, "at_iteration": 0, "prompt": 4, "output": 8, "ignore_eos": True} for rid in ("A", "B")
    ],
}
AT = 6  # an even iteration amid the run, so its slot is a = 0

Step = tuple[str, int]
"""What a rank does, and the iteration of what it sends, takes or ends."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], dict[Step, int]]:
    """By (rank, iteration): its steps in order, each with the rank's clock behind it (ns)."""
    found: dict[tuple[int, int], dict[Step, int]] = {}
    made = SimulatedRank.__init__

    def init(self: SimulatedRank, *given: Any, **named: Any) -> None:
        made(self, *given, **named)

        def look(effect: fx.Effect, reply: Any) -> None:
            step = step_of(effect, reply)
            if step is not None:
                found.setdefault((self.rank_id, self.rank.iteration), {})[step] = self.now

        self.observers.after(look)

    monkeypatch.setattr(SimulatedRank, "__init__", init)
    passed(BUSY, fast=False)
    return found


def step_of(effect: fx.Effect, reply: Any) -> Step | None:
    """The steps that are drawn."""
    match effect:
        case fx.Send(message=Meta() | Hidden() | Output()):
            return f"send {type(effect.message).__name__}", effect.message.iteration
        case fx.Recv() if isinstance(reply, Meta | Hidden | Output):
            return f"take {type(reply).__name__}", reply.iteration
        case fx.Decided():
            return "schedule", effect.decision.iteration
        case fx.Launch():
            return "launch", effect.batch.iteration
        case fx.Harvested():
            return "harvest", effect.harvest.harvested if effect.harvest.harvested is not None else -1
    return None


def test_an_iteration_of_the_first_rank_is_as_drawn(steps: dict[tuple[int, int], dict[Step, int]]) -> None:
    drawn = [("send Meta", AT), ("schedule", AT), ("launch", AT), ("send Output", AT - 2), ("take Output", AT - 1)]
    assert list(steps[0, AT]) == [*drawn, ("harvest", AT - 1), ("send Hidden", AT)]


def test_an_iteration_of_the_last_rank_is_as_drawn(steps: dict[tuple[int, int], dict[Step, int]]) -> None:
    drawn = [("take Meta", AT), ("schedule", AT), ("take Hidden", AT), ("launch", AT), ("send Output", AT)]
    assert list(steps[1, AT]) == [*drawn, ("take Output", AT - 1), ("harvest", AT - 1)]


def test_the_ranks_are_an_iteration_apart(steps: dict[tuple[int, int], dict[Step, int]]) -> None:
    """Each waits for its own pass before it harvests, and decides upon the list behind that: 10.1 ms a round."""
    first, last, then = steps[0, AT], steps[1, AT], steps[0, AT + 1]
    assert first["harvest", AT - 1] - first["launch", AT] == 10 * MS
    assert first["harvest", AT - 1] <= last["schedule", AT] <= last["launch", AT] < then["harvest", AT]
    assert then["launch", AT + 1] == last["launch", AT]  # slot b on the first stage while slot a is on the last one
    assert then["launch", AT + 1] - first["launch", AT] == 10 * MS + MS // 10
