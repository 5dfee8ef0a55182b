"""What a send may overlap with, and what may be overwritten or given up when (protocol.md 3.1 to 3.3).

One payload byte takes one nanosecond here, so ``model.hidden_size`` sets the length of a send. An output row is one
64-bit token id: 8 ns.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from ppsim.core import phases
from ppsim.core.effects import Effects, commit, drop
from ppsim.core.loop import Loop
from ppsim.core.rank import Plan, Rank
from ppsim.plugin.plans import instead
from ppsim.world import SimulationResult
from tests.worlds.making import (
    MS,
    PLAIN,
    changed,
    forward_starts,
    moved_behind,
    passed,
    planned,
    requests,
    run,
    without,
)

OUTPUT_ROW_MS = Fraction(8, MS)
DTYPE_BYTES = 2


def sends(forward_ms: int, send_ms: int, depth: int, graph: bool, overlap: bool, **changes: Any) -> dict[str, Any]:
    """Two stages, every slot decoding one request."""
    return {
        "cluster.pp_async_batch_depth": depth,
        "cluster.cuda_graph": graph,
        "cluster.comm_overlap": overlap,
        "cost.unit_ms": float(forward_ms),
        "model.hidden_size": send_ms * MS // DTYPE_BYTES,
        "model.dtype_bytes": DTYPE_BYTES,
        "links.bandwidth_gb_per_s": 1.0,
        "workload.requests": requests(2 + depth, prompt=1, output=9),
        **changes,
    }


def period_ms(scenario: dict[str, Any], **options: Any) -> Fraction:
    """Time between forward passes of the first rank in the steady state, after prefill and filling."""
    starts = forward_starts(passed(scenario, **options), 0)
    num_slots = 2 + scenario["cluster.pp_async_batch_depth"]
    first, last = 3 * num_slots, 7 * num_slots
    gaps = {starts[i + 1] - starts[i] for i in range(first, last)}
    assert len(gaps) == 1, f"not steady: {gaps}"
    return Fraction(gaps.pop(), MS)


# --- a buffer of its own, or the graph's (bugs.md B55) -----------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("hidden_send", ["after_harvest", "after_launch"])
def test_a_graph_waits_for_the_send_of_its_static_buffer_and_an_eager_batch_overlaps_with_it(
    depth: int, hidden_send: str
) -> None:
    """Forward 2, send 5: 7 with the static buffer, and the slower of the two (the wire) with buffers of their own."""
    early = {"scheduler.hidden_send": hidden_send}
    assert period_ms(sends(2, 5, depth, graph=True, overlap=True, **early)) == 2 + 5
    assert period_ms(sends(2, 5, depth, graph=False, overlap=True, **early)) == 5 + OUTPUT_ROW_MS


def test_without_depth_the_harvest_serialises_forward_and_send_whatever_the_buffer() -> None:
    """Hidden states wait for the token of the batch before, which waits for its hidden states: 5 + 2 and the way home.

    Sent right after the launch they need no harvest, and the eager batch overlaps again, where each link has an order
    of its own. In one stream the harvest on the last rank comes behind its own output, so behind its forward, and only
    then it takes the next hidden states: 5, on the other side 2, and the row between.
    """
    for graph in (True, False):
        assert period_ms(sends(2, 5, 0, graph, overlap=True)) == 2 + 5 + OUTPUT_ROW_MS
    early = {"scheduler.hidden_send": "after_launch", "links.order": "link"}
    assert period_ms(sends(2, 5, 0, True, overlap=True, **early)) == 2 + 5
    assert period_ms(sends(2, 5, 0, False, overlap=True, **early)) == 5 + OUTPUT_ROW_MS


# --- commit before or after the launch (bugs.md B107) -------------------------------------------------------------


COMMIT_AFTER_LAUNCH = planned(lambda _: moved_behind(PLAIN, phases.commit_hidden, phases.launch_batch))


@pytest.mark.parametrize("depth", [1, 2])
def test_on_the_shared_stream_a_commit_before_the_launch_makes_the_forward_wait_for_the_send(depth: int) -> None:
    """Forward 4, send 1, eager buffers: 5 as the loop is. In one stream the launch also waits for the receive of an
    output before it, which stands behind the relay of another row, which stands behind the hidden states."""
    link = {"links.order": "link"}
    assert period_ms(sends(4, 1, depth, graph=False, overlap=False, **link)) == 5
    assert period_ms(sends(4, 1, depth, graph=False, overlap=False)) == 5 + OUTPUT_ROW_MS


@pytest.mark.parametrize("depth", [1, 2])
def test_a_launch_before_the_commit_hides_the_send(depth: int) -> None:
    """The receive of an output is posted before the launch all the same: in one stream it stands behind the send. Not
    there it is of the batch L - 1 before, which needs 4 + 1 + 4 and the row: too long for two rounds of 4."""
    if depth > 1:
        scenario = sends(4, 1, depth, graph=False, overlap=False, **{"links.order": "link"})
        assert period_ms(scenario, change=COMMIT_AFTER_LAUNCH) == 4
    in_order = period_ms(sends(4, 1, depth, graph=False, overlap=False), change=COMMIT_AFTER_LAUNCH)
    assert in_order == 4 + 1 + OUTPUT_ROW_MS


@pytest.mark.parametrize("depth", [1, 2])
def test_a_communication_stream_hides_the_send_but_not_that_of_a_static_buffer(depth: int) -> None:
    assert period_ms(sends(4, 1, depth, graph=False, overlap=True)) == 4
    assert period_ms(sends(4, 1, depth, graph=True, overlap=True)) == 5


# --- buffers that are reused or given up too early ----------------------------------------------------------------


def violation(result: SimulationResult) -> tuple[str | None, int | None, int | None]:
    verdict = result.verdict
    assert (verdict.kind, verdict.exit_code) == ("fail", 1), verdict
    return verdict.invariant, verdict.rank, verdict.iteration


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_graph_launched_before_the_commit_overwrites_the_buffer_that_is_being_sent(depth: int, overlap: bool) -> None:
    """Decode begins in iteration L; the second graph, in L + 1, meets the send of the first. On the first rank, too.

    Without overlap only where no receive stands between the two: in one stream it does, and the bug is harmless."""
    order = {"links.order": "stream" if overlap else "link"}
    result = run(sends(2, 5, depth, graph=True, overlap=overlap, **order), change=COMMIT_AFTER_LAUNCH)
    assert violation(result) == ("INV-39", 0, 2 + depth + 1)
    assert "static" in result.verdict.message


def test_without_the_commit_the_graph_overwrites_its_buffer() -> None:
    never = planned(lambda _: without(PLAIN, phases.commit_hidden))
    assert violation(run(sends(2, 5, 1, graph=True, overlap=True), change=never)) == ("INV-39", 0, 4)


def test_hidden_states_that_nobody_commits_are_found_at_the_end() -> None:
    """Buffers of their own are not overwritten, but they are never given back either."""
    forgetful = planned(lambda _: (*without(PLAIN, phases.commit_hidden), forget_hidden))
    result = run(sends(2, 5, 1, graph=False, overlap=True), change=forgetful)
    assert violation(result)[0] == "INV-38"
    assert "never committed" in result.verdict.message


def forget_hidden(rank: Rank) -> Effects[None]:
    rank.send_proxy_work.clear()
    yield from ()


class DropsHidden(Loop):
    """Planted: the send buffer of hidden states is given up without waiting (invariant 38)."""

    def plan(self) -> Plan:
        return instead(super().plan(), "commit_hidden", drop_hidden)


def drop_hidden(rank: Rank) -> Effects[None]:
    for work in rank.send_proxy_work:
        yield from drop(work)
    rank.send_proxy_work.clear()


def test_a_buffer_given_up_during_its_send_is_reported_in_the_iteration_after_the_send() -> None:
    result = run(sends(2, 5, 1, graph=False, overlap=True), change=changed(DropsHidden))
    assert violation(result) == ("INV-38", 0, 1)
    assert "hidden" in result.verdict.message
    assert "rank 1" in result.verdict.message


def test_a_buffer_given_up_after_its_send_harms_nobody() -> None:
    """One batch in flight at a time, and visits in between that take time: every send is over before the next visit."""
    quiet = {
        **sends(2, 5, 0, graph=False, overlap=True),
        "workload.requests": requests(1, prompt=1, output=4),
        "host.schedule_us": 20_000.0,
    }
    assert run(quiet, change=changed(DropsHidden)).verdict.kind == "pass"


def commit_twice(rank: Rank) -> Effects[None]:
    for work in rank.send_proxy_work * 2:
        yield from commit(work)
    rank.send_proxy_work.clear()


def test_a_send_that_is_committed_twice_is_reported() -> None:
    plan = tuple(commit_twice if phase is phases.commit_hidden else phase for phase in PLAIN)
    result = run(sends(2, 5, 1, graph=False, overlap=True), change=planned(lambda _: plan))
    assert violation(result) == ("INV-38", 0, 1)
    assert "twice" in result.verdict.message
