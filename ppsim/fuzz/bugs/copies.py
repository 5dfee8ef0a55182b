"""Bugs of copies between the tiers that are alike on all ranks: acks too early, host pages freed too early or never."""

from __future__ import annotations

from ppsim.core.actions import LoadBack
from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.effects import Act, Effects
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.memory.hicache import Fetch, HiRadixCache, Operation
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.core.votes import Voting
from ppsim.fuzz.bugs.tiers import OwnTiers
from ppsim.plugin import planted
from ppsim.plugin.plans import before, behind, does, instead, named


@planted("acks_without_own_copy", breaks="INV-81", profile="hicache", source="bugs.md B07 (its other half)")
class AcksWithoutOwnCopy(OwnTiers):
    """Each rank consumes as many acks as the first rank has seen, and does not wait for the end of its own copies."""


@planted("newest_ack_first", breaks="INV-81", profile="hicache", source="protocol.md 6.2, HiCache rows")
class NewestAckFirst(Loop):
    """Of several writes under way the newest is taken for the one that is over, on all ranks alike."""

    def plan(self) -> Plan:
        return before(super().plan(), "agree_tiers", does(newest_first))


def newest_first(rank: Rank) -> None:
    tiers = rank.scheduler.kv.tiers
    if tiers is not None and len(tiers.writes) > 1 and not tiers.loads:
        tiers.writes.rotate(1)


class OncePerWrite(Loop):
    """Does something wrong with the host pages of each write, once."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.done: set[str] = set()

    def plan(self) -> Plan:
        return behind(super().plan(), "harvest", does(self.look))

    def look(self, rank: Rank) -> None:
        tiers = rank.scheduler.kv.tiers
        if tiers is None:
            return
        for op in tiers.writes:
            if op.key not in self.done:
                self.done.add(op.key)
                self.touch(tiers, op)

    def touch(self, tiers: HiRadixCache, op: Operation) -> None:
        """What is wrong."""


@planted("host_pages_given_back_at_once", breaks="INV-82", profile="hicache", source="bugs.md I11, host tier")
class HostPagesGivenBackAtOnce(OncePerWrite):
    """The host pages of a write are given back when it starts, on all ranks alike, and again at its ack."""

    def touch(self, tiers: HiRadixCache, op: Operation) -> None:
        tiers.host.release(op.host_pages)


@planted("host_pages_kept", breaks="INV-82", profile="hicache", source="bugs.md I11, host tier")
class HostPagesKept(OncePerWrite):
    """A write holds its host pages once too often, on all ranks alike: they are never free again."""

    def touch(self, tiers: HiRadixCache, op: Operation) -> None:
        tiers.host.share(op.host_pages)


@planted("loads_asked_for_late", breaks="INV-82", profile="hicache", source="protocol.md 6.2, HiCache rows")
class LoadsAskedForLate(Loop):
    """The copy of a host hit is asked for an iteration late: the batch that stands on it reads what is not there."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.late: list[Act] = []

    def plan(self) -> Plan:
        steps = super().plan()
        for phase in named(steps, "schedule"):
            steps = instead(steps, "schedule", self.keeping(phase))
        return before(steps, "apply_inputs", self.ask_now)

    def ask_now(self, rank: Rank) -> Effects[None]:
        late, self.late = self.late, []
        yield from late

    def keeping(self, phase: Phase) -> Phase:
        def schedule(rank: Rank) -> Effects[None]:
            loop, answer = phase(rank), None
            while True:
                try:
                    effect = loop.send(answer)
                except StopIteration:
                    return
                answer = None
                if isinstance(effect, Act) and isinstance(effect.action, LoadBack):
                    self.late.append(effect)
                else:
                    answer = yield effect

        return schedule


@planted("fetch_keeps_a_page_more", breaks="INV-82", profile="hicache", source="protocol.md 4.10")
class FetchKeepsAPageMore(HiRadixCache):
    """The hit length of a fetch is rounded up: a page that storage has in part, or not at all, is kept as found."""

    def end_fetch(self, fetch: Fetch, hit_tokens: int) -> None:
        page = self.pool.page_size
        super().end_fetch(fetch, hit_tokens // page * page + page)
