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
from typing import TypeAlias

from ppsim.core.channels import commit_all
from ppsim.core.consensus import Rids
from ppsim.core.effects import Effects
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Lane, Verdict, Vote
from ppsim.core.rank import Rank

LocalView: TypeAlias = Callable[[Rank], Effects[tuple[Rids, Rids]]]
Apply: TypeAlias = Callable[[Rank, Verdict], Effects[None]]


def votes_go_on(rank: Rank, iteration: int) -> bool:
    """A vote of this iteration is still taken: nobody votes after Shutdown was read."""
    return rank.last_vote is None or iteration <= rank.last_vote


def first_pass(rank: Rank, name: str, local_view: LocalView) -> Effects[None]:
    """Combine what came from upstream with what this rank sees now. Leaders of a stage only speak to each other.

    Then wait for what was sent of this vote: by a leader in the iteration before, by a replica just now.
    """
    if votes_go_on(rank, rank.iteration):
        yield from _combine(rank, name, local_view)
    yield from commit_all(rank.vote_work.setdefault(name, []))


def _combine(rank: Rank, name: str, local_view: LocalView) -> Effects[None]:
    good, bad = yield from local_view(rank)
    good, bad = yield from _within_stage(rank, name, good, bad)
    if not rank.config.is_first and rank.link.is_leader and rank.hooks.takes_part(name, good, bad):
        vote = yield from _take_vote(rank, name, rank.link.prev, Lane.CONTROL)
        good = rank.hooks.combine_good(vote.good, good)
        bad = rank.hooks.combine_bad(vote.bad, bad)
    rank.first_pass[name] = (tuple(rid for rid in good if rid not in bad or name in TERMINAL_VOTES), bad)


TERMINAL_VOTES = ("release", "transferred")
"""Votes about terminal states: good means "terminal everywhere", bad says that it failed somewhere."""


def send_votes(rank: Rank) -> Effects[None]:
    """End of the iteration: pass the combined sets on, one message a vote, empty or not."""
    if not votes_go_on(rank, rank.iteration) or rank.config.is_last or not rank.link.is_leader:
        return
    for name, (good, bad) in rank.first_pass.items():
        if not rank.hooks.takes_part(name, good, bad):
            continue
        vote = Vote(rank.link.rank_id, rank.iteration, rank.slot, name, good, bad)
        rank.vote_work.setdefault(name, []).append((yield from rank.link.send(rank.link.next, vote)))


def second_pass_send(rank: Rank, name: str) -> Effects[None]:
    """The last rank publishes the conclusion of this iteration; every other rank passes on what it applied last."""
    if not rank.link.is_leader or rank.config.pp_size == 1:
        return
    message = rank.carried.get(name)
    if rank.config.is_last:
        message = conclusion(rank, name) if _publishes(rank) else None
    if message is not None:
        rank.verdict_work.setdefault(name, []).append((yield from rank.link.send(rank.link.next, message)))


def second_pass_receive(rank: Rank, name: str) -> Effects[Verdict | None]:
    """The conclusion that is due in this iteration; it is applied by the caller and passed on in the next one."""
    config = rank.config
    about = rank.iteration - config.pp_size + 1
    if about < config.pp_async_batch_depth or not votes_go_on(rank, about):
        rank.carried[name] = None
        return None
    verdict = yield from _take_verdict(rank, name, about)
    rank.carried[name] = None if config.is_last else rank.hooks.forwarded_verdict(rank, verdict)
    expected = rank.applied_verdicts.get(name, 0) + 1
    if verdict.number != expected:
        raise ProtocolError(
            rank.link.rank_id,
            rank.iteration,
            rank.slot,
            f"conclusion {expected} of vote {name}",
            str(verdict.number),
            "a conclusion was left out or applied twice",
            "INV-37",
        )
    rank.applied_verdicts[name] = verdict.number
    return verdict


def second_pass_commit(rank: Rank, name: str) -> Effects[None]:
    """Wait for what this rank has sent of a conclusion in this iteration, whether or not it received one."""
    yield from commit_all(rank.verdict_work.setdefault(name, []))


def conclusion(rank: Rank, name: str) -> Verdict:
    """The numbered conclusion of the vote taken in this iteration."""
    good, bad = rank.first_pass[name]
    number = rank.iteration - rank.config.pp_async_batch_depth + 1
    return Verdict(rank.link.rank_id, rank.iteration, rank.slot, name, number, good, bad)


def _publishes(rank: Rank) -> bool:
    return rank.iteration >= rank.config.pp_async_batch_depth and votes_go_on(rank, rank.iteration)


def _take_verdict(rank: Rank, name: str, about: int) -> Effects[Verdict]:
    config, link = rank.config, rank.link
    slot = about % config.num_slots
    if not link.is_leader:
        verdict = yield from link.receive(Verdict, link.leader, Lane.TP, about, slot)
    elif config.pp_size == 1:
        verdict = conclusion(rank, name)
    else:
        verdict = yield from link.receive(Verdict, link.prev, Lane.CONTROL, about, slot)
    if verdict.name != name:
        raise ProtocolError(
            link.rank_id,
            rank.iteration,
            rank.slot,
            f"verdict of vote {name}",
            f"verdict of vote {verdict.name}",
            "the votes are sent and received in different orders",
        )
    if link.is_leader:
        for replica in link.replicas:
            inside = Verdict(link.rank_id, about, slot, name, verdict.number, verdict.good, verdict.bad, Lane.TP)
            rank.verdict_work.setdefault(name, []).append((yield from link.send(replica, inside)))
    return verdict


def _within_stage(rank: Rank, name: str, good: Rids, bad: Rids) -> Effects[tuple[Rids, Rids]]:
    """Tensor-parallel replicas tell their leader what they see; every replica takes part, empty or not (B24)."""
    link = rank.link
    if not link.is_leader:
        if not rank.hooks.takes_part(name, good, bad):
            return good, bad
        vote = Vote(link.rank_id, rank.iteration, rank.slot, name, good, bad, Lane.TP)
        rank.vote_work.setdefault(name, []).append((yield from link.send(link.leader, vote)))
        return good, bad
    for replica in link.replicas:
        vote = yield from _take_vote(rank, name, replica, Lane.TP)
        good = rank.hooks.combine_good(good, vote.good)
        bad = rank.hooks.combine_bad(bad, vote.bad)
    return good, bad


def _take_vote(rank: Rank, name: str, src: int, lane: Lane) -> Effects[Vote]:
    vote = yield from rank.link.receive(Vote, src, lane, rank.iteration, rank.slot)
    if vote.name != name:
        raise ProtocolError(
            rank.link.rank_id,
            rank.iteration,
            rank.slot,
            f"vote {name}",
            f"vote {vote.name}",
            "the votes are sent and received in different orders",
        )
    return vote
