"""Law: a trace keeps the rules of its format, and holds what the recording holds, to the nanosecond."""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.recording import PASS, Recording, Verdict
from ppsim.recording.schema import Stand
from ppsim.report.lanes import parts_of
from ppsim.report.series import request_counts
from ppsim.report.trace import MARKS, trace
from ppsim.report.trace_format import Slice, event, microseconds, side_by_side, write_trace
from ppsim.report.window import Window
from ppsim.scenario import load_scenario
from ppsim.world import simulate
from tests.unit.handmade import pipeline, two_requests
from tests.unit.trace_rules import nanoseconds, problems
from tests.worlds.making import requests, run
from tests.worlds.pd_making import at, passed_pair

SLOW = {"links.latency_us": 300, "links.bandwidth_gb_per_s": 0.01}


def parsed(
    recording: Recording, verdict: Verdict | None = None, window: Window | None = None, side: str | None = None
) -> Any:
    found = trace(parts_of(recording, side), verdict, window)
    write_trace(found.events, found.other, Path("t.json"))
    return json.loads(Path("t.json").read_text())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def busy(**changes: Any) -> Recording:
    """Retractions, an abort, a refusal, channels in both directions at once."""
    made = [{**r, "at_ms": 5.3 * i} for i, r in enumerate(requests(12, prompt=23, output=9))]
    base = {
        "cluster.pp_size": 3,
        "workload.requests": made,
        "workload.aborts": [{"rid": "R4", "at_ms": 30.0}],
        "scheduler.max_total_tokens": 96,
        **SLOW,
    }
    result = run({**base, **changes})
    assert result.verdict == PASS, result.verdict
    return result.recording


def retracting() -> Recording:
    """The shipped scenario of a retraction: two requests outgrow the pool of one slot."""
    return simulate(load_scenario("bugs/b48_retraction_without_effect")).recording


def slices_by(file: Any, cat: str) -> list[Any]:
    return [e for e in file["traceEvents"] if e["ph"] == "X" and e["cat"] == cat]


def ends_of(e: Any) -> tuple[int, int]:
    start = nanoseconds(e["ts"])
    return start, start + nanoseconds(e["dur"])


# --- the rules ---------------------------------------------------------------------------------------------------


GOOD: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "p"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 10, "args": {"name": "t"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 11, "args": {"name": "u"}},
    {"ph": "X", "name": "a", "pid": 1, "tid": 10, "ts": 1, "dur": 9},
    {"ph": "X", "name": "b", "pid": 1, "tid": 10, "ts": 2.001, "dur": 3},
    {"ph": "B", "name": "c", "pid": 1, "tid": 11, "ts": 1},
    {"ph": "E", "pid": 1, "tid": 11, "ts": 12},
    {"ph": "s", "name": "m", "cat": "x", "id": 1, "pid": 1, "tid": 10, "ts": 3},
    {"ph": "t", "name": "m", "cat": "x", "id": 1, "pid": 1, "tid": 10, "ts": 4, "bp": "e"},
    {"ph": "f", "name": "m", "cat": "x", "id": 1, "pid": 1, "tid": 11, "ts": 5, "bp": "e"},
    {"ph": "C", "name": "n", "pid": 1, "tid": 0, "ts": 0, "args": {"k": 3}},
    {"ph": "C", "name": "n", "pid": 1, "tid": 0, "ts": 2, "args": {"k": 4}},
    {"ph": "i", "name": "w", "pid": 1, "tid": 10, "ts": 0.5, "s": "p"},
]

