"""Law: the summary of a recording that can be worked out on paper is what the paper says."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy
import pytest

from ppsim.core.effects import Reply
from ppsim.core.messages import FlushCache, NewRequest
from ppsim.core.tokens import pack
from ppsim.recording import PASS, Recording, Verdict
from ppsim.recording.schema import Span
from ppsim.recording.summary import covered_ns, percentile, statistics, summarize
from tests.unit.handmade import S, pipeline, two_requests


def same(value: float) -> dict[str, float]:
    """Statistics of a single value."""
    return {"mean": value, "p50": value, "p90": value, "p99": value}


NONE = {"mean": None, "p50": None, "p90": None, "p99": None}


def test_two_requests_on_paper() -> None:
    summary = summarize(two_requests(), Verdict("fail", 3, "stuck"))
    expected: dict[str, Any] = {
        "verdict": "fail",
        "name": "two requests",
        "world": "sim",
        "seed": 11,
        "num_requests": 4,
        "num_finished": 1,
        "num_aborted": 1,
        "num_refused": 1,
        "num_retracted": 0,
        "num_iterations": 4,
        "makespan_s": 9.0,  # from 1 s, when "a" arrives, to its last token at 10 s
        "bubble_ratio": 0.5,  # window [2, 8) on two ranks, 2 s and 4 s of it busy
        "ttft_s": same(3.0),
        "ttft_from_read_s": same(2.5),
        "tpot_s": same(3.0),  # tokens at 4, 6 and 10 s
        "e2e_s": same(9.0),
        "input_tokens": 20,
        "output_tokens": 3,
        "input_tokens_per_s": 20 / 9,
        "output_tokens_per_s": 3 / 9,
        "cached_tokens": 16,
        "cache_hit_rate": 16 / 50,
        "closed_slots": [],
        "num_deferred_visits": 0,
        "num_empty_pieces": 0,
        "rules_told": [],
        "stages": [
            {"pp_rank": 0, "busy_s": 2.0, "idle_s": 4.0, "bubble_ratio": 4 / 6},
            {"pp_rank": 1, "busy_s": 4.0, "idle_s": 2.0, "bubble_ratio": 2 / 6},
        ],
        "warnings": ["links.send = rendezvous without links.order: sends are not ordered"],
    }
    assert {key: summary[key] for key in expected} == expected
    assert set(summary) == {*expected, "digest", "decision_digests"}
    assert len(set(summary["decision_digests"])) == 2  # rank 1 disagreed


@pytest.mark.parametrize("pp_size", range(1, 9))
def test_the_bubble_of_equal_stages_is_the_textbook_one_exactly(pp_size: int) -> None:
    for num_chunks in range(1, 65):
        summary = summarize(pipeline(pp_size, num_chunks, unit_ns=1_000_003), PASS)
        assert summary["bubble_ratio"] == (pp_size - 1) / (pp_size - 1 + num_chunks)
        assert summary["makespan_s"] == (pp_size + num_chunks - 1) * 1_000_003 / S
        assert len(set(summary["decision_digests"])) == 1
        assert len(summary["stages"]) == pp_size


def test_a_run_in_which_nothing_happened_has_no_nan() -> None:
    summary = summarize(Recording(3), Verdict("unknown", 5))
    text = json.dumps(summary, allow_nan=False)
    assert json.loads(text)["ttft_s"] == NONE
    assert summary["bubble_ratio"] == summary["input_tokens_per_s"] == summary["makespan_s"] == 0
    assert summary["cache_hit_rate"] == 0
    assert summary["num_iterations"] == 0


def test_a_request_with_one_token_has_a_ttft_and_no_tpot() -> None:
    summary = summarize(pipeline(2, 2), PASS)
    assert summary["ttft_s"] == same(3.0)
    assert summary["tpot_s"] == NONE


def test_tokens_that_come_only_with_the_terminal_reply_are_counted_once() -> None:
    recording = Recording(1)
    recording.arrival("r", 0, 4, 5)
    recording.reply(1 * S, Reply("r", "token", (1, 2), 2))
    recording.reply(3 * S, Reply("r", "finished", (3,), 3))
    again = Recording(1)
    again.arrival("r", 0, 4, 5)
    again.reply(1 * S, Reply("r", "token", (1, 2), 2))
    again.reply(3 * S, Reply("r", "finished", (), 3))
    for r in (recording, again):
        summary = summarize(r, PASS)
        assert summary["output_tokens"] == 3
        assert summary["tpot_s"] == same(1.0)


def test_replicas_of_a_stage_are_averaged_and_all_count_for_the_bubble() -> None:
    recording = Recording(2, tp_replicas=2)
    for rank, end in enumerate((4, 2, 1, 1)):
        recording.span(rank, "forward", 0, 0, 0, end * S)
    summary = summarize(recording, PASS)
    assert summary["bubble_ratio"] == (16 - 8) / 16
    assert [(s["busy_s"], s["idle_s"], s["bubble_ratio"]) for s in summary["stages"]] == [
        (3.0, 1.0, 0.25),
        (1.0, 3.0, 0.75),
    ]


def test_overlapping_passes_are_not_busy_twice() -> None:
    rng = random.Random(5)
    for _ in range(200):
        spans = []
        for _ in range(rng.randrange(8)):
            start = rng.randrange(40)
            spans.append(Span(rng.choice(["forward", "send"]), 0, 0, start, start + rng.randrange(12)))
        ticks = {t for s in spans if s.stream == "forward" for t in range(s.start_ns, s.end_ns)}
        assert covered_ns(spans) == len(ticks)


def test_percentiles_are_numpys() -> None:
    rng = random.Random(1)
    for n in (1, 2, 3, 10, 99, 100, 101, 1000):
        values = sorted(rng.expovariate(1.0) for _ in range(n))
        for q in (0, 1, 50, 90, 99, 100):
            assert math.isclose(percentile(values, q), float(numpy.percentile(values, q)), rel_tol=1e-12)


def test_the_mean_is_of_integers_so_that_the_order_of_requests_does_not_matter() -> None:
    rng = random.Random(2)
    values = [rng.randrange(10**12) for _ in range(1000)]
    assert statistics(values) == statistics(values[::-1])
    assert statistics(values)["mean"] == sum(values) / (1000 * S)


def test_a_second_request_with_the_same_id_is_a_request_of_its_own() -> None:
    recording = Recording(1)
    recording.arrival("r", 0, 4, 2)
    recording.arrival("r", 1 * S, 9, 2)
    recording.ingested(0, (NewRequest("r", pack(range(4)), 2),), 0)
    recording.reply(1 * S, Reply("r", "token", (1,), 1))
    recording.ingested(1, (NewRequest("r", pack(range(9)), 2), FlushCache()), 2 * S)
    recording.reply(2 * S, Reply("r", "refused", reason="the id is in use"))
    recording.reply(2 * S, Reply("flush", "refused", reason="busy"))
    recording.reply(3 * S, Reply("r", "finished", (2,), 2))
    summary = summarize(recording, PASS)
    counts = [summary[f"num_{what}"] for what in ("requests", "finished", "refused", "aborted")]
    assert counts == [2, 1, 1, 0]
    assert summary["input_tokens"] == 4
    assert summary["tpot_s"] == same(2.0)
    assert summary["ttft_from_read_s"] == same(1.0)
