"""A recorded run of either world, run again in simulation: fed with what came into it from outside, and with no more.

Rule: a replayed rank takes every reply that the protocol does not determine from the recording
(``ppsim.recording.inputs``), at the same logical time. Where the recording ends, it waits; where it asks for something
else than the recorded rank did, it ends there, and the two records show both sides.

What ended the recorded run at one rank (an error of the loop) ends this rank alone, as it does among processes, and the
others go on as far as they can; a rule that is found broken ends nobody (``replay_judge.py``). So even what a rank did
while another one was dying can be compared. Of two pipelines each is replayed by itself: what came from the other side
is among the recorded replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simpy import Environment, Event

from ppsim.check.client_watch import Watch
from ppsim.core import effects as fx
from ppsim.core import observations as obs
from ppsim.core.actions import FetchStored, LoadBack, WriteBack, WriteThrough
from ppsim.core.agreed import Local
from ppsim.core.messages import NewRequest
from ppsim.core.observations import CopyKey
from ppsim.core.outcome import Verdict
from ppsim.core.parts import Change
from ppsim.core.rank import Rank
from ppsim.errors import ScenarioError, TraceError
from ppsim.recording import PASS, Recording
from ppsim.recording.inputs import Inputs, Known, inputs_of
from ppsim.recording.schema import WALL_CLOCK, prompt_digest
from ppsim.scenario.layers import hidden_bytes_per_token
from ppsim.scenario.rank import rank_config
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Links, Scenario
from ppsim.workload import Workload, build_workload
from ppsim.workload.local_facts import Facts
from ppsim.workload.refusals import Refusal, Refusals
from ppsim.world.blame import Hang, with_blame
from ppsim.world.chance import decided
from ppsim.world.choices import Choices, SeededChoices
from ppsim.world.client import ReplayClient, Sampler
from ppsim.world.clock import ChoosingEnvironment, run_until_quiet
from ppsim.world.driver import BLOCKED, Pending, SimulatedRank
from ppsim.world.ending import deadlock, first_cause, leftovers
from ppsim.world.network import Network
from ppsim.world.pair.sides import DECODE, PREFILL, one_side
from ppsim.world.replay_judge import Judge, JudgedObservers
from ppsim.world.run_setting import Setting
from ppsim.world.streams import Payload
from ppsim.world.where_stuck import record_stands

MAX_CLOCK_READS = 1024  # of one rank between two effects
GLOO = Links()
"""Links of real processes: a send never blocks, its commit waits until the peer has taken the message. No times."""


class Elsewhere(Exception):
    """The replayed rank has come to where the recorded one never was; the two records say where they part."""


class Reached(Exception):
    """The place at which a replay is to stop."""


@dataclass(frozen=True, slots=True)
class Until:
    """Stop when ``rank`` begins ``iteration``, before it does anything in it."""

    rank: int
    iteration: int


@dataclass(slots=True)
class Replayed:
    """One pipeline, replayed. ``errors``: what ended a rank's loop, by rank. ``verdict``: by the rules of a run."""

    setting: Setting
    inputs: Inputs
    verdict: Verdict = PASS
    errors: dict[int, Exception] = field(default_factory=dict)
    is_reached: bool = False  # the place of ``until``

    @property
    def recording(self) -> Recording:
        return self.setting.recording

    @property
    def cut_ranks(self) -> list[int]:
        """Ranks that have come to the end of what was recorded."""
        return [r.rank_id for r in self.setting.ranks if isinstance(r, ReplayedRank) and r.is_at_end]