BROKEN: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "phase": lambda e: e[3].update(ph="Z"),
    "name": lambda e: e[3].pop("name"),
    "pid": lambda e: e[3].update(pid="1"),
    "no tid": lambda e: e[3].pop("tid"),
    "no ts": lambda e: e[3].pop("ts"),
    "negative ts": lambda e: e[3].update(ts=-1),
    "text ts": lambda e: e[3].update(ts="1"),
    "picoseconds": lambda e: e[4].update(ts=2.0013),
    "no dur": lambda e: e[3].pop("dur"),
    "negative dur": lambda e: e[3].update(dur=-1),
    "overlap": lambda e: e[4].update(dur=8.5),
    "back in time": lambda e: e[6].update(ts=0),
    "no end": lambda e: e.pop(6),
    "no begin": lambda e: e.pop(5),
    "scope": lambda e: e[12].update(s="x"),
    "no scope": lambda e: e[12].pop("s"),
    "counter without numbers": lambda e: e[10].update(args={"k": "3"}),
    "counter of nothing": lambda e: e[10].update(args={}),
    "counter changes its names": lambda e: e[11].update(args={"q": 3}),
    "metadata": lambda e: e[0].update(name="process_nickname"),
    "metadata without a name": lambda e: e[0].update(args={}),
    "flow without an end": lambda e: e.pop(9),
    "flow without a start": lambda e: e.pop(7),
    "flow backwards": lambda e: e[9].update(ts=2.5),
    "flow of another name": lambda e: e[9].update(name="o"),
    "flow without an id": lambda e: e[7].pop("id"),
    "flow in no slice": lambda e: e[9].update(ts=13),
    "flow not bound": lambda e: e[9].pop("bp"),
    "process without a name": lambda e: e.pop(0),
    "thread without a name": lambda e: e.pop(2),
    "a thread of two processes": lambda e: e[5].update(pid=2) or e[6].update(pid=2),
}


def test_the_checker_passes_a_good_file() -> None:
    assert problems({"displayTimeUnit": "ns", "traceEvents": GOOD}) == []


@pytest.mark.parametrize("name", BROKEN)
def test_the_checker_finds_every_broken_rule(name: str) -> None:
    events = copy.deepcopy(GOOD)
    BROKEN[name](events)
    assert problems({"displayTimeUnit": "ns", "traceEvents": events})


@pytest.mark.parametrize(
    "file", [[], {}, {"traceEvents": 3}, {"traceEvents": []}, {"displayTimeUnit": "s", "traceEvents": []}]
)
def test_the_checker_finds_what_is_no_file(file: Any) -> None:
    assert problems(file)


FAILED = Verdict("fail", 3, "deadlock")


def stuck() -> Recording:
    recording = pipeline(2, 6)
    recording.stands = [Stand(r, 2, 0, "waits", 1 - r, 5 * 10**9) for r in (0, 1)]
    return recording


MADE: dict[str, Callable[[], Any]] = {
    "by hand, without times of decisions": lambda: parsed(two_requests()),
    "a diagonal": lambda: parsed(pipeline(4, 6)),
    "nothing": lambda: parsed(Recording(2)),
    "one stage": lambda: parsed(busy(**{"cluster.pp_size": 1})),
    "three stages": lambda: parsed(busy()),
    "depth": lambda: parsed(busy(**{"cluster.pp_async_batch_depth": 2})),
    "unordered links": lambda: parsed(busy(**{"links.order": "none", "links.jitter_us": 500})),
    "retraction": lambda: parsed(retracting()),
    "failed": lambda: parsed(stuck(), FAILED),
    "a window": lambda: parsed(busy(), None, Window(20_000_000, 40_000_000)),
    "prefill and decode": lambda: parsed(two_sides()),
    "prefill alone": lambda: parsed(two_sides(), side="prefill"),
    "decode of the same size": lambda: parsed(two_sides(decode_pp_size=2)),
    "ranks that are replicas": lambda: parsed(busy(**{"cluster.tp_size": 2, "cluster.tp_replicas": 2})),
}


def two_sides(decode_pp_size: int = 1) -> Recording:
    made = [at(3.1 * i, prompt=9, output=6, rid=f"R{i + 1}") for i in range(6)]
    links = {"disaggregation.kv_bandwidth_gb_per_s": 0.001, "disaggregation.decode_pp_size": decode_pp_size}
    return passed_pair({"workload.requests": made, **SLOW, **links}).recording


@pytest.mark.parametrize("name", MADE)
def test_a_trace_keeps_the_rules(name: str) -> None:
    file = MADE[name]()
    assert problems(file) == []
    assert file["displayTimeUnit"] == "ns"
    assert isinstance(file["otherData"]["left_out"], list)


# --- what is in it -----------------------------------------------------------------------------------------------


