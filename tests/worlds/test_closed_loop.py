"""Clients that send one request after the other, and sessions: schedules by hand, laws of queues, both pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from ppsim.core.messages import NewRequest
from ppsim.core.tokens import count, unpack
from ppsim.errors import ScenarioError
from ppsim.recording import PASS, Recording
from ppsim.recording.reader import read_recording
from ppsim.recording.summary import summarize
from ppsim.recording.writer import lines, write_recording
from ppsim.world.choices import SeededChoices
from ppsim.world.simulate import Given
from tests.worlds.making import MS, UNIT, passed, requests, run, scenario, tokens_of
from tests.worlds.pd_making import PAIR, both, passed_pair

ALONE = {**UNIT, "cluster.pp_size": 1}
SESSIONS: dict[str, Any] = {
    "workload.source": "generated",
    "workload.num_sessions": 3,
    "workload.num_turns": 3,
    "workload.think_time_ms": 5.0,
    "workload.input_length": {"kind": "fixed", "value": 8},
    "workload.output_length": {"kind": "fixed", "value": 4},
    "workload.arrival": "burst",
}
MIXED: dict[str, Any] = {
    "workload.source": "generated",
    "workload.num_requests": 24,
    "workload.input_length": {"kind": "uniform", "min": 1, "max": 40},
    "workload.output_length": {"kind": "uniform", "min": 1, "max": 12},
}
ROLES: dict[str, dict[str, Any]] = {
    "plain": UNIT,
    "deep": {**UNIT, "cluster.pp_size": 3, "cluster.pp_async_batch_depth": 1, "links.latency_us": 30.0},
    "prefill": {**UNIT, "disaggregation.role": "prefill", "host.schedule_us": 10.0},
    "decode": {**UNIT, "disaggregation.role": "decode", "host.schedule_us": 10.0},
    "pd": PAIR,
    "pd uneven": {**PAIR, "disaggregation.decode_pp_size": 1, "disaggregation.kv_latency_us": 300.0},
}


def stays(recording: Recording) -> dict[str, tuple[int, int]]:
    """For each request when it was sent and when its last reply came, in ns; read from the records alone."""
    ends = {reply.rid: reply.time_ns for reply in recording.replies if reply.status != "token"}
    return {a.rid: (a.at_ns, ends[a.rid]) for a in recording.arrivals}


def most_in_flight(recording: Recording) -> int:
    """At the instant at which a request is sent, those that were sent by then and end later, and itself."""
    times = list(stays(recording).values())
    return max(sum(begin <= now < max(end, begin + 1) for begin, end in times) for now, _ in times)


def prompts_of(recording: Recording) -> dict[str, list[int]]:
    new = (item for read in recording.ingestions for item in read.live)
    return {item.rid: unpack(item.prompt) for item in new if isinstance(item, NewRequest)}


# -- schedules that can be worked out by hand ----------------------------------------------------------------------


def test_one_stage_and_one_client_serve_one_request_after_the_other() -> None:
    """A prompt of one chunk takes 1 ms and gives the first token; each further token another one: 3 ms a request."""
    r = passed({"workload.concurrency": 1, "workload.requests": requests(4, output=3)}, ALONE)
    assert stays(r) == {f"R{n + 1}": (3 * n * MS, 3 * (n + 1) * MS) for n in range(4)}


def test_two_clients_share_the_steps_of_one_stage() -> None:
    """Both prompts fit one chunk of 4 tokens each, so iterations 0 and 1 prefill them; a slot holds one request, and
    one stage has one slot: they take turns. With two rows a slot, both decode in one step of 1 ms."""
    changes = {
        "workload.concurrency": 2,
        "workload.requests": requests(4, prompt=2, output=3),
        "scheduler.pp_max_micro_batch_size": 2,
    }
    r = passed(changes, ALONE)
    # both prompts are one batch (2 + 2 tokens): first tokens at 1 ms, then two decode steps; then the next two
    assert stays(r) == {"R1": (0, 3 * MS), "R2": (0, 3 * MS), "R3": (3 * MS, 6 * MS), "R4": (3 * MS, 6 * MS)}


def test_a_session_thinks_between_its_turns() -> None:
    """Chunks of 4: the first prompt of 8 takes 2 ms, four tokens end 3 ms later, at 5 ms. Then 5 ms of thought. The
    second prompt is 8 + 4 + 8 = 20 tokens, of which 11 are cached (the last token was never computed): 9 new ones are
    3 chunks, 3 + 3 ms."""
    r = passed({**SESSIONS, "workload.num_sessions": 1}, ALONE)
    assert stays(r) == {"R1.1": (0, 5 * MS), "R1.2": (10 * MS, 16 * MS), "R1.3": (21 * MS, 27 * MS)}
    first = {rid: prefix for d in reversed(r.decisions[0]) for rid, prefix, _ in d.pieces}
    assert first == {"R1.1": 0, "R1.2": 11, "R1.3": 23}


def test_clients_keep_a_session_to_its_end() -> None:
    r = passed({**SESSIONS, "workload.concurrency": 1}, ALONE)
    assert [a.rid for a in r.arrivals] == [f"R{n}.{turn}" for n in (1, 2, 3) for turn in (1, 2, 3)]
    assert stays(r)["R2.1"] == (27 * MS, 32 * MS)  # as soon as the one before is over, without a thought


# -- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("num_clients", [1, 2, 5, 100])
def test_no_more_are_in_flight_than_there_are_clients(role: str, num_clients: int) -> None:
    result = run({**MIXED, "workload.concurrency": num_clients, "seed": 3}, ROLES[role])
    assert result.verdict == PASS, result.verdict.message
    r = result.recording
    assert len(stays(r)) == 24
    assert most_in_flight(r) == min(num_clients, 24)  # and never fewer while requests are left
    sides = [r] if r.peer is None else [r, r.peer]
    assert all(recording.arrivals == r.arrivals for recording in sides)


@pytest.mark.parametrize("role", ROLES)
def test_a_single_client_waits_for_each_answer(role: str) -> None:
    r = run({**MIXED, "workload.concurrency": 1}, ROLES[role]).recording
    times = [stays(r)[f"R{n + 1}"] for n in range(24)]
    after = 1 if role.startswith("pd") else 0  # two servers, two clocks
    assert all(begin == end + after for (_, end), (begin, _) in pairwise(times))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("num_clients", [1, 3, 7])
def test_littles_law(role: str, num_clients: int) -> None:
    """Number in flight = rate of ends x time in flight. The left side is integrated over a step function that is made
    of replies and sendings; the right side is counted."""
    r = run({**MIXED, "workload.concurrency": num_clients}, ROLES[role]).recording
    times = list(stays(r).values())
    events = sorted({t for pair in times for t in pair})
    area = sum((later - now) * sum(begin <= now < end for begin, end in times) for now, later in pairwise(events))
    elapsed = events[-1] - events[0]
    rate, latency = Fraction(len(times), elapsed), Fraction(sum(e - b for b, e in times), len(times))
    assert Fraction(area, elapsed) == rate * latency
    told = summarize(r, PASS)["concurrency"]
    assert told["clients"] == num_clients
    assert told["max"] == num_clients == most_in_flight(r)
    assert told["mean"] == pytest.approx(float(Fraction(area, elapsed)), rel=1e-12)
    # each answer is followed at once: all clients are busy until no request is left
    full = [t for t in events if t < max(b for b, _ in times)]
    assert all(sum(b <= t + 1 and e > t for b, e in times) >= num_clients for t in full if len(times) > num_clients)


@pytest.mark.parametrize("role", ["plain", "deep", "decode", "pd", "pd uneven"])
def test_a_turn_begins_with_all_that_was_said(role: str) -> None:
    changes = {**SESSIONS, "workload.output_length": {"kind": "uniform", "min": 1, "max": 9}, "workload.concurrency": 2}
    result = run(changes, ROLES[role])
    assert result.verdict == PASS, result.verdict.message
    prompts, answers = prompts_of(result.recording), tokens_of(result.recording)
    for rid, prompt in prompts.items():
        session, _, turn = rid.partition(".")
        before = f"{session}.{int(turn) - 1}"
        if turn == "1":
            assert len(prompt) == 8
            continue
        history = prompts[before] + list(answers[before])
        assert prompt[: len(history)] == history, rid
        assert len(prompt) == len(history) + 8, rid
        begin, end = stays(result.recording)[rid][0], stays(result.recording)[before][1]
        assert begin == end + 5 * MS
    assert len(prompts) == 9


def test_thinking_takes_as_long_as_the_distribution_says() -> None:
    changes = {**SESSIONS, "workload.num_sessions": 400, "workload.num_turns": 2, "workload.think_time_ms": 50.0}
    r = passed({**changes, "workload.think_time": "exponential", "scheduler.max_total_tokens": 40_000})
    times = stays(r)
    thoughts = sorted(times[f"R{n}.2"][0] - times[f"R{n}.1"][1] for n in range(1, 401))
    assert sum(thoughts) / 400 == pytest.approx(50 * MS, rel=0.15)  # three standard errors
    assert thoughts[200] == pytest.approx(50 * MS * 0.6931, rel=0.2)  # the median of an exponential


def test_prefix_caching_hits_what_was_said_and_nothing_without_a_cache() -> None:
    with_cache = summarize(passed({**SESSIONS, "workload.concurrency": 2}), PASS)
    # turns 2 and 3 of three sessions: 11 and 23 of their tokens were computed before
    assert with_cache["cached_tokens"] == 3 * (11 + 23)
    without = summarize(passed({**SESSIONS, "workload.concurrency": 2, "scheduler.disable_radix_cache": True}), PASS)
    assert without["cached_tokens"] == 0


# -- what ends early, is refused or told ---------------------------------------------------------------------------


def test_an_abort_frees_its_client_and_ends_its_session() -> None:
    abort = {"workload.aborts": [{"rid": "R1.2", "at_ms": 17.0}]}
    r = passed({**SESSIONS, "workload.concurrency": 1, **abort})
    assert [a.rid for a in r.arrivals] == ["R1.1", "R1.2", *(f"R{n}.{turn}" for n in (2, 3) for turn in (1, 2, 3))]
    assert any("1 turns of 1 sessions were never sent" in text and "R1.3" in text for text in r.warnings), r.warnings
    plain = passed(
        {
            "workload.concurrency": 1,
            "workload.requests": requests(3, output=50),
            "workload.aborts": [{"rid": "R1", "at_ms": 9.0}],
        }
    )
    ended = {reply.rid: reply.status for reply in plain.replies if reply.status != "token"}
    assert ended == {"R1": "aborted", "R2": "finished", "R3": "finished"}


@pytest.mark.parametrize("key", ["at_ms", "at_iteration"])
def test_a_request_cannot_have_a_moment_and_wait_for_a_client(key: str) -> None:
    value: float = 3.0 if key == "at_ms" else 3
    with pytest.raises(ScenarioError, match=key):
        scenario({"workload.concurrency": 1, "workload.requests": requests(2, **{key: value})})


def test_a_prefill_server_alone_has_no_sessions() -> None:
    with pytest.raises(ScenarioError, match="first token only"):
        scenario(SESSIONS, ROLES["prefill"])


def test_what_a_closed_loop_does_not_use_is_told() -> None:
    r = passed({**MIXED, "workload.concurrency": 2, "workload.rate_per_s": 5.0, "workload.time_scale": 2.0})
    for key in ("rate_per_s", "time_scale"):
        assert any(f"workload.{key} has no effect with workload.concurrency" in text for text in r.warnings)


def test_a_trace_with_clients_does_not_use_its_times(tmp_path: Any) -> None:
    rows = "".join(f"{7 * n + 3},{n + 1},2\n" for n in range(12))
    (tmp_path / "t.csv").write_text("when_s,in,out\n" + rows)
    keys = {
        "workload.source": "trace",
        "workload.trace": str(tmp_path / "t.csv"),
        "workload.columns": {"time": "when_s", "prompt": "in", "output": "out"},
        "workload.concurrency": 3,
    }
    r = passed(keys, {**UNIT, "cost.unit_ms": 0.5})
    assert any("its times are not used" in text for text in r.warnings)
    assert [a.at_ns for a in r.arrivals[:3]] == [0, 0, 0]
    assert max(end for _, end in stays(r).values()) < 10**9  # the trace itself takes 80 s
    assert [count_of(r, f"R{n + 1}") for n in range(12)] == list(range(1, 13))


def count_of(recording: Recording, rid: str) -> int:
    return len(prompts_of(recording)[rid])


# -- the same bytes, in whatever order the world serves its ranks --------------------------------------------------


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for role in ROLES:
        yield role, {**MIXED, "workload.concurrency": 4}
        if role != "prefill":
            yield role, {**SESSIONS, "workload.concurrency": 2, "workload.think_time": "exponential"}
            yield role, SESSIONS
    tiers = {"hicache.enabled": True, "hicache.host_tokens": 4096, "hicache.device_host_gb_per_s": 0.05}
    yield "plain", {**SESSIONS, **tiers, "workload.concurrency": 2, "scheduler.max_total_tokens": 64}
    yield "pd", {**SESSIONS, **tiers, "workload.concurrency": 2, "scheduler.max_total_tokens": 64}


@pytest.mark.parametrize(("role", "changes"), list(cases()))
def test_the_order_of_equal_events_changes_nothing(role: str, changes: dict[str, Any]) -> None:
    def shown(shuffle: int | None) -> list[str]:
        choices = None if shuffle is None else SeededChoices(shuffle, shuffle_order=True)
        result = run({**changes, "run.watchdog_ms": 500.0}, ROLES[role], choices=choices)
        assert result.verdict == PASS, result.verdict.message
        return both(result) if result.recording.peer is not None else list(lines(result.recording))

    written = shown(None)
    assert all(shown(seed) == written for seed in (1, 2, 3))


def test_a_recorded_closed_loop_is_read_back_and_replayed(tmp_path: Any) -> None:
    changes = {**MIXED, "workload.concurrency": 3}
    r = passed(changes)
    write_recording(r, tmp_path / "r.jsonl")
    assert list(lines(read_recording(tmp_path / "r.jsonl"))) == list(lines(r))
    again = passed(changes, given=Given({read.iteration: read.live for read in r.ingestions}))
    assert again.decisions == r.decisions
    assert {a.rid: a.at_ns for a in again.arrivals} == {
        item.rid: 0 if n < 3 else read.time_ns
        for n, (read, item) in enumerate(
            (read, item) for read in r.ingestions for item in read.live if isinstance(item, NewRequest)
        )
    }


def test_a_decode_server_that_stands_still_is_named_and_not_the_prefill_side_that_waits_for_it() -> None:
    changes = {"workload.concurrency": 1, "workload.requests": requests(3, output=4)}
    stands = {"faults.pauses": [{"rank": 3, "at_iteration": 6}]}
    result = run({**changes, **stands}, PAIR)
    assert result.verdict.kind == "fail"
    assert result.verdict.message.startswith("decode side: rank 1 is paused"), result.verdict.message


def test_a_pair_whose_answers_take_long_is_no_stall() -> None:
    changes = {"workload.concurrency": 1, "workload.requests": requests(3, output=400)}
    passed_pair({**changes, "run.watchdog_ms": 50.0})


def test_a_request_is_read_on_the_prefill_side_as_soon_as_it_has_come() -> None:
    """R1 is answered while the 200 chunks of R2 are computed, with nothing to ask the other side meanwhile: the first
    rank could run ahead through all of them. A visit takes about a millisecond."""
    long = {"rid": "R2", "prompt": 800, "output": 1, "ignore_eos": True}
    changes = {"workload.concurrency": 2, "workload.requests": [*requests(1, output=40), long]}
    changes["workload.requests"] += [{**requests(1)[0], "rid": rid} for rid in ("R3", "R4", "R5")]
    result = passed_pair(changes)
    sides = [result.recording, result.recording.peer]
    for recording in sides:
        assert recording is not None
        read = {item.rid: r.time_ns for r in recording.ingestions for item in r.inputs if item.kind == "new"}
        assert len(read) == 5
        late = {a.rid: read[a.rid] - a.at_ns for a in recording.arrivals}
        assert all(0 <= wait <= 2 * MS for wait in late.values()), late


def test_prompts_are_counted_whole() -> None:
    """A session whose last turn cannot fit the pool is refused at the start, and not after an hour."""
    with pytest.raises(ScenarioError, match=r"R1\.3 could never run"):
        run({**SESSIONS, "scheduler.max_total_tokens": 33}, ALONE)
    assert count(b"\0" * 8) == 2
