"""A change that keeps lockstep: the shortest prompt is tried first, whatever came first.

Every rank sees the same waiting queue, and the policy looks at nothing else: so the ranks stay together, and what is
left to ask is whether long prompts starve. A campaign with liveness bounds answers that for the sizes it generates.

    ppsim fuzz --plugin shortest_first.py --profile plain
"""

import ppsim
from ppsim.core.schedule.request import Request


class Policy(ppsim.Policy):
    """Admission in order of prompt length; ties as they came."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        return sorted(waiting, key=lambda request: request.prompt_len)
