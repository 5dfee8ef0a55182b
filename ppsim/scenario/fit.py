"""Requests that could never run are bad input where somebody wrote them, and a reply where they come from a file.

The judge is the scheduler itself: a spare one with the agreed pool reads all requests once, and what it refuses is
refused. So the rule is written in one place, and both worlds and all roles have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ppsim.core.agreed import agree
from ppsim.core.messages import NewRequest
from ppsim.core.parts import build_rank
from ppsim.errors import ScenarioError
from ppsim.scenario.rank import local_capacity_tokens, rank_config
from ppsim.scenario.tree import Scenario

BLAME = {"requests": "workload.requests", "generated": "workload.input_length", "chunks": "workload.num_chunks"}


def check_requests_fit(s: Scenario, specs: Sequence[NewRequest]) -> None:
    """Raise ScenarioError for the first request that no iteration could ever take. Requests of a trace may come."""
    if s.workload.source not in BLAME:
        return
    for rid, reason in never_served(s, specs):
        reserve = ", a smaller disaggregation.num_reserved_decode_tokens" if "decode reserve" in reason else ""
        raise ScenarioError(
            BLAME[s.workload.source],
            f"request {rid} could never run: {reason}",
            f"a shorter prompt or output, a larger scheduler.max_total_tokens or scheduler.context_length{reserve}",
        )


def never_served(s: Scenario, specs: Sequence[NewRequest]) -> list[tuple[str, str]]:
    """(rid, reason) of the requests that an empty server would refuse, in order."""
    capacity = min(local_capacity_tokens(s, pp_rank) for pp_rank in range(s.cluster.pp_size))
    rank = build_rank(rank_config(s, 0))
    rank.start(agree(capacity, "minimum over the stages"))
    names = {spec.rid: spec.rid for spec in specs}
    if len(names) < len(specs):  # an id comes again: an empty server does not know the first any more
        names = {str(i): spec.rid for i, spec in enumerate(specs)}
        specs = [replace(spec, rid=name) for name, spec in zip(names, specs, strict=True)]
    rank.scheduler.apply(specs)
    return [(names[reply.rid], reply.reason) for reply in rank.journal.due_replies if reply.status == "refused"]
