"""A change that keeps lockstep: the shortest prompt is tried first, whatever came first.

Every rank sees the same waiting queue, and the policy looks at nothing else: so the ranks stay together, and a campaign
tries to part them. Whether long prompts starve it does not answer: what it generates ends, and its bound lets all
others go first. They do, as a run shows in which short prompts keep coming under a tighter bound (contested.toml).

    ppsim fuzz --plugin shortest_first.py --profile plain
    ppsim run contested.toml --plugin shortest_first.py
"""

import ppsim
from ppsim.core.schedule.request import Request


class Policy(ppsim.Policy):
    """Admission in order of prompt length; ties as they came."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        return sorted(waiting, key=lambda request: request.prompt_len)
