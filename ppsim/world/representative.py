"""The representative world: one rank decides for all, and the times of all follow from a few integers each.

Rule: it makes the very recording that the event world makes, to the byte, or refuses by name. In a plain pipeline all
ranks decide alike, so the loop of the first rank (``core/loop.py``) is run and nobody else's; how long everything takes
on every rank follows from what the phases ask (``scripts.py``) and from max-plus arithmetic (``stage_times.py``).
Visits of empty slots are passed by ``core/empty_visits.py``, as long as no input is due.

Time goes in waves: in wave n rank k makes its iteration n - k. What a rank waits for was left in an earlier wave, or by
its neighbour in the same one: the next rank's asking for a message (so the last rank begins), the output of the rank
before (so all ranks go as far as their receive first). See docs/fast.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppsim.check.client_watch import StopRun
from ppsim.check.leftovers import rank_leftover, unanswered
from ppsim.check.observers import Observers, phase_of
from ppsim.core import effects as fx
from ppsim.core.agreed import Local
from ppsim.core.empty_visits import num_empty_visits, pass_empty_visits
from ppsim.core.errors import CoreError
from ppsim.core.loop import event_loop_pp
from ppsim.core.messages import Kind, NewRequest, Output, Start
from ppsim.core.parts import UNCHANGED
from ppsim.core.start import fingerprint
from ppsim.core.tokens import count
from ppsim.cost.stage import QuadraticCost, UnitCost
from ppsim.recording import Recording
from ppsim.recording.stream import RecordStream
from ppsim.scenario.rank import local_capacity_tokens, rank_config
from ppsim.scenario.tree import Scenario
from ppsim.workload.refusals import Refusals
from ppsim.world.chance import allocated
from ppsim.world.client import WorkloadClient
from ppsim.world.no_progress_bound import MAX_TIME_NS
from ppsim.world.run_setting import Setting
from ppsim.world.scripts import BATCH, NOTHING, SILENT, Scripts, Shape, Unscripted, looks_back
from ppsim.world.stage_times import CannotRepresent, Flight, StageTimes

Step = tuple[Callable[[int], None], int]
"""A word of a rank's clocks, and the rank."""
Run = tuple[list[Step], list[Step]]
"""Head and tail of a script, bound to a rank."""
NEVER = 3
"""A visit that never was, before the first and behind the last, beside what one may have launched (``scripts.py``)."""
MAX_STEPS = 100_000
"""Of waves that are remembered, times their ranks: some megabytes."""


class Wave:
    """What the ranks do where the visits that it depends on launched ``visits``; ``following``: the wave behind, by
    what the next visit launches."""

    __slots__ = ("following", "steps", "visits")

    def __init__(self, visits: bytes, steps: list[Step]) -> None:
        self.visits, self.steps = visits, steps
        self.following: dict[int, Wave] = {}


class Represented:
    """A rank as those see it who end a run from outside or report on it (``SimulatedSeat``, as far as they look)."""

    def __init__(self, world: Representative, times: StageTimes) -> None:
        self.world, self.times = world, times
        self.rank_id, self.rank, self.loop = times.rank, world.rank, world.loop
        self.setting, self.scenario = world.setting, world.setting.scenario
        self.iteration_starts = times.visits
        self.observers = Observers()
        self.waits_for: int | None = None
        self.is_paused = False

    @property
    def now(self) -> int:
        return self.times.host

    @property
    def done(self) -> bool:
        return self.world.is_done

    @property
    def effect(self) -> fx.Effect | None:
        return self.world.effect

    def phase(self) -> str:
        """Where the loop of the one rank stands."""
        return phase_of(self.loop)


