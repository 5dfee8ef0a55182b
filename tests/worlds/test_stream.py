"""A run that keeps less (``run.keep``) decides, times and writes as one that keeps all; its memory does not grow."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.core.messages import AbortReq
from ppsim.errors import ScenarioError, UsageError
from ppsim.recording import stream, tally
from ppsim.recording.summary import summarize
from ppsim.scenario import load_scenario
from ppsim.scenario.tree import Scenario
from ppsim.workload.build import build_workload, reading_of
from ppsim.workload.line_by_line import line_by_line
from ppsim.workload.stream import cannot_stream, stream_workload
from ppsim.workload.trace import Reading, read_trace
from ppsim.world import SimulationResult, simulate
from ppsim.world.client import WorkloadClient
from tests.worlds.making import scenario
from tests.worlds.plain_runs import plain_scenario, text

LOAD: dict[str, Any] = {
    "workload.source": "generated",
    "workload.requests": [],
    "workload.num_requests": 40,
    "workload.rate_per_s": 60.0,
    "workload.input_length": {"kind": "uniform", "min": 1, "max": 40},
    "workload.output_length": {"kind": "uniform", "min": 1, "max": 9},
    "cost.unit_ms": 1.0,
}
LOADS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "burst": {"workload.arrival": "burst"},
    "equal gaps": {"workload.arrival": "fixed"},
    "clients": {"workload.concurrency": 3},
    "stops": {"workload.ignore_eos": False, "workload.eos_probability": 0.3},
    "shared prefixes": {"workload.num_prefixes": 2, "workload.prefix_tokens": 12},
    "aborts": {"workload.aborts": [{"abort_all": True, "at_ms": at} for at in (60.0, 130.0, 260.0)]},
    "retractions": {
        "scheduler.max_total_tokens": 64,
        "scheduler.pp_max_micro_batch_size": 8,
        "scheduler.schedule_conservativeness": 0.1,
        "workload.arrival": "burst",
        "workload.output_length": {"kind": "fixed", "value": 20},
    },
    "the trace": {"workload.source": "trace", "workload.num_requests": 4, "scheduler.max_total_tokens": None},
    "refused": {"workload.source": "trace", "workload.num_requests": 9, "scheduler.context_length": 9000},
}


def keeping(made: Scenario, keep: str) -> Scenario:
    return made.model_copy(update={"run": made.run.model_copy(update={"keep": keep})})


def same(made: Scenario, monkeypatch: pytest.MonkeyPatch, iterations: int) -> SimulationResult:
    """Run it three ways; records are passed on so often."""
    monkeypatch.setattr(stream, "BATCH_ITERATIONS", iterations)
    whole = simulate(made, fast=True)
    right = summarize(whole.recording, whole.verdict)
    for keep in ("file", "summary"):
        less = simulate(keeping(made, keep), fast=None)
        assert less.verdict == whole.verdict
        came = summarize(less.recording, less.verdict)
        assert came.pop("percentiles") == "exact"
        assert came == {**right, "digest": right["digest"] if keep == "file" else None}
        assert not any((less.recording.decisions[0], less.recording.replies, less.recording.arrivals))
        if keep == "file":
            assert text(less.recording) == text(whole.recording)
    return whole


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_generated_scenarios_give_the_same_file_and_the_same_figures(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters of 1 to 6 stages, every order of sends, retractions, aborts, ids that come again."""
    for index in range(first, first + 10):
        made = plain_scenario(11, index)
        if not cannot_stream(made) and simulate(made, fast=True).verdict.kind == "pass":
            same(made, monkeypatch, 1 + index % 7)


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("iterations", [1, 40])
def test_every_source_gives_the_same_file_and_the_same_figures(
    name: str, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = same(scenario({**LOAD, **LOADS[name]}), monkeypatch, iterations)
    assert (name in ("aborts", "retractions")) is any(reply.status == "aborted" for reply in found.recording.replies)
    assert (name == "refused") is any(reply.status == "refused" for reply in found.recording.replies)
    assert (name == "retractions") is any(decision.retracted for decision in found.recording.decisions[0])


def test_rows_of_times_go_over_from_one_batch_into_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 256 visits and messages: a line of a recording has so many."""
    found = same(scenario({**LOAD, "workload.num_requests": 120}), monkeypatch, 70)
    assert min(map(len, found.recording.visits)) > 600
    assert min(map(len, found.recording.messages.values())) > 512


def test_many_requests_have_percentiles_within_the_stated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "Quantiles", lambda: ppsim.recording.quantiles.Quantiles(50))
    made = scenario({**LOAD, "workload.num_requests": 400})
    whole, less = simulate(made, fast=True), simulate(keeping(made, "summary"), fast=None)
    right, came = (summarize(r.recording, r.verdict) for r in (whole, less))
    assert came["percentiles"] == "within 0.20 %"
    for key in ("ttft_s", "ttft_from_read_s", "tpot_s", "e2e_s"):
        assert came[key]["mean"] == pytest.approx(right[key]["mean"], rel=1e-13)
        for q in ("p50", "p90", "p99"):
            assert came[key][q] == pytest.approx(right[key][q], rel=2**-9)
        assert came[key] != right[key]


def peak_of(num_requests: int, keep: str) -> int:
    made = scenario(
        {**LOAD, "workload.num_requests": num_requests, "run.keep": keep, "scheduler.disable_radix_cache": True}
    )
    tracemalloc.start()
    try:
        result = simulate(made, fast=None)
        assert summarize(result.recording, result.verdict)["num_finished"] == num_requests
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what all records take; buckets and lines of 256 times are still filling up here."""
    monkeypatch.setattr(stream, "BATCH_ITERATIONS", 30)
    monkeypatch.setattr(tally, "Quantiles", lambda: ppsim.recording.quantiles.Quantiles(20))
    monkeypatch.setattr("ppsim.check.client_watch.MAX_REMEMBERED", 20)
    grown = {keep: peak_of(300, keep) - peak_of(100, keep) for keep in ("all", "summary")}
    assert grown["all"] > 10 * grown["summary"]


# --- requests that are made as they are read -------------------------------------------------------------------


@pytest.mark.parametrize("name", LOADS)
def test_requests_that_are_made_on_the_way_are_those_that_are_made_before(name: str) -> None:
    made = scenario({**LOAD, **LOADS[name]})
    whole, coming = build_workload(made), stream_workload(made)
    assert coming.coming is not None
    assert (coming.arrivals, tuple(coming.coming())) == ((), whole.arrivals)
    assert (coming.warnings, coming.controls, coming.num_coming) == (
        whole.warnings,
        whole.controls,
        len(whole.arrivals),
    )


def test_a_request_and_an_abort_of_the_same_moment_come_in_the_same_order() -> None:
    """First the requests, then the aborts, however late the requests are made."""
    aborts = [{"rid": f"R{n}", "at_ms": 0.0} for n in (1, 2)]
    made = scenario({**LOAD, "workload.num_requests": 3, "workload.arrival": "burst", "workload.aborts": aborts})
    clients = [WorkloadClient(make(made), 50.0) for make in (build_workload, stream_workload)]
    read = [client.due(0, 0) for client in clients]
    assert read[0] == read[1]
    assert [isinstance(item, AbortReq) for item in read[1]] == [False] * 3 + [True] * 2


def test_one_request_ahead_is_made_and_no_more() -> None:
    made = scenario(LOAD)
    arrived: list[str] = []
    client = WorkloadClient(stream_workload(made), 50.0, lambda arrival: arrived.append(arrival.request.rid))
    assert arrived == ["R1"]
    client.due(0, 0)
    assert arrived == ["R1", "R2"]


def row(at: int, length: int = 600, **fields: Any) -> dict[str, Any]:
    return {"timestamp": at, "input_length": length, "output_length": 3, "hash_ids": list(range(-(-length // 512)))} | (
        fields
    )


PLAIN = [row(1000 * n, 100 + 97 * n) for n in range(30)]
TRACES: dict[str, tuple[list[dict[str, Any]], bool]] = {  # and whether it can be read line by line
    "plain": (PLAIN, True),
    "times of a clock": ([row(1_700_000_000_000 + 1000 * n) for n in range(30)], True),
    "no output": ([*PLAIN, row(40_000, output_length=0), row(50_000, output_length=0)], True),
    "few rows close together": ([row(n) for n in range(5)], True),
    "not in order": ([*PLAIN[:12], *PLAIN[13:], PLAIN[12]], False),
    "blocks of 16": ([row(1000 * n, 160, hash_ids=list(range(10))) for n in range(30)], False),
    "no ids": ([{k: v for k, v in r.items() if k != "hash_ids"} for r in PLAIN], False),
    "seconds or milliseconds": ([row(n) for n in range(30)], False),
    "fractions": ([row(0), row(1000, timestamp=1000.5)], False),
    "a line that is none": ([*PLAIN, {"timestamp": 99_000}], False),
    "no line": ([], False),
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_read_line_by_line_is_the_trace_that_is_read_whole(name: str, packed: bool, tmp_path: Path) -> None:
    rows, can = TRACES[name]
    path = tmp_path / "trace.jsonl"
    content = "".join(json.dumps(r) + "\n\n" for r in rows).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    found = line_by_line(str(path), Reading())
    assert (found is not None) is can
    if found is None:
        return
    whole = read_trace(str(path))
    for _ in range(2):  # and again from its start
        assert tuple(found.rows()) == whole.rows
    assert found.num_rows == len(whole.rows)
    assert (found.head.warnings, found.head.block_tokens, found.head.timed) == (whole.warnings, 512, True)


def test_what_the_user_says_of_a_trace_is_heeded(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in PLAIN))
    seconds = line_by_line(str(path), Reading(time_unit="s"))
    assert seconds is not None
    assert [r.at_ns for r in seconds.rows()][:2] == [0, 10**12]
    assert line_by_line(str(path), Reading(skip_bad_lines=True)) is None
    assert line_by_line(str(path), Reading(time="timestamp", prompt="input_length")) is None
    assert line_by_line(str(tmp_path), Reading()) is None
    assert line_by_line(None, reading_of(load_scenario("mooncake").workload)) is not None


# --- what it refuses, and what is left of a run --------------------------------------------------------------------

REFUSED: dict[str, dict[str, Any]] = {
    "links.jitter_us": {"links.jitter_us": 3.0},
    "hicache.enabled": {"hicache.enabled": True, "hicache.host_tokens": 4096},
    "workload.num_sessions": {"workload.num_sessions": 3, "workload.num_requests": None},
    "chance.max_arrival_delay": {"chance.max_arrival_delay": 3},
    "chance.max_failed_allocations": {"chance.max_failed_allocations": 1},
    "chance.stops": {"chance.stops": True},
}


@pytest.mark.parametrize("keep", ["file", "summary"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_all_records_is_refused_by_name(name: str, keep: str) -> None:
    made = scenario({**LOAD, **REFUSED[name], "run.keep": keep})
    with pytest.raises(ScenarioError, match=f"run.keep: '{keep}' needs one rank that stands for all: {name}"):
        simulate(made, fast=None)


def test_every_rank_and_a_policy_are_refused() -> None:
    made = scenario({**LOAD, "run.keep": "summary"})
    with pytest.raises(ScenarioError, match="--no-fast"):
        simulate(made, fast=False)
    with pytest.raises(ScenarioError, match="a plug-in or bug"):
        ppsim.simulate(made, policy=type("Own", (ppsim.Policy,), {}))


def test_turns_of_a_trace_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    said = [{"from": who, "value": "word " * 9} for who in ("human", "gpt", "human", "gpt")]
    path.write_text(json.dumps([{"conversations": said}] * 2))
    keys = {**LOAD, "workload.source": "trace", "workload.num_requests": None, "workload.trace": str(path)}
    with pytest.raises(ScenarioError, match="turns that follow an answer"):
        simulate(scenario({**keys, "run.keep": "file"}), fast=None)
    simulate(scenario({**keys, "run.keep": "file", "workload.num_turns": 1}), fast=None)


def test_a_request_that_could_never_run_is_refused_before_the_run() -> None:
    long = {"workload.input_length": {"kind": "uniform", "min": 1, "max": 900}, "scheduler.max_total_tokens": 512}
    messages = []
    for keep in ("all", "summary"):
        with pytest.raises(ScenarioError, match="could never run") as refused:
            simulate(scenario({**LOAD, **long, "run.keep": keep}), fast=None)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


def test_a_run_that_is_given_up_says_how_far_it_came() -> None:
    made = scenario({**LOAD, "run.max_iterations": 60})
    whole, less = simulate(made, fast=None), simulate(keeping(made, "summary"), fast=None)
    assert (less.verdict.kind, less.verdict.message) == (whole.verdict.kind, whole.verdict.message)
    right, came = (summarize(r.recording, r.verdict) for r in (whole, less))
    for key in ("num_iterations", "num_finished", "output_tokens", "ttft_s", "decision_digests"):
        assert came[key] == right[key]


def test_the_library_says_where_the_records_are(tmp_path: Path) -> None:
    kept, written, counted = (ppsim.simulate("tiny", **{"run.keep": keep}) for keep in ("all", "file", "summary"))
    assert written.digest == kept.digest
    for run, where in ((written, "read it back"), (counted, "run it again")):
        asked = (run.requests, run.batches, run.spans, run.plot, lambda run=run: run.diff(kept))
        for ask in asked:
            with pytest.raises(UsageError, match=where):
                ask()
    with pytest.raises(UsageError, match="no digest of all replies"):
        counted.digest  # noqa: B018  it is a property
    back = ppsim.read_run(written.save(tmp_path / "written"))
    assert back.requests().equals(kept.requests())
    again = ppsim.read_run(counted.save(tmp_path / "counted"))
    assert again.summary == counted.summary
    assert sorted(path.name for path in (tmp_path / "counted").iterdir()) == [
        "config.toml",
        "summary.json",
        "verdict.json",
    ]


def test_a_spool_leaves_nothing_behind(tmp_path: Path) -> None:
    result = simulate(scenario({**LOAD, "run.keep": "file"}), fast=None, place=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    text(result.recording)
    assert isinstance(result.recording, stream.RecordStream)
    assert result.recording.spool is not None
    result.recording.spool.close()
    assert list(tmp_path.iterdir()) == []
