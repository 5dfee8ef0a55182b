"""The rows of docs/streams.md, each with instants worked out by hand.

A tick is a millisecond. A prompt of n tokens takes n ticks on every stage (``pass_ticks``); slots, arrivals and links
are chosen so that one wait decides. "A 0..3" reads: the forward pass of A lasts from tick 0 to tick 3. ``L`` is the
number of slots. Hosts need no time unless a test says so, and arrivals are read in the iteration that is named.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.core import effects as fx
from ppsim.core.loop import Loop
from ppsim.core.rank import Plan
from ppsim.plugin.plans import before, instead, named
from ppsim.world.driver import SimulatedRank
from tests.worlds.making import MS, changed, forward_starts, passed, requests, run

ORDERS = ("stream", "link", "none")
HIDDEN_5: dict[str, Any] = {"bandwidth_gb_per_s": 1.0, "model.hidden_size": 5 * MS, "model.dtype_bytes": 1}
"""A byte a nanosecond: 5 ticks for the hidden states of a token, 8 ns for an output row."""


def ticks(
    pp_size: int, depth: int, overlap: bool, arrivals: dict[str, tuple[int, int]], **links: Any
) -> dict[str, Any]:
    """Requests of one output token, by name: iteration in which each is read, and ticks that it takes on a stage."""
    rows = [{"rid": rid, "at_iteration": at, "prompt": n, "output": 1} for rid, (at, n) in arrivals.items()]
    return {
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": depth,
        "cluster.comm_overlap": overlap,
        "model.num_hidden_layers": pp_size,
        "scheduler.chunked_prefill_size": 128,
        "cost.source": "quadratic",
        "cost.prefill_c_ms": 0.0,
        "cost.prefill_b_ms_per_token": float(pp_size),
        "cost.prefill_a_ms_per_token2": 0.0,
        "workload.requests": rows,
        **{key if "." in key else f"links.{key}": value for key, value in links.items()},
    }


def starts(scenario: dict[str, Any], rank: int, **options: Any) -> dict[int, float]:
    """Start of each forward pass in ticks, by iteration."""
    return {i: at / MS for i, at in forward_starts(passed(scenario, **options), rank).items()}


def first_token(scenario: dict[str, Any], rid: str) -> float:
    """Tick at which the client has the token."""
    return next(reply.time_ns for reply in passed(scenario).replies if reply.rid == rid) / MS


@pytest.fixture
def harvests(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], float]:
    """Tick at which the host of a rank has harvested, by (rank, iteration)."""
    found: dict[tuple[int, int], float] = {}
    harvested = SimulatedRank._harvested

    def watched(rank: SimulatedRank, effect: fx.Harvested) -> None:
        found[rank.rank_id, rank.rank.iteration] = rank.now / MS
        harvested(rank, effect)

    monkeypatch.setattr(SimulatedRank, "_harvested", watched)
    return found


# --- what carries payloads (rows C1 to C5) -----------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("order", "expected"), [("stream", 101), ("link", 2), ("none", 2)])
def test_C1_a_receive_stands_behind_the_sends_that_its_rank_has_posted(
    order: str, expected: int, overlap: bool
) -> None:
    """P 2, depth 1, L 3. A 0..1 and 1..2: its token leaves the last rank at 2. B on the first rank 1..101; iteration 1
    posts the send of its hidden states, iteration 2 behind it the receive of A's token: 101. Not in one stream: 2."""
    assert first_token(ticks(2, 1, overlap, {"A": (0, 1), "B": (1, 100)}, order=order), "A") == expected


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("order", "expected"), [("stream", 103), ("link", 3), ("none", 3)])
def test_C2_a_send_stands_behind_the_receives_that_its_rank_has_posted(
    order: str, expected: int, overlap: bool, harvests: dict[tuple[int, int], float]
) -> None:
    """P 3, depth 1, L 4. A 0..1, 1..2, 2..3; the first rank has its token at 3, in iteration 3, the second as well. B,
    read in iteration 4, runs 3..103 on the first rank. In its iteration 4 the second rank posts the receive of B's
    hidden states (103) and then passes A's token on to the third, which harvests it in iteration 3: at 103. Else 3."""
    passed(ticks(3, 1, overlap, {"A": (0, 1), "B": (4, 100)}, order=order))
    assert (harvests[0, 3], harvests[1, 3], harvests[2, 3]) == (3, 3, expected)


