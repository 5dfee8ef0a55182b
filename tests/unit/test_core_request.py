"""A request's life: the table against a drawing of it, pair by pair, and what a refused event may not touch."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ppsim.core.errors import TransitionError
from ppsim.core.messages import NewRequest
from ppsim.core.schedule.request import TABLE, TERMINAL, Event, Request, State
from ppsim.core.tokens import pack

# One line a state: what may happen there, and where it leads. Read from protocol.md 4 (plain), 6.5 (prefill role), 6.6
# (decode role), 6.2 (grammar) and 7.4 (abort). What is not drawn must be refused.
DRAWING = """
arrived    accept>waiting refuse>refused compile>grammar bootstrap>bootstrap prealloc>prealloc
grammar    grammar_ready>waiting bootstrap>bootstrap prealloc>prealloc grammar_failed>aborted abort>aborted
waiting    launch_chunk>prefill join>decode finish>finished abort>aborted fail>aborted
prefill    launch_chunk>prefill middle_chunk>prefill discard>prefill first_token>decode drain>inflight abort>aborted
decode     launch_decode>decode token>decode discard>decode retract>waiting put_out>retracted computed>inflight
decode     finish>finished abort>aborted
bootstrap  bootstrapped>waiting abort>aborted fail>aborted
inflight   finish>finished abort>aborted fail>aborted
prealloc   allocated>transfer abort>aborted fail>aborted
transfer   transferred>waiting abort>aborted fail>aborted
retracted  resume>waiting abort>aborted
finished
aborted
refused
"""


def drawn() -> dict[tuple[State, Event], State]:
    arrows = {}
    for line in DRAWING.split("\n"):
        for arrow in line.split()[1:]:
            event, after = arrow.split(">")
            arrows[State(line.split()[0]), Event(event)] = State(after)
    return arrows


def fields(request: Request) -> dict[str, object]:
    return {f.name: repr(getattr(request, f.name)) for f in dataclasses.fields(request)}


def some_request(state: State) -> Request:
    request = Request(NewRequest("R7", pack([1, 2, 3]), 4), state=state)
    request.output_ids, request.pages, request.kv_len, request.req_slot = [5], [2, 3], 3, 1
    return request


@pytest.mark.parametrize("event", list(Event), ids=lambda e: str(e.value))
@pytest.mark.parametrize("state", list(State), ids=lambda s: str(s.value))
def test_every_pair_moves_as_drawn_or_raises_and_leaves_the_request_untouched(state: State, event: Event) -> None:
    request = some_request(state)
    before = fields(request)
    after = drawn().get((state, event))
    if after is None:
        with pytest.raises(TransitionError, match=f"R7: event '{event.value}' is not allowed in state '{state.value}'"):
            request.on(event)
        assert fields(request) == before
    else:
        request.on(event)
        changed = {name for name, value in fields(request).items() if value != before[name]}
        assert request.state is after
        assert changed <= {"state"}


def reachable(start: State) -> set[State]:
    seen, edge = {start}, [start]
    while edge:
        state = edge.pop()
        for (before, _), after in TABLE.items():
            if before is state and after not in seen:
                seen.add(after)
                edge.append(after)
    return seen


def test_every_state_can_be_reached_and_every_life_can_end() -> None:
    assert reachable(State.ARRIVED) == set(State)
    for state in State:
        assert reachable(state) & set(TERMINAL)
        assert (reachable(state) == {state}) == (state in TERMINAL), "terminal states have no way out, others have"
        assert some_request(state).is_terminal == (state in TERMINAL)


def test_an_abort_is_possible_in_every_state_between_arrival_and_end() -> None:
    for state in State:
        if state is not State.ARRIVED and state not in TERMINAL:
            assert TABLE[state, Event.ABORT] is State.ABORTED


TOKEN = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(TOKEN, max_size=6), st.lists(TOKEN, max_size=6), st.integers(0, 12), st.integers(0, 12))
def test_tokens_and_input_ids_are_cut_out_of_prompt_and_output(
    prompt: list[int], output: list[int], start: int, stop: int
) -> None:
    request = Request(NewRequest("R", pack(prompt), 9))
    request.output_ids = list(output)
    everything = prompt + output
    assert request.seq_len == len(everything)
    assert request.tokens(stop) == pack(everything[:stop])
    if start <= stop <= len(everything):
        assert request.input_ids(start, stop) == everything[start:stop]


@pytest.mark.parametrize(
    ("output", "ignore_eos", "expected"),
    [([4], False, ""), ([9], False, "stop"), ([9], True, ""), ([4, 4, 4], False, "length"), ([4, 4, 9], False, "stop")],
)
def test_a_stop_token_ends_a_request_before_its_length_does(output: list[int], ignore_eos: bool, expected: str) -> None:
    request = Request(NewRequest("R", pack([1]), 3, (8, 9), ignore_eos=ignore_eos))
    request.output_ids = output
    assert request.hits_stop() == expected
