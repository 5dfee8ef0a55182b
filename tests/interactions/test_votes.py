"""When a rank waits for what it has sent of a vote: the table of protocol.md 3.1, and the steps of 1.7 and 1.8.

    work                    sent                     waited for
    pass 1, to the next     end of iteration i       iteration i + 1, right after the same first pass, before scheduling
    pass 2, to the next     iteration i              iteration i, behind the conclusion that this rank applies itself
    inside a stage          at once                  at once
    statuses of the store   when they were received  the next time, before the next ones are received (6.4)

A wait is over when the peer has asked for the message. So a rank that would wait a step later schedules before the next
one has begun to vote, and one that would wait never keeps all its buffers until the end: no decision shows either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from ppsim.core import effects as fx
from ppsim.core.actions import Action, SendLast, SendMetadata
from ppsim.core.agreed import Local
from ppsim.core.config import RankConfig
from ppsim.core.consensus import KVPoll
from ppsim.core.loop import votes_of
from ppsim.core.messages import Conclusion, Lane, Message, NewRequest, Side, Vote
from ppsim.core.observations import FirstTokens, Receivers, Senders, Statuses
from ppsim.core.tokens import pack
from tests.interactions.ring import Event, Node, Payload, Ring, tape

ENDED_BY = {Senders: SendLast, Receivers: SendMetadata}


@dataclass
class VotingRing(Ring):
    """One side of disaggregation: a transfer is ready at once, and over when this rank has asked for its last part."""

    asked: set[tuple[int, type[Action], str]] = field(default_factory=set)

    def answer(self, node: Node, effect: fx.Effect) -> Any:
        match effect:
            case fx.Act(SendLast(rid) | SendMetadata(rid) as action):
                self.asked.add((node.rank_id, type(action), rid))
            case fx.Observe(Senders(rids) | Receivers(rids) as polled):
                over = [(node.rank_id, ENDED_BY[type(polled)], rid) in self.asked for rid in rids]
                states = tuple(int(KVPoll.SUCCESS if is_over else KVPoll.WAITING_FOR_INPUT) for is_over in over)
                return Local(states, node.rank_id, effect.iteration)
            case fx.Observe(Statuses(keys)):
                return Local((int(KVPoll.WAITING_FOR_INPUT),) * len(keys), node.rank_id, effect.iteration)
            case fx.Observe(FirstTokens(keys)):
                return Local((7,) * len(keys), node.rank_id, effect.iteration)
        return super().answer(node, effect)

    def launch(self, node: Node, effect: fx.Launch) -> Payload:
        return Payload((), (7,) * len(effect.batch.pieces) if node.rank.config.is_last else ())


@dataclass(frozen=True)
class Waited:
    """A send of a vote and the wait for it: iterations of the sender, and its effects before the wait."""

    message: Vote | Conclusion | Side
    sent_at: int
    waited_at: int
    before: list[Event]  # of the iteration of the wait

    @property
    def name(self) -> str:
        """Which vote it is about."""
        return "" if isinstance(self.message, Side) else self.message.name


def run(role: str, pp_size: int, depth: int, *, order: bytes = b"", **more: Any) -> VotingRing:
    config = RankConfig(
        0,
        pp_size,
        pp_async_batch_depth=depth,
        role=role,
        enable_radix_cache=role == "prefill",
        num_reserved_decode_tokens=4,
        **more,
    )
    requests = tuple(NewRequest(f"R{n}", pack([n] * 6), 3, ignore_eos=True) for n in range(4))
    inputs = {0: requests[:2], 3: requests[2:]}
    ring = VotingRing(config, inputs, order=tape(order))
    ring.run()
    assert ring.last_replies == {f"R{n}": "finished" for n in range(4)}
    return ring


def sends_of(ring: VotingRing, node: Node, kind: type[Vote | Conclusion | Side]) -> list[Waited]:
    """All sends of a kind by one rank, each with the wait for it."""
    mine = [e for e in ring.events if e.rank == node.rank_id]
    messages: dict[object, tuple[Message, int]] = {}
    found: list[Waited] = []
    for place, event in enumerate(mine):
        if isinstance(event.effect, fx.Send):
            messages[event.reply] = (event.effect.message, event.iteration)
        elif isinstance(event.effect, fx.Commit):
            message, sent_at = messages.pop(event.effect.work)
            if isinstance(message, kind):
                now = event.iteration
                before = [e for e in mine[:place] if e.iteration == now]
                found.append(Waited(message, sent_at, now, before))
    assert not messages, "a send is never waited for"
    return found


def took(events: list[Event], kind: type[Vote | Conclusion], name: str) -> list[int]:
    """Places of the events that take a message of a vote."""
    return [
        place
        for place, e in enumerate(events)
        if isinstance(e.effect, fx.Recv) and isinstance(e.reply, kind) and e.reply.name == name
    ]


CASES = [
    (role, pp_size, depth, variant)
    for role in ("prefill", "decode")
    for pp_size, depth in ((2, 0), (3, 0), (2, 2), (4, 1))
    for variant in (("store", "vote") if role == "prefill" else ("store",))
]


@pytest.mark.parametrize(("role", "pp_size", "depth", "bootstrap"), CASES)
def test_a_vote_is_waited_for_in_the_next_iteration_right_after_the_same_first_pass(
    role: str, pp_size: int, depth: int, bootstrap: str
) -> None:
    """protocol.md 3.1, second row; 1.7 steps 3 and 4, 1.8 step 2: nothing is scheduled before it."""
    ring = run(role, pp_size, depth, bootstrap_consensus=bootstrap)
    for node in ring.nodes[:-1]:
        names = votes_of(node.rank.config)
        waits = sends_of(ring, node, Vote)
        assert len(waits) == len(names) * (node.rank.iteration - pp_size + 2), "one a vote, until Shutdown"
        for wait in waits:
            assert wait.waited_at == wait.sent_at + 1
            assert not any(isinstance(e.effect, fx.Decided | fx.Launch) for e in wait.before)
            later = names[names.index(wait.name) + 1 :]
            assert not any(took(wait.before, Vote, name) for name in later), "the next first pass comes behind it"
            if not node.rank.config.is_first and wait.waited_at < node.rank.iteration - pp_size + 2:
                assert took(wait.before, Vote, wait.name) == [len(wait.before) - 1]


@pytest.mark.parametrize(("role", "pp_size", "depth", "bootstrap"), CASES)
def test_a_conclusion_is_waited_for_in_its_iteration_also_where_none_is_due_yet(
    role: str, pp_size: int, depth: int, bootstrap: str
) -> None:
    """protocol.md 3.1, third row; 1.7 steps 11 to 13, 1.8 steps 9 to 13. The last rank sends from iteration D on, and
    takes its own first one in L - 1: between them there is nothing to apply, and it waits all the same."""
    ring = run(role, pp_size, depth, bootstrap_consensus=bootstrap)
    num_early = num_late = 0
    for node in ring.nodes:
        names = votes_of(node.rank.config)
        for wait in sends_of(ring, node, Conclusion):
            if any(isinstance(e.effect, fx.Harvested) for e in wait.before):
                assert wait.waited_at == node.rank.iteration
                num_late += 1  # behind the last iteration: what the next rank still waits for
                continue
            assert wait.waited_at == wait.sent_at
            taken = took(wait.before, Conclusion, wait.name)
            is_early = wait.waited_at < pp_size + depth - 1
            num_early += is_early
            assert len(taken) == (0 if is_early else 1)
            later = names[names.index(wait.name) + 1 :]
            assert not any(took(wait.before, Conclusion, name) for name in later)
    num_votes = len(votes_of(ring.config))
    assert num_early == num_votes * (pp_size - 1), "of the last rank, from D to L - 2"
    assert num_late == num_votes * (pp_size - 1), "of all ranks but the last"


@pytest.mark.parametrize(("role", "pp_size"), [("prefill", 1), ("decode", 1), ("decode", 2)])
def test_what_a_replica_tells_its_leader_is_taken_at_once(role: str, pp_size: int) -> None:
    """Inside a stage the engine reduces, and a reduction ends together (protocol.md 3.1, CPU-blocking points)."""
    ring = run(role, pp_size, 0, tp_replicas=2)
    told = 0
    for node in ring.nodes:
        for wait in sends_of(ring, node, Vote):
            if wait.message.lane is Lane.TP:
                told += 1
                assert wait.waited_at == wait.sent_at
                assert isinstance(wait.before[-1].effect, fx.Send)
    votes = len(votes_of(ring.config)) * (ring.nodes[0].rank.iteration - pp_size + 2)
    assert told == votes * pp_size


def test_statuses_of_the_store_are_waited_for_before_the_next_ones_are_received() -> None:
    ring = run("prefill", 3, 0)
    for node in ring.nodes[:-1]:
        waits = sends_of(ring, node, Side)
        assert len(waits) > 1
        for wait, following in pairwise(waits):
            assert wait.waited_at == following.sent_at
            assert not any(isinstance(e.reply, Side) for e in wait.before)


def test_an_order_of_steps_changes_neither_decisions_nor_replies() -> None:
    """The waits bound how far a rank runs ahead; what it decides depends on what it has read (design decision 11)."""
    for role in ("prefill", "decode"):
        first = run(role, 3, 1)
        for order in (bytes([1]), bytes([2, 0, 1]), bytes(range(7))):
            other = run(role, 3, 1, order=order)
            assert [n.decisions for n in other.nodes] == [n.decisions for n in first.nodes]
            assert other.replies == first.replies
