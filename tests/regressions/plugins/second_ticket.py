"""The first stage issues a second prefetch ticket for a retracted request; later stages never bind it.

sglang #36700.
"""

from ppsim.core.loop import Loop
from ppsim.core.rank import Plan, Rank
from ppsim.plugin import planted
from ppsim.plugin.plans import behind, does


@planted("second_ticket", breaks="INV-25", profile="hicache", source="outside report")
class SecondTicket(Loop):
    """A retracted request that waits again is looked up in storage again, by the first stage only."""

    def plan(self) -> Plan:
        issued: set[str] = set()

        def issue(rank: Rank) -> None:
            kv = rank.scheduler.kv
            if kv.tiers is None or not rank.config.is_first:
                return
            for request in rank.scheduler.waiting:
                key = f"{request.rid}/{request.arrived}/{request.num_retractions}"
                if request.num_retractions and key not in issued:
                    issued.add(key)
                    kv.prefetch(request)

        return behind(super().plan(), "schedule", does(issue))
