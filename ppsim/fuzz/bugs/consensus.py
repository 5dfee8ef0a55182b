"""Bugs of votes, conclusions and the consensus store. Invariants 46 to 56."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ppsim.core.channels import Endpoint
from ppsim.core.config import RankConfig
from ppsim.core.consensus import KVPoll, Rids, unite
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.effects import Effect, Send
from ppsim.core.loop import Loop
from ppsim.core.messages import Conclusion, Side
from ppsim.core.policy import Policy
from ppsim.core.rank import MakeScheduler, Plan, Rank
from ppsim.core.schedule.request import Request, State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.surroundings import Surroundings
from ppsim.core.votes import Voting
from ppsim.plugin import planted
from ppsim.plugin.plans import before, behind, does, edited, instead, named


@planted("queue_entry_lost", breaks="INV-46", profile="pd", source="protocol.md 12, invariant 46")
class QueueEntryLost(Loop):
    """Later decode ranks lose the youngest of two requests that wait for memory."""

    def plan(self) -> Plan:
        steps = super().plan()

        def lose(rank: Rank) -> None:
            role = rank.scheduler.role
            if isinstance(role, DecodeRole) and not rank.config.is_first and len(role.prealloc) > 1:
                del rank.scheduler.requests[role.prealloc.pop().rid]

        return behind(steps, "apply_inputs", does(lose))


@planted("conclusion_cut_short", breaks="INV-47", profile="pd", source="protocol.md 6.3")
class ConclusionCutShort(Voting):
    """A rank passes on one request less than it was told: it had no buffer left when it looked."""

    def forwarded(self, conclusion: Conclusion) -> Conclusion:
        return replace(conclusion, good=conclusion.good[:-1])


@planted("failures_not_passed_on", breaks="INV-48", profile="pd", source="protocol.md 6.3")
class FailuresNotPassedOn(Voting):
    """What failed is dropped from a conclusion before it is passed on."""

    def forwarded(self, conclusion: Conclusion) -> Conclusion:
        return replace(conclusion, bad=())


@planted("polls_after_the_vote", breaks="INV-49", profile="pd", source="bugs.md B75, B76")
class PollsAfterTheVote(Rank):
    """Every rank filters a conclusion by a fresh look at its own transfers, as the released engines do."""

    def __init__(self, config: RankConfig, policy: Policy, link: Endpoint, make_scheduler: MakeScheduler) -> None:
        super().__init__(replace(config, vote_variant="fresh_poll"), policy, link, make_scheduler)


@planted("only_changed_polls", breaks="INV-50", profile="pd", source="protocol.md 6.4, 12 invariant 50")
class OnlyChangedPolls(Loop):
    """The first rank hands down only the statuses that say something."""

    def plan(self) -> Plan:
        steps = super().plan()

        def shorten(rank: Rank, effect: Effect) -> Effect:
            if isinstance(effect, Send) and isinstance(effect.message, Side) and rank.config.is_first:
                told = tuple(state for state in effect.message.counts if state != KVPoll.BOOTSTRAPPING)
                return Send(effect.dst, replace(effect.message, counts=told))
            return effect

        return instead(steps, "agree_bootstrap", *(edited(phase, shorten) for phase in named(steps, "agree_bootstrap")))


@planted("aborted_entry_stays", breaks="INV-51", profile="pd", source="bugs.md I13")
class AbortedEntryStays(Scheduler):
    """Later decode ranks keep an aborted request in the queue for memory."""

    def may_end_now(self, request: Request) -> bool:
        return super().may_end_now(request) and (self.config.is_first or request.state is not State.PREALLOC)


@planted("only_the_first_view_counts", breaks="INV-52", profile="pd", source="bugs.md I4, B79")
class OnlyTheFirstViewCounts(Voting):
    """Good sets are not intersected: what the first rank sees goes for all."""

    def reduce_good(self, upstream: Rids, local: Rids) -> Rids:
        return upstream


@planted("bound_to_another_slot", breaks="INV-53", profile="retraction", source="protocol.md 6.3")
class BoundToAnotherSlot(Loop):
    """Later decode ranks bind a retracted request to the slot behind the one that is visited."""

    def plan(self) -> Plan:
        steps = super().plan()

        def bind(rank: Rank) -> None:
            role, config = rank.scheduler.role, rank.config
            for request in role.put_out if isinstance(role, DecodeRole) and not config.is_first else ():
                if request.retraction_slot is None:
                    request.retraction_slot = (rank.slot + 1) % config.num_slots

        return before(steps, "first_pass_retract", does(bind))


@planted("store_out_of_order", breaks="INV-54", profile="pd", source="protocol.md 6.4")
class StoreOutOfOrder(Surroundings):
    """Status updates overtake each other: every second look of the first rank sees an older state."""

    def store_age_ns(self, rank: int, iteration: int, lag_ns: int) -> int:
        return lag_ns + (3_000_000 if iteration % 2 else 0)


@planted("missing_is_ready", breaks="INV-55", profile="pd", source="protocol.md 6.4, 12 invariant 55")
class MissingIsReady(Surroundings):
    """The store takes the minimum of the statuses it has; a rank that has not told anything does not count."""

    def store_decision(self, rid: str, statuses: Sequence[int | None]) -> int:
        return min((status for status in statuses if status is not None), default=KVPoll.BOOTSTRAPPING)


@planted("good_and_bad", breaks="INV-56", profile="pd", source="bugs.md I4")
class GoodAndBad(Loop):
    """The last rank publishes what failed among what is good as well."""

    def plan(self) -> Plan:
        steps = super().plan()

        def add(rank: Rank) -> None:
            for name in ("bootstrap", "prealloc"):
                if rank.config.is_last and name in rank.first_pass:
                    good, bad = rank.first_pass[name]
                    rank.first_pass[name] = (unite(good, bad), bad)

        for name in ("first_pass_bootstrap", "first_pass_prealloc"):
            steps = behind(steps, name, does(add))
        return steps


@planted("store_takes_the_first", breaks="INV-79", profile="pd", source="protocol.md 6.4")
class StoreTakesTheFirst(Surroundings):
    """Once every rank has told something the first rank's own status decides: half replicated, half local."""

    def store_decision(self, rid: str, statuses: Sequence[int | None]) -> int:
        first = statuses[0]
        return KVPoll.BOOTSTRAPPING if first is None or None in statuses else first
