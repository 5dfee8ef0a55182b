"""The extra steps of the disaggregated loops: what is looked at, how it is agreed, how it is applied (1.7, 1.8, 6).

    bootstrap     prefill   who may be scheduled: by the store (``agree_bootstrap``), or by a vote
    release       prefill   whose KV is sent, and who has failed on the other side, also while it waits for its turn
    retract       decode    who was put out of memory and comes back
    prealloc      decode    whose KV is allocated
    transferred   decode    whose KV has come

A local view returns (good, bad) in queue order. An ``apply`` gets an immutable conclusion and does not look again; in
the variants that do (``polls_again``) it only takes out what it does not see any more (``looked_at_again``).
"""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.agreed import Agreed, agree
from ppsim.core.chain import Answer, Chain, Question
from ppsim.core.consensus import KVPoll, Rids
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.effects import Effects, observe
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Conclusion, Lane, Shutdown
from ppsim.core.observations import FirstTokens, Poll, Receivers, Senders, Statuses
from ppsim.core.rank import Rank
from ppsim.core.schedule.request import Request, State
from ppsim.core.votes import Ballot


def prefill(rank: Rank) -> PrefillRole:
    role = rank.scheduler.role
    assert isinstance(role, PrefillRole)
    return role


def decode(rank: Rank) -> DecodeRole:
    role = rank.scheduler.role
    assert isinstance(role, DecodeRole)
    return role


def poll(rank: Rank, side: Poll, queue: list[Request], good: tuple[int, ...]) -> Effects[tuple[Rids, Rids]]:
    """Look at the transfers of a queue: those in a ``good`` state, and those that failed."""
    rids = tuple(r.rid for r in queue)
    if not rids:
        return (), ()
    states = (yield from observe(side(rids), rank.iteration)).value
    seen = tuple(rid for rid, state in zip(rids, states, strict=True) if state in good)
    return seen, tuple(rid for rid, state in zip(rids, states, strict=True) if state == KVPoll.FAILED)


TERMINAL = (int(KVPoll.SUCCESS), int(KVPoll.FAILED))
READY = (int(KVPoll.WAITING_FOR_INPUT),)


