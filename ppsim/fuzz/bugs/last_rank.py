"""Bugs of promises that only the last rank can keep: a flush that is answered, a failure that is heard (INV-86, 87)."""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.consensus import Rids
from ppsim.core.disagg import ballots as pd
from ppsim.core.effects import Effects, Reply
from ppsim.core.flush import FLUSHED
from ppsim.core.loop import Loop
from ppsim.core.observations import Senders
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.journal import Flushed
from ppsim.core.votes import Ballot, Voting
from ppsim.plugin import planted
from ppsim.plugin.plans import does, instead


@planted("flush_answered_at_once", breaks="INV-86", profile="abort", source="protocol.md 9")
class FlushAnsweredAtOnce(Loop):
    """A flush is answered when the first rank has emptied its cache, whatever the others have."""

    def plan(self) -> Plan:
        def answer_now(rank: Rank) -> None:
            for flushed in rank.journal.of(Flushed):
                rank.journal.add(Reply(flushed.rid, "finished", reason=FLUSHED))

        return instead(super().plan(), "acknowledge_flush", does(answer_now))


@planted("failed_request_keeps_its_turn", breaks="INV-87", profile="pair", source="protocol.md 6.3")
class FailedRequestKeepsItsTurn(Voting):
    """Nobody looks at the transfers of requests that wait: what has failed on the other side is computed all the same.

    So the released engines do.
    """

    def combine(self, rank: Rank, ballot: Ballot) -> Effects[tuple[Rids, Rids]]:
        if ballot.name == pd.RELEASE.name:
            ballot = replace(ballot, view=inflight_only)
        return (yield from super().combine(rank, ballot))


def inflight_only(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    return (yield from pd.poll(rank, Senders, pd.prefill(rank).inflight, pd.TERMINAL))