@pytest.mark.parametrize(("order", "expected"), [("stream", 36), ("link", 36), ("none", 29)])
def test_C3_sends_of_one_link_stand_behind_each_other_unless_there_is_no_order(order: str, expected: int) -> None:
    """P 3, depth 2, slots of 1, 1, 9, 9, 9 ticks. A round takes at least the sum, 29. Relays of outputs stand behind
    hidden states that are not computed yet: 4 x 9 (bugs.md, unit model; the circuit is the max-plus model's)."""
    scenario = {
        "cluster.pp_size": 3,
        "cluster.pp_async_batch_depth": 2,
        "cluster.comm_overlap": True,
        "cost.slot_ms": [1.0, 1.0, 9.0, 9.0, 9.0],
        "scheduler.chunked_prefill_size": 1,
        "workload.requests": requests(5, prompt=1, output=30),
        "links.order": order,
    }
    at = starts(scenario, 0)
    assert (at[29 * 5] - at[18 * 5]) / 11 == expected


@pytest.mark.parametrize(("exchange", "expected"), [("send_first", 25), ("paired", 23), ("parity", 15)])
def test_C4_a_pair_starts_as_one_behind_what_it_sends_and_neither_half_behind_the_other(
    exchange: str, expected: int, harvests: dict[tuple[int, int], float]
) -> None:
    """P 2, depth 0, overlap, one stream, 2 ticks of latency on it. A 0..1, sent 1..3, on the last rank 3..4, its token
    sent 4..6 and harvested by the first rank at 6, which then posts B's hidden states. B 1..11, sent 11..13, and behind
    it A's token on its way round, 13..15. On the last rank B is 13..23. In iteration 1 it sends B's token 23..25 and
    receives A's: behind that send, at 25; in a pair with it, once B is computed, at 23; before it, at 15."""
    links = {"latency_us": 2000.0, "control_latency_us": 0.0, "latency_on_stream": True}
    scenario = ticks(2, 0, True, {"A": (0, 1), "B": (1, 10)}, **links)
    passed({**scenario, "scheduler.exchange_order": exchange})
    assert (harvests[0, 1], harvests[1, 1]) == (6, expected)


@pytest.mark.parametrize(
    ("order", "on_stream", "expected"),
    [("stream", False, 14), ("link", False, 14), ("none", False, 10), ("link", True, 17)],
)
def test_C5_a_payload_holds_its_stream_for_its_bytes_and_for_the_latency_only_where_asked(
    order: str, on_stream: bool, expected: int
) -> None:
    """P 2, depth 1, overlap; 5 ticks for the hidden states of a token, then 3 of latency. A 0..1, sent 1..6, there at
    9, on the last rank 9..10. B 1..2, sent 6..11, there at 14; without an order sent 2..7, there at 10. With the
    latency on the stream A is sent 1..9, B 9..17."""
    links = {
        **HIDDEN_5,
        "order": order,
        "latency_us": 3000.0,
        "control_latency_us": 0.0,
        "latency_on_stream": on_stream,
    }
    assert starts(ticks(2, 1, True, {"A": (0, 1), "B": (1, 1)}, **links), 1) == {0: 9, 1: expected}