def test_every_span_visit_and_message_is_a_slice_with_its_very_times() -> None:
    recording = busy()
    file = parsed(recording)
    names = {e["pid"]: e["args"]["name"] for e in file["traceEvents"] if e["name"] == "process_name"}
    assert names == {1: "PP0", 2: "PP1", 3: "PP2"}
    for rank in range(3):
        mine = [e for e in slices_by(file, "forward") if e["pid"] == rank + 1]
        assert [ends_of(e) for e in mine] == [(s.start_ns, s.end_ns) for s in recording.spans[rank]]
        assert [e["args"]["iteration"] for e in mine] == [s.iteration for s in recording.spans[rank]]
        host = [e for e in slices_by(file, "host") if e["pid"] == rank + 1]
        assert [ends_of(e)[0] for e in host] == recording.visits[rank]
        assert [ends_of(e)[1] for e in host[:-1]] == recording.visits[rank][1:]
    sent, received = Counter(), Counter()
    for (src, dst, kind), messages in recording.messages.items():
        for m in messages:
            sent[src + 1, f"{kind} {m.iteration} to PP{dst}", m.leaves_ns, m.sent_ns] += 1
            length = m.sent_ns - m.leaves_ns
            received[dst + 1, f"{kind} {m.iteration} from PP{src}", m.arrival_ns - length, m.arrival_ns] += 1
    assert Counter((e["pid"], e["name"], *ends_of(e)) for e in slices_by(file, "send")) == sent
    assert Counter((e["pid"], e["name"], *ends_of(e)) for e in slices_by(file, "receive")) == received
    assert sum(sent.values()) > 50


def test_flows_lead_from_the_send_to_the_receive_and_to_the_pass_that_needs_it() -> None:
    recording = busy()
    file = parsed(recording)
    at_place = {}
    for cat in ("send", "receive", "forward"):
        for e in slices_by(file, cat):
            at_place.setdefault((e["pid"], e["tid"]), []).append((*ends_of(e), cat, e["args"]["iteration"]))
    chains: dict[int, list[Any]] = {}
    for e in file["traceEvents"]:
        if e["ph"] in "stf":
            time = nanoseconds(e["ts"])
            (inner,) = [s for s in at_place[e["pid"], e["tid"]] if s[0] < time < s[1]]  # never on an edge
            chains.setdefault(e["id"], []).append((e["name"], e["pid"], *inner[2:]))
    wanted = Counter()
    for (src, dst, kind), messages in recording.messages.items():
        for m in messages:
            chain = [(kind, src + 1, "send", m.iteration), (kind, dst + 1, "receive", m.iteration)]
            wanted[tuple(chain + [(kind, dst + 1, "forward", m.iteration)] * (kind == "hidden"))] += 1
    assert Counter(tuple(chain) for chain in chains.values()) == wanted


def test_counters_are_those_of_the_pictures_and_instants_those_of_the_records() -> None:
    recording = busy()
    file = parsed(recording)
    counted = [e for e in file["traceEvents"] if e["ph"] == "C" and e["name"] == "requests"]
    counts = request_counts(recording)
    seen = {nanoseconds(e["ts"]): (e["args"]["running"], e["args"]["waiting"]) for e in counted}
    for series, place in ((counts.running, 0), (counts.waiting, 1)):
        for time, value in zip(series.times, series.values, strict=True):
            assert seen[time][place] == value
    instants = Counter((e["cat"], e["name"], nanoseconds(e["ts"])) for e in file["traceEvents"] if e["ph"] == "i")
    (read,) = [i.time_ns for i in recording.ingestions for item in i.inputs if item.kind == "abort"]
    (ended,) = [r.time_ns for r in recording.replies if r.status == "aborted"]
    assert instants["inputs", "abort R4", read] == 1
    assert instants["replies", "R4 aborted", ended] == 1


def test_retractions_have_an_instant_at_their_decision() -> None:
    recording = retracting()
    wanted = [recording.visits[0][d.iteration] for d in recording.decisions[0] if d.retracted]
    assert wanted
    found = [e for e in parsed(recording)["traceEvents"] if e.get("cat") == "retractions"]
    assert [nanoseconds(e["ts"]) for e in found] == wanted