class Representative:
    """One run. ``setting`` as ``prepare`` makes it; ``run`` fills its recording."""

    def __init__(self, setting: Setting) -> None:
        self.setting, scenario = setting, setting.scenario
        self.num_ranks = scenario.cluster.pp_size
        client = setting.client
        assert isinstance(client, WorkloadClient)
        self.client: WorkloadClient = client
        self.capacities = [allocated(setting, k, local_capacity_tokens(scenario, k)) for k in range(self.num_ranks)]
        configs = [rank_config(scenario, k) for k in range(self.num_ranks)]
        self.rank = UNCHANGED.rank(configs[0])
        self.refusals = Refusals(setting.failing)
        self.rank.refusals = self.refusals.left
        self.loop = event_loop_pp(self.rank)
        self.effect: fx.Effect | None = None
        self.is_done = False
        self.flights: dict[int, Flight] = {}
        self.told: tuple[list[fx.Reply], list[fx.Reply]] = ([], [])
        self.stages = [
            StageTimes(k, scenario, setting.network, self.flights, self.told, self._tell) for k in range(self.num_ranks)
        ]
        for k, stage in enumerate(self.stages):
            stage.before = self.stages[k - 1]
        roles: dict[tuple[bool, bool, bool], Scripts] = {}  # what an order of effects may depend on
        self.scripts = [roles.setdefault((c.is_first, c.is_last, c.pp_rank % 2 == 0), Scripts(c)) for c in configs]
        self.runs: list[dict[Shape, Run]] = [{} for _ in self.stages]
        self.waves: dict[bytes, Wave] = {}  # by what the visits launched that it depends on
        self.descending = tuple(reversed(range(self.num_ranks)))
        self.odd_first = scenario.scheduler.exchange_order == "parity"  # their receives need nobody else's
        self.back = looks_back(configs[0])
        self.reach = max(self.back) + self.num_ranks  # visits that a wave depends on
        self.wave = Wave(bytes([NEVER]) * self.reach, [])  # the latest
        self.launched = NEVER  # by the latest decision
        self.kept = 2 * self.num_ranks + configs[0].num_slots + 2  # iterations for which a batch is asked for
        self.max_iterations = scenario.run.max_iterations
        self.outputs: dict[int, Output] = {}
        self.stream = setting.recording if isinstance(setting.recording, RecordStream) else None
        self.place = 0  # which of the two the next reply belongs to
        self.alike = stages_alike(setting)
        self.handlers: dict[type[fx.Effect], Callable[[Any], Any]] = {
            fx.Observe: self._observe,
            fx.Send: lambda effect: 0,
            fx.Recv: self._recv,
            fx.Commit: lambda effect: None,
            fx.Launch: self._launch,
            fx.AwaitTokens: lambda effect: effect.output.payload,
            fx.Ingest: self._ingest,
            fx.Reply: self._reply,
            fx.Decided: self._decided,
            fx.Harvested: self._harvested,
            **dict.fromkeys((fx.Drop, fx.AwaitLocal, fx.Act), self._unheard_of),
        }
        self._share(setting.recording)

    def _share(self, recording: Recording) -> None:
        """The ranks have one list of decisions and one of harvests, and lists of times each."""
        recording.decisions = [recording.decisions[0]] * self.num_ranks
        recording.harvests = [recording.harvests[0]] * self.num_ranks
        recording.visits = [stage.visits for stage in self.stages]
        recording.spans = [stage.spans for stage in self.stages]
        for stage in self.stages if self.num_ranks > 1 else ():  # each rank keeps what it received
            for kind, is_hidden in (("hidden", True), ("output", False)):
                recording.messages[stage.before.rank, stage.rank, kind] = stage.received[is_hidden]
        self.setting.ranks = [Represented(self, stage) for stage in self.stages]  # type: ignore[misc]

    def run(self) -> None:
        """Run to the end. Raises CannotRepresent where the event world has to tell what happened."""
        try:
            self._run()
        finally:  # what is ended from outside leaves what it has
            messages = self.setting.recording.messages
            for key in [key for key, mine in messages.items() if not mine and self.stream is None]:
                del messages[key]  # nothing went that way
        self._conclude()

    def _run(self) -> None:
        reply: Any = None
        handlers, send = self.handlers, self.loop.send
        try:
            while True:
                self.effect = effect = send(reply)
                reply = handlers[type(effect)](effect)
        except StopIteration:
            self.is_done = True
        except (CoreError, StopRun, Unscripted) as error:
            raise CannotRepresent(str(error)) from error
        end = self.rank.iteration
        for wave in range(end, end + self.num_ranks - 1):
            self._wave(wave, NEVER)

    def _conclude(self) -> None:
        """See that nothing is left."""
        # Of a stream the client has handed out all requests, and what was owed to those that have ended is forgotten.
        arrived = [] if self.stream is not None else [a.rid for a in self.setting.recording.arrivals]
        left = rank_leftover(self.rank) or unanswered(self.setting.watch, arrived)
        if left is not None:
            raise CannotRepresent(left[1])
        if max(stage.host for stage in self.stages) > MAX_TIME_NS:
            raise CannotRepresent("more than 292 years")

    # --- time ----------------------------------------------------------------------------------------------------

    def _wave(self, number: int, launched: int) -> None:
        """Rank k makes its iteration ``number - k``; the first rank's is the last one that was decided."""
        wave = self.wave.following.get(launched) or self._follow(launched)
        self.wave = wave
        for word, k in wave.steps:
            word(number - k)

    def _follow(self, launched: int) -> Wave:
        """The wave behind the latest one. Whoever was there before knows the way from then on."""
        visits = self.wave.visits[1:] + bytes([launched])
        found = self.waves.get(visits)
        if found is None:
            if len(self.waves) * self.num_ranks > MAX_STEPS:
                for wave in self.waves.values():
                    wave.following.clear()
                self.waves.clear()
            found = self.waves[visits] = Wave(visits, self._steps(visits))
        self.wave.following[launched] = found
        return found

    def _steps(self, visits: bytes) -> list[Step]:
        """What the ranks do in a wave, in order, given what its visits launched."""
        heads: list[Step] = []
        tails: list[tuple[int, list[Step]]] = []
        for k in self.descending:
            own = len(visits) - 1 - k
            if visits[own] != NEVER:
                shape = tuple([visits[own - back] % NEVER for back in self.back])
                head, tail = self.runs[k].get(shape) or self._bind(k, shape)
                heads += head
                tails.append((k, tail))
        if self.odd_first:
            tails.sort(key=is_even)
        return heads + [step for _, tail in tails for step in tail]

    def _bind(self, k: int, shape: Shape) -> Run:
        """The script of a shape, as calls of a rank's clocks."""
        scripts, stage = self.scripts[k], self.stages[k]
        head, tail = [[(do, k) for do in stage.spoken(words)] for words in scripts.script(shape)]
        found = self.runs[k][shape] = (head, tail)
        stage.output_sent_age = scripts.output_age.get("send_output", 0)
        stage.output_read_age = scripts.output_age.get("await_tokens", 0)
        return found

    # --- effects of the first rank -------------------------------------------------------------------------------

    def _observe(self, effect: fx.Observe) -> Local[tuple[int, ...]]:
        """Before iteration 0 every rank looks at the memory that it has."""
        for k, tokens in enumerate(self.capacities):
            self.setting.recording.observed(k, effect.iteration, effect.what, effect.keys, (tokens,))
        return Local((self.capacities[0],), 0, effect.iteration)

    def _recv(self, effect: fx.Recv) -> Any:
        if effect.kind is Kind.START:
            return Start(effect.src, min(self.capacities), fingerprint(self.rank.config))
        return self.outputs.pop(effect.iteration or 0)

    def _ingest(self, effect: fx.Ingest) -> Any:
        """An iteration begins. All before it are decided: their times follow now."""
        i, first, client, watch = effect.iteration, self.stages[0], self.client, self.setting.watch
        if i:
            self._wave(i - 1, self.launched)
        if self.stream is not None and self.stream.is_due:
            self.stream.pass_on()
        passed = num_slots = self.rank.config.num_slots
        while passed == num_slots and (not effect.idle or client.by_iteration):  # then all slots are empty
            passed = self._pass_empty(i, idle=effect.idle)
            i += passed
        inputs, first.host = client.ingest(i, effect.idle, first.host)
        recording = self.setting.recording
        if inputs:
            for item in inputs:
                if isinstance(item, NewRequest) and item.rid in self.setting.scripted:
                    recording.arrival(item.rid, first.host, count(item.prompt), item.max_new_tokens)
            recording.ingested(i, inputs, first.host)
        watch.ingested(i, inputs, effect.idle)
        return inputs

    def _pass_empty(self, i: int, *, idle: bool) -> int:
        """Pass visits of empty slots until something is due, at most one of each slot; how many.

        ``idle``: nobody waits for anything meanwhile, so it is no livelock.
        """
        num, passed = num_empty_visits(self.rank), 0
        if self.max_iterations:
            num = min(num, self.max_iterations - i)
        while passed < num and not self.client.has_input(i + passed, self.stages[0].host):
            self._wave(i + passed, NOTHING)
            passed += 1
        if passed:
            recording = self.setting.recording
            for decision, harvest in pass_empty_visits(self.rank, passed):
                recording.decisions[0].append(decision)
                recording.harvests[0].append(harvest)
            if not idle:
                self.setting.watch.passed(passed, i + passed)
        return passed

    def _unheard_of(self, effect: fx.Effect) -> None:
        raise CannotRepresent(f"the first rank asks for {type(effect).__name__}")

    def _decided(self, effect: fx.Decided) -> None:
        decision = effect.decision
        if not decision.pieces:
            self.launched = NOTHING
        self.setting.recording.decisions[0].append(decision)
        self.setting.watch.decided(decision)
        self.place = 0

    def _launch(self, effect: fx.Launch) -> tuple[int, ...]:
        batch, setting = effect.batch, self.setting
        self.launched = SILENT if batch.skip_output_comm else BATCH
        self.refusals.launched(batch)
        work = [(p.prefix_len, p.new_tokens, p.is_decode) for p in batch.pieces]
        cost, slot, num_ranks = setting.cost, batch.slot, self.num_ranks
        of_stage = {stage: cost.batch_ns(stage, slot, work) for stage in self.alike[1]}
        network, flights = setting.network, self.flights
        while flights and (oldest := next(iter(flights))) < batch.iteration - self.kept:
            del flights[oldest]
        flights[batch.iteration] = Flight(
            batch.iteration,
            slot,
            batch.can_run_cuda_graph,
            [of_stage[stage] for stage in self.alike[0]],
            network.occupies_ns(batch.num_tokens * network.hidden_bytes),
            network.occupies_ns(len(batch.pieces) * network.output_bytes),
            [0] * num_ranks,
        )
        requests, token = self.rank.scheduler.requests, setting.sampler.token
        tokens = tuple(
            [token(p.rid, len(requests[p.rid].output_ids) + 1) if p.is_last_chunk else 0 for p in batch.pieces]
        )
        setting.recording.sampled(batch.iteration, slot, tokens)
        if num_ranks > 1 and not batch.skip_output_comm:
            assert self.rank.batch is not None
            logprobs, prev = self.rank.batch.num_logprobs, self.rank.link.prev
            self.outputs[batch.iteration] = Output(prev, batch.iteration, slot, len(tokens), tokens, logprobs)
        return tokens

    def _harvested(self, effect: fx.Harvested) -> None:
        self.setting.recording.harvests[0].append(effect.harvest)
        self.place = 1

    def _reply(self, effect: fx.Reply) -> None:
        self.told[self.place].append(effect)
        self.setting.watch.replied(effect, self.rank.iteration, self.rank.slot)

    def _tell(self, place: int, now_ns: int) -> None:
        """The answers leave, and their clients may send the next request at once."""
        told, recording = self.told[place], self.setting.recording
        for reply in told:
            recording.reply(now_ns, reply)
            if reply.status != "token":
                self.setting.sampler.ended(reply.rid)
            for at_ns, request in self.client.replied(reply, now_ns):
                recording.arrival(request.rid, at_ns, count(request.prompt), request.max_new_tokens)
        told.clear()


