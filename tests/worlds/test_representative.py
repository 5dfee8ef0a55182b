"""One rank that stands for all leaves the recording that all of them leave, to the byte (``world/representative.py``).

The event world is the oracle: it runs every rank, with a queue of events and no scripts. It is itself held against a
max-plus model of its own (``test_max_plus.py``) and against schedules worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ppsim
from ppsim.core.parts import Change
from ppsim.core.policy import Policy
from ppsim.errors import ScenarioError
from ppsim.scenario import load_scenario
from ppsim.scenario.tree import Scenario
from ppsim.world import SimulationResult, simulate, stage_times
from ppsim.world.choices import FirstChoice
from ppsim.world.representative import Represented, cannot_represent
from ppsim.world.stage_times import PHRASES, StageTimes
from tests.worlds.making import scenario
from tests.worlds.plain_runs import plain_scenario, text

NUM_EXAMPLES = 60
SHIPPED = (
    "unit",
    "tiny",
    "paper/deepseek_v31_h20_pp4",
    "paper/qwen3_235b_h20_pp8_256k",
    "bugs_b94_b118/b106_depth_of_one",
    "bugs_b94_b118/b107_commit_before_launch",
    "questions/p08_chunks_without_microbatches",
    "questions/p23_short_behind_giant",
    "questions/p28_last_chunk_packing",
)


def same(made: Scenario) -> SimulationResult:
    """Run it both ways; the fast one has stood for all where the run passes."""
    fast, events = simulate(made, fast=True), simulate(made)
    assert fast.verdict == events.verdict
    assert text(fast.recording) == text(events.recording)
    assert isinstance(fast.setting.ranks[0], Represented) is (events.verdict.kind == "pass")
    assert not isinstance(events.setting.ranks[0], Represented)
    return fast


@pytest.mark.parametrize("first", range(0, NUM_EXAMPLES, 10))
def test_generated_scenarios_give_the_same_bytes(first: int) -> None:
    """Clusters of 1 to 6 stages, every order of sends, streams, chunks, retractions, aborts, clients and sessions."""
    for index in range(first, first + 10):
        same(plain_scenario(7, index))


def test_a_phrase_does_what_its_words_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes where every word is a call of its own."""
    made = [plain_scenario(11, index) for index in range(10)]
    used: set[str] = set()
    for name in set(PHRASES.values()):
        monkeypatch.setattr(StageTimes, name, noting(used, name))
    in_phrases = [text(simulate(scenario, fast=True).recording) for scenario in made]
    assert used == set(PHRASES.values())
    used.clear()
    monkeypatch.setattr(stage_times, "PHRASES", {})
    assert [text(simulate(scenario, fast=True).recording) for scenario in made] == in_phrases
    assert not used


def noting(used: set[str], name: str) -> Callable[[StageTimes, int], None]:
    """A word that notes its name before it does what it does."""
    word = getattr(StageTimes, name)

    def noted(stage: StageTimes, i: int) -> None:
        used.add(name)
        word(stage, i)

    return noted


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_scenarios_give_the_same_bytes(name: str) -> None:
    same(load_scenario(name))


def test_the_trace_gives_the_same_bytes() -> None:
    found = same(load_scenario("mooncake", ["workload.num_requests=8"]))
    assert found.recording.replies


@pytest.mark.parametrize("order", ["send_first", "parity"])
@pytest.mark.parametrize("early", ["after_exchange", "before_exchange"])
@pytest.mark.parametrize("pp_size", [2, 3, 5])
def test_hidden_states_that_pass_outputs_are_put_aside(pp_size: int, early: str, order: str) -> None:
    """Sent before the outputs, hidden states are at the head of the lane when an output is awaited."""
    keys = {
        "cluster.pp_size": pp_size,
        "scheduler.hidden_send": "after_launch",
        "scheduler.exchange_order": order,
        "links.early_send": early,
        "links.latency_us": 300.0,
        "links.bandwidth_gb_per_s": 0.01,
        "host.process_us": 70.0,
        "workload.requests": [
            {"rid": f"R{n}", "prompt": 9, "output": 5, "at_ms": 2.5 * n, "ignore_eos": True} for n in range(5)
        ],
    }
    same(scenario(keys))


STREAMS: dict[str, dict[str, Any]] = {
    "order link": {"links.order": "link"},
    "order none": {"links.order": "none"},
    "commit requests": {"links.commit": "requests"},
    "commit received": {"links.commit_over": "received"},
    "latency on the stream": {"links.latency_on_stream": True},
    "hold at the post": {"links.schedule_hold": "post"},
    "tokens behind the stream": {"links.token_read": "schedule_stream"},
    "overlap": {"cluster.comm_overlap": True},
    "overlap, fence at the commit": {"cluster.comm_overlap": True, "links.graph_fence": "commit"},
    "control latency": {"links.control_latency_us": 900.0},
    "depth": {"cluster.pp_async_batch_depth": 1},
    "no graph": {"cluster.cuda_graph": False, "cluster.comm_overlap": True},
    "free empty visits": {"host.free_empty_visit": True},
    "early hidden states": {"scheduler.hidden_send": "after_launch"},
    "skipped outputs": {"scheduler.skip_pure_chunked_output_comm": True},
}
"""Each way of the streams that changes what the loaded pipeline below does."""

