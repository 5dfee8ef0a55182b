"""What a run comes to, in a few lines that a diff can show: digests of decisions and of times, verdict, first figures.

The digest of decisions is the run's own (``recording.digest``: no time in it). The digest of times covers everything
that ends in ``_ns``: spans of every rank, arrivals, readings, replies and marks. So a change that moves only
decisions, or only times, is seen to do so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from ppsim.recording import Recording, Verdict
from ppsim.recording.digest import run_digest
from ppsim.scenario import load_scenario
from ppsim.world import simulate


class Golden(NamedTuple):
    """A run that is held: a shipped scenario, and what is set on top of it."""

    scenario: str
    overrides: tuple[str, ...] = ()


RUNS: dict[str, Golden] = {
    "plain": Golden("mooncake", ("workload.num_requests=16",)),
    "plain_depth_without_overlap": Golden(
        "tiny", ("cluster.pp_async_batch_depth=1", "cluster.comm_overlap=false", "links.latency_us=50")
    ),
    "rendezvous": Golden("tiny", ("links.send=rendezvous", "scheduler.exchange_order=parity")),
    "mixed": Golden("mooncake", ("workload.num_requests=16", "scheduler.enable_mixed_chunk=true")),
    "retraction": Golden(
        "mooncake",
        (
            "workload.source=generated",
            "workload.num_requests=24",
            "workload.rate_per_s=200",
            "workload.input_length={value=300}",
            "workload.output_length={value=512}",
            "scheduler.max_total_tokens=9600",
            "scheduler.page_size=16",
        ),
    ),
    "lpm_small_pages": Golden(
        "mooncake", ("workload.num_requests=16", "scheduler.schedule_policy=lpm", "scheduler.page_size=16")
    ),
    "decode": Golden("tiny", ("disaggregation.role=decode",)),
    "prefill": Golden("bugs/b75_abort_storm"),
    "votes": Golden("pd_busy_votes"),
    "pair": Golden("pd_mooncake", ("workload.num_requests=20",)),
    "pair_released": Golden("pd_released_votes"),
    "tiers": Golden("hicache"),
    "grammar": Golden("bugs/b01_grammar_readiness"),
    "deadlock": Golden("unit", ("links.send=rendezvous", "workload.num_chunks=8")),
    "violation": Golden("bugs/b07_load_acks", ('bugs=["acks_counted_locally"]',)),
}


def outcome(golden: Golden) -> dict[str, Any]:
    """The entry of the golden file for one run."""
    result = simulate(load_scenario(golden.scenario, golden.overrides))
    return entry(result.recording, result.verdict)


def entry(recording: Recording, verdict: Verdict) -> dict[str, Any]:
    sides = {"": recording} if recording.peer is None else {"decode ": recording, "prefill ": recording.peer}
    found: dict[str, Any] = {"verdict": verdict.kind, "exit_code": verdict.exit_code}
    if verdict.message:
        found["sentence"] = verdict.message
    for side, part in sides.items():
        found[f"{side}decisions"] = run_digest(part)
        found[f"{side}times"] = times_digest(part)
        found[f"{side}iterations"] = [len(decisions) for decisions in part.decisions]
        found[f"{side}last span ends ns"] = max((s.end_ns for spans in part.spans for s in spans), default=0)
    found["last reply ns"] = max((reply.time_ns for reply in recording.replies), default=0)
    found["kinds"] = kinds(sides.values())
    found["warnings"] = list(recording.warnings)
    return found


def kinds(parts: Iterable[Recording]) -> dict[str, int]:
    """How often what happened on the first ranks: what a golden run is there to hold."""
    counted: Counter[str] = Counter()
    for part in parts:
        counted.update(decision.mode for decision in part.decisions[0])
        counted["retracted"] += sum(len(decision.retracted) for decision in part.decisions[0])
        counted.update(f"{span.stream} span" for span in part.spans[0])
        counted.update(f"{reply.status} reply" for reply in part.replies)
    return dict(sorted(counted.items()))


def times_digest(recording: Recording) -> str:
    """16 hex digits over every instant that the run left."""
    total = blake2b(digest_size=8)
    for rank, spans in enumerate(recording.spans):
        for span in spans:
            total.update(repr((rank, *span)).encode())
    for arrival in recording.arrivals:
        total.update(repr((arrival.rid, arrival.at_ns)).encode())
    for read in recording.ingestions:
        total.update(repr((read.iteration, read.time_ns)).encode())
    for reply in recording.replies:
        total.update(repr((reply.rid, reply.num_output_tokens, reply.status, reply.time_ns)).encode())
    for mark in recording.marks:
        total.update(repr(mark).encode())
    return total.hexdigest()
