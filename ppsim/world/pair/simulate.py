"""Two pipelines in one environment: a prefill and a decode side, each with its ranks, links, client and recording.

A request goes to both sides at its arrival. What the client sees is what the decode side answers: the first token that
came with the KV, then its own. So the decode side's recording is the run's, and the prefill side's is its ``peer``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simpy import Environment

from ppsim.check.client_watch import StopRun
from ppsim.check.physical import waits_for_ever
from ppsim.check.progress import Stuck
from ppsim.core.consensus import KVPoll
from ppsim.core.errors import CoreError
from ppsim.core.parts import Change
from ppsim.errors import ScenarioError
from ppsim.recording import PASS, Verdict
from ppsim.scenario.check import decode_stages
from ppsim.scenario.rank import local_capacity_tokens, rank_config
from ppsim.scenario.tree import Scenario
from ppsim.scenario.warn import without_effect
from ppsim.workload import Workload
from ppsim.world.blame import Hang
from ppsim.world.chance import AskedOnce
from ppsim.world.choices import Choices
from ppsim.world.client import WorkloadClient
from ppsim.world.clock import ChoosingEnvironment, run_until_quiet
from ppsim.world.ending import deadlock, first_cause, leftovers, warn_of_what_had_no_effect
from ppsim.world.milestones import iteration_at
from ppsim.world.pair.ends import End, Peers, Write
from ppsim.world.pair.rank import PipelineRank
from ppsim.world.pair.sides import DECODE, PREFILL, SIDES, SideChoices, one_side, shared_workload
from ppsim.world.pair.transfers import Transfers
from ppsim.world.run_setting import Setting
from ppsim.world.simulate import Given, SimulationResult, prepare, verdict_of_error, watch_ranks


@dataclass(slots=True)
class Sides:
    """The two settings, what happens between them, and the KV writes that have landed."""

    prefill: Setting
    decode: Setting
    transfers: Transfers
    landed: list[Write]

    def of(self, side: str) -> Setting:
        return self.prefill if side == PREFILL else self.decode


def simulate_pair(
    scenario: Scenario,
    progress: Callable[[int, int], None] | None,
    choices: Choices,
    change: Change,
    tokens: dict[str, tuple[int, ...]] | None = None,
    began: Callable[[Setting], None] | None = None,
    hang: Hang | None = None,
) -> SimulationResult:
    """Run both sides to their end. The result is the decode side's; ``setting.peer`` is the prefill side."""
    env = ChoosingEnvironment(choices)
    sides = build(env, scenario, progress, choices, change, tokens, hang)
    for side in SIDES:
        for simulated in sides.of(side).ranks:
            env.process(simulated.run())
    for message in without_effect(scenario):
        sides.decode.recording.warn(message)
    if began is not None:
        began(sides.decode)
    try:
        verdict = run(env, sides)
    finally:
        finish(sides)
    return SimulationResult(sides.decode.recording, verdict, sides.decode)


def build(
    env: Environment,
    scenario: Scenario,
    progress: Callable[[int, int], None] | None,
    choices: Choices,
    change: Change,
    tokens: dict[str, tuple[int, ...]] | None,
    hang: Hang | None = None,
) -> Sides:
    """Both settings with their ranks, and the wires between them."""
    peers = Peers(scenario.cluster.pp_size, decode_stages(scenario), scenario.cluster.tp_replicas)
    surroundings = change.surroundings()
    transfers = Transfers(env, scenario, peers, surroundings)
    settings: dict[str, Setting] = {}
    once = AskedOnce(choices)  # a request goes to both sides at the same instant, and stops at the same token
    for side in SIDES:
        mine = one_side(scenario, side)
        workload = shared_workload(mine, once)
        setting = settings[side] = prepare_side(mine, side, workload, progress, choices, tokens)
        setting.surroundings = surroundings
        for pp_rank in range(mine.cluster.pp_size):
            capacity = local_capacity_tokens(mine, pp_rank)
            for tp_rank in range(mine.cluster.tp_replicas):
                rank = change.rank(rank_config(mine, pp_rank, tp_rank))
                setting.ranks.append(PipelineRank(env, setting, rank, capacity, transfers, side))
        if hang is not None:
            hang(setting)
        watch_ranks(setting, side)
    sides = Sides(settings[PREFILL], settings[DECODE], transfers, [])
    sides.decode.peer, sides.decode.recording.peer = sides.prefill, sides.prefill.recording
    join_clients(sides)
    transfers.on_change = Changes(sides)
    transfers.on_write = sides.landed.append
    return sides


