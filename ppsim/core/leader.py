"""Which requests leave the grammar queue: the first stage decides (protocol.md 6.2).

Ready is what every replica of the first stage has compiled, failed what failed on any. A later rank does not look at
its own state to decide, only to wait for it: where the leader says "ready", it blocks until its own compile is done.
"""

from __future__ import annotations

from ppsim.core.agreed import agree
from ppsim.core.chain import Answer, Chain, Question, ready_and_failed
from ppsim.core.effects import Effects, await_local, observe
from ppsim.core.messages import Lane
from ppsim.core.observations import Compiled, Grammars
from ppsim.core.rank import Rank

PENDING, READY, FAILED = 0, 1, 2


def agree_grammar(rank: Rank, chain: Chain) -> Effects[None]:
    """Which requests leave the grammar queue in this iteration: the same on all ranks (bugs.md B01)."""
    if not rank.scheduler.grammar_queue:
        return
    answer = yield from chain.decide(rank, GRAMMAR)
    ready, failed = answer.values
    for rid in ready if not rank.config.is_first else ():
        yield from await_local(Compiled(rid), rank.iteration)
    yield from chain.hand_down(rank, GRAMMAR, answer)
    rank.scheduler.resolve_grammar(agree(ready, "grammar chain"), agree(failed, "grammar chain"))


def view(rank: Rank) -> Effects[Answer]:
    """What of the queue is compiled here, and what failed."""
    queue = tuple(r.rid for r in rank.scheduler.grammar_queue)
    states = (yield from observe(Grammars(queue), rank.iteration)).value
    ready, failed = (
        tuple(rid for rid, s in zip(queue, states, strict=True) if s == state) for state in (READY, FAILED)
    )
    return Answer((ready, failed))


def failed_wins(rank: Rank, answer: Answer) -> Effects[Answer]:
    """Nobody is ready who failed somewhere."""
    yield from ()
    ready, failed = answer.values
    return Answer((tuple(rid for rid in ready if rid not in failed), failed))


GRAMMAR = Question(Lane.GRAMMAR, view, ready_and_failed, failed_wins)
