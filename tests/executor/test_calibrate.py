"""Samples for fitting a cost model, out of a recording alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.calibrate import ForwardSample, forward_samples, write_samples
from executor.launch import execute
from ppsim.core.effects import Decision
from ppsim.recording import Recording
from tests.executor.small import small_scenario


def test_a_piece_alone_and_a_decode_batch_are_samples_and_the_rest_is_not() -> None:
    recording = Recording(1, world="exec")
    pieces: list[tuple[str, tuple[tuple[str, int, int], ...]]] = [
        ("extend", (("a", 32, 16),)),
        ("extend", (("a", 48, 3), ("b", 0, 13))),
        ("empty", ()),
        ("decode", (("a", 51, 1), ("b", 13, 1))),
        ("mixed", (("a", 52, 1), ("c", 0, 15))),
        ("extend", (("c", 15, 16),)),  # launched, but no span: the run was cut short
    ]
    for iteration, (mode, batch) in enumerate(pieces):
        recording.decision(0, Decision(iteration, 0, mode, batch, (), None, ""))
        if batch and iteration < 5:
            recording.span(0, "forward", 0, iteration, 1000 * iteration, 1000 * iteration + 70 + iteration)
    assert list(forward_samples(recording, 0)) == [
        ForwardSample(0, 0, "extend", 32, 16, 1, 70),
        ForwardSample(0, 3, "decode", 64, 2, 2, 73),
    ]


def test_a_real_run_gives_samples_of_every_stage(tmp_path: Path) -> None:
    requests = [{"rid": "R1", "at_iteration": 0, "prompt": 56, "output": 4}]
    scenario = small_scenario(workload={"source": "requests", "requests": requests})
    recording = execute(scenario, start_method="forkserver").recording
    assert write_samples(recording, tmp_path / "samples.jsonl") == 2 * (4 + 3)
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    chunks = [(row["prefix_len"], row["new_tokens"]) for row in rows if row["rank"] == 1 and row["mode"] == "extend"]
    assert chunks == [(0, 16), (16, 16), (32, 16), (48, 8)]
    assert all(0 < row["duration_ns"] < 10**10 for row in rows)
    for before, after in zip(recording.spans[0], recording.spans[0][1:]):
        assert before.end_ns <= after.start_ns  # one forward pass at a time
