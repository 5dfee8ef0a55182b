"""What a rank refuses at its arrival, and what an abort leaves of a request."""

from __future__ import annotations

import pytest

from ppsim.core.config import RankConfig
from ppsim.core.effects import Reply
from ppsim.core.messages import AbortReq
from ppsim.core.scheduler import Scheduler
from tests.interactions.experiment import Arrival, Experiment, request
from tests.interactions.one_rank import OneRank

CLIPPED = RankConfig(0, 1, clip_max_new_tokens=4)
"""Admission expects four tokens of output at most, so a long output is bounded by the pool alone."""


def alone(capacity: int, prompt: int, output: int) -> list[Reply]:
    """The last replies of a request that has the pool to itself."""
    rank = OneRank(Experiment(CLIPPED, capacity, (Arrival(0, request("R", [1] * prompt, output, ignore_eos=True)),)))
    list(rank.visits())
    return [reply for reply in rank.replies if reply.status != "token"]


@pytest.mark.parametrize("prompt", [1, 10, 60])
def test_a_request_is_refused_exactly_where_it_could_not_run_to_its_end_alone(
    prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV is written for the prompt and for each output but the last, whose successor nobody computes: p + n - 1 tokens.

    The second source is the run itself: one token more, let in all the same, ends without memory for its last step.
    """
    most = 101 - prompt
    (last,) = alone(100, prompt, most)
    assert (last.status, last.num_output_tokens) == ("finished", most)
    (refused,) = alone(100, prompt, most + 1)
    assert refused.status == "refused"
    assert refused.reason.endswith("never fit the KV pool of 100 tokens")
    monkeypatch.setattr(Scheduler, "_why_never", lambda self, item: "")
    (unfit,) = alone(100, prompt, most + 1)
    assert (unfit.status, unfit.num_output_tokens) == ("aborted", most)
    assert unfit.reason.startswith("out of KV memory")


def test_the_reason_of_an_abort_is_that_of_the_first_one() -> None:
    """The client's first abort ended the request; one of a time limit that comes while its last row drains did not."""
    rank = OneRank(Experiment(RankConfig(0, 3), 1000, (Arrival(0, request("R", [1] * 4, 50, ignore_eos=True)),)))
    rank.visit()
    rank.visit(AbortReq("R", reason="client left"))
    assert not [r for r in rank.replies if r.status == "aborted"], "its row is in flight: it ends at the harvest"
    rank.visit(AbortReq("R", reason="running for more than 5 ms"))
    (last,) = [r for r in rank.replies if r.status == "aborted"]
    assert last.reason == "client left"
