"""What the first rank reads, and when."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.client import GaveUp, LiveClient, ReplayClient
from ppsim.core.messages import NewRequest, Shutdown
from ppsim.workload import Arrival


class Clock:
    """Stands still, except where somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.slept: list[int] = []

    def sleep(self, ns: int) -> None:
        self.slept.append(ns)
        self.now_ns += ns


def arrival(rid: str, *, at_ns: int | None = None, at_iteration: int | None = None) -> Arrival:
    return Arrival(NewRequest(rid, b"\0\0\0\0", 1), at_ns, at_iteration, 1)


def client(clock: Clock, *arrivals: Arrival, max_iterations: int = 0) -> LiveClient:
    return LiveClient(arrivals, lambda: clock.now_ns, clock.sleep, max_iterations)


def rids(inputs: tuple[object, ...]) -> list[str]:
    return [item.rid if isinstance(item, NewRequest) else type(item).__name__ for item in inputs]


def test_a_busy_rank_never_waits_and_an_idle_one_sleeps_until_the_next_arrival() -> None:
    clock = Clock()
    live = client(clock, arrival("a", at_ns=0), arrival("b", at_ns=500), arrival("c", at_ns=500))
    assert rids(live.ingest(0, True)) == ["a"]
    assert rids(live.ingest(1, False)) == []
    assert clock.slept == []
    assert rids(live.ingest(2, True)) == ["b", "c"]
    assert clock.slept == [500]
    assert rids(live.ingest(3, False)) == []  # b and c are still being worked on
    assert rids(live.ingest(4, True)) == ["Shutdown"]


def test_a_request_that_names_an_iteration_is_read_there_however_idle_the_rank_is() -> None:
    clock = Clock()
    live = client(clock, arrival("a", at_iteration=2), arrival("late", at_ns=900))
    assert [rids(live.ingest(i, True)) for i in range(4)] == [[], [], ["a"], ["late"]]
    assert clock.slept == [900]


def test_the_limit_of_iterations_ends_the_run() -> None:
    live = client(Clock(), arrival("a", at_iteration=9), max_iterations=3)
    assert [live.ingest(i, False) for i in range(3)] == [(), (), ()]
    with pytest.raises(GaveUp, match=r"^stopped at run.max_iterations = 3$"):
        live.ingest(3, False)


def test_a_replay_delivers_what_was_recorded_and_ends_where_the_record_ends() -> None:
    a = NewRequest("a", b"\0\0\0\0", 1)
    open_end = ReplayClient({3: (a,)})
    assert [rids(open_end.ingest(i, True)) for i in range(5)] == [[], [], [], ["a"], ["Shutdown"]]
    assert rids(open_end.ingest(5, False)) == []
    recorded_end = ReplayClient({1: (a,), 6: (Shutdown(),)})
    assert [rids(recorded_end.ingest(i, True)) for i in (1, 2, 5, 6)] == [["a"], [], [], ["Shutdown"]]
