"""Way 2: two passes round the ring (protocol.md 6.3, 2.3).

    pass 1, iteration m   S_0 = local_0;  S_k = combine(S_{k-1}, local_k);  the last rank holds the conclusion
    pass 2                the last rank sends it to rank 0 in iteration m; rank k forwards it one iteration after it
                          applied it; every rank applies it in its iteration m + P - 1

When a send is waited for (protocol.md 3.1): that of pass 1 in the next iteration, right after the same first pass and
before anything is scheduled; that of pass 2 in its own iteration, behind the conclusion that this rank itself applies,
also where none is due yet; what a replica tells its leader at once, like the reduction that it stands for.

Whether a pass-2 message exists depends on the iteration number only: the last rank sends from iteration ``depth`` on,
every rank receives from iteration L-1 on (invariant 37). A conclusion is numbered, immutable, and applied once without
another look at local state (bugs.md I3). What SGLang released differs in two ways, each a variant of its own:

    fresh_poll         a conclusion only filters what the rank sees when it applies it (bugs.md B76)
    forwards_applied   a rank passes on what it did: who was admitted, resumed, given memory; of received KV only what
                       succeeded, so that the next rank never hears of a failure. The release list stays as it is
    released           both, and the bootstrap fails requests that no conclusion names if they failed here (B75)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ppsim.core.channels import commit_all
from ppsim.core.consensus import Rids, intersect, unite
from ppsim.core.effects import Effects
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Conclusion, Lane, Vote
from ppsim.core.rank import Phase, Rank

LocalView: TypeAlias = Callable[[Rank], Effects[tuple[Rids, Rids]]]
Apply: TypeAlias = Callable[[Rank, Conclusion], Effects[None]]


@dataclass(frozen=True, slots=True)
class Ballot:
    """One vote: its name on the wire, what a rank sees, and what it does with the conclusion.

    ``terminal``: good means "over everywhere", and bad says which of these failed somewhere; otherwise bad takes a
    request out of the good ones.
    """

    name: str
    view: LocalView
    apply: Apply
    terminal: bool = False


def votes_go_on(rank: Rank, iteration: int) -> bool:
    """A vote of this iteration is still taken: nobody votes after Shutdown was read."""
    return rank.last_vote is None or iteration <= rank.last_vote


class Voting:
    """The phases of the ring votes. A leader speaks to leaders; inside a stage the replicas tell their leader."""

    # --- phases of an iteration, one of each kind for each ballot -------------------------------------------------

    def first(self, ballot: Ballot) -> Phase:
        """Phase ``first_pass_NAME``: combine what came from upstream with what this rank sees now.

        Then wait for what was sent of this vote: by a leader in the iteration before, by a replica just now.
        """

        def phase(rank: Rank) -> Effects[None]:
            if votes_go_on(rank, rank.iteration):
                rank.first_pass[ballot.name] = yield from self.combine(rank, ballot)
            yield from commit_all(rank.vote_work.setdefault(ballot.name, []))

        return named_phase(
            phase, f"first_pass_{ballot.name}", "Combine what came from upstream with what is seen here."
        )

    def second_send(self, ballot: Ballot) -> Phase:
        """Phase ``second_send_NAME``: publish or pass on the conclusion."""

        def phase(rank: Rank) -> Effects[None]:
            yield from self.send_conclusion(rank, ballot.name)

        return named_phase(phase, f"second_send_{ballot.name}", "Publish the conclusion, or pass it on.")

    def second_receive(self, ballot: Ballot) -> Phase:
        """Phase ``second_receive_NAME``: take the conclusion that is due; it is applied later in the iteration."""

        def phase(rank: Rank) -> Effects[None]:
            rank.due[ballot.name] = yield from self.receive_conclusion(rank, ballot.name)

        return named_phase(phase, f"second_receive_{ballot.name}", "Take the conclusion that is due.")

    def second_commit(self, ballot: Ballot) -> Phase:
        """Phase ``second_commit_NAME``: what was sent of a conclusion in this iteration has been taken, if anything."""

        def phase(rank: Rank) -> Effects[None]:
            yield from commit_all(rank.conclusion_work.setdefault(ballot.name, []))

        return named_phase(phase, f"second_commit_{ballot.name}", "Wait for what was sent of a conclusion just now.")

    def apply(self, ballot: Ballot) -> Phase:
        """Phase ``apply_NAME``: apply the conclusion that was taken in this iteration."""

        def phase(rank: Rank) -> Effects[None]:
            conclusion = rank.due.pop(ballot.name, None)
            if conclusion is not None:
                yield from ballot.apply(rank, conclusion)

        return named_phase(phase, f"apply_{ballot.name}", "Apply the conclusion that was taken.")

    def send_votes(self, rank: Rank) -> Effects[None]:
        """End of the iteration: pass the combined sets on, one message a vote, empty or not."""
        if not votes_go_on(rank, rank.iteration) or rank.config.is_last or not rank.link.is_leader:
            return
        for name, (good, bad) in rank.first_pass.items():
            yield from self.pass_on(rank, name, good, bad)

    def pass_on_the_rest(self, rank: Rank, ballots: tuple[Ballot, ...]) -> Effects[None]:
        """After the last iteration: the conclusions that the next rank still waits for."""
        for ballot in ballots:
            yield from self.send_conclusion(rank, ballot.name)

    # --- first pass ----------------------------------------------------------------------------------------------

    def combine(self, rank: Rank, ballot: Ballot) -> Effects[tuple[Rids, Rids]]:
        """The good and bad set of this rank and of all before it, in queue order."""
        good, bad = yield from ballot.view(rank)
        if rank.link.is_leader:
            good, bad = yield from self.hear_replicas(rank, ballot.name, good, bad)
            if not rank.config.is_first:
                good, bad = yield from self.hear_upstream(rank, ballot.name, good, bad)
        else:
            yield from self.tell_leader(rank, ballot.name, good, bad)
        return tuple(rid for rid in good if rid not in bad or ballot.terminal), bad

    def reduce_good(self, upstream: Rids, local: Rids) -> Rids:
        """Good sets by intersection, in queue order (bugs.md I4, B16)."""
        return intersect(upstream, local)

    def reduce_bad(self, upstream: Rids, local: Rids) -> Rids:
        """Bad sets by union, upstream first."""
        return unite(upstream, local)

    def tell_leader(self, rank: Rank, name: str, good: Rids, bad: Rids) -> Effects[None]:
        """A replica tells its leader what it sees, empty or not (B24)."""
        vote = Vote(rank.link.rank_id, rank.iteration, rank.slot, name, good, bad, Lane.TP)
        rank.vote_work.setdefault(name, []).append((yield from rank.link.send(rank.link.leader, vote)))

    def hear_replicas(self, rank: Rank, name: str, good: Rids, bad: Rids) -> Effects[tuple[Rids, Rids]]:
        """What a whole stage sees: every replica takes part."""
        for replica in rank.link.replicas:
            vote = yield from self.take_vote(rank, name, replica, Lane.TP)
            good, bad = self.reduce_good(good, vote.good), self.reduce_bad(bad, vote.bad)
        return good, bad

    def hear_upstream(self, rank: Rank, name: str, good: Rids, bad: Rids) -> Effects[tuple[Rids, Rids]]:
        """What all stages up to this one see."""
        vote = yield from self.take_vote(rank, name, rank.link.prev, Lane.CONTROL)
        return self.reduce_good(vote.good, good), self.reduce_bad(vote.bad, bad)

    def pass_on(self, rank: Rank, name: str, good: Rids, bad: Rids) -> Effects[None]:
        """Tell the next stage what all stages up to this one see."""
        vote = Vote(rank.link.rank_id, rank.iteration, rank.slot, name, good, bad)
        rank.vote_work.setdefault(name, []).append((yield from rank.link.send(rank.link.next, vote)))

    def take_vote(self, rank: Rank, name: str, src: int, lane: Lane) -> Effects[Vote]:
        vote = yield from rank.link.receive(Vote, src, lane, rank.iteration, rank.slot)
        if vote.name != name:
            raise out_of_order(rank, f"vote {name}", f"vote {vote.name}")
        return vote

    # --- second pass ---------------------------------------------------------------------------------------------

    def send_conclusion(self, rank: Rank, name: str) -> Effects[None]:
        """The last rank publishes the conclusion of this iteration; every other rank passes on what it applied last."""
        if not rank.link.is_leader or rank.config.pp_size == 1:
            return
        message = rank.carried.get(name)
        if rank.config.is_last:
            publishes = rank.iteration >= rank.config.pp_async_batch_depth and votes_go_on(rank, rank.iteration)
            message = conclude(rank, name) if publishes else None
        if message is not None:
            rank.conclusion_work.setdefault(name, []).append((yield from rank.link.send(rank.link.next, message)))

    def receive_conclusion(self, rank: Rank, name: str) -> Effects[Conclusion | None]:
        """The conclusion that is due in this iteration; it is passed on in the next one."""
        config = rank.config
        about = rank.iteration - config.pp_size + 1
        if about < config.pp_async_batch_depth or not votes_go_on(rank, about):
            rank.carried[name] = None
            return None
        conclusion = yield from self.take_conclusion(rank, name, about)
        rank.carried[name] = None if config.is_last else self.forwarded(conclusion)
        expected = rank.applied_conclusions.get(name, 0) + 1
        if conclusion.number != expected:
            raise ProtocolError(
                rank.link.rank_id,
                rank.iteration,
                rank.slot,
                f"conclusion {expected} of vote {name}",
                str(conclusion.number),
                "a conclusion was left out or applied twice",
                "INV-37",
            )
        rank.applied_conclusions[name] = conclusion.number
        return conclusion

    def forwarded(self, conclusion: Conclusion) -> Conclusion:
        """What is passed on of a conclusion: the conclusion itself, unchanged."""
        return conclusion

    def take_conclusion(self, rank: Rank, name: str, about: int) -> Effects[Conclusion]:
        """The conclusion of iteration ``about``: from upstream, or inside the stage from the leader."""
        link, slot = rank.link, about % rank.config.num_slots
        if not link.is_leader:
            conclusion = yield from link.receive(Conclusion, link.leader, Lane.TP, about, slot)
        elif rank.config.pp_size == 1:
            conclusion = conclude(rank, name)
        else:
            conclusion = yield from link.receive(Conclusion, link.prev, Lane.CONTROL, about, slot)
        if conclusion.name != name:
            raise out_of_order(rank, f"conclusion of vote {name}", f"conclusion of vote {conclusion.name}")
        if link.is_leader:
            for replica in link.replicas:
                inside = Conclusion(
                    link.rank_id, about, slot, name, conclusion.number, conclusion.good, conclusion.bad, Lane.TP
                )
                rank.conclusion_work.setdefault(name, []).append((yield from link.send(replica, inside)))
        return conclusion


def conclude(rank: Rank, name: str) -> Conclusion:
    """The numbered conclusion of the vote taken in this iteration."""
    good, bad = rank.first_pass[name]
    number = rank.iteration - rank.config.pp_async_batch_depth + 1
    return Conclusion(rank.link.rank_id, rank.iteration, rank.slot, name, number, good, bad)


def out_of_order(rank: Rank, expected: str, came: str) -> ProtocolError:
    why = "the votes are sent and received in different orders"
    return ProtocolError(rank.link.rank_id, rank.iteration, rank.slot, expected, came, why)


def named_phase(phase: Phase, name: str, told: str) -> Phase:
    """The phase under its name in the list, by which it is found, and with a sentence of what it does."""
    phase.__name__, phase.__doc__ = name, told
    return phase