def test_of_two_pipelines_both_are_there_with_their_kv_and_their_votes() -> None:
    decode = two_sides()
    assert decode.peer is not None
    file = parsed(decode)
    names = [e["args"]["name"] for e in file["traceEvents"] if e["name"] == "process_name"]
    assert names == ["prefill PP0", "prefill PP1", "decode PP0"]
    kv = {rank: [(s.start_ns, s.end_ns) for s in decode.peer.spans[rank] if s.stream == "kv"] for rank in (0, 1)}
    assert kv[0]
    assert kv[1]
    for rank in (0, 1):
        sent = [ends_of(e) for e in slices_by(file, "send") if e["pid"] == rank + 1 and e["args"]["kind"] == "kv"]
        assert sorted(sent) == sorted(kv[rank])
    came = [ends_of(e) for e in slices_by(file, "receive") if e["pid"] == 3 and e["args"]["kind"] == "kv"]
    assert sorted(came) == sorted(kv[0] + kv[1])
    alike = parsed(two_sides(decode_pp_size=2))
    for rank in (0, 1):  # each stage sends to the same one
        names = {e["name"].split(" from ")[1] for e in slices_by(alike, "receive") if e["pid"] == rank + 3}
        assert f"prefill PP{rank}" in names
        assert f"prefill PP{1 - rank}" not in names
    votes = Counter(e["name"] for e in file["traceEvents"] if e.get("cat") == "votes")
    for mark in (*decode.marks, *decode.peer.marks):
        assert votes[f"{mark.rid} {MARKS[mark.what]}"] >= 1
    assert {"in_force", "received"} <= {mark.what for mark in (*decode.marks, *decode.peer.marks)}
    assert not any(name.endswith("in_force") for name in votes)
    looks = sum(len(seen) for part in (decode, decode.peer) for seen in part.observations)
    assert sum(n for name, n in votes.items() if name.startswith("observes ")) == looks > 0


def test_what_was_seen_before_the_first_iteration_stands_at_the_start() -> None:
    recording = busy()
    file = parsed(recording)
    found = [(e["pid"], e["args"]["iteration"], nanoseconds(e["ts"])) for e in file["traceEvents"] if is_look(e)]
    early = [(rank + 1, -1, 0) for rank in range(3)]
    assert [one for one in found if one[1] < 0] == early, "each rank tells its own memory before they agree on one"
    for pid, iteration, at_ns in found:
        assert iteration < 0 or at_ns == recording.visits[pid - 1][iteration]


def is_look(e: Any) -> bool:
    return bool(e["ph"] == "i" and e["name"].startswith("observes "))


def test_where_the_ranks_of_a_failed_run_stood_is_an_instant_on_each() -> None:
    file = parsed(stuck(), FAILED)
    found = [(e["pid"], e["name"], nanoseconds(e["ts"])) for e in file["traceEvents"] if e.get("cat") == "verdict"]
    assert found == [(1, "stands: waits", 5 * 10**9), (2, "stands: waits", 5 * 10**9)]
    assert file["otherData"]["says"] == "deadlock"


def test_what_a_recording_lacks_is_said() -> None:
    old = parsed(pipeline(2, 3))["otherData"]["left_out"]
    assert any("no times of decisions" in sentence for sentence in old)
    assert any("no messages between ranks" in sentence for sentence in old)
    new = parsed(busy())["otherData"]["left_out"]
    assert not any("this recording has no" in sentence for sentence in new)


def test_a_window_keeps_what_touches_it_and_begins_with_the_counts_that_held() -> None:
    recording = busy()
    window = Window(20_000_000, 40_000_000)
    whole, part = parsed(recording), parsed(recording, None, window)
    for cat in ("host", "forward", "send", "receive"):
        kept = [e for e in slices_by(whole, cat) if ends_of(e)[0] < window.end_ns and ends_of(e)[1] >= window.start_ns]
        key = [(e["pid"], e["name"], *ends_of(e)) for e in kept]
        assert sorted((e["pid"], e["name"], *ends_of(e)) for e in slices_by(part, cat)) == sorted(key)
        assert 0 < len(kept) < len(slices_by(whole, cat))
    counts = [e for e in part["traceEvents"] if e["ph"] == "C" and e["name"] == "requests"]
    before = [e for e in whole["traceEvents"] if e["ph"] == "C" and e["name"] == "requests" and e["ts"] <= 20_000]
    assert counts[0]["args"] == before[-1]["args"]
    assert counts[0]["ts"] == 20_000


# --- the file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0"),
        (1, "0.001"),
        (999, "0.999"),
        (1000, "1"),
        (1500, "1.5"),
        (68_200_000_001, "68200000.001"),
        (-1, "-0.001"),
    ],
)
def test_times_are_microseconds_without_a_lost_nanosecond(time_ns: int, text: str) -> None:
    assert microseconds(time_ns) == text
    assert nanoseconds(float(text)) == time_ns
    assert json.loads(event("i", "x", 1, 1, time_ns))["ts"] == float(text)


