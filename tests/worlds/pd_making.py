"""Small runs of two pipelines, and what the tests read from them. No expectation is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppsim.recording import Recording
from ppsim.recording.writer import lines
from ppsim.world import SimulationResult
from ppsim.world.pair.ends import Write
from ppsim.world.pair.rank import PipelineRank
from ppsim.world.pair.transfers import Transfers
from tests.worlds.making import UNIT, run

MS = 1_000_000
US = 1000

PAIR: dict[str, Any] = {
    **UNIT,
    "disaggregation.role": "pd",
    "disaggregation.num_reserved_decode_tokens": 4,
    "disaggregation.decode_max_total_tokens": 4096,
    "disaggregation.control_latency_us": 10.0,
    "scheduler.pp_max_micro_batch_size": 4,
    "host.schedule_us": 10.0,
}
"""Two stages of 1 ms a batch on each side; 10 us for a visit and for a message to the other side; free KV links."""


def pair(changes: Mapping[str, Any] | None = None, **options: Any) -> SimulationResult:
    """Run the changed base."""
    return run(changes, PAIR, **options)


def passed_pair(changes: Mapping[str, Any] | None = None, **options: Any) -> SimulationResult:
    """A run whose verdict must be pass."""
    result = pair(changes, **options)
    assert result.verdict.kind == "pass", result.verdict.message
    return result


def at(ms: float, prompt: int = 4, output: int = 1, rid: str = "R1", **more: Any) -> dict[str, Any]:
    """A request that arrives at a time."""
    return {"rid": rid, "prompt": prompt, "output": output, "ignore_eos": True, "at_ms": float(ms), **more}


def transfers_of(result: SimulationResult) -> Transfers:
    rank = result.setting.ranks[0]
    assert isinstance(rank, PipelineRank)
    return rank.transfers


def writes_of(result: SimulationResult, rank: int) -> list[Write]:
    """All KV writes of a prefill rank, in the order in which they were asked for."""
    senders = transfers_of(result).senders
    mine = [w for (r, _), sender in senders.items() if r == rank for w in sender.writes]
    return sorted(mine, key=lambda w: (w.asked_ns, w.begin_ns))


def prefill_of(result: SimulationResult) -> Recording:
    assert result.recording.peer is not None
    return result.recording.peer


def ends(recording: Recording) -> dict[str, list[tuple[str, str]]]:
    """Terminal replies of each request: (status, reason)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for reply in recording.replies:
        if reply.status != "token":
            found.setdefault(reply.rid, []).append((reply.status, reply.reason))
    return found


def ended_at(recording: Recording, rid: str) -> int:
    """Instant of a request's terminal reply, in ns."""
    return next(r.time_ns for r in recording.replies if r.rid == rid and r.status != "token")


def both(result: SimulationResult) -> list[str]:
    """Both recordings as lines."""
    return [*lines(result.recording), *lines(prefill_of(result))]
