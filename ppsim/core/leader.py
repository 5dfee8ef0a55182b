"""Way 1: the first stage decides, and the decision flows down the chain (protocol.md 6.2).

Inside the first stage the tensor-parallel replicas reduce first: ready by intersection, failed by union. A later rank
does not look at its own state to decide, only to wait for it: where the leader says "ready", it blocks until its own
compile is done. Whether the exchange takes place depends on replicated state only (bugs.md I8).
"""

from __future__ import annotations

from ppsim.core.agreed import agree
from ppsim.core.channels import commit_all
from ppsim.core.consensus import intersect, unite
from ppsim.core.effects import Effects, await_local, observe
from ppsim.core.messages import Lane, Side
from ppsim.core.observations import Compiled, Grammars
from ppsim.core.rank import Rank

PENDING, READY, FAILED = 0, 1, 2


def agree_grammar(rank: Rank) -> Effects[None]:
    """Which requests leave the grammar queue in this iteration: the same on all ranks (bugs.md B01)."""
    queue = tuple(r.rid for r in rank.scheduler.grammar_queue)
    if not queue:
        return
    yield from commit_all(rank.side_work.setdefault(Lane.TP, []))
    if rank.config.is_first:
        ready, failed = yield from _stage_view(rank, queue)
    else:
        ready, failed = yield from _from_upstream(rank)
        for rid in ready:
            yield from await_local(Compiled(rid), rank.iteration)
    yield from _hand_down(rank, ready, failed)
    rank.scheduler.resolve_grammar(agree(ready, "grammar chain"), agree(failed, "grammar chain"))


def _stage_view(rank: Rank, queue: tuple[str, ...]) -> Effects[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The first stage's view: every replica looks, the leader reduces and hands the result back."""
    link = rank.link
    states = (yield from observe(Grammars(queue), rank.iteration)).value
    ready = tuple(rid for rid, state in zip(queue, states, strict=True) if state == READY)
    failed = tuple(rid for rid, state in zip(queue, states, strict=True) if state == FAILED)
    if not link.is_leader:
        yield from _send(rank, link.leader, Lane.TP, ready, failed)
        return (yield from _take(rank, link.leader, Lane.TP))
    for replica in link.replicas:
        more_ready, more_failed = yield from _take(rank, replica, Lane.TP)
        ready = intersect(ready, more_ready)
        failed = unite(failed, more_failed)
    ready = tuple(rid for rid in ready if rid not in failed)
    for replica in link.replicas:
        yield from _send(rank, replica, Lane.TP, ready, failed)
    return ready, failed


def _from_upstream(rank: Rank) -> Effects[tuple[tuple[str, ...], tuple[str, ...]]]:
    return (yield from _take(rank, rank.link.prev, Lane.GRAMMAR))


def _hand_down(rank: Rank, ready: tuple[str, ...], failed: tuple[str, ...]) -> Effects[None]:
    if not rank.config.is_last:
        yield from commit_all(rank.side_work.setdefault(Lane.GRAMMAR, []))
        yield from _send(rank, rank.link.next, Lane.GRAMMAR, ready, failed)


def _send(rank: Rank, dst: int, lane: Lane, ready: tuple[str, ...], failed: tuple[str, ...]) -> Effects[None]:
    message = Side(rank.link.rank_id, lane, rank.iteration, rank.slot, (ready, failed))
    rank.side_work.setdefault(lane, []).append((yield from rank.link.send(dst, message)))


def _take(rank: Rank, src: int, lane: Lane) -> Effects[tuple[tuple[str, ...], tuple[str, ...]]]:
    message = yield from rank.link.receive(Side, src, lane, rank.iteration, rank.slot)
    ready, failed = message.values
    return ready, failed