class ReplayedRank(SimulatedRank):
    """A rank whose world is a recording."""

    def __init__(self, env: Environment, setting: Setting, rank: Rank, inputs: Inputs, stop: Until | None) -> None:
        super().__init__(env, setting, rank, 0)
        self.inputs, self.stop = inputs, stop
        self.refusals = Refusals({rid: Refusal(*refused) for rid, refused in inputs.refusals.items()})
        rank.refusals, rank.policy.wall_clock_ns = self.refusals.left, self._recorded_clock
        self.tiers = None  # copies are among what was observed
        self.looks = (-2, 0)  # iteration, looks so far in it
        self.is_at_end = self.is_elsewhere = False
        self.error: Exception | None = None
        self.observers: JudgedObservers = JudgedObservers()
        self.begun: set[CopyKey] = set()  # copies between the tiers of its cache that it has asked for
        self.clock_reads: deque[int] = deque(maxlen=MAX_CLOCK_READS)  # what a twin beside it reads again
        if stop is not None and stop.rank == self.rank_id:
            self.observers.before(self._stops)

    def run(self) -> Generator[Event, None, None]:
        """An error ends this rank and no other one."""
        try:
            yield from self._run()
        except Reached:
            raise
        except Elsewhere as parted:
            self.is_elsewhere = True
            if self.setting.raised is parted:  # inside a policy: no error of the loop
                self.setting.running = self.setting.raised = None
        except Exception as error:
            self.error = error
            self.observers.failed(self, error)
        self.waits_for = None

    def _stops(self, effect: fx.Effect) -> None:
        assert self.stop is not None
        if self.rank.started is not None and self.rank.iteration >= self.stop.iteration:
            raise Reached

    def _at_end(self) -> Pending:
        """The recording ends here: this rank goes no further."""
        self.is_at_end, self.waits_for = True, None
        return BLOCKED

    # --- replies from the recording -----------------------------------------------------------------------------

    def _ingest(self, effect: fx.Ingest) -> Any:
        if effect.iteration > self.inputs.last_iteration:
            return self._at_end()
        items = self.inputs.inputs.get(effect.iteration, ())
        self.setting.recording.ingested(effect.iteration, items, self.now)
        return items

    def _observe(self, effect: fx.Observe) -> Any:
        found = self._look_up(effect.iteration, effect.what, effect.keys)
        if isinstance(effect.observation, obs.Statuses):
            held = self.inputs.stored.get(effect.iteration, {})
            self.stored = {rid: list(statuses) for rid, statuses in held.items()}
        return found if isinstance(found, Pending) else Local(found, self.rank_id, effect.iteration)

    def _look_up(self, iteration: int, what: str, keys: tuple[str, ...]) -> tuple[int, ...] | Pending:
        nth = self.looks[1] if self.looks[0] == iteration else 0
        mine = self.inputs.observed[self.rank_id]
        recorded = mine.get((iteration, nth))
        if recorded is None and not self._goes_on(iteration):
            return self._at_end()
        self.looks = (iteration, nth + 1)
        is_same = recorded is not None and (recorded.what, recorded.keys) == (what, keys)
        values = recorded.values if recorded is not None and is_same else ()
        self.setting.recording.observed(self.rank_id, iteration, what, keys, values)
        if not is_same:
            raise Elsewhere
        return values

    def _goes_on(self, iteration: int) -> bool:
        """Whether the recorded rank is known to have gone on behind an iteration's looks without this one."""
        return self.inputs.num_decisions[self.rank_id] > iteration + 1

    def _recorded_clock(self) -> int:
        found = self._look_up(self.rank.iteration, WALL_CLOCK, ())
        if isinstance(found, Pending):  # a policy cannot wait
            raise Elsewhere
        self.clock_reads.append(found[0])
        return found[0]

    def wall_clock_ns(self) -> int:
        """For its twin, which asks as often as it does, right behind it."""
        return self.clock_reads.popleft() if self.clock_reads else 0

    def _launch(self, effect: fx.Launch) -> Payload | Pending:
        key = (effect.batch.iteration, effect.batch.slot)
        if self.rank.config.is_last and key not in self.inputs.sampled and self._delivered(effect) is None:
            return self._at_end()
        return super()._launch(effect)

    def _sample(self, effect: fx.Launch) -> tuple[int, ...]:
        batch = effect.batch
        tokens = self.inputs.sampled.get((batch.iteration, batch.slot))
        if tokens is None:
            tokens = self._delivered(effect) or ()
        if self.rank.link.is_leader:
            self.setting.recording.sampled(batch.iteration, batch.slot, tokens)
        if len(tokens) != len(batch.pieces):
            raise Elsewhere
        return tokens

    def _delivered(self, effect: fx.Launch) -> tuple[int, ...] | None:
        """The tokens of a batch, from what ranks have delivered: a device may have told its ranks before its file."""
        requests, found = self.rank.scheduler.requests, []
        for piece in effect.batch.pieces:
            place = (piece.rid, len(requests[piece.rid].output_ids) + 1)
            token = self.inputs.delivered.get(place) if piece.is_last_chunk else 0
            if token is None:
                return None
            found.append(token)
        return tuple(found)

    def _await_local(self, effect: fx.AwaitLocal) -> None:
        """What was true there is true here."""

    def _act(self, effect: fx.Act) -> None:
        """What comes of it is among the recorded replies."""
        if isinstance(effect.action, WriteThrough | WriteBack | LoadBack | FetchStored):
            self.begun.add(effect.action.key)

    def _reply(self, effect: fx.Reply) -> None:
        self.setting.recording.reply(self.now, effect)

    # --- what the judge asks: facts of the recorded world, of which nobody here knows more than the rank has seen ---

    def copy(self, key: CopyKey) -> tuple[int, int] | None:
        """That it was begun; when it was over is not recorded, so no look at it is too early."""
        return (0, 0) if key in self.begun else None

    def transfer_of(self, rid: str) -> int | None:
        return None

    def status_of(self, rank_id: int, rid: str) -> int | None:
        return None

    def first_sampled(self, request: NewRequest) -> int | None:
        return None

    def sender_failed_ns(self, rid: str) -> int | None:
        return None