LOADED: dict[str, Any] = {
    "cluster.pp_size": 3,
    "host.schedule_us": 40.0,
    "host.process_us": 70.0,
    "links.latency_us": 300.0,
    "links.bandwidth_gb_per_s": 0.004,
    "cost.unit_ms": 0.3,
    "workload.requests": [
        {"rid": f"R{n}", "prompt": 18, "output": 6, "at_ms": 1.5 * n, "ignore_eos": True} for n in range(6)
    ],
}


DEPTH, OVERLAP = {"cluster.pp_async_batch_depth": 1}, {"cluster.comm_overlap": True}
BESIDE: dict[str, dict[str, Any]] = {
    "commit requests": DEPTH,
    "hold at the post": DEPTH,
    "tokens behind the stream": {"scheduler.hidden_send": "after_launch"},
    "overlap, fence at the commit": {**DEPTH, **OVERLAP},
    "no graph": {**DEPTH, **OVERLAP},
}
"""What has to be there for it to matter."""


@pytest.mark.parametrize("name", STREAMS)
def test_every_way_of_the_streams_gives_the_same_bytes(name: str) -> None:
    """And other ones than without it, so that each is looked at."""
    usual = {**LOADED, **BESIDE.get(name, {})}
    found = same(scenario({**usual, **STREAMS[name]}))
    assert text(found.recording) != text(simulate(scenario(usual)).recording)


def test_inputs_that_name_a_far_iteration_are_read_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits meanwhile: an idle server is no livelock, however far it is."""
    monkeypatch.setattr("ppsim.check.client_watch.MAX_EMPTY_ITERATIONS", 100)
    rows = [{"rid": "R1", "prompt": 4}, {"rid": "R2", "prompt": 4, "at_iteration": 333}]
    found = same(scenario({"workload.requests": rows}))
    assert [i.iteration for i in found.recording.ingestions if i.inputs[0].kind == "new"] == [0, 333]


def test_a_run_that_is_given_up_is_told_by_the_event_world() -> None:
    result = same(scenario({"workload.requests": [{"rid": "R1", "prompt": 4, "output": 50}], "run.max_iterations": 30}))
    assert "max_iterations" in result.verdict.message


REFUSED: dict[str, dict[str, Any]] = {
    "disaggregation.role": {"disaggregation.role": "prefill"},
    "cluster.tp_replicas": {"cluster.tp_replicas": 2, "cluster.tp_size": 2},
    "hicache.enabled": {"hicache.enabled": True, "hicache.host_tokens": 4096},
    "grammar": {"workload.requests": [{"rid": "R1", "prompt": 4, "grammar": "g"}]},
    "workload.flushes": {"workload.flushes": [{"rid": "F", "at_iteration": 3}]},
    "timeouts": {"timeouts.waiting_ms": 5000},
    "faults.pauses": {"faults.pauses": [{"rank": 0, "at_iteration": 2, "ms": 1.0}]},
    "chance.pause_iterations": {"chance.pause_iterations": 3},
    "links.jitter_us": {"links.jitter_us": 3.0},
    "host.stage_jitter_percent": {"host.stage_jitter_percent": 5.0},
    "links.send": {"links.send": "rendezvous", "scheduler.exchange_order": "parity"},
    "links.payload": {"links.payload": "matched", "scheduler.exchange_order": "parity"},
    "exchange_order 'paired'": {"scheduler.exchange_order": "paired"},
    "run.invariants": {"run.invariants": True},
    "run.consensus_check_interval": {"run.consensus_check_interval": 5},
    "run.watchdog_ms": {"run.watchdog_ms": 1e6},
    "run.max_wait_iterations": {"run.max_wait_iterations": 1000},
    "run.max_retractions": {"run.max_retractions": 5},
    "run.max_wait_ms": {"run.max_wait_ms": 1e6},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_rank_cannot_stand_for_is_refused_by_name(name: str) -> None:
    made = scenario(REFUSED[name])
    (reason,) = cannot_represent(made)
    assert name in reason
    with pytest.raises(ScenarioError, match="--fast: one rank cannot stand for all here") as refused:
        simulate(made, fast=True)
    assert reason in str(refused.value)
    assert not isinstance(simulate(made, fast=None).setting.ranks[0], Represented)


def test_choices_plugins_and_bugs_need_every_rank() -> None:
    made = scenario()
    for options in ({"choices": FirstChoice()}, {"change": Change(policy=type("Own", (Policy,), {}))}):
        with pytest.raises(ScenarioError, match="one rank cannot stand for all"):
            simulate(made, fast=True, **options)  # type: ignore[arg-type]
        assert not isinstance(simulate(made, fast=None, **options).setting.ranks[0], Represented)  # type: ignore[arg-type]
    assert isinstance(simulate(made, fast=None, change=Change()).setting.ranks[0], Represented)


def test_every_rank_runs_where_nobody_says_otherwise() -> None:
    """``simulate`` of the world is what tests and campaigns call; commands and the library say ``fast=None``."""
    assert not isinstance(simulate(scenario()).setting.ranks[0], Represented)


def test_the_library_is_fast_where_it_can_be_and_can_be_told() -> None:
    runs = [ppsim.simulate("tiny", fast=fast) for fast in (None, True, False)]
    assert len({run.digest for run in runs}) == 1
    assert [text(run.recording) for run in runs[:2]] == [text(runs[2].recording)] * 2
    with pytest.raises(ppsim.ScenarioError, match=r"links\.jitter_us"):
        ppsim.simulate("tiny", fast=True, jitter_us=5.0)
