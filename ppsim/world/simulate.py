"""One simulated run, from the scenario to recording and verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ppsim.check.audit import Audit, follow
from ppsim.check.client_watch import StopRun, Watch
from ppsim.check.observers import phase_of_error
from ppsim.check.progress import Stuck
from ppsim.check.together import Together
from ppsim.check.verdicts import verdict_of
from ppsim.check.wait_limits import watch_patience
from ppsim.core.errors import CoreError, InvariantViolation
from ppsim.core.messages import Input
from ppsim.core.parts import UNCHANGED, Change
from ppsim.core.tokens import count
from ppsim.errors import EXIT_UNKNOWN, ScenarioError
from ppsim.plugin import load
from ppsim.recording import PASS, Recording, Verdict
from ppsim.recording.schema import Refused
from ppsim.recording.stream import RecordStream
from ppsim.scenario.fit import check_requests_fit
from ppsim.scenario.layers import hidden_bytes_per_token
from ppsim.scenario.rank import local_capacity_tokens, rank_config
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Scenario
from ppsim.scenario.warn import start_warnings, without_effect
from ppsim.workload import Arrival, Workload, build_workload
from ppsim.workload.local_facts import Facts
from ppsim.workload.stream import blank_requests, cannot_stream, stream_workload
from ppsim.world.blame import Hang, with_blame
from ppsim.world.chance import decided, failing
from ppsim.world.choices import Choices, SeededChoices
from ppsim.world.client import Client, ReplayClient, Sampler, WorkloadClient
from ppsim.world.clock import ChoosingEnvironment, run_until_quiet
from ppsim.world.collector import seldom_collected
from ppsim.world.driver import SimulatedRank
from ppsim.world.ending import deadlock, first_cause, leftovers, warn_of_what_had_no_effect
from ppsim.world.milestones import Marks
from ppsim.world.network import Network
from ppsim.world.representative import Representative, cannot_represent
from ppsim.world.run_setting import Setting
from ppsim.world.stage_times import CannotRepresent
from ppsim.world.watchdog import watch_for_stalls
from ppsim.world.where_stuck import record_stands


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a run leaves. ``setting`` gives checks access to the final state of the ranks."""

    recording: Recording
    verdict: Verdict
    setting: Setting

    def __post_init__(self) -> None:
        """Whatever made a run fail, its recording says where the ranks stood."""
        if self.verdict.kind != "pass":
            record_stands(self.setting)


@dataclass(frozen=True, slots=True)
class Given:
    """What a run takes from another one instead of from the scenario (design decision 5)."""

    inputs_by_iteration: dict[int, tuple[Input, ...]] | None = None
    tokens: dict[str, tuple[int, ...]] | None = None


def simulate(
    scenario: Scenario,
    *,
    progress: Callable[[int, int], None] | None = None,
    choices: Choices | None = None,
    change: Change | None = None,
    given: Given | None = None,
    began: Callable[[Setting], None] | None = None,
    fast: bool | None = False,
    place: Path | None = None,
) -> SimulationResult:
    """Run a scenario to its end. Raises ScenarioError or TraceError for bad input; all else is in the verdict.

    ``began`` is told the setting before anything happens: who ends a run from outside still has what it recorded.
    ``fast``: let one rank stand for all (``representative.py``), to the same recording; None: where that is possible.
    Raises ScenarioError where it is asked for and not possible. A run that does not pass so is made again by events,
    which have every rank to report on.

    Where ``run.keep`` is not "all", one rank stands for all, or ScenarioError says why it cannot; the records are
    in a file, or nowhere (``recording/stream.py``). ``place``: a folder for what is written meanwhile.
    """
    if scenario.run.keep != "all":
        return streamed(scenario, progress, began, place, cannot_keep_less(scenario, choices, change, given, fast))
    if fast is not False and may_represent(scenario, choices, change, given, asked=fast is True):
        result = represented(scenario, progress, began)
        if result is not None:
            return result
    chosen, given = choices or SeededChoices(scenario.seed), given or Given()
    change = change or load(scenario.bugs).change
    result = simulate_once(scenario, progress, chosen, change, given, began)

    def again(repeated: Choices, hang: Hang) -> Verdict:
        try:
            return simulate_once(scenario, None, repeated, change, given, None, hang).verdict
        except (Exception, SystemExit) as error:  # a plug-in that does not do the same twice
            return Verdict("unknown", EXIT_UNKNOWN, str(error))

    verdict = with_blame(result.verdict, scenario, chosen, change, again)
    return result if verdict == result.verdict else replace(result, verdict=verdict)


def why_not(scenario: Scenario, choices: Choices | None, change: Change | None, given: Given | None) -> list[str]:
    """Why one rank cannot stand for all, a sentence each; empty: it can."""
    reasons = cannot_represent(scenario)
    if choices is not None or given is not None:
        reasons.append("choices or replies of another run are given")
    if change is not None and change != UNCHANGED:
        reasons.append("a plug-in or bug changes what a rank does")
    return reasons


