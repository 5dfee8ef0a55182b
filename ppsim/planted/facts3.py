"""Bugs of promises that only the last rank can keep, and of messages that are owed. Invariants 86, 87, 28, 02, 32."""

from __future__ import annotations

from ppsim.core import pd_phases as pd
from ppsim.core.effects import Effects
from ppsim.core.hooks import Hooks
from ppsim.core.loop import Plan
from ppsim.core.rank import Rank
from ppsim.planted.plans import does, instead
from ppsim.planted.registry import planted


@planted("flush_answered_at_once", breaks="INV-86", profile="abort", source="protocol.md 9")
class FlushAnsweredAtOnce(Hooks):
    """A flush is answered when the first rank has emptied its cache, whatever the others have."""

    def plan(self, steps: Plan) -> Plan:
        def answer_now(rank: Rank) -> None:
            rank.scheduler.outbox += rank.scheduler.flushed

        return instead(steps, "acknowledge_flush", does(answer_now))


@planted("failed_request_keeps_its_turn", breaks="INV-87", profile="pd", source="protocol.md 6.3")
class FailedRequestKeepsItsTurn(Hooks):
    """Nobody looks at the transfers of requests that wait: what has failed on the other side is computed all the same.

    So the released engines do.
    """

    def plan(self, steps: Plan) -> Plan:
        def inflight_only(rank: Rank) -> Effects[tuple[tuple[str, ...], tuple[str, ...]]]:
            return (yield from pd.poll(rank, "sender", pd.prefill(rank).inflight, pd.TERMINAL))

        return instead(steps, "first_pass_release", pd.first("release", inflight_only))
