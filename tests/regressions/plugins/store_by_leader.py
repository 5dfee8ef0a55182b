"""Half of a condition is replicated, half is local to the leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ppsim.core.consensus import KVPoll, Rids
from ppsim.core.disagg import ballots as pd
from ppsim.core.effects import Effects
from ppsim.core.rank import Rank
from ppsim.core.surroundings import Surroundings
from ppsim.core.votes import Ballot, Voting
from ppsim.plugin import planted


def all_inflight(rank: Rank) -> Rids:
    return tuple(request.rid for request in pd.prefill(rank).inflight)


@planted("pending_only_on_leader", breaks="INV-52", profile="pd", source="outside report")
class PendingOnLeader(Voting):
    """Later ranks publish success although a chunk is pending; only the leader looks at its pending counter."""

    def combine(self, rank: Rank, ballot: Ballot) -> Effects[tuple[Rids, Rids]]:
        if ballot.name == pd.RELEASE.name and not rank.config.is_first:
            ballot = replace(ballot, view=self.optimistic)
        return (yield from super().combine(rank, ballot))

    def optimistic(self, rank: Rank) -> Effects[tuple[Rids, Rids]]:
        """What a later rank says that it sees of its transfers."""
        _, bad = yield from pd.view_release(rank)
        return all_inflight(rank), bad


@planted("pending_only_on_leader_blind", breaks="INV-52", profile="pd", source="outside report")
class PendingOnLeaderBlind(PendingOnLeader):
    """The same, and later ranks do not even look at their transfers."""

    def optimistic(self, rank: Rank) -> Effects[tuple[Rids, Rids]]:
        yield from ()
        return all_inflight(rank), ()


@planted("store_by_leader", breaks="INV-55", profile="pd", source="outside report")
class StoreByLeader(Surroundings):
    """The store's answer is the leader's own status."""

    def store_decision(self, rid: str, statuses: Sequence[int | None]) -> int:
        mine = statuses[0]
        return KVPoll.BOOTSTRAPPING if mine is None else mine


@planted("store_by_last", breaks="INV-79", profile="pd", source="outside report")
class StoreByLast(Surroundings):
    """The store's answer leaves one rank's status out (the last one's)."""

    def store_decision(self, rid: str, statuses: Sequence[int | None]) -> int:
        rest = statuses[:-1] or statuses
        return min(KVPoll.BOOTSTRAPPING if status is None else status for status in rest)


@planted("store_by_leader_quiet", breaks="INV-79", profile="pd", source="outside report")
class StoreByLeaderQuiet(Surroundings):
    """The leader's own status decides as soon as every rank has told something: half replicated, half local."""

    def store_decision(self, rid: str, statuses: Sequence[int | None]) -> int:
        mine = statuses[0]
        return KVPoll.BOOTSTRAPPING if mine is None or None in statuses else mine