# --- what a forward waits for (rows F1 to F5) --------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("overlap", "expected"), [(True, 3), (False, 6)])
def test_F1_without_overlap_a_forward_waits_for_the_receives_posted_before_it(
    order: str, overlap: bool, expected: int
) -> None:
    """P 2, depth 1, L 3. A 0..3 and 3..6. Iteration 2 of the first rank posts the receive of A's token (6), then
    launches B: its stage is free at 3."""
    assert starts(ticks(2, 1, overlap, {"A": (0, 3), "B": (2, 1)}, order=order), 0)[2] == expected


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("overlap", "expected"), [(True, 1), (False, 6)])
def test_F2_without_overlap_a_forward_waits_for_the_sends_committed_before_it(
    order: str, overlap: bool, expected: int
) -> None:
    """P 2, depth 0, 5 ticks for the hidden states of a token. A 0..1 on the first rank, its send 1..6, committed in
    iteration 1 before B is launched. With overlap an eager batch waits for nothing of that."""
    scenario = ticks(2, 0, overlap, {"A": (0, 1), "B": (1, 1)}, **HIDDEN_5, order=order)
    assert starts(scenario, 0)[1] == expected


@pytest.mark.parametrize(
    ("hold", "overlap", "expected"),
    [
        ("commit", False, {"stream": 4, "link": 4, "none": 4}),
        ("post", False, {"stream": 12, "link": 11, "none": 11}),
        ("post", True, {"stream": 3, "link": 3, "none": 3}),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_F3_a_send_that_is_not_committed_yet_holds_the_schedule_stream_only_where_posting_does(
    order: str, hold: str, overlap: bool, expected: dict[str, int]
) -> None:
    """P 2, depth 1, L 3; a tick for the hidden states of a token, 8 for an output row. A 0..1, sent 1..2, on the last
    rank 2..3. B waits for that send: 2..3 on the first rank, sent 3..4. In its iteration 1 the last rank receives it,
    posts A's output (3..11; behind the receive in one stream: 4..12) and launches B: at 4, or after the output. With
    overlap B is 1..2, sent 2..3, and starts when A is over, at 3."""
    links = {"bandwidth_gb_per_s": 1e-6, "model.hidden_size": 1, "model.dtype_bytes": 1, "schedule_hold": hold}
    scenario = ticks(2, 1, overlap, {"A": (0, 1), "B": (1, 1)}, **links, order=order)
    assert starts(scenario, 1) == {0: 2, 1: expected[order]}


def round_of(overlap: bool, slot_ms: list[float], pp_size: int, **changes: Any) -> float:
    """Ticks of a round in steady decode, one row a slot."""
    scenario = {
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": len(slot_ms) - pp_size,
        "cluster.comm_overlap": overlap,
        "cost.slot_ms": slot_ms,
        "scheduler.chunked_prefill_size": 64,
        "scheduler.disable_radix_cache": True,
        "workload.requests": requests(len(slot_ms), prompt=8, output=41),
        **changes,
    }
    at = starts(scenario, 0)
    return (at[40 * len(slot_ms)] - at[20 * len(slot_ms)]) / 20


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("slots", "pp_size", "on", "off"),
    [([3.0, 1.0, 1.0], 2, 6, 7), ([4.0, 1.0, 1.0, 1.0, 1.0], 4, 16, 17), ([3.0, 1.0, 1.0, 1.0], 2, 6, 7)],
)
def test_F4_steady_decode_of_unequal_slots_pays_for_the_receive_in_each_round(
    slots: list[float], pp_size: int, on: int, off: int, order: str
) -> None:
    """Slots of 3, 1, 1 ticks, P 2: slot 0 on stage 0 at 0..3, on stage 1 at 3..6; slot 1 at 3..4 and 6..7; slot 2 waits
    for slot 0's output, at 6; slot 0 again at 7. With overlap slot 2 runs at 4, slot 0 again at 6. With four stages
    slot 0 needs 16 ticks to come round, and the last slot starts when its output is there: 17."""
    assert round_of(True, slots, pp_size, **{"links.order": order}) == on
    assert round_of(False, slots, pp_size, **{"links.order": order}) == off


# --- the buffer of a CUDA graph (rows G1 to G3) --------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_G1_the_fence_waits_for_the_send_alone_or_for_all_that_stands_before_its_commit(order: str) -> None:
    """Slots of 3, 1, 1 ticks, P 2, depth 1. Slot 2's graph is fenced by slot 1's hidden states, sent at 4. Their commit
    stands behind the exchange, in which slot 0's output is received, at 6: a round of 7, as without overlap."""
    slots = [3.0, 1.0, 1.0]
    assert round_of(True, slots, 2, **{"links.order": order, "links.graph_fence": "send"}) == 6
    assert round_of(True, slots, 2, **{"links.order": order, "links.graph_fence": "commit"}) == 7


def test_G2_an_eager_batch_has_a_buffer_of_its_own_and_no_fence() -> None:
    for fence in ("send", "commit"):
        assert round_of(True, [3.0, 1.0, 1.0], 2, **{"links.graph_fence": fence, "cluster.cuda_graph": False}) == 6


def test_G3_without_depth_the_commit_stands_before_the_exchange() -> None:
    """P 2, depth 0: slots of 3 and 1 ticks take 2 x 3, whatever the fence waits for."""
    for fence in ("send", "commit"):
        assert round_of(True, [3.0, 1.0], 2, **{"links.graph_fence": fence}) == 6


# --- what the host waits for (rows H1 to H4) -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "read", "expected"),
    [(False, "arrival", 2), (False, "schedule_stream", 101), (True, "schedule_stream", 2)],
)
def test_H1_tokens_are_read_when_they_are_there_or_when_the_schedule_stream_is_through(
    overlap: bool, read: str, expected: int
) -> None:
    """P 2, depth 1, an order for each link. A's token is there at 2. Before its harvest, in iteration 2, the host has
    committed B's hidden states, which leave at 101."""
    scenario = ticks(2, 1, overlap, {"A": (0, 1), "B": (1, 100)}, order="link", token_read=read)
    assert first_token(scenario, "A") == expected


