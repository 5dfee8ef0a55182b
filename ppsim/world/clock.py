"""SimPy's environment with one thing added: which of several events of the same instant comes first is a choice.

Between observations the ranks are a deterministic dataflow network (Kahn), so the result must not depend on that
choice. Asking for it makes the claim testable: shuffle the order, and the recording stays the same byte for byte.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simpy import Environment
from simpy.core import EmptySchedule

from ppsim.world.choices import Choices, SeededChoices
from ppsim.world.collector import seldom_collected


class ChoosingEnvironment(Environment):
    """Integer time; equal events are ordered by ``choices``."""

    def __init__(self, choices: Choices) -> None:
        super().__init__(initial_time=0)
        self._choices = choices
        # Ranks run ahead on clocks of their own, so nearly all events are equal here. First come, first served is
        # what SimPy does anyway, and asking for it each time costs a tenth of a run.
        self.asks = not (type(choices) is SeededChoices and not choices.shuffle_order)

    def step(self) -> None:
        """Process one of the events that are due first."""
        queue = self._queue
        for entry in queue[1:3] if self.asks else ():  # in a heap, an entry that equals the first is right below it
            if entry[0] == queue[0][0] and entry[1] == queue[0][1]:
                self._choose()
                break
        super().step()

    def _choose(self) -> None:
        """Put one of the entries that equal the first ahead of the others."""
        queue = self._queue
        first = heappop(queue)
        equal = [first]
        while queue and queue[0][:2] == first[:2]:
            equal.append(heappop(queue))
        chosen = equal.pop(self._choices.below("order", len(equal)))
        for entry in equal:
            heappush(queue, entry)
        heappush(queue, (chosen[0], chosen[1], -1, chosen[3]))  # the smallest insertion number of all


def run_until_quiet(env: Environment) -> None:
    """Process events until none is left. SimPy returns silently here even if processes still wait (decision 7)."""
    step = super(ChoosingEnvironment, env).step if isinstance(env, ChoosingEnvironment) and not env.asks else env.step
    with seldom_collected():
        try:
            while True:
                step()
        except EmptySchedule:
            return
