"""Law: the recorded channels are those of the run: what left when, for how long, and when it was there.

The oracles are the scenario's own numbers (bytes over bandwidth, latency) and the forward passes on both ends.
"""

from __future__ import annotations

import pytest

from ppsim.recording import Recording
from ppsim.recording.digest import run_digest
from tests.worlds.making import requests, run

LATENCY_US, GB_PER_S = 70, 0.5
LINKS = {"links.latency_us": LATENCY_US, "links.bandwidth_gb_per_s": GB_PER_S}


def recorded(pp_size: int, **changes: object) -> Recording:
    result = run({"cluster.pp_size": pp_size, "workload.requests": requests(3, output=5), **LINKS, **changes})
    assert result.verdict.kind == "pass", result.verdict
    return result.recording


@pytest.mark.parametrize("pp_size", [2, 3, 5])
def test_every_forward_pass_behind_the_first_stage_has_its_hidden_states_and_none_other(pp_size: int) -> None:
    recording = recorded(pp_size)
    assert {(src, dst) for src, dst, kind in recording.messages if kind == "hidden"} == {
        (rank, rank + 1) for rank in range(pp_size - 1)
    }
    for rank in range(1, pp_size):
        passes = {s.iteration: s for s in recording.spans[rank] if s.stream == "forward"}
        before = {s.iteration: s for s in recording.spans[rank - 1] if s.stream == "forward"}
        received = recording.messages[rank - 1, rank, "hidden"]
        assert [m.iteration for m in received] == list(passes)
        for m in received:
            assert before[m.iteration].end_ns <= m.leaves_ns < m.sent_ns < m.arrival_ns <= passes[m.iteration].start_ns
            assert m.arrival_ns == m.sent_ns + LATENCY_US * 1000


def test_a_message_leaves_for_its_bytes_over_the_bandwidth() -> None:
    recording = recorded(2, **{"workload.requests": requests(1, prompt=96, output=2), "model.hidden_size": 4096})
    tokens = {d.iteration: sum(new for _, _, new in d.pieces) for d in recording.decisions[0]}
    sizes = {m.iteration: m.sent_ns - m.leaves_ns for m in recording.messages[0, 1, "hidden"]}
    few, many = min(tokens[i] for i in sizes), max(tokens[i] for i in sizes)
    assert few < many
    per_token = next(length for i, length in sizes.items() if tokens[i] == few) / few
    for iteration, length in sizes.items():
        assert length == pytest.approx(tokens[iteration] * per_token, rel=0.01)


def test_outputs_go_round_the_ring() -> None:
    recording = recorded(4)
    assert {(src, dst) for src, dst, kind in recording.messages if kind == "output"} <= {
        (rank, (rank + 1) % 4) for rank in range(4)
    }
    ends = {s.iteration: s.end_ns for s in recording.spans[3] if s.stream == "forward"}
    assert [m.iteration for m in recording.messages[3, 0, "output"]] == [s.iteration for s in recording.samples]
    for m in recording.messages[3, 0, "output"]:
        assert ends[m.iteration] <= m.leaves_ns


def test_every_rank_has_an_instant_for_every_iteration_and_no_pass_starts_before_it_was_decided() -> None:
    recording = recorded(3)
    for rank in range(3):
        visits = recording.visits[rank]
        assert len(visits) == len(recording.decisions[rank])
        assert visits == sorted(visits)
        for span in recording.spans[rank]:
            assert visits[span.iteration] <= span.start_ns


def test_they_are_no_part_of_the_digest() -> None:
    recording = recorded(2)
    before = run_digest(recording)
    recording.messages.clear()
    recording.visits[0].clear()
    assert run_digest(recording) == before
