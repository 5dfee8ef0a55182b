"""One scenario of two pipelines as two scenarios of one role each, and the requests that both of them get.

A request goes to both sides at its arrival and has one room number on both: an id may come twice, a room does not. What
the decode side has of its own is in ``disaggregation.decode_*``; faults, clocks and compile times are listed for all
ranks, the prefill side's first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ppsim.scenario.tree import HiCache, Observation, Scenario
from ppsim.workload import Arrival, Workload, build_workload
from ppsim.world.chance import decided
from ppsim.world.choices import Choices

PREFILL, DECODE = "prefill", "decode"
SIDES = (PREFILL, DECODE)


class SideChoices:
    """The choices of one side: its streams carry its name, so that neither side's draws shift the other's."""

    def __init__(self, choices: Choices, side: str) -> None:
        self.choices, self.side = choices, side

    def below(self, stream: str, n: int) -> int:
        return self.choices.below(f"{self.side} {stream}", n)


def one_side(s: Scenario, side: str) -> Scenario:
    """The scenario that the ranks of a side are started with."""
    num_prefill = s.cluster.pp_size * s.cluster.tp_replicas
    mine = slice(0, num_prefill) if side == PREFILL else slice(num_prefill, None)
    first = mine.start
    changes: dict[str, Any] = {
        "disaggregation": s.disaggregation.model_copy(update={"role": side}),
        "workload": s.workload.model_copy(
            update={"aborts": tuple(a for a in s.workload.aborts if a.side in ("both", side))}
        ),
        "observations": s.observations.model_copy(
            update={"listed": tuple(seen_by(o, mine) for o in s.observations.listed)}
        ),
        "faults": s.faults.model_copy(
            update={
                "clock_skew_ms": s.faults.clock_skew_ms[mine],
                "pauses": tuple(
                    p.model_copy(update={"rank": p.rank - first})
                    for p in s.faults.pauses
                    if (p.rank < num_prefill) == (side == PREFILL)
                ),
            }
        ),
    }
    if side == DECODE:
        changes.update(of_decode(s))
    return s.model_copy(update=changes)


def seen_by(entry: Observation, ranks: slice) -> Observation:
    """A listed fact, as it is listed for the ranks of one side."""
    failed = entry.failed if isinstance(entry.failed, bool) else entry.failed[ranks]
    return entry.model_copy(update={"at": entry.at[ranks], "failed": failed})


def of_decode(s: Scenario) -> dict[str, Any]:
    """Cluster, scheduler, model and tiers of the decode side."""
    d = s.disaggregation
    stages = d.decode_pp_size or s.cluster.pp_size
    same = stages == s.cluster.pp_size
    return {
        "hicache": HiCache(),  # a decode server has no radix cache
        "cluster": s.cluster.model_copy(
            update={"pp_size": stages, "pp_async_batch_depth": d.decode_pp_async_batch_depth}
        ),
        "scheduler": s.scheduler.model_copy(
            update={
                "max_total_tokens": d.decode_max_total_tokens,
                "max_running_requests": d.decode_max_running_requests or s.scheduler.max_running_requests,
                "enable_mixed_chunk": False,  # it has no prefill batches to mix with
                "exchange_order": s.scheduler.exchange_order if stages == 2 or same else "send_first",
            }
        ),
        "model": s.model.model_copy(update={"layer_partition": s.model.layer_partition if same else None}),
    }


def shared_workload(side_scenario: Scenario, choices: Choices) -> Workload:
    """The workload of a side: every request at a time, with its room number."""
    workload = decided(build_workload(side_scenario), side_scenario.chance, choices)
    arrivals = tuple(in_room(arrival, number) for number, arrival in enumerate(workload.arrivals))
    return replace(workload, arrivals=arrivals)


def in_room(arrival: Arrival, number: int) -> Arrival:
    at_ns = 0 if arrival.at_ns is None else arrival.at_ns
    return replace(arrival, request=replace(arrival.request, room=number), at_ns=at_ns, at_iteration=None)
