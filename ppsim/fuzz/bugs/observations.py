"""Bugs of what a rank sees alone and acts on without the others: bugs.md, classes divergence and consensus."""

from __future__ import annotations

from ppsim.core.agreed import agree
from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.consensus import Rids
from ppsim.core.disagg.ballots import TERMINAL, poll
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.effects import Effects, observe
from ppsim.core.exchange import Exchange
from ppsim.core.leader import FAILED, READY
from ppsim.core.loop import Loop, ballots_of
from ppsim.core.messages import Conclusion, Lane, Side
from ppsim.core.observations import Grammars, Senders
from ppsim.core.rank import Plan, Rank
from ppsim.core.votes import Voting
from ppsim.fuzz.bugs.consensus import OnlyTheFirstViewCounts
from ppsim.plugin import planted
from ppsim.plugin.plans import before, does, instead


@planted("grammar_by_own_view", breaks="INV-79", profile="grammar", source="bugs.md B01")
class GrammarByOwnView(Loop):
    """Every rank takes a request off the grammar queue when its own compile is done."""

    def plan(self) -> Plan:
        steps = super().plan()
        return instead(steps, "agree_grammar", own_grammars)


def own_grammars(rank: Rank) -> Effects[None]:
    queue = tuple(r.rid for r in rank.scheduler.grammar_queue)
    if queue:
        states = (yield from observe(Grammars(queue), rank.iteration)).value
        ready, failed = (
            tuple(rid for rid, state in zip(queue, states, strict=True) if state == what) for what in (READY, FAILED)
        )
        rank.scheduler.resolve_grammar(agree(ready, "nobody else"), agree(failed, "nobody else"))


@planted("release_at_own_transfer", breaks="INV-47", profile="pd", source="bugs.md B15, B85")
class ReleaseAtOwnTransfer(Loop):
    """A prefill rank gives the KV of a request back as soon as its own transfer is over."""

    def plan(self) -> Plan:
        steps = super().plan()
        return before(steps, "schedule", own_releases)


def own_releases(rank: Rank) -> Effects[None]:
    role = rank.scheduler.role
    if isinstance(role, PrefillRole):
        good, bad = yield from poll(rank, Senders, role.inflight, TERMINAL)
        role.apply_release(agree(good, "nobody else"), agree(bad, "nobody else"))


@planted("last_view_counts", breaks="INV-47", profile="pd", source="bugs.md B59")
class LastViewCounts(Voting):
    """The reports of earlier stages are dropped: what the last rank sees goes for all."""

    def reduce_good(self, upstream: Rids, local: Rids) -> Rids:
        return local


@planted("own_failures_win", breaks="INV-79", profile="pd", source="bugs.md B75")
class OwnFailuresWin(Loop):
    """A rank that sees other failures than the conclusion names goes by its own when it applies the bootstrap."""

    def plan(self) -> Plan:
        steps = super().plan()

        def overrule(rank: Rank) -> None:
            conclusion = rank.due.get("bootstrap")
            if conclusion is None:
                return
            bad = rank.first_pass.get("bootstrap", ((), ()))[1]
            good = tuple(rid for rid in conclusion.good if rid not in bad)
            told = (conclusion.sender, conclusion.iteration, conclusion.slot, conclusion.name, conclusion.number)
            rank.due["bootstrap"] = Conclusion(*told, good, bad)

        return before(steps, "apply_bootstrap", does(overrule))


@planted(
    "release_waits_for_own_poll", breaks="INV-52", profile="pd", source="bugs.md B80", beside=(OnlyTheFirstViewCounts,)
)
class ReleaseWaitsForOwnPoll(Loop):
    """Release is concluded from the first rank's view, and a rank whose own transfer is not over keeps the request.

    Nothing crashes: what was not over here is looked at again in each iteration, and given back when it is.
    """

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.late: list[str] = []

    def plan(self) -> Plan:
        steps = super().plan()
        return before(steps, "apply_release", self.keep_what_is_not_over)

    def keep_what_is_not_over(self, rank: Rank) -> Effects[None]:
        conclusion, role = rank.due.get("release"), rank.scheduler.role
        assert isinstance(role, PrefillRole)
        if conclusion is None:
            return
        self.late += [rid for rid in conclusion.good if rid not in self.late]
        queue = [request for request in role.inflight if request.rid in self.late]
        over, _ = yield from poll(rank, Senders, queue, TERMINAL)
        self.late = [request.rid for request in queue if request.rid not in over]
        told = (conclusion.sender, conclusion.iteration, conclusion.slot, conclusion.name, conclusion.number)
        rank.due["release"] = Conclusion(*told, over, conclusion.bad)


@planted("limits_off_in_pd", breaks="INV-85", profile="pd", source="bugs.md B74")
class LimitsOffInPd(Rank):
    """The loops of disaggregation never come to the scan for expired requests."""

    @property
    def watches_timeouts(self) -> bool:
        return super().watches_timeouts and not ballots_of(self.config)


@planted("empty_vote_left_out", breaks="INV-31", profile="pd", source="bugs.md B24")
class EmptyVoteLeftOut(Voting):
    """A tensor-parallel rank that has nothing to report does not join the reduction inside its stage."""

    def tell_leader(self, rank: Rank, name: str, good: Rids, bad: Rids) -> Effects[None]:
        if good or bad:
            yield from super().tell_leader(rank, name, good, bad)


@planted("vote_behind_a_local_test", breaks="INV-31", profile="pd", source="bugs.md B26")
class VoteBehindALocalTest(Voting):
    """A stage takes part in the release vote only if it sees a transfer that is over."""

    def hear_upstream(self, rank: Rank, name: str, good: Rids, bad: Rids) -> Effects[tuple[Rids, Rids]]:
        if name == "release" and not (good or bad):
            return good, bad
        return (yield from super().hear_upstream(rank, name, good, bad))

    def pass_on(self, rank: Rank, name: str, good: Rids, bad: Rids) -> Effects[None]:
        if name != "release" or good or bad:
            yield from super().pass_on(rank, name, good, bad)


@planted("barrier_in_each_iteration", breaks="INV-72", profile="plain", source="bugs.md B83")
class BarrierInEachIteration(Loop):
    """Every status poll is a collective: in each iteration all stages wait until the last one has come there."""

    def plan(self) -> Plan:
        steps = super().plan()
        return before(steps, "schedule", barrier)


def barrier(rank: Rank) -> Effects[None]:
    """Up to the last stage and all the way back, before anybody goes on."""
    link, config = rank.link, rank.config
    if not link.is_leader or config.pp_size == 1:
        return
    word = Side(link.rank_id, Lane.HICACHE, rank.iteration, rank.slot)
    works = rank.side_work.setdefault(Lane.HICACHE, [])
    if not config.is_first:
        yield from link.receive(Side, link.prev, Lane.HICACHE, rank.iteration, rank.slot)
    works.append((yield from link.send(link.next, word)))
    if config.is_last:
        return
    yield from link.receive(Side, link.prev, Lane.HICACHE, rank.iteration, rank.slot)
    if config.pp_rank < config.pp_size - 2:
        works.append((yield from link.send(link.next, word)))
