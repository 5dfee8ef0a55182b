"""Bugs of the request chain, of the slots' order and of time: invariants 1 to 4, 7, 8, 57."""

from __future__ import annotations

from dataclasses import replace

from ppsim.core import phases
from ppsim.core.chain import Chain
from ppsim.core.channels import Endpoint
from ppsim.core.config import RankConfig
from ppsim.core.effects import Effects
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.messages import AbortReq, Input, Lane, Meta
from ppsim.core.policy import Policy
from ppsim.core.rank import MakeScheduler, Plan, Rank
from ppsim.core.schedule.slots import Slot, SlotRing
from ppsim.core.votes import Voting
from ppsim.plugin import planted
from ppsim.plugin.plans import before, does, instead, named


@planted("inputs_read_backwards", breaks="INV-01", profile="plain", source="protocol.md 12, invariant 1")
class InputsReadBackwards(Loop):
    """Later ranks take the request list of an iteration from its end."""

    def plan(self) -> Plan:
        steps = super().plan()

        def turn_round(rank: Rank) -> None:
            if not rank.config.is_first:
                rank.inputs = rank.inputs[::-1]

        return before(steps, "apply_inputs", does(turn_round))


@planted("empty_list_not_sent", breaks="INV-02", profile="plain", source="protocol.md 2.2")
class EmptyListNotSent(Loop):
    """A rank that has nothing to tell sends nothing: presence is decided by emptiness."""

    def plan(self) -> Plan:
        steps = super().plan()

        def only_if_any(phase: str) -> Plan:
            def forward(rank: Rank) -> Effects[None]:
                if rank.inputs:
                    for inner in named(steps, phase):
                        yield from inner(rank)

            return (forward,)

        return instead(
            instead(steps, "forward_inputs", *only_if_any("forward_inputs")), "send_inputs", *only_if_any("send_inputs")
        )


@planted("other_arguments", breaks="INV-03", profile="plain", source="protocol.md 12, invariant 3")
class OtherArguments(Rank):
    """The last rank was started with twice the prefill limit."""

    def __init__(self, config: RankConfig, policy: Policy, link: Endpoint, make_scheduler: MakeScheduler) -> None:
        if config.is_last:
            config = replace(config, max_prefill_tokens=2 * config.max_prefill_tokens)
        super().__init__(config, policy, link, make_scheduler)


@planted("zigzag_slots", breaks="INV-04", profile="plain", source="protocol.md 12, invariant 4")
class ZigzagSlots(SlotRing):
    """Every second round visits the slots backwards, on all ranks alike."""

    def current(self, iteration: int) -> Slot:
        number, place = divmod(iteration, len(self.slots))
        return self.slots[len(self.slots) - 1 - place if number % 2 else place]


@planted("no_wait_for_inputs", breaks="INV-07", profile="plain", source="protocol.md 1.9")
class NoWaitForInputs(Loop):
    """An idle first stage hands the list of the next iteration down as well, as empty, and does not wait for it.

    What its clients send meanwhile is read an iteration later. So the lists agree, but the next stage starts an
    iteration before the first one is in it.
    """

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.is_ahead = False

    def plan(self) -> Plan:
        steps = super().plan()

        def ingest_inputs(rank: Rank) -> Effects[None]:
            if self.is_ahead:
                rank.inputs = ()
            else:
                yield from phases.ingest_inputs(rank)

        def forward_inputs(rank: Rank) -> Effects[None]:
            if self.is_ahead:
                self.is_ahead = False
                return
            yield from phases.forward_inputs(rank)
            link = rank.link
            leads = rank.config.is_first and not rank.config.is_last and link.is_leader
            if leads and not rank.inputs and phases.is_idle(rank):
                yield from phases.commit_inputs(rank)
                slot = (rank.iteration + 1) % rank.config.num_slots
                for dst in (*link.replicas, link.next):
                    lane = Lane.CONTROL if dst == link.next else Lane.TP
                    meta = Meta(link.rank_id, rank.iteration + 1, slot, (), lane)
                    rank.send_req_work.append((yield from link.send(dst, meta)))
                yield from phases.commit_inputs(rank)
                self.is_ahead = True

        return instead(instead(steps, "ingest_inputs", ingest_inputs), "forward_inputs", forward_inputs)


@planted("inputs_not_committed", breaks="INV-08", profile="plain", source="protocol.md 1.9, 3.1")
class InputsNotCommitted(Loop):
    """Nobody waits for the request list of the iteration before, so the first rank runs ahead without a bound."""

    def plan(self) -> Plan:
        steps = super().plan()

        def forward_inputs(rank: Rank) -> Effects[None]:
            held, rank.send_req_work = rank.send_req_work, []
            yield from phases.forward_inputs(rank)
            rank.send_req_work = held + rank.send_req_work

        return instead(instead(steps, "forward_inputs", forward_inputs), "commit_inputs")


@planted("abort_one_iteration_late", breaks="INV-57", profile="abort", source="protocol.md 7.1")
class AbortOneIterationLate(Loop):
    """Later ranks put an abort off to the next iteration."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.held: tuple[Input, ...] = ()

    def plan(self) -> Plan:
        steps = super().plan()

        def apply_inputs(rank: Rank) -> Effects[None]:
            given = rank.inputs
            if not rank.config.is_first:
                late = tuple(item for item in given if isinstance(item, AbortReq))
                rank.inputs = self.held + tuple(item for item in given if item not in late)
                self.held = late
            yield from phases.apply_inputs(rank)
            rank.inputs = given

        return instead(steps, "apply_inputs", apply_inputs)
