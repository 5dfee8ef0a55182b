"""A change with a mistake: small prompts first, and while there are others the large ones are left out of the order.

A request that is in no order is in no queue any more: nobody will ever serve it. A campaign finds that at once.

    ppsim fuzz --plugin small_first.py --profile plain
"""

import ppsim
from ppsim.core.schedule.request import Request


class Policy(ppsim.Policy):
    """Admission in order of prompt length, of prompts below 24 tokens while more than one waits."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        small = [request for request in waiting if request.prompt_len < 24] if len(waiting) > 1 else waiting
        return sorted(small, key=lambda request: request.prompt_len)
