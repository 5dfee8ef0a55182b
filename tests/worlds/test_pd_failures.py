"""What goes wrong between two pipelines, case by case from the catalogue of public bugs, with the rule that guards it.

Everywhere: the pools of all ranks are full at the end (the verdict checks it), and each request has one terminal reply
on each side.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.schedule.request import Request, State
from ppsim.core.surroundings import Surroundings
from ppsim.recording import Recording
from ppsim.recording.shares import instants
from ppsim.world import SimulationResult
from tests.worlds.making import changed, run
from tests.worlds.pd_making import (
    MS,
    PAIR,
    at,
    ended_at,
    ends,
    pair,
    passed_pair,
    prefill_of,
    transfers_of,
    writes_of,
)

PAGE = 4
SLOW_LINK: dict[str, Any] = {
    "scheduler.page_size": PAGE,
    "disaggregation.decode_max_total_tokens": 24,
    "disaggregation.kv_bandwidth_gb_per_s": 4 * 16 * 4096 / (5 * MS),  # a chunk of one page needs 5 ms
}
"""Decode pool of 6 pages; a prompt of 16 tokens takes 4 of them and is on the wire for 20 ms."""


def messages_ms(result: SimulationResult) -> float:
    return transfers_of(result).limits.message_ns / MS


def one_reply_each(result: SimulationResult) -> None:
    for recording in (result.recording, prefill_of(result)):
        assert all(len(replies) == 1 for replies in ends(recording).values())
        assert set(ends(recording)) == {arrival.rid for arrival in recording.arrivals}


# --- B33: an abort does not cancel what is on the wire --------------------------------------------------------------

ABORTED_MIDWAY = {
    **SLOW_LINK,
    "workload.requests": [at(0, 16, rid="R1"), at(6.5, 16, rid="R2")],
    "workload.aborts": [{"rid": "R1", "at_ms": 6.0, "side": "decode"}],
}


@pytest.mark.parametrize("decode_pp_size", [1, 2])
def test_b33_pages_go_to_the_next_request_only_after_the_last_write_has_landed(decode_pp_size: int) -> None:
    result = passed_pair({**ABORTED_MIDWAY, "disaggregation.decode_pp_size": decode_pp_size})
    one_reply_each(result)
    writes = [w for rank in (0, 1) for w in writes_of(result, rank) if w.rid == "R1"]
    landed = [w.landed_ns for w in writes if w.arrived]
    assert any(w.begin_ns < 6 * MS < w.landed_ns for w in writes), "the abort must come in the middle of a write"
    assert len(landed) < 8, "what had not begun is never sent"
    allocated = instants(result.recording)["R2"]["allocated"]
    assert allocated >= max(landed) + messages_ms(result) * MS
    assert allocated <= max(landed) + 0.3 * MS  # the word of the senders, and the vote
    assert ends(result.recording) == {"R1": [("aborted", "abort")], "R2": [("finished", "length")]}
    assert ends(prefill_of(result))["R1"] == [("aborted", "the KV transfer to the decode side failed")]


class DoesNotDrain(Surroundings):
    """Planted: an acknowledged abort counts as the end of the transfer."""

    def transfer_drains(self, room: int, rank: int) -> bool:
        return False


def test_b33_an_end_that_is_told_before_the_write_has_landed_is_named() -> None:
    verdict = pair(ABORTED_MIDWAY, change=changed(DoesNotDrain)).verdict
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", "INV-52", "R1") or (
        verdict.invariant == "INV-64" and "to pages that decode rank" in verdict.message
    )


def test_b33_a_decode_rank_that_frees_at_the_abort_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def frees_at_once(self: DecodeRole, request: Request) -> bool:
        if request.state is State.TRANSFER:
            self.transfer.remove(request)
        return False

    monkeypatch.setattr(DecodeRole, "drains", frees_at_once)
    verdict = run(ABORTED_MIDWAY, PAIR).verdict
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", "INV-52", "R1")
    assert "a sender may still write to it" in verdict.message
    assert verdict.message.startswith("decode side:")


ABORTED_WHILE_COMPUTED = {
    **SLOW_LINK,
    "scheduler.max_total_tokens": 28,
    "disaggregation.decode_max_total_tokens": 256,
    "scheduler.disable_radix_cache": True,  # else the pages of the first chunk stay in the cache
    "workload.requests": [at(0, 16, rid="R1"), at(2.5, 22, rid="R2")],
    "workload.aborts": [{"rid": "R1", "at_ms": 2.2, "side": "prefill"}],
}


def test_b33_a_prompt_aborted_between_chunks_keeps_its_pages_until_what_is_on_the_wire_has_landed() -> None:
    result = passed_pair(ABORTED_WHILE_COMPUTED)
    one_reply_each(result)
    writes = [w for rank in (0, 1) for w in writes_of(result, rank) if w.rid == "R1"]
    assert [w.nth for w in writes if w.arrived] == [1, 1], "what had not begun is never sent"
    last_ns = max(w.landed_ns for w in writes)
    assert last_ns > 6 * MS
    assert instants(result.recording)["R2"]["started"] > last_ns
    assert ends(prefill_of(result))["R1"] == [("aborted", "abort")]
    assert ends(result.recording)["R1"] == [("aborted", "the KV transfer from the prefill side failed")]


def test_b33_a_prefill_rank_that_frees_at_the_abort_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def frees_at_once(self: PrefillRole, request: Request) -> bool:
        self.num_buffers += 1
        return False

    monkeypatch.setattr(PrefillRole, "drains", frees_at_once)
    verdict = run(ABORTED_WHILE_COMPUTED, PAIR).verdict
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", "INV-52", "R1")
    assert "write 1 of its KV (tokens 0:4) is on the wire" in verdict.message
    assert verdict.message.startswith("prefill side:")


# --- B38: abort and end of the transfer in three orders --------------------------------------------------------------

LEASED = {
    **SLOW_LINK,
    "disaggregation.lease_ms": 30.0,
    "workload.requests": [at(0, 16, rid="R1")],
}


def aborted_at(ms: float, **more: Any) -> dict[str, Any]:
    return {**LEASED, "workload.aborts": [{"rid": "R1", "at_ms": ms, "side": "decode"}], **more}


def test_b38_after_the_end_of_the_transfer_an_abort_needs_no_further_word() -> None:
    """Aborted between the last landing and the vote on it: out in the very conclusion that would have let it in."""
    free_run = passed_pair(LEASED)
    received = instants(free_run.recording)["R1"]["received"]
    committed = free_run.recording.replies[0].time_ns
    result = passed_pair(aborted_at((received + 5000) / MS))
    assert ends(result.recording)["R1"] == [("aborted", "abort")]
    assert ended_at(result.recording, "R1") == committed


def test_b38_before_the_end_the_pages_are_held_until_the_write_under_way_has_landed() -> None:
    result = passed_pair(aborted_at(8.0))
    landed = max(w.landed_ns for rank in (0, 1) for w in writes_of(result, rank))
    assert 8 * MS < landed < ended_at(result.recording, "R1") < landed + 0.3 * MS


def test_b38_if_the_word_never_comes_the_lease_ends_it() -> None:
    lost = [{"rid": "R1", "rank": 1, "nth": 2, "what": "lost"}]
    result = passed_pair(aborted_at(8.0, **{"disaggregation.kv_faults": lost}))
    assert transfers_of(result).num_expired_leases == 1
    assert 38 * MS < ended_at(result.recording, "R1") < 38.3 * MS
    assert ends(result.recording)["R1"] == [("aborted", "abort")]


def test_b38_a_lease_that_is_shorter_than_a_living_senders_last_write_is_found_out() -> None:
    verdict = run(aborted_at(8.0, **{"disaggregation.lease_ms": 0.5}), PAIR).verdict
    assert (verdict.kind, verdict.invariant) == ("fail", "INV-64")
    assert "KV is written at" in verdict.message


# --- B40, B71: the other side must know -----------------------------------------------------------------------------


def trace_of(tmp_path: Path, rows: list[tuple[int, int, int]]) -> str:
    """A Mooncake trace: (timestamp ms, input length, output length). Written requests that never fit are refused."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for i, (ms, n, m) in enumerate(rows):
        blocks = [9 * i + k for k in range(-(-n // 8))]
        lines.append(json.dumps({"timestamp": ms, "input_length": n, "output_length": m, "hash_ids": blocks}))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def from_trace(tmp_path: Path, rows: list[tuple[int, int, int]]) -> dict[str, Any]:
    return {
        "workload.source": "trace",
        "workload.requests": [],
        "workload.trace": trace_of(tmp_path, rows),
        "workload.block_tokens": 8,
        "disaggregation.bootstrap_timeout_ms": 50.0,
    }


class RefusesSilently(Surroundings):
    """Planted: a side that refuses a request tells nobody."""

    def tells_peer(self, room: int, rank: int, side: str, what: str) -> bool:
        return what != "refused"


REFUSED_BY_DECODE = [(0, 40, 4)] * 4 + [(2, 8, 1)]


def test_b40_what_decode_refuses_leaves_the_prefill_side_within_a_message_and_its_chain(tmp_path: Path) -> None:
    changes = {**from_trace(tmp_path, REFUSED_BY_DECODE), "disaggregation.decode_max_total_tokens": 32}
    result = passed_pair(changes)
    one_reply_each(result)
    refused = ["R1", "R2", "R3", "R4"]
    assert [ends(result.recording)[rid][0][0] for rid in refused] == ["refused"] * 4
    for rid in refused:
        assert ends(prefill_of(result))[rid] == [("aborted", "the handshake with the decode side failed")]
        assert ended_at(prefill_of(result), rid) < 0.3 * MS
    assert ends(result.recording)["R5"] == [("finished", "length")]


def test_b40_without_the_notice_they_stay_until_the_limit(tmp_path: Path) -> None:
    changes = {**from_trace(tmp_path, REFUSED_BY_DECODE), "disaggregation.decode_max_total_tokens": 32}
    result = pair(changes, change=changed(RefusesSilently))
    assert result.verdict.kind == "pass"
    assert all(ended_at(prefill_of(result), rid) > 50 * MS for rid in ("R1", "R2", "R3", "R4"))


def test_b40_what_prefill_refuses_leaves_the_decode_side(tmp_path: Path) -> None:
    changes = {**from_trace(tmp_path, [(0, 40, 4), (0, 8, 2)]), "scheduler.max_total_tokens": 32}
    result = passed_pair(changes)
    one_reply_each(result)
    assert ends(prefill_of(result))["R1"][0][0] == "refused"
    assert ends(result.recording)["R1"] == [("aborted", "the handshake with the prefill side failed")]
    assert ended_at(result.recording, "R1") < 0.3 * MS


FULL_DECODE = {
    "disaggregation.decode_max_total_tokens": 64,
    "disaggregation.bootstrap_timeout_ms": 12.0,
    "workload.requests": [at(0, 16, 40, rid="R0"), at(1, 50, 1, rid="R1")],
}


@pytest.mark.parametrize("bootstrap", ["store", "vote"])
def test_b71_a_limit_of_the_sender_ends_the_wait_for_memory_on_the_other_side(bootstrap: str) -> None:
    """R0 holds the decode pool until it ends; R1's sender gives up 12 ms after it was made."""
    result = passed_pair({**FULL_DECODE, "disaggregation.bootstrap": bootstrap})
    one_reply_each(result)
    assert ends(result.recording)["R1"] == [("aborted", "the handshake with the prefill side failed")]
    assert ends(prefill_of(result))["R1"] == [("aborted", "the handshake with the decode side failed")]
    # 12 ms after the sender was made, plus decode visits of 2 ms each until the vote is round.
    assert 12 * MS < ended_at(result.recording, "R1") < 24 * MS
    assert ended_at(result.recording, "R0") > 60 * MS


class FailsSilently(Surroundings):
    """Planted: a failure has no message, and neither has an abort."""

    def tells_peer(self, room: int, rank: int, side: str, what: str) -> bool:
        return False


def test_b71_without_the_notice_decode_waits_until_memory_is_free() -> None:
    result = pair({**FULL_DECODE, "disaggregation.receive_timeout_ms": 30.0}, change=changed(FailsSilently))
    assert ended_at(result.recording, "R1") > ended_at(result.recording, "R0") > 60 * MS


# --- B84: a write that could not be posted ---------------------------------------------------------------------------

THIRD_FAILS = {
    **SLOW_LINK,
    "disaggregation.kv_faults": [{"rid": "R1", "rank": 1, "nth": 3}],
    "workload.requests": [at(0, 16, rid="R1"), at(0.5, 16, rid="R2")],
}


@pytest.mark.parametrize("decode_pp_size", [1, 2])
def test_b84_a_failed_write_is_told_and_the_pages_wait_for_the_other_writes(decode_pp_size: int) -> None:
    result = passed_pair({**THIRD_FAILS, "disaggregation.decode_pp_size": decode_pp_size})
    one_reply_each(result)
    assert ends(result.recording)["R1"] == [("aborted", "the KV transfer from the prefill side failed")]
    assert ends(prefill_of(result))["R1"] == [("aborted", "the KV transfer to the decode side failed")]
    mine = {rank: [w for w in writes_of(result, rank) if w.rid == "R1"] for rank in (0, 1)}
    assert [w.arrived for w in mine[1]] == [True, True, False, False]
    failed_ns = mine[1][1].landed_ns  # the third follows the second on the link
    receiver = next(r for (_, room), r in transfers_of(result).receivers.items() if room == 0 and 1 in r.ended)
    last_ns = max(w.landed_ns for w in mine[0]) if decode_pp_size == 1 else failed_ns
    told_ns = transfers_of(result).limits.message_ns
    ended_ns = receiver.history[-1][0]
    assert ended_ns == max(failed_ns, last_ns) + told_ns
    assert instants(result.recording)["R2"]["allocated"] > ended_ns
    assert ends(result.recording)["R2"] == [("finished", "length")]


def test_b84_without_the_notice_only_the_receivers_own_limit_helps() -> None:
    changes = {**THIRD_FAILS, "disaggregation.receive_timeout_ms": 70.0, "disaggregation.lease_ms": 5.0}
    result = pair(changes, change=changed(FailsSilently))
    assert ended_at(result.recording, "R1") > 75 * MS


# --- B43, B44: a computed prompt keeps its pages until it is sent, and that is looked at in idle times ---------------

SENT_SLOWLY = {
    **SLOW_LINK,
    "scheduler.max_total_tokens": 24,
    "disaggregation.decode_max_total_tokens": 256,
    "workload.requests": [at(0, 16, rid="R1"), at(2, 16, rid="R2")],
}


@pytest.mark.parametrize("bootstrap", ["store", "vote"])
def test_b43_b44_the_next_prompt_starts_when_the_send_has_ended_and_soon_after(bootstrap: str) -> None:
    """Both need 4 of the prefill side's 6 pages. Nothing else runs, so only empty visits can see the end."""
    result = passed_pair({**SENT_SLOWLY, "disaggregation.bootstrap": bootstrap})
    one_reply_each(result)
    marks = instants(result.recording)
    assert marks["R1"]["landed"] >= 20 * MS
    wait_ns = marks["R2"]["started"] - marks["R1"]["landed"]
    # A visit to look, pp visits of the vote, one more to schedule: each is 2 x 10 us in an empty loop.
    assert 0 < wait_ns <= (2 + 1 + 1) * 20_000


# --- B74: limits hold in every loop -----------------------------------------------------------------------------------

NEVER = 10**6
LIMITED = {
    "cluster.pp_size": 2,
    "timeouts.waiting_ms": 20,
    "host.schedule_us": 1000.0,
    "scheduler.chunked_prefill_size": 4,
    "scheduler.max_total_tokens": 64,
    "scheduler.max_running_requests": 1,
    "cost.source": "unit",
    "cost.unit_ms": 0.1,
    "workload.source": "requests",
}
STUCK: dict[str, dict[str, Any]] = {
    # The only place is taken by a request that runs for longer than the other one may wait.
    "plain": {"workload.requests": [at(0, 4, 50, rid="R0"), at(1, 4, rid="R1")]},
    "prefill": {
        "workload.requests": [at(1, 4, rid="R1")],
        "observations.listed": [{"what": "bootstrap", "rid": "R1", "at": [NEVER, NEVER]}],
    },
    "decode": {
        "workload.requests": [at(1, 4, rid="R1")],
        "disaggregation.num_reserved_decode_tokens": 4,
        "observations.listed": [{"what": "handshake", "rid": "R1", "at": [NEVER, NEVER]}],
    },
    "pd": {
        "workload.requests": [at(0, 4, 50, rid="R0"), at(1, 50, rid="R1")],
        "disaggregation.num_reserved_decode_tokens": 4,
        "disaggregation.decode_max_total_tokens": 64,
    },
}


@pytest.mark.parametrize("role", STUCK)
def test_b74_a_request_that_waits_for_too_long_ends_in_every_kind_of_loop(role: str) -> None:
    result = run({**STUCK[role], "disaggregation.role": role}, LIMITED)
    assert result.verdict.kind == "pass", result.verdict.message
    recordings: list[Recording] = [result.recording]
    if role == "pd":
        one_reply_each(result)
        recordings.append(prefill_of(result))
    for recording in recordings:
        ((status, _),) = ends(recording)["R1"]
        assert status == "aborted"
        # Seen by the first rank's clock in whole milliseconds, at its next visit, and told to the other side.
        assert 21 * MS <= ended_at(recording, "R1") <= (21 + 8) * MS
    assert any(reason == "waiting for more than 20 ms" for r in recordings for _, reason in ends(r)["R1"])
