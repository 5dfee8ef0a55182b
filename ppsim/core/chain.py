"""Ways 1 and 3: the first stage decides, and the answer flows down the chain (protocol.md 6.2, 6.4).

    first stage    every replica looks and tells the leader; the leader reduces, completes and hands back
    later stages   take the answer from the stage before; they never look at their own state to decide
    every stage    passes the answer on

Where only the leader of all may look (the consensus store, which has all ranks' statuses already), it asks nobody, and
the leaders of the stages pass the answer on to each other and to their replicas.

Whether the exchange takes place depends on replicated state only (bugs.md I8): who has nothing to report takes part
with an empty view (bugs.md B24).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ppsim.core.channels import commit_all
from ppsim.core.consensus import Rids, intersect, unite
from ppsim.core.effects import Effects
from ppsim.core.messages import Lane, Side
from ppsim.core.rank import Phase, Rank


class Answer(NamedTuple):
    """What goes down the chain: sets of requests, numbers, or both."""

    values: tuple[Rids, ...] = ()
    counts: tuple[int, ...] = ()


Look: TypeAlias = Callable[[Rank], Effects[Answer]]
Step: TypeAlias = Callable[[Rank, "Chain"], Effects[None]]


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that the first stage decides.

    ``look``: what a rank of the first stage sees. ``reduce``: of two replicas' views one. ``complete``: what the leader
    adds or settles when all have spoken. ``leader_looks``: only the leader of all looks, and leaders pass it on.
    """

    lane: Lane
    look: Look
    reduce: Callable[[Answer, Answer], Answer] = lambda mine, theirs: mine
    complete: Callable[[Rank, Answer], Effects[Answer]] | None = None
    leader_looks: bool = False


class Chain:
    """The phases in which the first stage decides for all."""

    def phase(self, step: Step) -> Phase:
        """The step as a phase of the list, under its own name."""

        def phase(rank: Rank) -> Effects[None]:
            return step(rank, self)

        phase.__name__, phase.__doc__ = step.__name__, step.__doc__
        return phase

    def decide(self, rank: Rank, question: Question) -> Effects[Answer]:
        """The answer, which is the same on all ranks. The caller passes it on with ``hand_down``."""
        if question.leader_looks:
            return (yield from self.leader_view(rank, question))
        yield from commit_all(rank.side_work.setdefault(Lane.TP, []))
        if not rank.config.is_first:
            return (yield from self.take(rank, rank.link.prev, question.lane))
        return (yield from self.stage_view(rank, question, (yield from question.look(rank))))

    def leader_view(self, rank: Rank, question: Question) -> Effects[Answer]:
        """What the leader of all sees, from leader to leader and to their replicas."""
        link = rank.link
        leads = rank.config.is_first and link.is_leader
        answer = (yield from question.look(rank)) if leads else Answer()
        yield from commit_all(rank.side_work.setdefault(question.lane, []))
        if leads:
            return answer
        src, lane = (link.prev, question.lane) if link.is_leader else (link.leader, Lane.TP)
        return (yield from self.take(rank, src, lane))

    def stage_view(self, rank: Rank, question: Question, mine: Answer) -> Effects[Answer]:
        """What the first stage sees together: the leader reduces its replicas' views and hands the result back."""
        link = rank.link
        if not link.is_leader:
            yield from self.send(rank, link.leader, Lane.TP, mine)
            return (yield from self.take(rank, link.leader, Lane.TP))
        for replica in link.replicas:
            mine = self.reduce(question, mine, (yield from self.take(rank, replica, Lane.TP)))
        if question.complete is not None:
            mine = yield from question.complete(rank, mine)
        for replica in link.replicas:
            yield from self.send(rank, replica, Lane.TP, mine)
        return mine

    def reduce(self, question: Question, mine: Answer, theirs: Answer) -> Answer:
        """Of two replicas' views one, as the question says."""
        return question.reduce(mine, theirs)

    def hand_down(self, rank: Rank, question: Question, answer: Answer) -> Effects[None]:
        """Pass the answer on to the next stage, and to the replicas of this one where leaders speak for them."""
        link, lane = rank.link, question.lane
        if question.leader_looks and link.is_leader:
            for replica in link.replicas:
                yield from self.send(rank, replica, Lane.TP, answer, lane)
            if not rank.config.is_last:
                yield from self.send(rank, link.next, lane, answer)
        elif not question.leader_looks and not rank.config.is_last:
            yield from commit_all(rank.side_work.setdefault(lane, []))
            yield from self.send(rank, link.next, lane, answer)

    def send(self, rank: Rank, dst: int, lane: Lane, answer: Answer, kept: Lane | None = None) -> Effects[None]:
        """Tell one rank. ``kept``: with which lane's sends it is waited for, if not its own."""
        message = Side(rank.link.rank_id, lane, rank.iteration, rank.slot, answer.values, answer.counts)
        rank.side_work.setdefault(kept or lane, []).append((yield from rank.link.send(dst, message)))

    def take(self, rank: Rank, src: int, lane: Lane) -> Effects[Answer]:
        """The word of one rank for this iteration."""
        message = yield from rank.link.receive(Side, src, lane, rank.iteration, rank.slot)
        return Answer(message.values, message.counts)


def ready_and_failed(mine: Answer, theirs: Answer) -> Answer:
    """Two replicas' views of a queue: ready by intersection, failed by union, both in queue order."""
    (ready, failed), (more_ready, more_failed) = mine.values, theirs.values
    return Answer((intersect(ready, more_ready), unite(failed, more_failed)))


def least(mine: Answer, theirs: Answer) -> Answer:
    """Two replicas' counts: the smaller of each."""
    return Answer(counts=tuple(min(pair) for pair in zip(mine.counts, theirs.counts, strict=True)))