@pytest.mark.parametrize(("over", "expected"), [("posted", 1), ("received", 10)])
def test_H2_a_committed_control_send_is_over_when_it_is_asked_for_or_when_it_is_there(over: str, expected: int) -> None:
    """P 2, depth 1, 10 ticks for a control message. The last rank asks for list 0 at 0 and has it at 10; the first
    commits it in iteration 1, before it launches B. A is 0..1."""
    links = {"control_latency_us": 10_000.0, "commit": "requests", "commit_over": over}
    assert starts(ticks(2, 1, True, {"A": (0, 1), "B": (1, 1)}, **links), 0) == {0: 0, 1: expected}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("hold", "payload", "first", "last"),
    [
        ("posted", "eager", 30, 42),
        ("posted", "matched", 32, 51),
        ("received", "eager", 37, 57),
        ("received", "matched", 39, 68),
    ],
)
def test_H3_a_rendezvous_holds_its_sender_and_its_payload(
    hold: str, payload: str, first: int, last: int, order: str
) -> None:
    """P 2, depth 1, L 3, no overlap; 10 ticks for a control message, 5 for a token's hidden states and 2 of latency;
    even ranks send first. A in iteration 0, C in iteration 2; no commit waits. The starts of C on both ranks:

    The last rank has list 0 at 10, asks for A's hidden states, and has their metadata, sent at 0, at 10 as well: they
    leave 10..15 and are there at 17, A is 17..18. The first rank goes on at 10 (posted) or 17 (received) and asks for
    A's token in iteration 2. List 1 is at the last rank at 20 or 27; it offers the token then, with metadata that are
    at the first rank at 30 or 37. The token leaves when offered (eager), is there before its metadata, and C starts at
    30 or 37; matched it leaves with the metadata, is there at 32 or 39, and C starts then. So its hidden states are
    offered at 30, 32, 37, 39; the last rank asks for them at 20 (posted) or 37, 39 (received).

    Eager: they leave when C is computed, at 31 or 38, are there at 38 or 45, their metadata at 40 or 47. Then the last
    rank asks for A's token, which the first rank offers again at 30, or when the hidden states are received, at 47;
    metadata are there at 40 or 57. It leaves at 40, when asked for, or 47, is there at 42 or 49: C starts at 42, 57.

    Matched: they leave with their metadata, at 42 or 49, are there at 49 or 56. The first rank offers A's token at 32
    or 56. Its receive begins behind that of the hidden states at 49, with an order (else with its metadata, at 42, and
    C starts at 49 with the hidden states), or with its metadata at 66; 2 ticks later C starts: 51, 68.
    """
    links = {"send": "rendezvous", "rendezvous_hold": hold, "payload": payload, "commit": "none", "order": order}
    times = {**HIDDEN_5, "latency_us": 2000.0, "control_latency_us": 10_000.0}
    scenario = ticks(2, 1, False, {"A": (0, 1), "C": (2, 1)}, **links, **times)
    scenario["scheduler.exchange_order"] = "parity"
    if (order, last) == ("none", 51):
        last = 49
    assert [round(starts(scenario, rank)[2], 3) for rank in (0, 1)] == [first, last]  # a row is 8 ns


