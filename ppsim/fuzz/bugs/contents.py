"""Bugs of what a launch reads: shapes and addresses agree, the contents are another batch's (INV-78)."""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.effects import Effect, Send
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.messages import Hidden
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import State
from ppsim.core.votes import Voting
from ppsim.plugin import planted
from ppsim.plugin.plans import before, does, edited


@planted("tensor_of_the_batch_before", breaks="INV-78", profile="plain", source="sglang #30015")
class TensorOfTheBatchBefore(Loop):
    """A stage sends the hidden states of the batch before under this batch's address; their shapes agree."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.before: Hidden | None = None

    def plan(self) -> Plan:
        steps = super().plan()

        def swap(rank: Rank, effect: Effect) -> Effect:
            if not isinstance(effect, Send) or not isinstance(effect.message, Hidden):
                return effect
            message, old = effect.message, self.before
            self.before = message
            if old is None or old.num_tokens != message.num_tokens:
                return effect
            return Send(effect.dst, replace(message, payload=old.payload), effect.paired)

        return tuple(edited(phase, swap) for phase in steps)


@planted("pages_of_each_other", breaks="INV-78", profile="plain", source="protocol.md 4.9")
class PagesOfEachOther(Loop):
    """Two requests that decode exchange their first pages, on all ranks alike: no page is lost or held twice."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.done = False

    def plan(self) -> Plan:
        steps = super().plan()

        def exchange(rank: Rank) -> None:
            decoding = [r for r in rank.scheduler.requests.values() if r.state is State.DECODE and not r.cached_len]
            if len(decoding) > 1 and not self.done:
                one, other = decoding[:2]
                one.pages[0], other.pages[0] = other.pages[0], one.pages[0]
                self.done = True

        return before(steps, "schedule", does(exchange))
