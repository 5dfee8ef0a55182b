"""Every invariant of protocol.md section 12 has a planted bug that breaks it, and a small run in which it is named.

The scenarios are in logical time and as small as the bug allows. Without the bug each of them passes; with it the run
ends with exactly that invariant in its verdict, so that every check is known to be alive.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from ppsim.check.invariants import BY_NAME, INVARIANTS
from ppsim.plugin import all_bugs, load
from ppsim.recording import Verdict
from tests.worlds.making import requests, run

Changes = dict[str, Any]

# What several scenarios share.
DECODE: Changes = {"disaggregation.role": "decode", "disaggregation.num_reserved_decode_tokens": 2}
PREFILL: Changes = {"disaggregation.role": "prefill"}
WIDE: Changes = {"scheduler.pp_max_micro_batch_size": 4, "scheduler.chunked_prefill_size": 24}
"""Several requests in a batch, each prompt in one chunk."""
# Two requests of 8 prompt tokens are admitted to one slot, and 28 tokens do not hold 2 x (8 + 12).
TIGHT: Changes = {**WIDE, "scheduler.max_total_tokens": 28, "scheduler.clip_max_new_tokens": 4}


def fact(what: str, *at: int, rid: str = "R1", failed: bool = False) -> Changes:
    """One listed observation: the iteration of each rank in which it sees the fact."""
    return {"observations.listed": [{"what": what, "rid": rid, "at": list(at), "failed": failed}]}


def row(rid: str, at: int, prompt: int = 4, output: int = 1, **more: Any) -> dict[str, Any]:
    return {"rid": rid, "at_iteration": at, "prompt": prompt, "output": output, "ignore_eos": True, **more}


def aborts(rid: str, at: int) -> Changes:
    return {"workload.aborts": [{"rid": rid, "at_iteration": at}]}


def work(*rows: dict[str, Any]) -> Changes:
    return {"workload.requests": list(rows)}


LONG = work(row("R1", 0, output=9))
TWO_LONG: Changes = {"workload.requests": requests(2, output=9)}

TABLE: dict[int, tuple[str, Changes]] = {
    1: ("inputs_read_backwards", {"workload.requests": requests(2)}),
    2: ("empty_list_not_sent", work(row("R1", 0), row("R2", 3))),
    3: ("other_arguments", {}),
    4: ("zigzag_slots", LONG),
    5: ("harvest_put_off", TWO_LONG),
    6: ("harvest_left_out", TWO_LONG),
    7: ("no_wait_for_inputs", work(row("R1", 12))),
    8: ("inputs_not_committed", work(row("R1", 12))),
    9: ("watermark_on_later_ranks", {"scheduler.max_total_tokens": 32, **work(row("R1", 0, prompt=24))}),
    10: ("one_prompt_a_batch", {**WIDE, "workload.requests": requests(2)}),
    11: (
        "mixed_tokens_not_charged",
        {
            **WIDE,
            "scheduler.chunked_prefill_size": 8,
            "scheduler.enable_mixed_chunk": True,
            **work(row("R1", 0, output=9), row("R2", 4, prompt=30)),
        },
    ),
    12: (
        "logprob_wish_lost",
        {
            "scheduler.skip_pure_chunked_output_comm": True,
            **work(row("R1", 0, prompt=12, return_logprob=True)),
        },
    ),
    13: ("middle_chunk_counted_twice", {"cluster.pp_size": 3, **work(row("R1", 0, prompt=20))}),
    14: ("queue_limit_on_later_ranks", {"workload.requests": requests(4)}),
    15: (
        "ended_rows_dropped_at_harvest",
        {**WIDE, **work(row("R1", 0, output=3), row("R2", 0, output=9), row("R3", 6, prompt=8))},
    ),
    16: (
        "full_flag_stays",
        {**work(row("R1", 0, output=3), row("R2", 0, output=9), row("R3", 0)), **aborts("R3", 3)},
    ),
    17: ("ratio_decays_twice", LONG),
    18: ("retracts_the_first", {**TIGHT, "workload.requests": requests(2, prompt=8, output=12)}),
    19: ("decodes_first", {**WIDE, **work(row("R1", 0, output=9), row("R2", 4))}),
    20: ("chunk_sizes_refitted", work(row("R1", 0, prompt=12))),
    21: ("limit_changes_later", {**WIDE, **LONG}),
    22: ("local_capacity", {"scheduler.max_total_tokens": [4096, 4000]}),
    23: ("page_lost_at_finish", {"workload.requests": requests(2, output=3)}),
    24: ("row_returned_late", work(row("R1", 0), row("R2", 0, output=9))),
    25: ("metrics_touch_the_cache", {"workload.requests": requests(3)}),
    26: (
        "evict_newest_on_one_rank",
        {**WIDE, "scheduler.max_total_tokens": 40, **work(*(row(f"R{n}", 4 * n, prompt=16) for n in range(3)))},
    ),
    27: (
        "shorter_match",
        {
            **WIDE,
            "workload.block_tokens": 8,
            **work(*(row(f"R{n}", 6 * n, prompt=20, prefix_blocks=[1, 2]) for n in range(2))),
        },
    ),
    28: (
        "acks_counted_locally",
        {"hicache.enabled": True, "hicache.host_tokens": 64, **LONG, **fact("write", 3, 5)},
    ),
    29: ("idle_reset_left_out", work(row("R1", 0), row("R2", 12))),
    30: ("session_reaper", work(row("R1", 0), row("R2", 12))),
    31: ("conclusions_swapped", DECODE),
    32: ("padded_hidden_states", {}),
    33: (
        "skipped_output_sent",
        {"scheduler.skip_pure_chunked_output_comm": True, **work(row("R1", 0, prompt=8))},
    ),
    34: ("finished_rows_left_out", {**WIDE, **work(row("R1", 0, output=2), row("R2", 0, output=5))}),
    35: ("newest_output_first", {"cluster.pp_async_batch_depth": 2, "workload.requests": requests(4, output=3)}),
    36: ("hidden_before_relay", TWO_LONG),
    37: ("conclusion_not_repeated", {**DECODE, "cluster.pp_size": 3, **fact("handshake", 2, 2, 2)}),
    38: ("buffers_given_up", LONG),
    39: (
        "commit_after_launch",
        {"cluster.comm_overlap": True, "links.bandwidth_gb_per_s": 0.001, **TWO_LONG},
    ),
    40: (
        "all_send_first",
        {
            "cluster.pp_size": 3,
            "links.send": "rendezvous",
            "scheduler.exchange_order": "parity",
            "workload.requests": requests(3, output=4),
        },
    ),
    41: ("other_tokens", {}),
    42: ("stop_tokens_ignored", work({**row("R1", 0, output=5, stop_after=2), "ignore_eos": False})),
    43: ("local_grammar_cache", {**work(row("R1", 0, grammar="json")), **fact("grammar", 3, 3)}),
    44: ("first_rank_samples", {}),
    45: (
        "middle_chunks_are_tokens",
        {"scheduler.skip_pure_chunked_output_comm": True, **work(row("R1", 0, prompt=12))},
    ),
    46: ("queue_entry_lost", {**DECODE, "workload.requests": requests(2), **fact("handshake", 5, 5)}),
    47: ("conclusion_cut_short", DECODE),
    48: ("failures_not_passed_on", {**DECODE, **fact("handshake", 2, 2, failed=True)}),
    49: ("polls_after_the_vote", DECODE),
    50: ("only_changed_polls", {**PREFILL, **fact("bootstrap", 5, 5)}),
    51: ("aborted_entry_stays", {**DECODE, **fact("handshake", 9, 9), **aborts("R1", 3)}),
    52: ("only_the_first_view_counts", {**PREFILL, **fact("transfer", 5, 15)}),
    53: (
        "bound_to_another_slot",
        {**DECODE, **TIGHT, "workload.requests": requests(2, prompt=8, output=12)},
    ),
    54: ("store_out_of_order", {**PREFILL, "host.schedule_us": 1000.0, **fact("bootstrap", 12, 4)}),
    55: ("missing_is_ready", {**PREFILL, "host.schedule_us": 1000.0, "disaggregation.store_lag_us": 5000.0}),
    56: ("good_and_bad", {**DECODE, **fact("handshake", 2, 2, failed=True)}),
    57: ("abort_one_iteration_late", {**LONG, **aborts("R1", 3)}),
    58: ("timeouts_on_every_rank", {**LONG, "timeouts.running_ms": 5}),
    59: ("free_at_abort", {**LONG, **aborts("R1", 3)}),
    60: (
        "abort_reaches_two_slots",
        {"cluster.pp_size": 4, "workload.requests": requests(4, output=9), **aborts("R1", 6)},
    ),
    61: ("last_reply_twice", {}),
    62: ("hash_order", {**WIDE, "workload.requests": requests(2)}),
    63: ("cache_off_on_one_rank", LONG),
    64: (
        "pages_freed_at_the_last_launch",
        {
            "scheduler.disable_radix_cache": True,
            "scheduler.max_total_tokens": 16,
            "scheduler.chunked_prefill_size": 16,
            **work(row("R1", 0, prompt=4, output=2), row("R2", 3, prompt=12)),
        },
    ),
}


def outcome(changes: Changes, bug: str | None = None) -> Verdict:
    change = load([bug]).change if bug else None
    return run({**changes, "run.invariants": True, "run.max_iterations": 500}, change=change).verdict


@pytest.mark.parametrize("number", TABLE)
def test_the_scenario_of_an_invariant_passes_with_the_right_protocol(number: int) -> None:
    verdict = outcome(TABLE[number][1])
    assert verdict.kind == "pass", verdict.message


@pytest.mark.parametrize("number", TABLE)
def test_the_planted_bug_of_an_invariant_makes_exactly_that_one_fire(number: int) -> None:
    bug, changes = TABLE[number]
    verdict = outcome(changes, bug)
    assert (verdict.kind, verdict.invariant) == ("fail", f"INV-{number:02d}"), verdict.message
    assert all_bugs()[bug].breaks == verdict.invariant
    assert verdict.message.startswith(f"{verdict.invariant} at rank {verdict.rank}, iteration {verdict.iteration}, ")


def test_every_invariant_has_a_planted_bug_or_a_reason_why_there_can_be_none() -> None:
    for invariant in INVARIANTS:
        assert (invariant.number in TABLE) is not bool(invariant.unbreakable), invariant.name
    assert [rule.number for rule in INVARIANTS] == list(range(1, 65))
    numbers = [rule.number for rule in BY_NAME.values()]
    assert numbers == sorted(set(numbers))
    assert set(range(1, 88)) <= set(numbers)


def test_the_owners_of_an_invariant_are_functions_of_a_file_that_names_it() -> None:
    """A rule that is moved takes its owner along; one that is taken away leaves a file that does not name it."""
    for invariant in BY_NAME.values():
        assert invariant.owner, invariant.name
        for owner in invariant.owner:
            source = Path(inspect.getsourcefile(owner) or "").read_text(encoding="utf-8")
            assert invariant.name in source, (invariant.name, owner.__qualname__)
