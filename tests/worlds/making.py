"""Small scenarios by dotted keys, and what the tests read from a run. No expectation is computed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.parts import Change
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.core.votes import Voting
from ppsim.fuzz.coverage import Coverage
from ppsim.plugin.loader import change_of
from ppsim.recording import Recording
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import put, validate
from ppsim.scenario.tree import Scenario
from ppsim.world import SimulationResult, simulate
from ppsim.world.run_setting import Setting

MS = 1_000_000  # ns

UNIT: dict[str, Any] = {
    "name": "test",
    "cluster.pp_size": 2,
    "scheduler.chunked_prefill_size": 4,
    "scheduler.max_total_tokens": 4096,
    "scheduler.max_running_requests": 64,
    "scheduler.pp_max_micro_batch_size": 1,
    "cost.source": "unit",
    "cost.unit_ms": 1.0,
    "workload.source": "requests",
    "workload.requests": [{"rid": "R1", "prompt": 4, "output": 1, "ignore_eos": True}],
}
"""One millisecond a stage and batch, free links and hosts, one request of one chunk."""


def scenario(changes: Mapping[str, Any] | None = None, base: Mapping[str, Any] = UNIT) -> Scenario:
    """The base with some dotted keys changed; checked like one from a file. Another source drops the requests."""
    raw: dict[str, Any] = {}
    merged = {**base, **(changes or {})}
    if merged.get("workload.source") != "requests":
        merged.pop("workload.requests", None)
    for key, value in merged.items():
        put(raw, key, value)
    made = validate(raw)
    check_scenario(made)
    return made


def run(changes: Mapping[str, Any] | None = None, base: Mapping[str, Any] = UNIT, **options: Any) -> SimulationResult:
    """Simulate the changed base; what each rank met can be asked for (``situations``)."""
    return simulate(scenario(changes, base), **{"began": listening, **options})


def listening(setting: Setting) -> None:
    """Listen to the journals of all ranks, those of the other side too."""
    for simulated in (*setting.ranks, *(setting.peer.ranks if setting.peer is not None else ())):
        Coverage(simulated.rank.journal)


def situations(rank: Rank) -> Counter[str]:
    """What a rank has met, by the words of ``ppsim.fuzz.coverage``; it must have been listened to."""
    heard = (getattr(listener, "__self__", None) for listener in rank.journal.listeners)
    return next(coverage.situations for coverage in heard if isinstance(coverage, Coverage))


def passed(changes: Mapping[str, Any] | None = None, base: Mapping[str, Any] = UNIT, **options: Any) -> Recording:
    """The recording of a run whose verdict must be pass."""
    result = run(changes, base, **options)
    assert result.verdict.kind == "pass", result.verdict.message
    return result.recording


def requests(num: int, *, prompt: int = 4, output: int = 1, **more: Any) -> list[dict[str, Any]]:
    """R1..Rnum, alike, read in iteration 0."""
    return [{"rid": f"R{n + 1}", "prompt": prompt, "output": output, "ignore_eos": True, **more} for n in range(num)]


def tokens_of(recording: Recording) -> dict[str, tuple[int, ...]]:
    """What the clients got: all tokens of each request, in order."""
    found: dict[str, tuple[int, ...]] = {}
    for reply in recording.replies:
        found[reply.rid] = found.get(reply.rid, ()) + reply.token_ids
    return found


def launches(recording: Recording, rank: int = 0) -> dict[str, list[int]]:
    """Iterations in which each request has a piece in the rank's batch."""
    found: dict[str, list[int]] = {}
    for decision in recording.decisions[rank]:
        for rid, _, _ in decision.pieces:
            found.setdefault(rid, []).append(decision.iteration)
    return found


def deliveries(recording: Recording, rank: int = 0) -> dict[str, dict[int, int]]:
    """For each request: iteration in which the rank delivers its n-th token, by n."""
    found: dict[str, dict[int, int]] = {}
    for harvest in recording.harvests[rank]:
        for rid, n in harvest.delivered:
            found.setdefault(rid, {})[n] = harvest.iteration
    return found


def forward_starts(recording: Recording, rank: int) -> dict[int, int]:
    """Start of the forward pass of each iteration, in ns."""
    return {span.iteration: span.start_ns for span in recording.spans[rank] if span.stream == "forward"}


def plan_for(role: str = "plain", bootstrap: str = "store") -> Plan:
    """The right list of phases of a role."""
    config = RankConfig(0, 2, role=role, bootstrap_consensus=bootstrap)
    return Loop(config, Exchange(), Voting(), Chain()).plan()


PLAIN = plan_for()


def changed(*classes: type) -> Change:
    """A change by classes of a test: parts, a policy, a world."""
    return change_of(list(classes))


def planned(plan_of: Callable[[int], Plan]) -> Change:
    """Ranks whose iteration has other phases or another order: a planted bug. Takes the pp_rank."""

    class Planned(Loop):
        def plan(self) -> Plan:
            return plan_of(self.config.pp_rank)

    return changed(Planned)


def without(plan: Plan, *left_out: Phase) -> Plan:
    return tuple(phase for phase in plan if phase not in left_out)


def moved_behind(plan: Plan, moved: Phase, anchor: Phase) -> Plan:
    """The plan with one phase right behind another."""
    rest = without(plan, moved)
    place = rest.index(anchor) + 1
    return (*rest[:place], moved, *rest[place:])
