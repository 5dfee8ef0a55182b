"""Under load each rank runs exactly one iteration behind the rank before it, and the last P-1 behind the first.

protocol.md 1.9: a rank ends its exchange of iteration i only after the rank before it has entered i + 1 (lower
coupling), and that rank cannot pass the commit of its request list before the next rank has asked for it (upper
coupling). Looked at with links and hosts that need a little time, so that no two of these instants are the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any

import pytest

from ppsim.core.effects import Decided, Recv
from ppsim.core.messages import Output
from ppsim.world.driver import SimulatedRank
from tests.worlds.making import MS, forward_starts, passed, requests


class Clocks:
    """Host time at which each rank is past the commit of its request list, and has its output, of each iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered: dict[int, list[int]] = defaultdict(list)
        self.exchanged: dict[int, dict[int, int]] = defaultdict(dict)
        receive, decided = SimulatedRank._recv, SimulatedRank._decided

        def watched_receive(rank: SimulatedRank, effect: Recv) -> Any:
            message = receive(rank, effect)
            if isinstance(message, Output):
                self.exchanged[rank.rank_id][rank.rank.iteration] = rank.now
            return message

        def watched_decided(rank: SimulatedRank, effect: Decided) -> None:
            self.entered[rank.rank_id].append(rank.now)
            decided(rank, effect)

        monkeypatch.setattr(SimulatedRank, "_recv", watched_receive)
        monkeypatch.setattr(SimulatedRank, "_decided", watched_decided)

    def iteration_at(self, rank: int, time_ns: int) -> int:
        """The iteration that a rank is in."""
        return bisect_right(self.entered[rank], time_ns) - 1


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("pp_size", [2, 3, 4, 6])
def test_a_rank_that_has_its_output_of_iteration_i_is_one_behind_the_rank_before_it(
    pp_size: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    num_slots, rounds = pp_size + depth, 8
    passed(
        {
            "cluster.pp_size": pp_size,
            "cluster.pp_async_batch_depth": depth,
            "workload.requests": requests(num_slots, output=rounds),
            "links.latency_us": 20.0,
            "host.schedule_us": 10.0,
            "host.process_us": 10.0,
        }
    )
    steady = range(2 * num_slots, (rounds - 1) * num_slots)
    for i in steady:
        for rank in range(1, pp_size):
            at = clocks.exchanged[rank][i]
            assert clocks.iteration_at(rank, at) == i
            assert clocks.iteration_at(rank - 1, at) == i + 1


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_stage_runs_iteration_i_while_the_stage_before_it_runs_i_plus_1(depth: int) -> None:
    recording = passed(
        {
            "cluster.pp_size": 4,
            "cluster.pp_async_batch_depth": depth,
            "workload.requests": requests(4 + depth, output=6),
        }
    )
    starts = [forward_starts(recording, rank) for rank in range(4)]
    last = max(starts[0])
    for rank in range(1, 4):
        assert all(starts[rank][i] == starts[rank - 1][i + 1] == starts[rank - 1][i] + MS for i in range(last))
    assert all(starts[3][i] == starts[0][i + 3] for i in range(last - 2))


@pytest.mark.parametrize(("commit", "bounded"), [("all", True), ("requests", True), ("none", False)])
def test_an_idle_first_rank_runs_ahead_without_bound_only_where_no_commit_waits(
    commit: str, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protocol.md 1.9: the bound comes from the commit of the request list; with buffered sends there is none."""
    ahead: list[int] = []
    decided = SimulatedRank._decided

    def watched(rank: SimulatedRank, effect: Decided) -> None:
        decided(rank, effect)
        if rank.rank_id == 0:
            ahead.append(rank.rank.iteration - rank.setting.ranks[1].rank.iteration)

    monkeypatch.setattr(SimulatedRank, "_decided", watched)
    passed({"links.commit": commit, "workload.requests": [{"rid": "R1", "at_iteration": 200, "prompt": 4}]})
    assert (max(ahead[:200]) <= 2) is bounded
    assert (max(ahead[:200]) > 100) is not bounded