def may_represent(
    scenario: Scenario, choices: Choices | None, change: Change | None, given: Given | None, *, asked: bool
) -> bool:
    """Whether one rank can stand for all. Raises ScenarioError with the reasons if it is asked to and cannot."""
    reasons = why_not(scenario, choices, change, given)
    if reasons and asked:
        raise ScenarioError("--fast", "one rank cannot stand for all here: " + "; ".join(reasons), "run without it")
    return not reasons


def represented(
    scenario: Scenario, progress: Callable[[int, int], None] | None, began: Callable[[Setting], None] | None
) -> SimulationResult | None:
    """The run by one rank; None where it does not pass, or comes to what only the event world can tell."""
    setting = prepare(scenario, progress, SeededChoices(scenario.seed), Given())
    try:
        run_represented(setting, began)
    except CannotRepresent:
        return None
    return SimulationResult(setting.recording, PASS, setting)


def run_represented(setting: Setting, began: Callable[[Setting], None] | None) -> None:
    """Raises CannotRepresent."""
    for message in without_effect(setting.scenario):
        setting.recording.warn(message)
    world = Representative(setting)
    if began is not None:
        began(setting)
    with seldom_collected():
        world.run()
    warn_of_what_had_no_effect(setting)


def cannot_keep_less(
    scenario: Scenario, choices: Choices | None, change: Change | None, given: Given | None, fast: bool | None
) -> list[str]:
    """Why records must be kept, a sentence each."""
    reasons = why_not(scenario, choices, change, given) + cannot_stream(scenario)
    return ["every rank is to be run (--no-fast)", *reasons] if fast is False else reasons


def streamed(
    scenario: Scenario,
    progress: Callable[[int, int], None] | None,
    began: Callable[[Setting], None] | None,
    place: Path | None,
    reasons: list[str],
) -> SimulationResult:
    """The run by one rank, with records that are passed on and forgotten. Nobody runs it again where it does not pass:
    its verdict is what the one rank can tell."""
    if reasons:
        raise ScenarioError(
            "run.keep", f"{scenario.run.keep!r} needs one rank that stands for all: {'; '.join(reasons)}", "'all'"
        )
    recording = RecordStream(
        scenario.cluster.pp_size,
        name=scenario.name,
        seed=scenario.seed,
        writes=scenario.run.keep == "file",
        packs=scenario.run.compress == "gzip",
        place=place,
    )
    choices = SeededChoices(scenario.seed)
    workload = decided(stream_workload(scenario), scenario.chance, choices)
    setting = prepare(scenario, progress, choices, Given(), workload, recording)
    try:
        run_represented(setting, began)
    except CannotRepresent as error:
        cause, seat = error.__cause__, setting.ranks[0]
        if isinstance(cause, CoreError | StopRun):
            return SimulationResult(setting.recording, verdict_of(cause, seat), setting)
        text = f"one rank cannot tell what happens here: {error}; run.keep 'all' runs every rank"
        return SimulationResult(setting.recording, Verdict("unknown", EXIT_UNKNOWN, text), setting)
    return SimulationResult(setting.recording, PASS, setting)


def simulate_once(
    scenario: Scenario,
    progress: Callable[[int, int], None] | None,
    choices: Choices,
    change: Change,
    given: Given,
    began: Callable[[Setting], None] | None,
    hang: Hang | None = None,
) -> SimulationResult:
    """The run itself. ``hang``: looks at the ranks of each pipeline ahead of the judge."""
    if scenario.disaggregation.role == "pd":
        from ppsim.world.pair.simulate import simulate_pair

        return simulate_pair(scenario, progress, choices, change, given.tokens, began=began, hang=hang)
    setting = prepare(scenario, progress, choices, given)
    setting.surroundings = change.surroundings()
    for message in without_effect(scenario):
        setting.recording.warn(message)
    env = ChoosingEnvironment(setting.choices)
    cluster = scenario.cluster
    for pp_rank in range(cluster.pp_size):
        capacity = local_capacity_tokens(scenario, pp_rank)
        for tp_rank in range(cluster.tp_replicas):
            rank = change.rank(rank_config(scenario, pp_rank, tp_rank))
            setting.ranks.append(SimulatedRank(env, setting, rank, capacity))
    if hang is not None:
        hang(setting)
    watch_ranks(setting)
    for simulated in setting.ranks:
        env.process(simulated.run())
    if began is not None:
        began(setting)
    try:
        run_until_quiet(env)
    except (CoreError, StopRun) as error:
        return SimulationResult(setting.recording, verdict_of_error(error, setting), setting)
    except Stuck as stuck:
        return SimulationResult(setting.recording, first_cause(stuck.verdict, setting), setting)
    finally:
        if setting.marks is not None:
            setting.marks.finish(setting.recording, setting.facts, [r.iteration_starts for r in setting.ranks])
    warn_of_what_had_no_effect(setting)
    stuck_for_ever = deadlock(setting)
    if stuck_for_ever is not None:
        return SimulationResult(setting.recording, first_cause(stuck_for_ever, setting), setting)
    verdict = leftovers(setting) or PASS
    return SimulationResult(setting.recording, verdict, setting)


