"""Law: counts over time are those of the records, and their means and peaks over pixels those of the counts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ppsim.core.effects import Reply
from ppsim.core.messages import NewRequest
from ppsim.core.tokens import pack
from ppsim.recording import Recording
from ppsim.recording.summary import request_lives
from ppsim.report.series import Series, kv_use, maxima, means, request_counts, total
from ppsim.report.window import Window
from tests.unit.handmade import S, decision, harvest, two_requests
from tests.worlds.making import requests, run


def at(series: Series, time: int) -> int:
    """The value that holds at an instant."""
    value = 0
    for start, height in zip(series.times, series.values, strict=True):
        if start <= time:
            value = height
    return value


def test_a_request_waits_runs_waits_again_when_it_is_retracted_and_is_gone_with_its_reply() -> None:
    r = Recording(1)
    r.ingested(0, (NewRequest("a", pack([1]), 4), NewRequest("b", pack([1]), 4)), 1)
    r.visits[0] = [2, 10, 20, 30, 40]
    for i, pieces in enumerate([[("a", 0, 1)], [("a", 1, 1), ("b", 0, 1)], [("a", 2, 1)], [("b", 1, 1)], []]):
        r.decision(0, decision(i, 0, *pieces)._replace(retracted=("b",) if i == 2 else ()))
    r.reply(25, Reply("a", "finished", (7,), 1))
    r.reply(35, Reply("b", "aborted"))
    waiting, running = request_counts(r)
    seen = {t: (at(waiting, t), at(running, t)) for t in (0, 1, 2, 9, 10, 20, 25, 30, 35)}
    assert seen == {
        0: (0, 0),
        1: (2, 0),
        2: (1, 1),
        9: (1, 1),
        10: (0, 2),
        20: (1, 1),
        25: (1, 0),
        30: (0, 1),
        35: (0, 0),
    }


def test_a_second_request_of_the_same_name_is_the_one_that_is_refused() -> None:
    r = Recording(1)
    r.ingested(0, (NewRequest("a", pack([1]), 4),), 0)
    r.visits[0] = [1, 2]
    r.decision(0, decision(0, 0, ("a", 0, 1)))
    r.ingested(1, (NewRequest("a", pack([1]), 4),), 5)
    r.reply(6, Reply("a", "refused"))
    r.reply(9, Reply("a", "finished", (7,), 1))
    waiting, running = request_counts(r)
    assert [(t, at(waiting, t), at(running, t)) for t in (5, 6, 8, 9)] == [(5, 1, 1), (6, 0, 1), (8, 0, 1), (9, 0, 0)]


def test_without_times_of_decisions_those_of_the_forward_passes_hold() -> None:
    waiting, running = request_counts(two_requests())
    assert [at(running, t) for t in (S, 2 * S, 3 * S, 9 * S, 10 * S)] == [0, 1, 1, 1, 0]
    assert [at(waiting, t) for t in (S, 3 * S // 2, 2 * S, 4 * S)] == [0, 1, 1, 0]  # b has no pass, and is aborted


@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_was_read_and_has_not_ended_waits_or_runs(seed: int) -> None:
    changes = {
        "seed": seed,
        "workload.requests": [{**r, "at_ms": 3.7 * i} for i, r in enumerate(requests(17, prompt=9, output=12))],
        "scheduler.max_total_tokens": 64,
        "cluster.pp_size": 3,
    }
    recording = run(changes).recording
    both = total(*request_counts(recording))
    lives = request_lives(recording)
    times = sorted({t for life in lives for t in (life.read_ns, life.ended_ns) if t is not None})
    for time in times:
        there = [life for life in lives if life.read_ns is not None and life.read_ns <= time]
        assert at(both, time) == sum(life.ended_ns is None or life.ended_ns > time for life in there)
    assert max(both.values) > 1
    assert both.values[-1] == 0


def test_kv_is_the_pool_without_what_is_free_or_cached() -> None:
    r = Recording(1)
    r.visits[0] = [0, 10, 20]
    for i, (free, evictable) in enumerate([(100, 0), (60, 10), (40, 50)]):
        r.harvest(0, harvest(i, 0, None, free=free)._replace(evictable_tokens=evictable))
    use = kv_use(r, 0)
    assert use.pool == max(100, 70, 90)
    assert [(at(use.in_use, t), at(use.cached, t)) for t in (10, 20)] == [(0, 0), (10, 50)]


def test_the_pool_of_a_run_that_was_never_empty_is_what_the_ranks_said() -> None:
    """Three ranks hold 130, 107 and 200 tokens, pages of 4: the pool is 104, and 24 are held when 80 are free."""
    r = Recording(3)
    for rank, tokens in enumerate((130, 107, 200)):
        r.observed(rank, 0, "capacity", (), (tokens,))
    r.visits[0] = [0, 10, 20]
    for i, (free, evictable) in enumerate([(80, 0), (60, 4)]):
        r.harvest(0, harvest(i, 0, None, free=free)._replace(evictable_tokens=evictable))
    use = kv_use(r, 0)
    assert use.pool == 104
    assert [at(use.in_use, time) for time in (10, 20)] == [24, 40]


@pytest.mark.parametrize("num_columns", [1, 7, 40])
@pytest.mark.parametrize("seed", range(6))
def test_means_and_peaks_over_pixels_are_those_of_every_nanosecond(seed: int, num_columns: int) -> None:
    draw = random.Random(seed)
    times = sorted(draw.sample(range(-50, 400), 30))
    series = Series(times, [draw.randrange(9) for _ in times])
    window = Window(17, 17 + num_columns * draw.choice((1, 3, 9)))
    heights = np.array([at(series, t) for t in range(window.start_ns, window.end_ns)], float).reshape(num_columns, -1)
    assert means(series, window, num_columns) == pytest.approx(heights.mean(axis=1), abs=1e-9)
    assert (maxima(series, window, num_columns) == heights.max(axis=1)).all()


def test_a_window_of_fewer_nanoseconds_than_pixels_has_the_same_height_in_all_of_them() -> None:
    series = Series([0, 5], [3, 4])
    assert means(series, Window(4, 6), 10) == pytest.approx([3] * 5 + [4] * 5)
    assert list(maxima(series, Window(4, 6), 10)) == [3] * 5 + [4] * 5


def test_sums_of_step_functions() -> None:
    summed = total(Series([0, 10], [1, 0]), Series([5, 10, 12], [2, 5, 0]))
    assert [at(summed, t) for t in (-1, 0, 5, 10, 12)] == [0, 1, 3, 5, 0]
