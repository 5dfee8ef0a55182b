"""Bugs of the ring: outputs that are not sent, not passed on, not received, or mistaken. bugs.md, class deadlock."""

from __future__ import annotations

from collections.abc import Callable

from ppsim.core.effects import Effects, recv
from ppsim.core.hooks import Hooks
from ppsim.core.loop import Plan
from ppsim.core.messages import Lane, Message, Output
from ppsim.core.rank import Rank
from ppsim.core.slots import LaunchedBatch, Slot
from ppsim.planted.communication import HiddenBeforeRelay
from ppsim.planted.plans import before, does, replaced
from ppsim.planted.registry import planted


@planted("no_message_for_the_last_token", breaks="INV-31", profile="plain", source="bugs.md B20")
class NoMessageForTheLastToken(Hooks):
    """The last rank, which alone has the tokens, sends no output if each of them is a stop token."""

    def sends_output(self, rank: Rank, output: Output) -> bool:
        batch = rank.scheduler.slots.slots[output.slot].launched
        tokens = getattr(output.payload, "tokens", ())
        if not rank.config.is_last or batch is None or not tokens:
            return True
        stops = [token in r.spec.stop_token_ids for token, r in zip(tokens, batch.requests, strict=True)]
        return not all(stops)


@planted("one_batch_too_many", breaks="INV-35", profile="plain", source="bugs.md B21")
class OneBatchTooMany(Hooks):
    """The last rank keeps one output more than the ring has room for: all are released an iteration late."""

    def plan(self, steps: Plan) -> Plan:
        def late(old: Callable[[int], Slot], iteration: int) -> Slot:
            return old(iteration - 1)

        def keep_one(rank: Rank) -> None:
            if rank.iteration == 0 and rank.config.is_last and not rank.config.is_first:
                replaced(rank.scheduler.slots, "to_release", late)

        return (does(keep_one), *steps)


@planted("collective_before_send", breaks="INV-40", profile="plain", source="bugs.md B27")
class CollectiveBeforeSend(Hooks):
    """The first rank joins the exchange of this batch's result before it sends the hidden states it needs."""

    def plan(self, steps: Plan) -> Plan:
        return before(steps, "send_hidden_late", join_first)


def join_first(rank: Rank) -> Effects[None]:
    if rank.config.is_first and rank.hidden_out is not None:
        yield from recv(rank.link.prev, Lane.HICACHE)


@planted("middle_rank_keeps_outputs", breaks="INV-33", profile="plain", source="bugs.md B31")
class MiddleRankKeepsOutputs(Hooks):
    """A rank that is neither first nor last does not pass outputs on; with two stages there is none."""

    def sends_output(self, rank: Rank, output: Output) -> bool:
        return rank.config.is_first or rank.config.is_last


@planted("untyped_channel", breaks="INV-31", profile="plain", source="bugs.md B54")
class UntypedChannel(HiddenBeforeRelay):
    """A receiver takes the next message whatever it is, and hidden states may come before a relayed output."""

    def plan(self, steps: Plan) -> Plan:
        def take_any(rank: Rank) -> None:
            if rank.iteration == 0:
                replaced(rank.link, "_next_of_kind", lambda old, kind, src, lane: next_of_any_kind(src, lane))

        return (does(take_any), *super().plan(steps))


def next_of_any_kind(src: int, lane: Lane) -> Effects[Message]:
    return (yield from recv(src, lane))


@planted("cancelled_output_not_received", breaks="INV-31", profile="abort", source="bugs.md B69")
class CancelledOutputNotReceived(Hooks):
    """The first rank does not receive the output of a batch whose requests are all cancelled by now."""

    def awaits_output(self, rank: Rank, batch: LaunchedBatch) -> bool:
        return not rank.config.is_first or not all(request.to_abort for request in batch.requests)
