"""Bugs of the ring: outputs that are not sent, not passed on, not received, or mistaken. bugs.md, class deadlock."""

from __future__ import annotations

from typing import Any

from ppsim.core.channels import Endpoint
from ppsim.core.effects import Effects, recv
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.messages import Kind, Lane, Message, Output
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.slots import LaunchedBatch
from ppsim.fuzz.bugs.communication import HiddenBeforeRelay
from ppsim.plugin import planted
from ppsim.plugin.plans import before


@planted("no_message_for_the_last_token", breaks="INV-33", profile="plain", source="bugs.md B20")
class NoMessageForTheLastToken(Exchange):
    """The last rank, which alone has the tokens, sends no output if each of them is a stop token."""

    def output_to_send(self, rank: Rank) -> Output | None:
        output = super().output_to_send(rank)
        batch = rank.scheduler.slots.slots[output.slot].launched if output is not None else None
        tokens = tokens_of(output.payload) if output is not None else ()
        if not rank.config.is_last or batch is None or not tokens:
            return output
        stops = [token in r.spec.stop_token_ids for token, r in zip(tokens, batch.requests, strict=True)]
        return None if all(stops) else output


def tokens_of(payload: Any) -> tuple[int, ...]:
    """Of an output, in either world: simulated ones, or a tensor."""
    return tuple(payload.tolist()) if hasattr(payload, "tolist") else getattr(payload, "tokens", ())


@planted("one_batch_too_many", breaks="INV-35", profile="plain", source="bugs.md B21")
class OneBatchTooMany(Exchange):
    """The last rank keeps one output more than the ring has room for: all are released an iteration late."""

    def output_to_send(self, rank: Rank) -> Output | None:
        if not rank.config.is_last:
            return super().output_to_send(rank)
        slot = rank.scheduler.slots.to_release(rank.iteration - 1)
        if not slot.in_flight or slot.launched is None:
            return None
        released = rank.last_rank_comm_queue.popleft()
        return None if slot.launched.forward.skip_output_comm else released


@planted("collective_before_send", breaks="INV-40", profile="plain", source="bugs.md B27")
class CollectiveBeforeSend(Loop):
    """The first rank joins the exchange of this batch's result before it sends the hidden states it needs."""

    def plan(self) -> Plan:
        steps = super().plan()
        return before(steps, "send_hidden_late", join_first)


def join_first(rank: Rank) -> Effects[None]:
    if rank.config.is_first and rank.hidden_out is not None:
        yield from recv(rank.link.prev, Lane.HICACHE)


@planted("middle_rank_keeps_outputs", breaks="INV-33", profile="plain", source="bugs.md B31")
class MiddleRankKeepsOutputs(Exchange):
    """A rank that is neither first nor last does not pass outputs on; with two stages there is none."""

    def output_to_send(self, rank: Rank) -> Output | None:
        output = super().output_to_send(rank)
        return output if rank.config.is_first or rank.config.is_last else None


@planted("untyped_channel", breaks="INV-33", profile="plain", source="bugs.md B54", beside=(HiddenBeforeRelay,))
class UntypedChannel(Endpoint):
    """A receiver takes the next message whatever it is, and hidden states may come before a relayed output."""

    def _next_of_kind(self, kind: Kind, src: int, lane: Lane) -> Effects[Message]:
        return (yield from recv(src, lane))


@planted("cancelled_output_not_received", breaks="INV-33", profile="abort", source="bugs.md B69")
class CancelledOutputNotReceived(Exchange):
    """The first rank does not receive the output of a batch whose requests are all cancelled by now."""

    def awaited(self, rank: Rank) -> LaunchedBatch | None:
        batch = super().awaited(rank)
        cancelled = batch is not None and all(request.to_abort for request in batch.requests)
        return None if rank.config.is_first and cancelled else batch
