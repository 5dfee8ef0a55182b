"""Sends that block until they are received: everybody-sends-first locks the ring, even/odd and paired do not.

protocol.md 1.9 and 3.4; bugs.md B18. The ring closes where every rank has an output to send: first at the last rank's
iteration L - 1, when it sends a new output while its own has come round to the rank before it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.core.exchange import Exchange
from ppsim.core.rank import Rank
from tests.worlds.making import MS, changed, deliveries, forward_starts, passed, requests, run, tokens_of


def full_ring(pp_size: int, depth: int, order: str, **changes: Any) -> dict[str, Any]:
    """A request in every slot."""
    return {
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": depth,
        "links.send": "rendezvous",
        "scheduler.exchange_order": order,
        "workload.requests": requests(pp_size + depth, output=5),
        **changes,
    }


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("pp_size", range(2, 9))
def test_everybody_sends_first_locks_the_ring_at_the_last_ranks_iteration_L_minus_1(pp_size: int, depth: int) -> None:
    result = run(full_ring(pp_size, depth, "send_first"))
    verdict = result.verdict
    assert (verdict.kind, verdict.exit_code, verdict.invariant) == ("fail", 3, "INV-40")
    num_slots = pp_size + depth
    assert (verdict.rank, verdict.iteration, verdict.slot) == (pp_size - 1, num_slots - 1, num_slots - 1)
    ring = " -> ".join(str(rank) for rank in [*range(pp_size), 0])
    assert f"wait-for cycle: {ring}" in verdict.message
    for rank in range(pp_size):  # rank k is P - 1 - k iterations ahead of the last, all in the exchange
        line = next(line for line in verdict.message.splitlines() if line.startswith(f"  rank {rank}:"))
        iteration = num_slots - 1 + pp_size - 1 - rank
        assert f"iteration {iteration}, slot {iteration % num_slots}, phase exchange_if_" in line
        assert f"send of output (iteration {output_of(rank, iteration, pp_size, depth)})" in line
        assert f"for rank {(rank + 1) % pp_size} " in line


def output_of(rank: int, iteration: int, pp_size: int, depth: int) -> int:
    """Launch iteration of what a rank sends in an exchange: new on the last rank, relayed elsewhere."""
    return iteration - depth if rank == pp_size - 1 else iteration - (pp_size + depth)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("pp_size", range(2, 9))
def test_even_ranks_sending_first_frees_the_ring_also_where_two_even_ranks_meet(pp_size: int, depth: int) -> None:
    recording = passed(full_ring(pp_size, depth, "parity"))
    eager = passed(full_ring(pp_size, depth, "parity", **{"links.send": "eager"}))
    assert tokens_of(recording) == tokens_of(eager)
    assert deliveries(recording) == deliveries(eager)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_two_stages_that_submit_send_and_receive_together_do_not_lock(depth: int) -> None:
    recording = passed(full_ring(2, depth, "paired"))
    assert deliveries(recording) == deliveries(passed(full_ring(2, depth, "parity")))
    eager = passed(full_ring(2, depth, "send_first", **{"links.send": "eager"}))
    assert tokens_of(recording) == tokens_of(eager)
    assert forward_starts(recording, 0) == forward_starts(eager, 0)


@pytest.mark.parametrize("order", ["send_first", "parity", "paired"])
def test_eager_sends_need_no_order(order: str) -> None:
    recording = passed(full_ring(2, 1, order, **{"links.send": "eager"}))
    assert forward_starts(recording, 1) == {i: (i + 1) * MS for i in range(15)}


@given(
    pp_size=st.integers(2, 6),
    depth=st.integers(0, 3),
    num_requests=st.integers(1, 6),
    outputs=st.integers(1, 4),
    chunks=st.integers(1, 4),
    skip=st.booleans(),
    latency_us=st.sampled_from([0.0, 300.0]),
    unit_ms=st.sampled_from([0.0, 1.0]),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_no_load_locks_a_ring_with_an_order(
    pp_size: int,
    depth: int,
    num_requests: int,
    outputs: int,
    chunks: int,
    skip: bool,
    latency_us: float,
    unit_ms: float,
    data: st.DataObject,
) -> None:
    """Also with forward passes that need no time at all: a transfer that is over at once has still taken place."""
    order = data.draw(st.sampled_from(["parity", "paired"])) if pp_size == 2 else "parity"
    rows = [
        {
            "rid": f"R{n}",
            "prompt": 4 * chunks,
            "output": outputs,
            "at_iteration": data.draw(st.integers(0, 12)),
            "ignore_eos": True,
        }
        for n in range(num_requests)
    ]
    scenario = full_ring(
        pp_size,
        depth,
        order,
        **{
            "workload.requests": rows,
            "scheduler.skip_pure_chunked_output_comm": skip,
            "links.latency_us": latency_us,
            "cost.unit_ms": unit_ms,
        },
    )
    blocking = passed(scenario)
    assert tokens_of(blocking) == tokens_of(passed({**scenario, "links.send": "eager"}))


class SendsFirst(Exchange):
    """Planted: this rank ignores the order of the backend."""

    def sends_first(self, rank: Rank) -> bool:
        return True


def test_the_planted_bug_brings_the_deadlock_back() -> None:
    result = run(full_ring(4, 0, "parity"), change=changed(SendsFirst))
    assert (result.verdict.exit_code, result.verdict.iteration) == (3, 3)


@pytest.mark.parametrize("unit_ms", [0.1, 1.0])
def test_a_transfer_begins_when_data_and_receiver_are_there_and_no_earlier(unit_ms: float) -> None:
    """One request, 2 ms of scheduling, links of 0.5 ms.

    Rank 0 launches at 2 ms and offers its hidden states at once. Rank 1 has the request list at 0.5 ms and asks for
    hidden states 2 ms later. The forward pass of rank 0 ends before that, or after it.
    """
    slow = {"links.send": "rendezvous", "host.schedule_us": 2000.0, "links.latency_us": 500.0, "cost.unit_ms": unit_ms}
    asked, computed, latency = 2_500_000, 2 * MS + round(unit_ms * MS), 500_000
    assert forward_starts(passed(slow), 1)[0] == max(asked, computed) + latency
    assert forward_starts(passed({**slow, "links.send": "eager"}), 1)[0] == max(asked, computed + latency)