def test_a_nanosecond_survives_fifty_days_even_in_a_reader_that_takes_floats() -> None:
    for time_ns in (2**52 - 1, 4_320_000_000_000_001, 123_456_789_012_345):
        assert nanoseconds(float(microseconds(time_ns))) == time_ns


def test_names_of_users_cannot_break_the_file() -> None:
    recording = pipeline(1, 2)
    recording.name = 'a "name"\n\u2028</script>'
    recording.arrival('R"2\\', 1, 1, 1)
    assert problems(parsed(recording)) == []


def test_slices_lie_side_by_side() -> None:
    made = [Slice(str(i), a, b, {}) for i, (a, b) in enumerate([(0, 9), (3, 5), (9, 9), (4, 12), (5, 6)])]
    found = [[s.name for s in thread] for thread in side_by_side(made)]
    assert found == [["0", "2"], ["1", "4"], ["3"]]


def test_the_same_run_gives_the_same_bytes_packed_and_not() -> None:
    recording = busy()
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        found = trace(parts_of(recording))
        write_trace(found.events, found.other, Path(name))
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes() == gzip.decompress(Path("a.json.gz").read_bytes())
    assert Path("a.json.gz").read_bytes() == Path("b.json.gz").read_bytes()
    assert Path("a.json.gz").read_bytes()[3:8] == bytes(5)  # no name of a file and no time in the head
    assert sorted(path.name for path in Path().iterdir()) == ["a.json", "a.json.gz", "b.json", "b.json.gz"]


COMMANDS = [
    (["mine"], 0, "mine/trace.json.gz"),
    (["mine", "-o", "x.json"], 0, "x.json"),
    (["mine", "--from", "1", "--to", "2"], 0, "mine/trace.json.gz"),
    (["nothing"], 2, "run 'nothing' does not exist"),
    (["empty"], 2, "empty is not a run folder: it has no recording.jsonl"),
    (["half"], 2, "half/recording.jsonl:4: "),
    (["mine", "-o", "x.txt"], 2, "-o x.txt: a trace is a .json or .json.gz file"),
    (["mine", "-o", "missing/x.json"], 2, "-o missing/x.json: cannot be written: No such file or directory"),
    (["mine", "-o", "dir.json"], 2, "-o dir.json: cannot be written: Is a directory"),
    (["mine", "--side", "decode"], 2, "--side decode: this run has one pipeline"),
    (["mine", "--from", "nan"], 2, "--from nan: expected a number of seconds"),
    (["mine", "--from", "3", "--to", "2"], 2, "--from 3.0 s is not before --to 2.0 s"),
    (["mine", "--from", "99"], 2, "shows nothing"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "says"), COMMANDS, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_the_command_writes_a_trace_or_says_why_not(arguments: list[str], code: int, says: str) -> None:
    CliRunner().invoke(app, ["run", "unit", "--out", "mine"])
    Path("empty").mkdir()
    Path("half").mkdir()
    Path("dir.json").mkdir()
    lines = Path("mine/recording.jsonl").read_text().splitlines(keepends=True)
    Path("half/recording.jsonl").write_text("".join(lines[:4]))
    result = CliRunner().invoke(app, ["trace", *arguments])
    assert result.exit_code == code, result.stderr
    assert says in (result.stdout if code == 0 else result.stderr)
    assert code == 0 or result.stderr.count("\n") == 1
    assert not list(Path().rglob("*.part"))
    if code == 0:
        content = Path(result.stdout.strip()).read_bytes()
        assert (
            problems(json.loads(gzip.decompress(content) if result.stdout.strip().endswith(".gz") else content)) == []
        )


def test_another_trace_of_the_same_name_is_told() -> None:
    CliRunner().invoke(app, ["run", "unit", "--out", "mine"])
    assert CliRunner().invoke(app, ["trace", "mine"]).stderr == ""
    assert CliRunner().invoke(app, ["trace", "mine"]).stderr == ""
    assert CliRunner().invoke(app, ["trace", "mine", "--from", "1"]).stderr == "ppsim: replaced mine/trace.json.gz\n"