TURNAROUND_NS = 1  # an answer is read on one server's clock, and the next request is read on another one's


def join_clients(sides: Sides) -> None:
    """Where answers bring requests, those of the decode side bring them to both."""
    listening, answered = sides.prefill.client, sides.decode.client
    first = sides.prefill.ranks[0]
    assert isinstance(listening, WorkloadClient)
    assert isinstance(answered, WorkloadClient)
    assert isinstance(first, PipelineRank)
    if answered.answers_matter:
        answered.turnaround_ns = TURNAROUND_NS
        first.told_by = answered


def prepare_side(
    mine: Scenario,
    side: str,
    workload: Workload,
    progress: Callable[[int, int], None] | None,
    choices: Choices,
    tokens: dict[str, tuple[int, ...]] | None,
) -> Setting:
    """What the ranks of a side share. A ScenarioError says which side it is about, and names the keys of that side."""
    told = progress if side == DECODE else None  # the client's side
    try:
        return prepare(mine, told, SideChoices(choices, side), Given(tokens=tokens), workload)
    except ScenarioError as error:
        hint = error.hint
        if side == DECODE:
            hint = hint.replace("scheduler.max_total_tokens", "disaggregation.decode_max_total_tokens")
        raise ScenarioError(error.field, f"{side} side: {error.problem}", hint) from None


class Changes:
    """What a change of a status means outside: a mark, and a sleeping first rank that has to look."""

    READY = {KVPoll.WAITING_FOR_INPUT: "ready", KVPoll.SUCCESS: "landed"}

    def __init__(self, sides: Sides) -> None:
        self.sides = sides

    def __call__(self, side: str, end: End, at_ns: int) -> None:
        setting = self.sides.of(side)
        first = setting.ranks[0]
        assert isinstance(first, PipelineRank)
        first.nap.rings()
        what = self.READY.get(KVPoll(end.status or 0)) if side == PREFILL else ""
        if side == DECODE and end.status == KVPoll.SUCCESS:
            what = "received"
        if what:
            assert setting.marks is not None
            setting.marks.reached(what, end.rid, iteration_at(first.iteration_starts, at_ns), at_ns)


def run(env: Environment, sides: Sides) -> Verdict:
    """Let it go until nothing happens any more; the first thing that went wrong is the verdict."""
    try:
        run_until_quiet(env)
    except (CoreError, StopRun) as error:
        guilty = sides.transfers.guilty or PREFILL
        return named(guilty, verdict_of_error(error, sides.of(guilty)))
    except Stuck as stuck:
        return stuck.verdict
    warn_of_what_had_no_effect(sides.decode)
    first = sides.prefill.ranks[0]
    assert isinstance(first, PipelineRank)
    for side in reversed(SIDES) if first.waits_for_clients else SIDES:  # who waits for an answer is not at fault
        stuck_for_ever = asleep(sides.of(side)) or deadlock(sides.of(side))
        if stuck_for_ever is not None:
            return named(side, first_cause(stuck_for_ever, sides.of(side)))
    for side in SIDES:
        left = leftovers(sides.of(side))
        if left is not None:
            return named(side, left)
    return PASS


def named(side: str, verdict: Verdict) -> Verdict:
    """The verdict, with the side that it is about."""
    return verdict._replace(message=f"{side} side: {verdict.message}")


def asleep(setting: Setting) -> Verdict | None:
    """The first rank sleeps for ever: it has requests, and nothing that could move them will ever happen."""
    first = setting.ranks[0]
    if not isinstance(first, PipelineRank) or not first.nap.sleeps:
        return None
    return waits_for_ever(first.rank, first.phase())


def finish(sides: Sides) -> None:
    """Marks and the spans of the KV links, in an order that does not depend on who ran first."""
    for side in SIDES:
        ended = sides.of(side)
        assert ended.marks is not None
        ended.marks.finish(ended.recording, ended.facts, [r.iteration_starts for r in ended.ranks])
    for write in sorted(sides.landed, key=lambda w: (w.rank, w.begin_ns, w.room, w.nth)):
        end_ns = write.begin_ns + write.duration_ns
        sides.prefill.recording.span(write.rank, "kv", write.slot, write.iteration, write.begin_ns, end_ns)
