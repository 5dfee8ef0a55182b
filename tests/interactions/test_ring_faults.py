"""A message that is lost, doubled, late or of the wrong size: the receiver stops at once and names the sender.

A pair of neighbours is watched, as h11 tests its two sides: one link is tampered with, everything else is right. No
outcome may be silent: an error at the receiving rank, or a standstill in which that rank waits for the sender, or
(where nothing was to be received any more) a message left over on that very link.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, assume, given, settings

from ppsim.core import effects as fx
from ppsim.core.config import RankConfig
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Hidden, Input, Message, Meta, NewRequest, Output
from tests.interactions.experiment import request
from tests.interactions.ring import Node, Ring, Stuck, expected_stream, tape
from tests.interactions.settings import num_examples

INPUTS: dict[int, tuple[Input, ...]] = {
    0: (request("R1", [1] * 20, 6), request("R2", [2] * 5, 9)),
    4: (request("R3", [1] * 12 + [3] * 9, 4),),
}
PIPELINE = RankConfig(0, 4, chunked_prefill_size=8)


class Tamper:
    """Does ``what`` to the ``number``-th message of a kind that leaves ``src``."""

    def __init__(self, what: str, kind: type, src: int, number: int) -> None:
        self.what, self.kind, self.src, self.number = what, kind, src, number
        self.seen = 0
        self.hit: Message | None = None
        self.dst = -1

    def __call__(self, src: int, dst: int, message: Message) -> list[Message]:
        if src != self.src or not isinstance(message, self.kind):
            return [message]
        self.seen += 1
        if self.seen == self.number + 1:
            self.hit, self.dst = message, dst
            return [message, message] if self.what == "double" else []
        if self.seen == self.number + 2 and self.what == "swap":
            assert self.hit is not None
            return [message, self.hit]
        return [message]


def outcome(ring: Ring, tamper: Tamper) -> tuple[str, int, int]:
    """Run until it stops: (what happened, rank that noticed, rank that it points at)."""
    try:
        ring.run()
    except ProtocolError as error:
        text = error.blame.split(",")[0]
        blamed = int(text.split()[1])
        return text.replace(f"rank {blamed} ", ""), error.rank, blamed
    except Stuck as stuck:
        effect = {rank: effect for rank, _, effect in stuck.waits}[tamper.dst]
        assert isinstance(effect, fx.Recv)
        return "waits", tamper.dst, effect.src
    assert tamper.hit is not None
    queue = ring.queues[tamper.src, tamper.dst, tamper.hit.lane]
    inbox = ring.nodes[tamper.dst].rank.link.inbox_size
    assert len(queue) + inbox == 1, "the message is nowhere and nobody noticed"
    return "left over", tamper.dst, tamper.src


EXPECTED = {
    "drop": {"left a message out", "waits"},
    "double": {"sent a message too many", "left over"},
    "swap": {"left a message out", "waits"},
}


@cache
def num_sent(src: int, kind: type, depth: int) -> int:
    """Messages of the kind that leave the rank in a run without faults."""
    ring = Ring(replace(PIPELINE, pp_async_batch_depth=depth), INPUTS).run()
    return sum(isinstance(m, kind) for (sender, _, _), queue in ring.sent.items() if sender == src for m in queue)


@pytest.mark.parametrize("what", list(EXPECTED))
@pytest.mark.parametrize("kind", [Meta, Hidden, Output], ids=lambda k: str(k.__name__).lower())
def test_the_receiver_of_a_tampered_message_names_its_sender(what: str, kind: type) -> None:
    seen: set[str] = set()

    @settings(
        max_examples=num_examples(25),
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.filter_too_much],
    )
    @given(st.integers(0, 3), st.integers(0, 30), st.integers(0, 2), st.binary(max_size=8), st.booleans())
    def check(src: int, number: int, depth: int, order: bytes, commits_wait: bool) -> None:
        assume(num_sent(src, kind, depth) > number + (what == "swap"))
        tamper = Tamper(what, kind, src, number)
        ring = Ring(replace(PIPELINE, pp_async_batch_depth=depth), INPUTS, tape(order), tamper=tamper)
        ring.commits_wait = commits_wait
        text, noticed, blamed = outcome(ring, tamper)
        assert (noticed, blamed) == (tamper.dst, src)
        assert text in EXPECTED[what]
        seen.add(text)

    check()
    assert seen - {"left over"}


@pytest.mark.parametrize(
    ("kind", "invariant", "text"),
    [(Hidden, "INV-32", "expected hidden states with"), (Output, "INV-34", "expected output with")],
    ids=["hidden", "output"],
)
def test_a_wrong_size_means_that_the_sender_has_scheduled_another_batch(kind: type, invariant: str, text: str) -> None:
    def tamper(src: int, dst: int, message: Message) -> list[Message]:
        if src == 1 and message.iteration == 3:
            if isinstance(message, Hidden) and kind is Hidden:
                return [replace(message, num_tokens=message.num_tokens + 1)]
            if isinstance(message, Output) and kind is Output:
                return [replace(message, num_rows=message.num_rows + 1)]
        return [message]

    with pytest.raises(ProtocolError, match=text) as caught:
        Ring(PIPELINE, INPUTS, tamper=tamper).run()
    assert (caught.value.rank, caught.value.invariant) == (2, invariant)
    assert caught.value.blame == "rank 1 scheduled another batch"


def test_a_rank_that_gets_another_request_list_decides_otherwise_in_that_very_iteration() -> None:
    """INV-01: from rank 2 on the list of iteration 4 is empty."""

    def tamper(src: int, dst: int, message: Message) -> list[Message]:
        if src == 1 and isinstance(message, Meta) and message.iteration == 4:
            return [replace(message, inputs=())]
        return [message]

    ring = Ring(PIPELINE, INPUTS, tamper=tamper)
    with pytest.raises((ProtocolError, Stuck)):
        ring.run()
    decided = [{d.iteration: d.state_digest for d in node.decisions} for node in ring.nodes]
    assert decided[0].keys() >= {0, 1, 2, 3, 4}
    for k, states in enumerate(decided):
        same = [i for i in states if states[i] == decided[0].get(i)]
        assert (4 in same) == (k < 2)
        assert {0, 1, 2, 3} <= set(same)


def test_the_inbox_keeps_kinds_apart_where_two_kinds_share_a_lane() -> None:
    """bugs.md B54: hidden states that come behind an output are found by their kind, and the text is right."""
    held: list[Message] = []

    def late(src: int, dst: int, message: Message) -> list[Message]:
        """The hidden states of iteration 6 stay behind the output that rank 0 sends next."""
        if src == 0 and isinstance(message, Hidden) and message.iteration == 6:
            held.append(message)
            return []
        if src == 0 and isinstance(message, Output) and held:
            return [message, held.pop()]
        return [message]

    sizes: set[int] = set()

    def watch(ring: Ring, node: Node, effect: fx.Effect) -> None:
        sizes.add(ring.nodes[1].rank.link.inbox_size)

    ring = Ring(replace(PIPELINE, pp_size=2, pp_async_batch_depth=2), INPUTS, tamper=late, watch=watch)
    ring.commits_wait = False
    ring.run()
    assert sizes == {0, 1}, "one output was put aside for a while"
    specs = [spec for inputs in INPUTS.values() for spec in inputs if isinstance(spec, NewRequest)]
    assert ring.streams == {spec.rid: expected_stream(spec) for spec in specs}
