"""Same scenario, same seed: the same bytes, in any process and in whatever order equal events are served.

Between observations the ranks are a deterministic dataflow network (Kahn, 1974), so the order in which the simulator
runs them cannot matter. Every draw comes from a named stream, so a new draw in one shifts no other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ppsim.recording import PASS, Recording
from ppsim.recording.summary import summarize
from ppsim.recording.writer import lines
from ppsim.world.choices import SeededChoices
from tests.worlds.making import passed, requests, run, tokens_of

ROOT = Path(__file__).resolve().parents[2]

BUSY: dict[str, Any] = {
    "cluster.pp_size": 3,
    "cluster.tp_size": 2,
    "cluster.tp_replicas": 2,
    "cluster.pp_async_batch_depth": 1,
    "scheduler.chunked_prefill_size": 32,
    "scheduler.max_total_tokens": 512,
    "scheduler.pp_max_micro_batch_size": 3,
    "scheduler.page_size": 4,
    "scheduler.schedule_policy": "lpm",
    "cost.source": "quadratic",
    "links.latency_us": 40.0,
    "links.jitter_us": 200.0,
    "links.bandwidth_gb_per_s": 1.0,
    "host.schedule_us": 70.0,
    "host.process_us": 50.0,
    "host.stage_jitter_percent": 20.0,
    "workload.source": "generated",
    "workload.num_requests": 24,
    "workload.rate_per_s": 100.0,
    "workload.num_prefixes": 2,
    "workload.prefix_tokens": 40,
    "workload.input_length": {"kind": "uniform", "min": 8, "max": 120},
    "workload.output_length": {"kind": "uniform", "min": 1, "max": 12},
}
"""Everything that draws, blocks or shares: jitter on links and stages, replicas, prefixes, a pool that is too small."""


@pytest.fixture(scope="module")
def busy() -> Recording:
    return passed(base=BUSY)


def text(recording: Recording) -> list[str]:
    return list(lines(recording))


class Shuffled(SeededChoices):
    """The order of equal events comes from a seed of its own; all other streams are those of the run."""

    def __init__(self, seed: int, order_seed: int) -> None:
        super().__init__(seed, shuffle_order=True)
        self.order = SeededChoices(order_seed, shuffle_order=True)
        self.num_shuffles = 0

    def below(self, stream: str, n: int) -> int:
        if stream != "order":
            return super().below(stream, n)
        self.num_shuffles += 1
        return self.order.below(stream, n)


class Listening(SeededChoices):
    """Remembers what each stream returned."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.heard: dict[str, list[int]] = defaultdict(list)

    def below(self, stream: str, n: int) -> int:
        value = super().below(stream, n)
        self.heard[stream].append(value)
        return value


def test_two_processes_with_different_hash_seeds_write_the_same_bytes(tmp_path: Path) -> None:
    config = tmp_path / "busy.toml"
    sets = [f"--set={key}={toml(value)}" for key, value in BUSY.items()]
    config.write_text('name = "busy"\n')
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "ppsim.cli.entry", "run", str(config), *sets, "--out", hash_seed, "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    for name in ("recording.jsonl", "summary.json", "verdict.json", "config.toml"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert (tmp_path / "1" / "recording.jsonl").stat().st_size > 50_000


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.mark.parametrize("order_seed", range(4))
def test_shuffling_equal_events_changes_no_byte(order_seed: int, busy: Recording) -> None:
    choices = Shuffled(0, order_seed)
    assert text(passed(choices=choices, base=BUSY)) == text(busy)
    assert choices.num_shuffles > 100


@pytest.mark.parametrize("order_seed", range(3))
def test_shuffling_finds_the_same_deadlock(order_seed: int) -> None:
    changes = {"cluster.pp_size": 4, "links.send": "rendezvous", "workload.requests": requests(4, output=3)}
    plain, shuffled = run(changes), run(changes, choices=Shuffled(0, order_seed))
    assert plain.verdict.exit_code == 3
    assert shuffled.verdict == plain.verdict
    assert text(shuffled.recording) == text(plain.recording)


def test_the_same_seed_twice_in_one_process_and_another_seed(busy: Recording) -> None:
    assert text(passed(base=BUSY)) == text(busy)
    assert text(passed({"seed": 1}, base=BUSY)) != text(busy)


def test_stage_jitter_shifts_no_draw_of_a_link() -> None:
    """Without jitter on the stages the link streams return the same numbers, however many more are drawn."""
    quiet, noisy = Listening(0), Listening(0)
    run({"host.stage_jitter_percent": 0.0}, base=BUSY, choices=quiet)
    run(base=BUSY, choices=noisy)
    links = {stream for stream in quiet.heard if stream.startswith("jitter")}
    assert links == {stream for stream in noisy.heard if stream.startswith("jitter")}
    assert len(links) == 6 * 2 + 3  # six ranks send metadata and payloads to the next, three leaders to their replica
    for stream in links:
        both = list(zip(quiet.heard[stream], noisy.heard[stream], strict=False))
        assert all(a == b for a, b in both)
        assert len(both) > 20
    assert {stream for stream in noisy.heard if stream.startswith("stage")} == {f"stage jitter {k}" for k in range(6)}


def test_a_stream_is_a_function_of_seed_name_and_count() -> None:
    alone, mixed = SeededChoices(7), SeededChoices(7)
    mine = [alone.below("a", 1000) for _ in range(50)]
    between = []
    for _ in range(50):
        mixed.below("b", 3)
        between.append(mixed.below("a", 1000))
        mixed.below("c", 1)
    assert mine == between
    assert mine != [SeededChoices(8).below("a", 1000) for _ in range(50)]
    assert len(set(mine)) > 40


def test_draws_cover_their_range_evenly() -> None:
    choices = SeededChoices(3)
    counts = [0] * 10
    for _ in range(10_000):
        counts[choices.below("x", 10)] += 1
    assert all(abs(count - 1000) < 5 * 30 for count in counts)  # five standard deviations


def test_jitter_moves_times_but_no_token_and_no_reply_order_within_a_request(busy: Recording) -> None:
    calm = passed({"links.jitter_us": 0.0, "host.stage_jitter_percent": 0.0}, base=BUSY)
    assert tokens_of(calm) == tokens_of(busy)
    assert text(calm) != text(busy)


def test_the_busy_scenario_is_as_busy_as_it_says(busy: Recording) -> None:
    summary = summarize(busy, PASS)
    assert summary["num_finished"] == 24
    assert summary["cached_tokens"] > 0
    batches = [d for d in busy.decisions[0] if len(d.pieces) > 1]
    assert len(batches) > 20
