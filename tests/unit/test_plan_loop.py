"""The tuner's loop on arrays against the representative world, visit by visit: what each one launches, when it begins
and when its forward pass ends on each rank, when each prompt has its token. All is equal to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ppsim.plan import evaluate
from ppsim.plan.candidate import Candidate, Split, with_candidate, with_probe
from ppsim.plan.evaluate import FastPath
from ppsim.plan.stream_loop import StreamLoop
from ppsim.plan.trial_load import Probe
from ppsim.recording import Recording
from ppsim.scenario.tree import Scenario
from ppsim.world import simulate
from tests.unit.test_plan_tune_fast_path import cases, scenario

Visit = tuple[int, int, int]  # new tokens, pieces, prompts that end


class Watched(StreamLoop):
    """One configuration, watched, in nanoseconds: ``visits`` (begin of a visit's schedule) and ``ends`` (of its forward
    pass) by rank and iteration, ``harvests`` of the first rank."""

    launches: dict[int, Visit]
    visits: dict[tuple[int, int], int]
    ends: dict[tuple[int, int], int]
    harvests: dict[int, int]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.launches, self.visits, self.ends, self.harvests = {}, {}, {}, {}

    def _reply(self, i: int, now: Any) -> None:
        wave = i + self.num_slots - 1
        batch = self.batches[wave % self.num_slots]
        assert batch is not None
        if batch.mask[0]:
            figures = (np.broadcast_to(v, 1)[0] for v in (batch.tokens, batch.rows, batch.num_ending))
            tokens, rows, ending = (int(v) for v in figures)
            self.launches[wave] = tokens, rows, ending
        for rank in range(min(wave + 1, self.num_stages)):
            self.visits[rank, wave - rank] = int(self.ring.list_sent[rank, 0])
            if wave - rank in self.launches:
                self.ends[rank, wave - rank] = int(self.ring.end[rank, 0])
        if i in self.launches:
            self.harvests[i] = int(now[0])
        super()._reply(i, now)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Watched]]:
    """The loops that are made meanwhile."""
    made: list[Watched] = []

    def make(*args: Any) -> Watched:
        made.append(Watched(*args))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "StreamLoop", make)
        yield made


def launches_of(recording: Recording, lengths: dict[str, int]) -> dict[int, Visit]:
    """The same of the simulation, by iteration."""
    return {
        d.iteration: (
            sum(new for _, _, new in d.pieces),
            len(d.pieces),
            sum(prefix + new == lengths[rid] for rid, prefix, new in d.pieces),
        )
        for d in recording.decisions[0]
        if d.pieces
    }


def agree(s: Scenario, candidate: Candidate, probe: Probe, pool: int, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Raises ScenarioError where one rank cannot stand for all."""
    place = (candidate.split, candidate.layer_partition)
    with watched(monkeypatch) as made:
        FastPath(s, probe, pools={place: pool}).figures([candidate])
    (loop,) = made
    run = with_probe(with_candidate(s, candidate, pool), probe)
    ran = simulate(run, fast=True)
    recording = ran.recording
    assert ran.verdict.kind == "pass"
    assert loop.launches == launches_of(recording, {r.rid: r.prompt for r in run.workload.requests})
    spans = {(k, span.iteration): span.end_ns for k, mine in enumerate(recording.spans) for span in mine}
    assert loop.ends == spans
    assert loop.visits == {(k, i): recording.visits[k][i] for k, i in loop.visits}
    tokens_at = sorted(at for i, at in loop.harvests.items() for _ in range(loop.launches[i][2]))
    assert tokens_at == sorted(reply.time_ns for reply in recording.replies)
    return loop


@given(case=cases())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_every_visit_and_every_instant_is_that_of_the_simulation(
    case: tuple[Scenario, Candidate, Probe, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quadratic costs: up to 5 stages, tensor and context parallelism, all settings of links, hosts and admission."""
    agree(*case, monkeypatch)


def test_a_wait_that_hardly_ever_changes_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the output sent last, with hosts that cost more than forward passes: seen in the visits."""
    s = scenario(
        cluster__comm_overlap=True,
        links__order="link",
        links__latency_us=50.0,
        host__schedule_us=300.0,
        host__process_us=1500.0,
        host__free_empty_visit=True,
    )
    candidate = Candidate(Split(5, 1), 1, 64, 0.0, (4, 2, 2, 2, 2))
    agree(s, candidate, Probe("throughput", (263, 500, 64), (0, 0, 0)), 8192, monkeypatch)


def test_prompts_that_share_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked out by hand: 300 tokens in chunks of 128 leave room for 70 and 9 more in the third one."""
    candidate = Candidate(Split(3, 1), 1, 128, 0.0, (4, 4, 4))
    loop = agree(scenario(), candidate, Probe("throughput", (300, 70, 9), (0, 0, 0)), 8192, monkeypatch)
    assert loop.launches == {0: (128, 1, 0), 1: (128, 1, 0), 2: (123, 3, 3)}


def test_a_prompt_that_comes_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank polls every 777 us while nothing is there, and finds what came at 200 ms at the next look."""
    s = scenario(host__idle_poll_us=777.0, host__schedule_us=300.0)
    candidate = Candidate(Split(2, 1), 0, 256, 0.75, (6, 6))
    loop = agree(s, candidate, Probe("ttft_at_rate", (500, 500), (0, 200_000_000)), 8192, monkeypatch)
    assert max(loop.harvests.values()) > 200_000_000


def test_payloads_take_whole_nanoseconds_of_an_exact_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 0.03 GB/s the 2,000 bytes of each of 15 tokens take 1,000,000 ns and not one more: 1 / 0.03 as a float is too
    large, and times 30,000 it would be rounded up."""
    s = scenario(links__bandwidth_gb_per_s=0.03)
    candidate = Candidate(Split(2, 1), 0, 64, 0.0, (6, 6))
    agree(s, candidate, Probe("ttft", (15,), (0,)), 8192, monkeypatch)
