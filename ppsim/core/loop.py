"""The event loop of a rank, composed from phases (protocol.md 1.3).

A loop is nothing but a list of phases. Because the list is data, the order of an iteration can be read here at a
glance, and a planted bug can swap two lines of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ppsim.core import phases
from ppsim.core.effects import Effects
from ppsim.core.leader import agree_grammar
from ppsim.core.rank import Rank, build_rank
from ppsim.core.start import agree_on_start

Phase: TypeAlias = Callable[[Rank], Effects[None]]

PLAIN: tuple[Phase, ...] = (
    phases.apply_inputs,
    agree_grammar,
    phases.schedule,
    phases.receive_hidden,
    phases.exchange_if_deep,
    phases.commit_hidden,
    phases.launch_batch,
    phases.exchange_if_shallow,
    phases.send_hidden_early,
    phases.harvest,
    phases.send_hidden_late,
    phases.carry_over,
)


def event_loop_pp(rank: Rank, plan: tuple[Phase, ...] = PLAIN) -> Effects[None]:
    """Run a rank until Shutdown comes down the request chain."""
    yield from agree_on_start(rank)
    while True:
        yield from phases.ingest_inputs(rank)
        yield from phases.forward_inputs(rank)
        if rank.stopped:
            yield from phases.finish(rank)
            return
        for phase in plan:
            yield from phase(rank)
        rank.iteration += 1


__all__ = ["PLAIN", "Phase", "build_rank", "event_loop_pp"]
