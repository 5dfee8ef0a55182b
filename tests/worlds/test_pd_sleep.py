"""A first rank that sleeps where looking again cannot help: only the number of visits tells.

Without the sleep a rank visits its slots every few microseconds for as long as a transfer lasts, and a simulation of
seconds of waiting would take minutes.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.world import SimulationResult
from ppsim.world.pair.rank import Nap
from tests.worlds.pd_making import at, ended_at, ends, pair, passed_pair, prefill_of

CASES: list[dict[str, Any]] = [
    {"cluster.pp_size": 1, "disaggregation.bootstrap": "vote"},
    {"cluster.pp_size": 2, "disaggregation.control_latency_us": 500.0},
    {"cluster.pp_size": 3, "disaggregation.decode_pp_size": 1, "disaggregation.bootstrap": "vote"},
    {"cluster.pp_size": 2, "disaggregation.receive_timeout_ms": 9.0},
    {"cluster.pp_size": 2, "timeouts.waiting_ms": 7},
    {"cluster.pp_size": 2, "disaggregation.store_lag_us": 3000.0},
]


def replies(result: SimulationResult) -> tuple[list[tuple[object, ...]], list[int]]:
    """What was answered, by side and request, and when."""
    sides = (result.recording, prefill_of(result))
    found = [r for side in sides for r in sorted(side.replies, key=lambda r: (r.rid, r.time_ns))]
    return [(r.rid, r.status, r.token_ids, r.reason) for r in found], [r.time_ns for r in found]


@pytest.mark.parametrize("case", CASES)
def test_sleeping_changes_no_reply_and_no_instant_by_more_than_a_few_visits(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        **case,
        "disaggregation.kv_bandwidth_gb_per_s": 0.2,
        "workload.requests": [at(0, 17, 3, "R1"), at(4.3, 9, 2, "R2"), at(5, 20, 4, "R3")],
        "workload.aborts": [{"rid": "R3", "at_ms": 8.123, "side": "decode"}],
    }
    sleeping = passed_pair(changes)
    monkeypatch.setattr(Nap, "_may_sleep", lambda self: False)
    awake = passed_pair(changes)
    (what, when), (what_awake, when_awake) = replies(sleeping), replies(awake)
    assert what == what_awake
    assert max(abs(a - b) for a, b in zip(when, when_awake, strict=True)) <= 6 * 10_000  # six visits of 10 us
    visits = [len(r.decisions[0]) + len(prefill_of(s).decisions[0]) for s in (sleeping, awake) for r in [s.recording]]
    assert visits[0] < visits[1] / 4


def test_a_wait_of_half_a_minute_costs_a_few_visits() -> None:
    lost = [{"rid": "R1", "rank": 0, "what": "lost"}]
    result = passed_pair({"disaggregation.kv_faults": lost, "workload.requests": [at(0, 8), at(31_000, 8, rid="R2")]})
    assert ended_at(prefill_of(result), "R1") > 30_000_000_000
    assert ends(result.recording)["R2"] == [("finished", "length")]
    assert len(result.recording.decisions[0]) + len(prefill_of(result).decisions[0]) < 400


def test_the_watchdog_does_not_take_a_sleeping_rank_for_a_stuck_one() -> None:
    changes = {
        "run.watchdog_ms": 20.0,
        "disaggregation.kv_bandwidth_gb_per_s": 0.002,
        "workload.requests": [at(0, 8)],
    }
    assert passed_pair(changes).recording.replies[0].time_ns > 100_000_000
    paused = pair({**changes, "faults.pauses": [{"rank": 1, "at_iteration": 6}]})
    assert paused.verdict.kind == "fail"
    assert "prefill side: watchdog: no progress for 20 ms" in paused.verdict.message


def test_news_of_the_store_is_not_missed_between_the_last_look_and_the_sleep() -> None:
    """Whatever the lag, by steps of a quarter of a visit: the prompt is served."""
    changes = {"host.schedule_us": 20.0, "disaggregation.decode_pp_size": 1, "workload.requests": [at(0, 8, 2, "R1")]}
    for lag_us in range(100, 300, 5):
        result = passed_pair({**changes, "disaggregation.store_lag_us": float(lag_us)})
        assert ends(result.recording)["R1"] == [("finished", "length")], lag_us
