"""Two pipelines that cannot be: a clear message that names the key, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.errors import ScenarioError
from tests.worlds.making import UNIT, run, scenario
from tests.worlds.pd_making import PAIR, at, pair

CASES: list[tuple[dict[str, Any], str, str]] = [
    (
        {"cluster.pp_size": 4, "disaggregation.decode_pp_size": 2},
        "disaggregation.decode_pp_size",
        "is 2, the prefill side has 4 stages",
    ),
    (
        {"cluster.pp_size": 2, "disaggregation.decode_pp_size": 3},
        "disaggregation.decode_pp_size",
        "give 2 or 1",
    ),
    (
        {"scheduler.page_size": 4, "disaggregation.decode_max_total_tokens": 3},
        "disaggregation.decode_max_total_tokens",
        "smaller than one page of 4",
    ),
    (
        {"workload.requests": [{"rid": "R1", "prompt": 4, "at_iteration": 3}]},
        "workload.requests.0.at_iteration",
        "use at_ms",
    ),
    (
        {"observations.listed": [{"what": "transfer", "rid": "R1", "at": [1, 1, 1, 1]}]},
        "observations.listed.0.what",
        "what the two sides do to each other",
    ),
    (
        {"observations.listed": [{"what": "grammar", "rid": "R1", "at": [1, 1]}]},
        "observations.listed.0.at",
        "has 2 entries for 4 ranks",
    ),
    (
        {"disaggregation.kv_faults": [{"rid": "R1", "rank": 0}, {"rid": "R1", "rank": 0, "what": "lost"}]},
        "disaggregation.kv_faults.1",
        "write 1 of 'R1' on rank 0 goes wrong in entry 0 already",
    ),
    (
        {"disaggregation.kv_faults": [{"rid": "R1", "rank": 2}]},
        "disaggregation.kv_faults.0.rank",
        "there are prefill ranks 0 to 1",
    ),
    (
        {"faults.clock_skew_ms": [1, 2]},
        "faults.clock_skew_ms",
        "has 2 entries for 4 ranks",
    ),
    (
        {"faults.pauses": [{"rank": 4, "at_iteration": 1}]},
        "faults.pauses.0.rank",
        "there are ranks 0 to 3",
    ),
]


@pytest.mark.parametrize(("changes", "field", "words"), CASES, ids=[field for _, field, _ in CASES])
def test_a_scenario_of_two_pipelines_that_contradicts_itself_is_refused(
    changes: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ScenarioError) as raised:
        scenario(changes, PAIR)
    assert raised.value.field == field
    assert words in str(raised.value)


def test_a_side_is_named_only_where_there_are_two() -> None:
    with pytest.raises(ScenarioError, match="there is only one side"):
        scenario({"workload.aborts": [{"rid": "R1", "at_ms": 1.0, "side": "decode"}]}, UNIT)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("disaggregation.decode_max_total_tokens", "decode side: request R1 could never run"),
        ("scheduler.max_total_tokens", "prefill side: request R1 could never run"),
    ],
)
def test_a_written_request_that_one_side_could_never_take_is_refused_with_the_key_of_that_side(
    key: str, words: str
) -> None:
    with pytest.raises(ScenarioError) as raised:
        pair({key: 32, "workload.requests": [at(0, 40)]})
    assert words in str(raised.value)
    assert key in raised.value.hint


def test_pauses_and_clocks_are_numbered_over_both_sides() -> None:
    """Rank 3 is the decode side's second: it stands for 5 ms, which the first token has to wait for."""
    free = pair({"workload.requests": [at(0)]})
    paused = pair({"workload.requests": [at(0)], "faults.pauses": [{"rank": 3, "at_iteration": 4, "ms": 5.0}]})
    assert free.verdict.kind == paused.verdict.kind == "pass"
    late = paused.recording.replies[0].time_ns - free.recording.replies[0].time_ns
    assert 2_000_000 < late <= 5_000_000


# --- what runs, but not as its keys may lead one to think ------------------------------------------------------------


def needful(role: str) -> dict[str, Any]:
    """What a scenario of a role says, without a key that does nothing there."""
    base = {**(PAIR if role == "pd" else UNIT), "disaggregation.role": role}
    if role in ("decode", "pd"):
        base["disaggregation.num_reserved_decode_tokens"] = 4
    if role == "decode":
        del base["scheduler.chunked_prefill_size"]
    if role == "prefill":
        base["workload.requests"] = [{"rid": "R1", "prompt": 4, "output": 1}]
    return base


@pytest.mark.parametrize(
    ("role", "changes", "words"),
    [
        ("plain", {"disaggregation.decode_pp_size": 1}, "disaggregation.decode_pp_size has no effect"),
        ("plain", {"disaggregation.bootstrap": "vote"}, "disaggregation.bootstrap has no effect"),
        ("plain", {"disaggregation.variant": "released"}, "disaggregation.variant has no effect"),
        ("decode", {"disaggregation.bootstrap": "vote"}, "disaggregation.bootstrap has no effect"),
        (
            "prefill",
            {"disaggregation.kv_bandwidth_gb_per_s": 1.0},
            "disaggregation.kv_bandwidth_gb_per_s has no effect",
        ),
        ("prefill", {"disaggregation.kv_faults": [{"rid": "R1", "rank": 0}]}, "disaggregation.kv_faults has no effect"),
        (
            "prefill",
            {"observations.listed": [{"what": "transfer", "rid": "r1", "at": [1, 1]}]},
            "observations.listed: no request has the id 'r1'",
        ),
        ("plain", {"workload.aborts": [{"rid": "r1", "at_iteration": 1}]}, "or had ended: 1"),
        ("decode", {"workload.aborts": [{"rid": "R1", "at_iteration": 300}]}, "or had ended: 1"),
    ],
)
def test_what_has_no_effect_is_said_once_in_the_report(role: str, changes: dict[str, Any], words: str) -> None:
    result = run(changes, needful(role))
    assert result.verdict.kind == "pass", result.verdict.message
    assert [words in warning for warning in result.recording.warnings] == [True]


@pytest.mark.parametrize("role", ["plain", "prefill", "decode", "pd"])
def test_a_scenario_that_says_nothing_needless_is_told_nothing(role: str) -> None:
    result = run({}, needful(role))
    assert result.recording.warnings == []