def prepare(
    scenario: Scenario,
    progress: Callable[[int, int], None] | None,
    choices: Choices,
    given: Given,
    workload: Workload | None = None,
    recording: Recording | None = None,
) -> Setting:
    """Everything the ranks share. The workload is the scenario's unless another one is given, the recording one that
    keeps all."""
    workload = workload or decided(build_workload(scenario), scenario.chance, choices)
    if given.inputs_by_iteration is None:
        check_requests_fit(scenario, workload.whole_requests())
    sampler = Sampler(scenario, workload, given.tokens)
    if workload.coming is not None:
        if scenario.workload.source == "generated":
            for specs in blank_requests(scenario):
                check_requests_fit(scenario, specs)
        coming = workload.coming
        workload = replace(workload, coming=lambda: sampler.noting(coming()))
    cluster = scenario.cluster
    if recording is None:
        recording = Recording(cluster.pp_size, tp_replicas=cluster.tp_replicas, name=scenario.name, seed=scenario.seed)
    for message in (*start_warnings(scenario), *workload.warnings):
        recording.warn(message)
    recording.concurrency = workload.concurrency
    at_times = [a for a in workload.opening if a.at_ns is not None]
    for a in at_times:  # a request that names an iteration arrives when it is read
        recording.arrival(a.request.rid, a.at_ns or 0, count(a.request.prompt), a.request.max_new_tokens)
    watch = Watch(
        scenario.run.max_iterations,
        len(workload.arrivals) + workload.num_coming,
        progress,
        forgets=recording.keep != "all",
    )
    refused = failing(workload, scenario.chance, choices)
    recording.refusals = [Refused(rid, *refusal) for rid, refusal in refused.items()]
    return Setting(
        scenario=scenario,
        cost=stage_cost(scenario),
        choices=choices,
        network=Network(scenario.links, choices, hidden_bytes_per_token(scenario), scenario.cluster.comm_overlap),
        client=client_of(scenario, workload, given, recording),
        sampler=sampler,
        recording=recording,
        watch=watch,
        facts=Facts(scenario.observations, choices),
        marks=None if scenario.disaggregation.role == "plain" else Marks(cluster.pp_size * cluster.tp_replicas),
        failing=refused,
        store_lag_ns=round(scenario.disaggregation.store_lag_us * 1000),
        scripted=read_when_they_arrive(workload, at_times, given),
    )


def read_when_they_arrive(workload: Workload, at_times: list[Arrival], given: Given) -> frozenset[str]:
    """Requests that arrive when they are read: those that name an iteration, in a replay what answers have led to."""
    if given.inputs_by_iteration is None:
        return frozenset(a.request.rid for a in workload.arrivals if a.at_ns is None)
    return frozenset(a.request.rid for a in workload.arrivals) - frozenset(a.request.rid for a in at_times)


def watch_ranks(setting: Setting, side: str = "") -> None:
    """Hang on the ranks whoever looks at them, in this order. ``side`` names the pipeline where there are two."""
    scenario, run = setting.scenario, setting.scenario.run
    together = Together(len(setting.ranks), check=run.check, audited=run.invariants)
    commits_wait = scenario.links.commit != "none"
    audit = Audit(together.take, commits_wait=commits_wait, together=together) if run.invariants else None
    for simulated in setting.ranks:
        setting.watch.watch(simulated)
        if audit is not None:
            audit.watch(simulated)
        elif run.check:
            follow(simulated, together.take)
    watch_for_stalls(setting, side)
    watch_patience(
        setting.ranks,
        run.max_wait_iterations,
        run.max_agreement_wait_ms,
        max_retractions=run.max_retractions,
        max_wait_ms=run.max_wait_ms,
        audited=run.invariants,
    )


def client_of(scenario: Scenario, workload: Workload, given: Given, recording: Recording) -> Client:
    if given.inputs_by_iteration is not None:
        return ReplayClient(given.inputs_by_iteration)

    def arrives(arrival: Arrival) -> None:
        request = arrival.request
        recording.arrival(request.rid, arrival.at_ns or 0, count(request.prompt), request.max_new_tokens)

    return WorkloadClient(workload, scenario.host.idle_poll_us, arrives)


def verdict_of_error(error: CoreError | StopRun, setting: Setting) -> Verdict:
    """The verdict, or the first cause where the ranks have recorded their calls."""
    r = setting.ranks[error.rank] if isinstance(error, StopRun) else setting.running
    phase = phase_of_error(error)  # of the loop that raised it; what an observer raises has left the loop as it is
    if not phase and isinstance(error, InvariantViolation) and error.rank < len(setting.ranks):
        phase = setting.ranks[error.rank].phase()
    return first_cause(verdict_of(error, r, phase), setting)