def view_bootstrap(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    return (yield from poll(rank, Senders, prefill(rank).bootstrap, READY))


def view_release(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    """What is sent, and what fails before its turn has come: the released engines compute it all the same."""
    queue = list(prefill(rank).inflight)
    if rank.config.vote_variant == "agreed":
        queue += prefill(rank).in_turn(rank.iteration)
    return (yield from poll(rank, Senders, queue, TERMINAL))


def view_retract(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    yield from ()
    return decode(rank).bind_retracted(rank.scheduler.slots.current(rank.iteration)), ()


def view_prealloc(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    return (yield from poll(rank, Receivers, decode(rank).prealloc, READY))


def view_transferred(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    return (yield from poll(rank, Receivers, decode(rank).transfer, TERMINAL))


def apply_bootstrap(rank: Rank, conclusion: Conclusion) -> Effects[None]:
    queue = prefill(rank).bootstrap
    before = tuple(queue)
    also = before if rank.config.vote_variant == "released" else ()
    good, bad = yield from looked_at_again(rank, conclusion, Senders, READY, also)
    prefill(rank).apply_bootstrap(*concluded(conclusion, good, bad))
    passes_on_what_it_did(rank, conclusion, before, queue)


def apply_release(rank: Rank, conclusion: Conclusion) -> Effects[None]:
    good, bad = yield from looked_at_again(rank, conclusion, Senders, TERMINAL)
    prefill(rank).apply_release(*concluded(conclusion, good, bad))


def apply_retract(rank: Rank, conclusion: Conclusion) -> Effects[None]:
    yield from ()
    queue = decode(rank).put_out
    before = tuple(queue)
    good, _ = concluded(conclusion, conclusion.good, ())
    decode(rank).apply_retract(good)
    passes_on_what_it_did(rank, conclusion, before, queue)


def apply_prealloc(rank: Rank, conclusion: Conclusion) -> Effects[None]:
    queue = decode(rank).prealloc
    before = tuple(queue)
    good, bad = yield from looked_at_again(rank, conclusion, Receivers, READY)
    slot = rank.scheduler.slots.current(rank.iteration)
    decode(rank).apply_prealloc(*concluded(conclusion, good, bad), slot)
    passes_on_what_it_did(rank, conclusion, before, queue)


def apply_transferred(rank: Rank, conclusion: Conclusion) -> Effects[None]:
    """The first token of each request came with its metadata; every sender sent the same one."""
    queue = decode(rank).transfer
    before = tuple(queue)
    good, bad = yield from looked_at_again(rank, conclusion, Receivers, TERMINAL)
    here = [r for r in decode(rank).transfer if r.rid in good and r.rid not in bad and not r.to_abort]
    rids = tuple(r.rid for r in here)
    tokens: tuple[int, ...] = ()
    if rids:
        tokens = (yield from observe(FirstTokens(rids), rank.iteration)).value
    first = agree(dict(zip(rids, tokens, strict=True)), "metadata of the last chunk")
    decode(rank).apply_transferred(*concluded(conclusion, good, bad), first)
    passes_on_what_it_did(rank, conclusion, before, queue, tells_failures=False)


def concluded(conclusion: Conclusion, good: Rids, bad: Rids) -> tuple[Agreed[Rids], Agreed[Rids]]:
    """What a vote has concluded, as the scheduler takes it: what it names as good, and as bad."""
    origin = f"{conclusion.name} vote"
    return agree(good, origin), agree(bad, origin)


def looked_at_again(
    rank: Rank, conclusion: Conclusion, side: Poll, good: tuple[int, ...], also: tuple[Request, ...] = ()
) -> Effects[tuple[Rids, Rids]]:
    """The conclusion as it is; where the variant polls again, what this rank sees now of whom it names, and ``also``.

    A conclusion speaks of the requests that its vote saw: an id that came again since then is another request.
    """
    requests = rank.scheduler.requests
    if not rank.config.polls_again:
        good_rids, bad_rids = (
            tuple(rid for rid in rids if rid in requests and requests[rid].arrived <= conclusion.iteration)
            for rids in (conclusion.good, conclusion.bad)
        )
        return good_rids, bad_rids
    looked_at = [r for r in requests.values() if r.rid in conclusion.good + conclusion.bad or r in also]
    seen, failed = yield from poll(rank, side, looked_at, good)
    return tuple(rid for rid in conclusion.good if rid in seen), failed


def passes_on_what_it_did(
    rank: Rank,
    conclusion: Conclusion,
    before: tuple[Request, ...],
    queue: list[Request],
    *,
    tells_failures: bool = True,
) -> None:
    """Where the variant forwards what was applied: the next rank hears of those that have left the queue here."""
    if not rank.config.forwards_applied or rank.config.is_last:
        return
    left = [r for r in before if r not in queue]
    failed = tuple(r.rid for r in left if r.state is State.ABORTED)
    good = tuple(r.rid for r in left if r.rid not in failed)
    rank.carried[conclusion.name] = replace(conclusion, good=good, bad=failed if tells_failures else ())


RELEASE = Ballot("release", view_release, apply_release, terminal=True)
BOOTSTRAP = Ballot("bootstrap", view_bootstrap, apply_bootstrap)
RETRACT = Ballot("retract", view_retract, apply_retract)
PREALLOC = Ballot("prealloc", view_prealloc, apply_prealloc)
TRANSFERRED = Ballot("transferred", view_transferred, apply_transferred, terminal=True)
TERMINAL_VOTES = tuple(b.name for b in (RELEASE, BOOTSTRAP, RETRACT, PREALLOC, TRANSFERRED) if b.terminal)
"""Votes about terminal states: good means "over everywhere", bad says that it failed somewhere."""


def agree_bootstrap(rank: Rank, chain: Chain) -> Effects[None]:
    """Way 3: PP0 takes the minimum of the replicated statuses; the list goes down the chain (protocol.md 6.4)."""
    queue = prefill(rank).bootstrap
    if not queue:
        return
    rids = tuple(r.rid for r in queue)
    answer = yield from chain.decide(rank, STORE)
    polls = answer.counts
    if len(polls) != len(rids):
        raise ProtocolError(
            rank.link.rank_id,
            rank.iteration,
            rank.slot,
            f"{len(rids)} poll values, one for each queued request",
            f"{len(polls)}",
            "the bootstrap queues of the ranks differ",
            "INV-50",
        )
    yield from chain.hand_down(rank, STORE, answer)
    good = tuple(rid for rid, state in zip(rids, polls, strict=True) if state == KVPoll.WAITING_FOR_INPUT)
    bad = tuple(rid for rid, state in zip(rids, polls, strict=True) if state == KVPoll.FAILED)
    prefill(rank).apply_bootstrap(agree(good, "consensus store"), agree(bad, "consensus store"))


def statuses(rank: Rank) -> Effects[Answer]:
    """What the store says of each request of the bootstrap queue."""
    rids = tuple(r.rid for r in prefill(rank).bootstrap)
    return Answer(counts=(yield from observe(Statuses(rids), rank.iteration)).value)


STORE = Question(Lane.BOOTSTRAP, statuses, leader_looks=True)


def note_shutdown(rank: Rank) -> Effects[None]:
    """After Shutdown nobody votes; P-1 more iterations let the last conclusions arrive everywhere."""
    if any(isinstance(item, Shutdown) for item in rank.inputs):
        rank.last_vote = rank.iteration
    yield from ()


def end_iteration(rank: Rank) -> Effects[None]:
    """Stop when the conclusions of the last vote have come all the way round."""
    if rank.last_vote is not None and rank.iteration >= rank.last_vote + rank.config.pp_size - 1:
        rank.stopped = True
    yield from ()
