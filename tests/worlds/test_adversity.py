"""What the adversary may do beyond delays: memory refused to any launch, ids that come again, facts that fail on some
ranks only, tiers under two pipelines. Every expectation is worked out by hand from the scenario."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.making import passed, requests, run


class Answers:
    """Choices: what is given by stream, 0 for everything else."""

    def __init__(self, answers: dict[str, int]) -> None:
        self.answers = answers

    def below(self, stream: str, n: int) -> int:
        return min(self.answers.get(stream, 0), n - 1)


@pytest.mark.parametrize(
    ("num_failing", "behind", "iterations"),
    [
        (0, 0, [0, 1, 2, 3]),
        (1, 0, [1, 2, 3, 4]),  # nothing is launched in iteration 0
        (1, 1, [0, 2, 3, 4]),
        (2, 2, [0, 1, 4, 5]),
        (3, 3, [0, 1, 2, 6]),
        (3, 4, [0, 1, 2, 3]),  # there is no fifth chunk
    ],
)
def test_memory_may_be_refused_to_any_launch_of_a_prompt(num_failing: int, behind: int, iterations: list[int]) -> None:
    """Four chunks, one an iteration; each refusal costs the visit in which it comes, and nothing else."""
    changes = {
        "workload.requests": requests(1, prompt=16),
        "chance.max_failed_allocations": 3,
        "chance.max_good_allocations": 4,
        "run.invariants": True,
    }
    recording = passed(changes, choices=Answers({"memory R1": num_failing, "memory behind R1": behind}))
    for decisions in recording.decisions:
        launched = [(d.iteration, d.pieces[0][1]) for d in decisions if d.pieces]
        assert launched == [(iteration, 4 * i) for i, iteration in enumerate(iterations)]


def twice(at_iteration: int) -> list[dict[str, Any]]:
    first, second = requests(1, output=2) * 2
    return [first, {**second, "prompt": 6, "at_iteration": at_iteration}]


@pytest.mark.parametrize("role", ["plain", "prefill", "decode"])
@pytest.mark.parametrize("bootstrap", ["store", "vote"])
@pytest.mark.parametrize("seed", range(3))
def test_an_id_that_comes_again_is_another_request(role: str, bootstrap: str, seed: int) -> None:
    """What the store, a vote or a rank knew of the first says nothing about the second."""
    changes = {
        "seed": seed,
        "workload.requests": twice(60),
        "disaggregation.role": role,
        "disaggregation.bootstrap": bootstrap,
        "disaggregation.num_reserved_decode_tokens": 4,
        "observations.max_delay": 5,
        "run.invariants": True,
    }
    recording = passed(changes)
    ends = [(reply.rid, reply.status) for reply in recording.replies if reply.status != "token"]
    assert ends == [("R1", "finished")] * 2
    if role != "decode":
        assert sum(new for d in recording.decisions[0] if d.mode == "extend" for _, _, new in d.pieces) == 4 + 6


def test_an_id_that_is_still_here_is_refused_and_the_first_goes_on() -> None:
    recording = passed({"workload.requests": twice(1), "run.invariants": True})
    assert [(r.status, r.num_output_tokens) for r in recording.replies] == [
        ("refused", 0),
        ("token", 1),
        ("finished", 2),
    ]
    assert "'R1' is already here" in recording.replies[0].reason


FACTS = [
    ("prefill", "store", "bootstrap", "handshake"),
    ("prefill", "vote", "bootstrap", "handshake"),
    ("prefill", "store", "transfer", "KV transfer"),
    ("prefill", "vote", "transfer", "KV transfer"),
    ("decode", "store", "handshake", "handshake"),
    ("decode", "store", "receive", "KV transfer"),
]


@pytest.mark.parametrize("failed", [[True, False], [False, True]])
@pytest.mark.parametrize(("role", "bootstrap", "what", "reason"), FACTS)
def test_what_fails_on_one_rank_and_succeeds_on_the_other_fails_on_both(
    role: str, bootstrap: str, what: str, reason: str, failed: list[bool]
) -> None:
    """protocol.md 6.3, 6.4: bad sets by union, of the store the minimum. R2 has nothing to do with it."""
    changes = {
        "workload.requests": requests(2),
        "disaggregation.role": role,
        "disaggregation.bootstrap": bootstrap,
        "disaggregation.num_reserved_decode_tokens": 4,
        "observations.listed": [{"what": what, "rid": "R1", "at": [3, 8], "failed": failed}],
        "run.invariants": True,
    }
    result = run(changes)
    assert result.verdict.kind == "pass", result.verdict.message
    ends = {reply.rid: reply for reply in result.recording.replies if reply.status != "token"}
    assert ends["R1"].status == "aborted"
    assert reason in ends["R1"].reason
    assert ends["R2"].status == "finished"


PAIR = {
    "workload.requests": [
        {"rid": f"R{i}", "prompt": 8, "output": 2, "at_ms": 100.0 * i, "prefix_blocks": [i % 2]} for i in range(4)
    ],
    "workload.block_tokens": 8,
    "disaggregation.role": "pd",
    "disaggregation.num_reserved_decode_tokens": 4,
    "disaggregation.decode_max_total_tokens": 64,
    "model.num_hidden_layers": 4,
    "scheduler.max_total_tokens": 12,
    "hicache.enabled": True,
    "hicache.host_tokens": 64,
    "run.invariants": True,
}


def test_two_pipelines_load_back_what_they_have_evicted() -> None:
    """A pool of 12 tokens holds one prefix of 8 and a part of another: R2 and R3 find the rest in host memory, at most
    all but the last token, which is always computed."""
    result = run(PAIR)
    assert result.verdict.kind == "pass", result.verdict.message
    assert result.setting.peer is not None
    tiers = result.setting.peer.ranks[0].rank.scheduler.kv.tiers
    assert tiers is not None
    assert 0 < tiers.num_loaded_tokens <= 2 * 7


def test_copies_of_two_pipelines_are_seen_when_they_are_listed() -> None:
    """Rank 1 sees the copies of R0 late; a list has values for the ranks of both sides."""
    listed = {"what": "write", "rid": "R0", "at": [0, 90, 0, 0]}
    result = run({**PAIR, "observations.listed": [listed]})
    assert result.verdict.kind == "pass", result.verdict.message
    prefill = result.setting.peer
    assert prefill is not None
    facts = [fact.at for (rank, kind, _), fact in prefill.facts.known.items() if kind == "copy" and rank == 1]
    assert 90 in facts