@pytest.mark.parametrize("exchange", ["send_first", "parity"])
@pytest.mark.parametrize(
    ("links", "locks"),
    [
        ({"send": "rendezvous"}, True),
        ({"payload": "matched"}, True),
        ({"payload": "matched", "order": "link"}, False),
        ({"payload": "matched", "cluster.comm_overlap": True}, False),
    ],
)
def test_H4_where_all_send_first_hosts_lock_in_a_rendezvous_and_one_stream_where_payloads_are_matched(
    links: dict[str, Any], locks: bool, exchange: str
) -> None:
    """protocol.md 1.9: every rank's output waits for a receive that stands behind another output."""
    changes = {key if "." in key else f"links.{key}": value for key, value in links.items()}
    result = run({**changes, "scheduler.exchange_order": exchange, "workload.requests": requests(2, output=5)})
    locked = locks and exchange == "send_first"
    assert (result.verdict.invariant, result.verdict.exit_code) == (("INV-40", 3) if locked else (None, 0))
    assert any("locks" in warning for warning in result.recording.warnings) is locked
    if locked:
        assert "wait-for cycle: 0 -> 1 -> 0" in result.verdict.message


# --- what a payload waits for (rows P1 to P3) ----------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("payload", "overlap", "first", "last"),
    [("eager", False, 6, 10), ("matched", False, 15, 15), ("matched", True, 1, 10)],
)
def test_P1_without_overlap_a_matched_payload_waits_for_its_receive(
    payload: str, overlap: bool, first: int, last: int, order: str
) -> None:
    """P 2, depth 1; 10 ticks for a control message, 5 for a token's hidden states, no commit waits. A 0..1, sent 1..6.
    The last rank has list and metadata at 10: A starts there; matched, it is sent 10..15. Without overlap B waits for
    that send."""
    links = {**HIDDEN_5, "control_latency_us": 10_000.0, "commit": "none", "payload": payload, "order": order}
    scenario = ticks(2, 1, overlap, {"A": (0, 1), "B": (1, 1)}, **links)
    scenario["scheduler.exchange_order"] = "parity"
    assert (starts(scenario, 0)[1], starts(scenario, 1)[0]) == (first, last)


@pytest.mark.parametrize(("order", "expected"), [("stream", 20), ("link", 11), ("none", 11)])
def test_P1_a_receive_begins_where_its_stream_has_come_to_it(order: str, expected: int) -> None:
    """P 3, depth 0, passes of 10, 1, 1 ticks. In one stream the second rank comes to the receive of the second hidden
    states behind its send of the first, at 20; they are computed at 11. The third pass waits for that send."""
    scenario = ticks(3, 0, False, {"A": (0, 10), "B": (1, 1), "C": (2, 1)}, payload="matched", order=order)
    scenario["scheduler.exchange_order"] = "parity"
    assert starts(scenario, 0)[2] == expected


