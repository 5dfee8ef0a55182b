"""The extra steps of the disaggregated loops: what is looked at, how it is agreed, how it is applied (1.7, 1.8, 6).

A local view returns (good, bad) in queue order. An ``apply`` gets an immutable conclusion and never looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ppsim.core import votes
from ppsim.core.agreed import Agreed
from ppsim.core.channels import commit_all
from ppsim.core.consensus import KVPoll, Rids
from ppsim.core.effects import Effects, observe
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Lane, Shutdown, Side, Verdict
from ppsim.core.pd_decode import DecodeRole
from ppsim.core.pd_prefill import PrefillRole
from ppsim.core.rank import Rank
from ppsim.core.request import Request, State


def prefill(rank: Rank) -> PrefillRole:
    role = rank.scheduler.role
    assert isinstance(role, PrefillRole)
    return role


def decode(rank: Rank) -> DecodeRole:
    role = rank.scheduler.role
    assert isinstance(role, DecodeRole)
    return role


def poll(rank: Rank, what: str, queue: list[Request], good: tuple[int, ...]) -> Effects[tuple[Rids, Rids]]:
    """Look at the transfers of a queue: those in a ``good`` state, and those that failed."""
    rids = tuple(r.rid for r in queue)
    if not rids:
        return (), ()
    states = (yield from observe(what, rids, rank.iteration)).value
    seen = tuple(rid for rid, state in zip(rids, states, strict=True) if state in good)
    return seen, tuple(rid for rid, state in zip(rids, states, strict=True) if state == KVPoll.FAILED)


TERMINAL = (int(KVPoll.SUCCESS), int(KVPoll.FAILED))
READY = (int(KVPoll.WAITING_FOR_INPUT),)


def view_bootstrap(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    return (yield from poll(rank, "sender", prefill(rank).bootstrap, READY))


def view_release(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    """What is sent, and what fails before its turn has come: the released engines compute it all the same."""
    queue = list(prefill(rank).inflight)
    if rank.config.vote_variant == "agreed":
        queue += prefill(rank).in_turn(rank.iteration)
    return (yield from poll(rank, "sender", queue, TERMINAL))


def view_retract(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    yield from ()
    return decode(rank).bind_retracted(rank.scheduler.slots.current(rank.iteration)), ()


def view_prealloc(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    return (yield from poll(rank, "receiver", decode(rank).prealloc, READY))


def view_transferred(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    return (yield from poll(rank, "receiver", decode(rank).transfer, TERMINAL))


def apply_bootstrap(rank: Rank, verdict: Verdict) -> Effects[None]:
    queue = prefill(rank).bootstrap
    before = tuple(queue)
    also = before if rank.config.vote_variant == "released" else ()
    good, bad = yield from looked_at_again(rank, verdict, "sender", READY, also)
    prefill(rank).apply_bootstrap(Agreed(good, "bootstrap vote"), Agreed(bad, "bootstrap vote"))
    passes_on_what_it_did(rank, verdict, before, queue)


def apply_release(rank: Rank, verdict: Verdict) -> Effects[None]:
    good, bad = yield from looked_at_again(rank, verdict, "sender", TERMINAL)
    prefill(rank).apply_release(Agreed(good, "release vote"), Agreed(bad, "release vote"))


def apply_retract(rank: Rank, verdict: Verdict) -> Effects[None]:
    yield from ()
    queue = decode(rank).put_out
    before = tuple(queue)
    decode(rank).apply_retract(Agreed(verdict.good, "retract vote"))
    passes_on_what_it_did(rank, verdict, before, queue)


def apply_prealloc(rank: Rank, verdict: Verdict) -> Effects[None]:
    queue = decode(rank).prealloc
    before = tuple(queue)
    good, bad = yield from looked_at_again(rank, verdict, "receiver", READY)
    slot = rank.scheduler.slots.current(rank.iteration)
    decode(rank).apply_prealloc(Agreed(good, "prealloc vote"), Agreed(bad, "prealloc vote"), slot)
    passes_on_what_it_did(rank, verdict, before, queue)


def apply_transferred(rank: Rank, verdict: Verdict) -> Effects[None]:
    """The first token of each request came with its metadata; every sender sent the same one."""
    queue = decode(rank).transfer
    before = tuple(queue)
    good, bad = yield from looked_at_again(rank, verdict, "receiver", TERMINAL)
    here = [r for r in decode(rank).transfer if r.rid in good and r.rid not in bad and not r.to_abort]
    rids = tuple(r.rid for r in here)
    tokens: tuple[int, ...] = ()
    if rids:
        tokens = (yield from observe("first_token", rids, rank.iteration)).value
    first = Agreed(dict(zip(rids, tokens, strict=True)), "metadata of the last chunk")
    decode(rank).apply_transferred(Agreed(good, "transferred vote"), Agreed(bad, "transferred vote"), first)
    passes_on_what_it_did(rank, verdict, before, queue, tells_failures=False)


def looked_at_again(
    rank: Rank, verdict: Verdict, what: str, good: tuple[int, ...], also: tuple[Request, ...] = ()
) -> Effects[tuple[Rids, Rids]]:
    """The conclusion as it is; where the variant polls again, what this rank sees now of whom it names, and ``also``.

    A conclusion speaks of the requests that its vote saw: an id that came again since then is another request.
    """
    requests = rank.scheduler.requests
    if not rank.config.polls_again:
        good_rids, bad_rids = (
            tuple(rid for rid in rids if rid in requests and requests[rid].arrived <= verdict.iteration)
            for rids in (verdict.good, verdict.bad)
        )
        return good_rids, bad_rids
    looked_at = [r for r in requests.values() if r.rid in verdict.good + verdict.bad or r in also]
    seen, failed = yield from poll(rank, what, looked_at, good)
    return tuple(rid for rid in verdict.good if rid in seen), failed


def passes_on_what_it_did(
    rank: Rank, verdict: Verdict, before: tuple[Request, ...], queue: list[Request], *, tells_failures: bool = True
) -> None:
    """Where the variant forwards what was applied: the next rank hears of those that have left the queue here."""
    if not rank.config.forwards_applied or rank.config.is_last:
        return
    left = [r for r in before if r not in queue]
    failed = tuple(r.rid for r in left if r.state is State.ABORTED)
    good = tuple(r.rid for r in left if r.rid not in failed)
    rank.carried[verdict.name] = replace(verdict, good=good, bad=failed if tells_failures else ())


Phase = Callable[[Rank], Effects[None]]


def first(name: str, view: votes.LocalView) -> Phase:
    """Phase: first pass of a vote."""

    def phase(rank: Rank) -> Effects[None]:
        yield from votes.first_pass(rank, name, view)

    phase.__name__ = f"first_pass_{name}"
    return phase


def second_send(name: str) -> Phase:
    """Phase: publish or pass on the conclusion of a vote."""

    def phase(rank: Rank) -> Effects[None]:
        yield from votes.second_pass_send(rank, name)

    phase.__name__ = f"second_send_{name}"
    return phase


def second_receive(name: str) -> Phase:
    """Phase: take the conclusion that is due; it is applied later in the iteration."""

    def phase(rank: Rank) -> Effects[None]:
        rank.due[name] = yield from votes.second_pass_receive(rank, name)

    phase.__name__ = f"second_receive_{name}"
    return phase


def second_commit(name: str) -> Phase:
    """Phase: the conclusion that was sent in this iteration has been taken."""

    def phase(rank: Rank) -> Effects[None]:
        yield from votes.second_pass_commit(rank, name)

    phase.__name__ = f"second_commit_{name}"
    return phase


def apply(name: str, how: votes.Apply) -> Phase:
    """Phase: apply the conclusion that was taken in this iteration."""

    def phase(rank: Rank) -> Effects[None]:
        verdict = rank.due.pop(name, None)
        if verdict is not None:
            yield from how(rank, verdict)

    phase.__name__ = f"apply_{name}"
    return phase


def agree_bootstrap(rank: Rank) -> Effects[None]:
    """Way 3: PP0 takes the minimum of the replicated statuses; the list goes down the chain (protocol.md 6.4)."""
    queue = prefill(rank).bootstrap
    if not queue:
        return
    link, rids = rank.link, tuple(r.rid for r in queue)
    leads = rank.hooks.leads("bootstrap", rank.config.is_first) and link.is_leader
    polls = (yield from observe("bootstrap_store", rids, rank.iteration)).value if leads else ()
    yield from commit_all(rank.side_work.setdefault(Lane.BOOTSTRAP, []))
    if not leads:
        src, lane = (link.prev, Lane.BOOTSTRAP) if link.is_leader else (link.leader, Lane.TP)
        message = yield from link.receive(Side, src, lane, rank.iteration, rank.slot)
        polls = message.counts
    if len(polls) != len(rids):
        raise ProtocolError(
            link.rank_id,
            rank.iteration,
            rank.slot,
            f"{len(rids)} poll values, one for each queued request",
            f"{len(polls)}",
            "the bootstrap queues of the ranks differ",
            "INV-50",
        )
    targets = [(replica, Lane.TP) for replica in link.replicas] if link.is_leader else []
    if link.is_leader and not rank.config.is_last:
        targets.append((link.next, Lane.BOOTSTRAP))
    for dst, lane in targets:
        side = Side(link.rank_id, lane, rank.iteration, rank.slot, counts=polls)
        rank.side_work.setdefault(Lane.BOOTSTRAP, []).append((yield from link.send(dst, side)))
    good = tuple(rid for rid, state in zip(rids, polls, strict=True) if state == KVPoll.WAITING_FOR_INPUT)
    bad = tuple(rid for rid, state in zip(rids, polls, strict=True) if state == KVPoll.FAILED)
    prefill(rank).apply_bootstrap(Agreed(good, "consensus store"), Agreed(bad, "consensus store"))


def note_shutdown(rank: Rank) -> Effects[None]:
    """After Shutdown nobody votes; P-1 more iterations let the last conclusions arrive everywhere."""
    if any(isinstance(item, Shutdown) for item in rank.inputs):
        rank.last_vote = rank.iteration
    yield from ()


def end_iteration(rank: Rank) -> Effects[None]:
    if rank.last_vote is not None and rank.iteration >= rank.last_vote + rank.config.pp_size - 1:
        rank.stopped = True
    yield from ()


def pass_on_the_rest(rank: Rank, names: tuple[str, ...]) -> Effects[None]:
    """After the last iteration: the conclusions that the next rank still waits for."""
    for name in names:
        yield from votes.second_pass_send(rank, name)
