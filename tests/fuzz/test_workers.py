"""Rounds in processes: in order whoever is fast, an early end that waits for nobody, and a death that is told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count

import pytest

from ppsim.errors import UsageError
from ppsim.fuzz.workers import WorkerDied, in_processes


def slow_first(number: int, size: int) -> tuple[int, int, int]:
    """The first round takes longest."""
    time.sleep(0.3 if number == 0 else 0.0)
    return number, size, os.getpid()


def test_results_come_in_order_from_several_processes() -> None:
    results = list(in_processes(slow_first, iter([(n, 10 * n) for n in range(8)]), 2))
    assert [(number, size) for number, size, _ in results] == [(n, 10 * n) for n in range(8)]
    assert len({pid for _, _, pid in results}) == 2
    assert os.getpid() not in {pid for _, _, pid in results}


def test_no_round_is_begun_far_ahead_of_the_slowest() -> None:
    handed_out: list[int] = []

    def sizes() -> Iterator[tuple[int, int]]:
        for number in range(12):
            handed_out.append(number)
            yield number, 1

    results = in_processes(slow_first, sizes(), 2)
    next(results)
    assert max(handed_out) <= 5  # 2 * num ahead of round 0, and one that waits to be handed out
    results.close()  # type: ignore[attr-defined]


def test_one_that_stops_early_does_not_wait_for_the_others() -> None:
    def endless(number: int, size: int) -> int:
        time.sleep(60 if number else 0)
        return number

    before = time.monotonic()
    results = in_processes(endless, ((n, 1) for n in count()), 2)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - before < 30


def test_a_process_that_dies_is_told_with_its_exit_code() -> None:
    def dies(number: int, size: int) -> int:
        if number == 1:
            os._exit(7)
        return number

    results = in_processes(dies, iter([(n, 1) for n in range(4)]), 1)
    assert next(results) == 0
    with pytest.raises(WorkerDied, match="round 1 with exit code 7"):
        list(results)


def test_what_a_round_raises_arrives_here() -> None:
    def refuses(number: int, size: int) -> int:
        raise UsageError(f"round {number}")

    with pytest.raises(UsageError, match="round 0"):
        list(in_processes(refuses, iter([(0, 1)]), 2))


def test_nothing_to_do_is_nothing_done() -> None:
    assert list(in_processes(slow_first, iter([]), 2)) == []
