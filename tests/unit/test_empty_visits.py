"""Jumping over visits of empty slots leaves a rank as making them one by one does (``ppsim.core.empty_visits``).

The oracle is the loop itself: one rank is driven through every visit, a second one jumps wherever it may.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.core import effects as fx
from ppsim.core.agreed import Local
from ppsim.core.config import RankConfig
from ppsim.core.effects import Decision, Harvest
from ppsim.core.empty_visits import num_empty_visits, pass_empty_visits
from ppsim.core.loop import event_loop_pp
from ppsim.core.messages import AbortReq, Input, Kind, NewRequest, Output, Shutdown, Start
from ppsim.core.parts import build_rank
from ppsim.core.policy import Policy
from ppsim.core.rank import Rank
from ppsim.core.schedule.scheduler import state_parts
from ppsim.core.start import fingerprint
from ppsim.core.tokens import pack

CAPACITY = 400
Inputs = dict[int, tuple[Input, ...]]


class Driven:
    """A first rank, everybody around it played: what it waits for comes at once, tokens are all 7."""

    def __init__(self, config: RankConfig, inputs: Inputs, policy: Policy | None = None) -> None:
        self.rank = build_rank(config, policy=policy)
        self.inputs = inputs
        self.loop = event_loop_pp(self.rank)
        self.records: list[tuple[Decision, Harvest]] = []
        self.jumped = 0
        self.rows: dict[int, tuple[int, int]] = {}
        self.decision: Decision | None = None
        self.effect: Any = self.loop.send(None)

    def run_until(self, iteration: int, *, jump: bool) -> Rank:
        """To the beginning of an iteration."""
        while True:
            begins = isinstance(self.effect, fx.Ingest)
            while begins and jump and self.jump(iteration):
                pass
            if begins and self.rank.iteration >= iteration:
                return self.rank
            self.effect = self.loop.send(self.reply(self.effect))

    def jump(self, until: int) -> int:
        """Over visits that are empty and have no input; how many."""
        at = self.rank.iteration
        num = min(num_empty_visits(self.rank), until - at)
        with_input = [n for n in range(num) if self.inputs.get(at + n)]
        num = with_input[0] if with_input else num
        self.records += pass_empty_visits(self.rank, num)
        self.jumped += num
        return num

    def reply(self, effect: Any) -> Any:
        rank = self.rank
        match effect:
            case fx.Ingest():
                return self.inputs.get(rank.iteration, ())
            case fx.Observe():
                return Local((CAPACITY,), rank.link.rank_id, effect.iteration)
            case fx.Recv(src, _, kind, iteration, slot):
                return self.message(src, kind, iteration, slot)
            case fx.Launch(batch):
                assert rank.batch is not None
                self.rows[batch.iteration] = (len(batch.pieces), rank.batch.num_logprobs)
                return "payload"
            case fx.AwaitTokens(output):
                return (7,) * output.num_rows
            case fx.Decided(decision):
                self.decision = decision
            case fx.Harvested(harvest):
                assert self.decision is not None
                self.records.append((self.decision, harvest))
        return 0

    def message(self, src: int, kind: Any, iteration: Any, slot: Any) -> Any:
        rank = self.rank
        if kind is Kind.START:
            return Start(src, CAPACITY, fingerprint(rank.config))
        return Output(src, iteration, slot, self.rows[iteration][0], None, self.rows[iteration][1])


def state(rank: Rank) -> tuple[object, ...]:
    """All that a rank keeps from one iteration to the next, but for the handles of its sends."""
    s = rank.scheduler
    slots = tuple(
        (x.batch_is_full, x.launched is None, x.last_batch is None, x.in_flight, x.closed_since, x.num_prefills)
        for x in s.slots.slots
    )
    batch = None if rank.batch is None else rank.batch.forward
    mine = (rank.iteration, rank.sweep_had_batch, rank.pp_outputs, rank.inputs, batch, rank.received, rank.hidden)
    counts = (s.iteration, s.decode_turns, s.num_chunks, s.ratio.value, s.journal.entries)
    tensors = (rank.send_proxy_work, rank.send_output_work, len(rank.last_rank_comm_queue))
    return (mine, counts, slots, tensors, state_parts(s, rank.iteration - 1))


@st.composite
def setups(draw: st.DrawFn) -> tuple[RankConfig, Inputs, int]:
    """A first rank, requests and aborts with gaps between them, and how far to go."""
    pp_size = draw(st.integers(1, 4))
    config = RankConfig(
        0,
        pp_size,
        layers=(1,) * pp_size,
        pp_async_batch_depth=draw(st.integers(0, 2)),
        chunked_prefill_size=8,
        max_running_requests=8,
        max_micro_batch_size=draw(st.integers(1, 3)),
        prefill_decode_interval=draw(st.integers(0, 3)),
        max_consecutive_prefills=draw(st.integers(0, 2)),
        reopen_empty_slots=draw(st.booleans()),
        defer_empty_visits=draw(st.booleans()),
        skip_pure_chunk_output=draw(st.booleans()),
        hidden_after_launch=draw(st.booleans()),
    )
    inputs: Inputs = {}
    at = 0
    for n in range(draw(st.integers(1, 4))):
        at += draw(st.integers(0, 25))
        prompt = pack(range(4, 4 + draw(st.integers(1, 30))))
        inputs[at] = (*inputs.get(at, ()), NewRequest(f"R{n}", prompt, draw(st.integers(1, 4)), ignore_eos=True))
        if draw(st.booleans()):
            late = at + draw(st.integers(0, 12))
            inputs[late] = (*inputs.get(late, ()), AbortReq(f"R{n}"))
    return config, inputs, at + 30


@given(setups())
@settings(max_examples=60, deadline=None)
def test_jumping_is_visiting_one_by_one(setup: tuple[RankConfig, Inputs, int]) -> None:
    config, inputs, end = setup
    by_steps, by_jumps = Driven(config, inputs), Driven(config, inputs)
    for until in (*sorted(inputs), end // 2, end):  # also in the middle of a jump
        if until < by_steps.rank.iteration:
            continue
        one, other = by_steps.run_until(until, jump=False), by_jumps.run_until(until, jump=True)
        assert by_jumps.records == by_steps.records
        # The last send of hidden states or outputs is committed in the visit behind it: a jump has done it already.
        assert state(one)[:3] == state(other)[:3]
        assert state(one)[4] == state(other)[4]


def test_a_quiet_rank_is_jumped_over() -> None:
    """One request of two tokens on four stages: its two launches, their harvests, and the visit behind each in which
    the first rank passes the output on. All others can be jumped over."""
    request = NewRequest("R1", pack((4, 5)), 2, ignore_eos=True)
    driven = Driven(RankConfig(0, 4, layers=(1,) * 4), {0: (request,)})
    driven.run_until(40, jump=True)
    assert len(driven.records) == 40
    assert driven.jumped == 40 - 5  # 0, 3, 4 (launch and passing on), 7, 8
    assert [d.mode for d, _ in driven.records if d.mode != "empty"] == ["extend", "decode"]


def test_a_jump_ends_before_the_slot_that_runs_somebody_and_before_a_harvest() -> None:
    """On four stages a request is launched in visits 0 and 4 and harvested in 3 and 7; 1, 2, 5 and 6 are empty."""
    request = NewRequest("R1", pack((4, 5)), 5, ignore_eos=True)
    driven = Driven(RankConfig(0, 4, layers=(1,) * 4), {0: (request,)})
    found = []
    for iteration in range(8):
        driven.run_until(iteration, jump=False)
        found.append(num_empty_visits(driven.rank) if driven.rank.started is not None and iteration else 0)
    assert found == [0, 2, 1, 0, 0, 2, 1, 0]


class Own(Policy):
    """Somebody's own policy, which wants to be asked at every visit."""


def test_a_policy_of_ones_own_is_asked_at_every_visit() -> None:
    config, inputs = RankConfig(0, 2, layers=(1, 1)), {0: (NewRequest("R1", pack((4,)), 1, ignore_eos=True),)}
    for policy, may in ((None, True), (Own(), False)):
        rank = Driven(config, inputs, policy).run_until(12, jump=False)
        assert bool(num_empty_visits(rank)) is may


@pytest.mark.parametrize("full", [False, True])
def test_a_closed_slot_is_visited_for_its_record_says_so(full: bool) -> None:
    rank = Driven(RankConfig(0, 3, layers=(1,) * 3), {}).run_until(6, jump=False)
    rank.scheduler.slots.current(7).batch_is_full = full
    assert num_empty_visits(rank) == (1 if full else 3)


def test_shutdown_is_read_behind_a_jump() -> None:
    driven = Driven(RankConfig(0, 3, layers=(1,) * 3), {9: (Shutdown(),)})
    rank = driven.run_until(9, jump=True)
    assert driven.jumped
    with pytest.raises(StopIteration):
        driven.run_until(10, jump=True)
    assert rank.stopped