@pytest.mark.parametrize(
    ("order", "early", "expected"),
    [
        ("stream", "after_exchange", 52),
        ("stream", "before_exchange", 52),
        ("link", "after_exchange", 43),
        ("link", "before_exchange", 52),
        ("none", "after_exchange", 43),
        ("none", "before_exchange", 43),
    ],
)
def test_P2_early_hidden_states_before_the_exchange_hold_the_relay_of_outputs_up(
    order: str, early: str, expected: int
) -> None:
    """P 4, depth 0, t 10, h 3 a harvest, hidden states sent after the launch: a slot comes back after 4 t + h. Where a
    relay stands behind hidden states that are still computed, the harvest on the next rank comes after them, and each
    pass costs t + h there. In one stream the last rank's receive stands behind its own output, which costs as much."""
    scenario = {
        "cluster.pp_size": 4,
        "cluster.comm_overlap": True,
        "cost.unit_ms": 10.0,
        "host.process_us": 3000.0,
        "scheduler.hidden_send": "after_launch",
        "workload.requests": requests(4, output=30),
        "links.order": order,
        "links.early_send": early,
    }
    at = starts(scenario, 0)
    assert (at[112] - at[64]) / 12 == expected


@pytest.mark.parametrize("depth", [1, 2])
def test_P3_with_depth_the_exchange_comes_first_anyway(depth: int) -> None:
    both = [
        starts(
            {
                **ticks(3, depth, False, {"A": (0, 3), "B": (1, 5), "C": (2, 1), "D": (3, 2)}, early_send=early),
                "scheduler.hidden_send": "after_launch",
            },
            2,
        )
        for early in ("after_exchange", "before_exchange")
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize("order", ["stream", "link", "none"])
def test_P4_an_early_send_is_worth_something_without_depth_only(order: str) -> None:
    """Decision 0012. With an order of the exchange that frees the one stream a round is shorter where hidden states do
    not wait for the host's 3 ms; with depth the exchange has come before the launch, and a round is all its slots."""

    def round_ms(depth: int, send: str) -> float:
        scenario = {
            "cluster.pp_size": 4,
            "cluster.pp_async_batch_depth": depth,
            "cluster.comm_overlap": True,
            "cost.unit_ms": 10.0,
            "host.process_us": 3000.0,
            "scheduler.exchange_order": "parity",
            "scheduler.hidden_send": send,
            "workload.requests": requests(4 + depth, output=30),
            "links.order": order,
        }
        at, num_slots = starts(scenario, 0), 4 + depth
        return float((at[24 * num_slots] - at[12 * num_slots]) / 12)

    assert round_ms(0, "after_launch") == 4 * 10 + 3 < round_ms(0, "after_harvest")
    assert round_ms(1, "after_launch") == round_ms(1, "after_harvest") == 5 * 10


# --- another order of phases ---------------------------------------------------------------------------------------


class ExchangesFirst(Loop):
    """All stages but the last take the previous output from the ring before they launch, also without depth."""

    def plan(self) -> Plan:
        steps = super().plan()
        if self.config.is_last:
            return steps
        exchange = named(steps, "exchange_if_shallow")
        return before(instead(steps, "exchange_if_shallow"), "launch_batch", *exchange)


@pytest.mark.parametrize(
    ("pp_size", "order", "overlap", "expected"),
    [
        (2, "stream", False, 600),
        (4, "stream", False, 451),
        (4, "link", False, 402),
        (8, "stream", False, 380),
        (2, "stream", True, 301),
        (4, "stream", True, 303),
        (4, "link", True, 303),
        (8, "stream", True, 307),
    ],
)
def test_an_exchange_before_the_launch_costs_what_the_shared_streams_make_it_cost(
    pp_size: int, order: str, overlap: bool, expected: int
) -> None:
    """One prompt of 300 chunks of a tick, depth 0. Without overlap a launch waits for the receive before it. Two stages
    then take turns: 2 x 300. Of four, stage 1 relays the output of chunk i-3 behind its own receive of chunk i+1 in one
    stream: 3 ticks for 2 chunks; with an order for each link 4 ticks for 3. With overlap nothing waits: 300 + P - 1."""
    scenario = {
        "cluster.pp_size": pp_size,
        "cluster.comm_overlap": overlap,
        "workload.source": "chunks",
        "workload.num_chunks": 300,
        "links.order": order,
    }
    assert passed(scenario, change=changed(ExchangesFirst)).replies[-1].time_ns == expected * MS
