"""Since when a request runs and waits: first forward entry; each time it comes back to a queue (protocol.md 7.3)."""

from __future__ import annotations

import pytest

from ppsim.core import effects as fx
from ppsim.core.agreed import Local, agree
from ppsim.core.config import RankConfig
from ppsim.core.messages import AbortReq, NewRequest
from ppsim.core.parts import build_rank
from ppsim.core.rank import Rank
from ppsim.core.schedule.request import State
from ppsim.core.timeouts import expired, last_moment_ms
from ppsim.core.tokens import pack


def rank_with(waiting_ms: int = 0, running_ms: int = 0) -> Rank:
    rank = build_rank(RankConfig(0, 1, waiting_timeout_ms=waiting_ms, running_timeout_ms=running_ms))
    rank.start(agree(1000, "test"))
    rank.scheduler.apply([NewRequest("R", pack([1, 2]), 9)])
    return rank


def look(rank: Rank, now_ms: int, state: State) -> list[str]:
    """Reasons of the aborts at this time of the clock, the request being in this state."""
    rank.scheduler.requests["R"].state = state
    loop = expired(rank)
    try:
        assert isinstance(next(loop), fx.Observe)
        loop.send(Local((now_ms,), 0, 0))
    except StopIteration as end:
        found: tuple[AbortReq, ...] = end.value
        return [item.reason for item in found]
    raise AssertionError("it looks at the clock once")


def test_the_running_limit_goes_on_across_a_retraction() -> None:
    """The engine stamps a request when it first enters a forward pass and never again: the limit is what the client
    grants the whole answer. A clock that began anew would never end a request that is put out again and again."""
    rank = rank_with(running_ms=100)
    assert look(rank, 0, State.WAITING) == []
    assert look(rank, 10, State.PREFILL) == []
    assert look(rank, 60, State.WAITING) == [], "retracted: no limit holds for it while it waits"
    assert look(rank, 110, State.PREFILL) == [], "at the limit is not beyond it"
    assert last_moment_ms(rank, rank.scheduler.requests["R"]) == 110
    assert look(rank, 111, State.DECODE) == ["running for more than 100 ms"]


def test_the_waiting_limit_begins_anew_when_a_request_waits_again() -> None:
    """It bounds how long a request stands in a queue (entry time of the queue), not how long it has not run."""
    rank = rank_with(waiting_ms=100)
    assert look(rank, 0, State.WAITING) == []
    assert look(rank, 90, State.DECODE) == []
    assert look(rank, 150, State.WAITING) == []
    assert look(rank, 250, State.WAITING) == []
    assert look(rank, 251, State.WAITING) == ["waiting for more than 100 ms"]


@pytest.mark.parametrize("limits", [{"waiting_ms": 100}, {"running_ms": 100}])
def test_who_is_marked_for_abort_is_not_aborted_again(limits: dict[str, int]) -> None:
    rank = rank_with(**limits)
    state = State.WAITING if "waiting_ms" in limits else State.DECODE
    look(rank, 0, state)
    rank.scheduler.requests["R"].to_abort = "client left"
    assert look(rank, 1000, state) == []


def test_an_id_that_comes_again_has_a_clock_of_its_own() -> None:
    rank = rank_with(running_ms=100)
    look(rank, 0, State.DECODE)
    del rank.scheduler.requests["R"]
    rank.scheduler.iteration = 7
    rank.scheduler.apply([NewRequest("R", pack([1, 2]), 9)])
    assert look(rank, 150, State.DECODE) == []
    assert look(rank, 251, State.DECODE) == ["running for more than 100 ms"]
