"""What a scenario is told at its start: it runs, but not as its keys may lead one to think."""

from __future__ import annotations

from ppsim.scenario.chunks import sglang_predictor
from ppsim.scenario.tree import Scenario


def start_warnings(s: Scenario) -> tuple[str, ...]:
    """Sentences for the recording; empty where there is nothing to say."""
    c = s.scheduler
    found = []
    dynamic = c.enable_dynamic_chunking and c.dynamic_chunking_smooth_factor and c.chunk_planner == "sglang"
    if dynamic and c.chunked_prefill_size != -1:
        reason = sglang_predictor(s).reason
        if reason:
            found.append(f"dynamic chunks are off, fixed ones of {c.chunked_prefill_size} tokens run: {reason}")
    if not c.pp_max_micro_batch_size and c.max_running_requests < s.cluster.pp_size:
        found.append(
            f"scheduler.max_running_requests {c.max_running_requests} is less than the {s.cluster.pp_size} stages: "
            "a slot takes one request, and not every stage has one to work on"
        )
    return tuple(found)
