"""A stale hit length is promised, so KV is not sent that the other side does not have (sglang #30322).

There is no prefix cache on the decode side here. What is left of the mechanism: the sender believes that the first half
of a prompt need not be sent. The write [0, half) never takes place, and the receiver computes on it.
"""

from __future__ import annotations

from ppsim.core.agreed import Agreed
from ppsim.core.consensus import Rids
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.schedule.request import State
from ppsim.plugin import planted


@planted("stale_promise", breaks="INV-74", profile="pair", source="sglang #30322")
class StalePromise(PrefillRole):
    """The first half of every prompt is not sent: it was promised to be there already."""

    def apply_bootstrap(self, good: Agreed[Rids], bad: Agreed[Rids]) -> None:
        super().apply_bootstrap(good, bad)
        page = self.scheduler.config.page_size
        for request in self.scheduler.waiting:
            if request.state is State.WAITING and request.sent_len == 0:
                request.sent_len = request.prompt_len // 2 // page * page