def is_even(tail: tuple[int, object]) -> bool:
    return tail[0] % 2 == 0


def stages_alike(setting: Setting) -> tuple[list[int], list[int]]:
    """For each stage the first one that needs as long for every batch; and these."""
    cost, num = setting.cost, setting.scenario.cluster.pp_size
    if isinstance(cost, UnitCost):
        same = [0] * num
    elif isinstance(cost, QuadraticCost):
        same = [cost.shares.index(share) for share in cost.shares]
    else:
        same = list(range(num))
    return same, sorted(set(same))


def cannot_represent(scenario: Scenario) -> list[str]:
    """Why a scenario needs the event world, a sentence for each key that says so; empty: one rank can stand for all."""
    s = scenario
    reasons = (
        (s.disaggregation.role != "plain", f"disaggregation.role {s.disaggregation.role!r}: ranks vote"),
        (bool(s.bugs), "bugs: a rank may decide otherwise"),
        (s.cluster.tp_replicas > 1, "cluster.tp_replicas: replicas look for themselves"),
        (s.hicache.enabled, "hicache.enabled: copies end at another time on each rank"),
        (any(r.grammar for r in s.workload.requests), "workload.requests: a grammar compiles on each rank alone"),
        (bool(s.workload.flushes), "workload.flushes: a flush is acknowledged round the ring"),
        (bool(s.timeouts.waiting_ms or s.timeouts.running_ms), "timeouts: the first rank looks at its clock"),
        (bool(s.faults.pauses), "faults.pauses"),
        (bool(s.chance.pause_iterations), "chance.pause_iterations"),
        (bool(s.links.jitter_us), "links.jitter_us: each message is drawn"),
        (bool(s.host.stage_jitter_percent), "host.stage_jitter_percent: each forward pass is drawn"),
        (s.links.send != "eager", f"links.send {s.links.send!r}: a send blocks"),
        (s.links.payload != "eager" and not s.cluster.comm_overlap, "links.payload 'matched': a send waits"),
        (s.scheduler.exchange_order == "paired", "scheduler.exchange_order 'paired'"),
        (s.run.invariants, "run.invariants: every rank is audited"),
        (bool(s.run.consensus_check_interval), "run.consensus_check_interval: every rank is asked"),
        (bool(s.run.watchdog_ms), "run.watchdog_ms: every rank is watched"),
        (bool(s.run.max_wait_iterations), "run.max_wait_iterations"),
        (bool(s.run.max_retractions), "run.max_retractions"),
        (bool(s.run.max_wait_ms), "run.max_wait_ms"),
    )
    return [reason for holds, reason in reasons if holds]
