"""Bugs of what is written to a decode server: every flag is right, the ranges or the pages are not (INV-74, INV-75)."""

from __future__ import annotations

from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import State
from ppsim.core.votes import Voting
from ppsim.plugin import planted
from ppsim.plugin.plans import before, behind, does


@planted("promised_and_not_sent", breaks="INV-74", profile="pair", source="sglang #30322")
class PromisedAndNotSent(Loop):
    """The first half of a prompt counts as known to the other side: it is never sent.

    The write behind it is flagged as the last one, so both sides count the transfer as complete.
    """

    def plan(self) -> Plan:
        steps = super().plan()

        def promise(rank: Rank) -> None:
            page = rank.config.page_size
            for request in rank.scheduler.waiting if isinstance(rank.scheduler.role, PrefillRole) else ():
                if request.state is State.WAITING and not request.sent_len:
                    request.sent_len = request.prompt_len // 2 // page * page

        return before(steps, "schedule", does(promise))


@planted("page_sent_again", breaks="INV-74", profile="pair", source="protocol.md 6.5")
class PageSentAgain(Loop):
    """The first chunk is counted a page short once it is handed to the transfer: its last page is sent twice."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.short: dict[str, int] = {}

    def plan(self) -> Plan:
        steps = super().plan()

        def forget(rank: Rank) -> None:
            for request in rank.scheduler.requests.values() if isinstance(rank.scheduler.role, PrefillRole) else ():
                if request.sent_len and self.short.get(request.rid) != request.arrived:
                    self.short[request.rid] = request.arrived
                    request.sent_len -= rank.config.page_size

        return behind(steps, "schedule", does(forget))


@planted("pages_moved_after_the_handshake", breaks="INV-75", profile="pd", source="protocol.md 6.6")
class PagesMovedAfterTheHandshake(Loop):
    """The decode side orders the pages of a prompt anew after it has told the senders where to write."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.moved: dict[str, int] = {}

    def plan(self) -> Plan:
        steps = super().plan()

        def move(rank: Rank) -> None:
            role = rank.scheduler.role
            for request in role.transfer if isinstance(role, DecodeRole) else ():
                if self.moved.get(request.rid) != request.arrived:
                    self.moved[request.rid] = request.arrived
                    request.pages.reverse()

        return before(steps, "send_inputs", does(move))