# --- a run ---------------------------------------------------------------------------------------------------------


def made_again(scenario: Scenario) -> Workload:
    """The workload of a scenario, once more. A trace that is gone makes none."""
    try:
        return decided(build_workload(scenario), scenario.chance, SeededChoices(scenario.seed))
    except (TraceError, ScenarioError):
        return Workload(())


def known_prompts(workload: Workload) -> Known:
    """The prompts of a workload."""
    heads = {prompt_digest(a.request.prompt): a.request.prompt for a in workload.arrivals if not a.follows}
    return Known(heads, {a.request.rid: (a.follows, a.request.prompt) for a in workload.arrivals if a.follows})


def replay(
    recorded: Recording, scenario: Scenario, change: Change, until: Until | None = None
) -> list[tuple[str, Recording, Replayed]]:
    """Replay each pipeline of a run: ("", its recording, what came out), or ``prefill`` and ``decode`` of two.

    ``until`` is about the first of two pipelines. Raises UsageError for a recording that cannot be fed.
    """
    known = known_prompts(made_again(scenario))
    if recorded.peer is None:
        return [("", recorded, replay_one(recorded, scenario, change, known, until))]
    sides = ((PREFILL, recorded.peer), (DECODE, recorded))
    return [
        (side, mine, replay_one(mine, one_side(scenario, side), change, known, until if side == PREFILL else None))
        for side, mine in sides
    ]


def replay_one(
    recorded: Recording, scenario: Scenario, change: Change, known: Known, until: Until | None = None
) -> Replayed:
    """One pipeline, with the ranks of ``change``, judged by the rules that the scenario asks for."""
    inputs, choices = inputs_of(recorded, known), SeededChoices(scenario.seed)
    result = replay_once(recorded, scenario, change, inputs, choices, until)

    def again(repeated: Choices, hang: Hang) -> Verdict:
        return replay_once(recorded, scenario, change, inputs, repeated, None, hang).verdict

    result.verdict = with_blame(result.verdict, scenario, choices, change, again)
    return result


def replay_once(
    recorded: Recording,
    scenario: Scenario,
    change: Change,
    inputs: Inputs,
    choices: Choices,
    until: Until | None,
    hang: Hang | None = None,
) -> Replayed:
    """The replay itself. ``hang``: looks at the ranks ahead of the judge."""
    env = ChoosingEnvironment(choices)
    setting = setting_of(scenario, recorded, inputs, choices)
    setting.surroundings = change.surroundings()
    cluster, ranks = scenario.cluster, list[ReplayedRank]()
    for pp_rank in range(cluster.pp_size):
        for tp_rank in range(cluster.tp_replicas):
            rank = change.rank(rank_config(scenario, pp_rank, tp_rank))
            ranks.append(ReplayedRank(env, setting, rank, inputs, until))
    setting.ranks.extend(ranks)
    if hang is not None:
        hang(setting)
    judge = Judge(setting, [r.observers for r in ranks], of_processes=recorded.world == "exec")
    if until is None:
        judge.watch()
    for simulated in ranks:
        env.process(simulated.run())
    result = Replayed(setting, inputs)
    try:
        run_until_quiet(env)
    except Reached:
        result.is_reached = True
    conclude(result, ranks, judge)
    return result


def setting_of(scenario: Scenario, recorded: Recording, inputs: Inputs, choices: Choices) -> Setting:
    """What the ranks share. Real links are those of gloo, whatever the scenario says of simulated ones."""
    nothing = Workload(())
    links = GLOO if recorded.world == "exec" else scenario.links
    cluster = scenario.cluster
    recording = Recording(
        cluster.pp_size, tp_replicas=cluster.tp_replicas, name=scenario.name, seed=scenario.seed, world="replay"
    )
    recording.arrivals = list(recorded.arrivals)  # all of them must have been answered in the end
    return Setting(
        scenario=scenario,
        cost=stage_cost(scenario),
        choices=choices,
        network=Network(links, choices, hidden_bytes_per_token(scenario), cluster.comm_overlap),
        client=ReplayClient({}),
        sampler=Sampler(scenario, nothing),
        recording=recording,
        watch=Watch(0, inputs.num_requests, None),
        facts=Facts(scenario.observations, choices),
    )


def conclude(result: Replayed, ranks: Sequence[ReplayedRank], judge: Judge) -> None:
    """What the replay has come to: the first thing that is wrong, or ranks that wait for one another, or a leftover."""
    setting = result.setting
    result.errors = {r.rank_id: r.error for r in ranks if r.error is not None}
    record_stands(setting)
    if result.is_reached:
        return
    found = judge.first()
    if found is None and not any(r.is_at_end or r.is_elsewhere for r in ranks):
        found = deadlock(setting) or leftovers(setting)
    if found is not None:
        result.verdict = first_cause(found, setting)
