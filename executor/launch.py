"""Run a scenario on real processes: one for each pipeline stage, all on this machine.

What can be known before a process starts is checked before one starts (``prepare.py``). After that every way to end is
one clear error or verdict, and no process is left:

    bad scenario, checkpoint, device, port     UsageError, exit code 2
    a plug-in or a planted bug that raises     PluginError, exit code 1, names file, line and rank
    a rank process that dies                   RankDied, exit code 3, names the rank
    all ranks wait for one another             verdict "fail", exit code 3, says what each waits for
    a rank that completes nothing for too long verdict "fail", exit code 3, with the state of every rank (watchdog.py)
    a broken rule of the protocol              verdict "fail", exit code 1, with the recording so far
    run.max_iterations reached                 verdict "unknown", exit code 5, with the recording so far
"""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from executor.client import GaveUp
from executor.ending import deadlock, verdict_of_failure, verdict_of_run, verdict_of_stall
from executor.fed import Fed
from executor.prepare import arrivals_of, check_worlds, checkpoint_warnings, prepared
from executor.status import Status
from executor.supervise import STALL_S, Failed, Ranks, Stalled
from executor.watchdog import Watchdog, peers_of, pulse_of
from executor.worker import HOST, Job, Report, run_rank
from ppsim.check.client_watch import StopRun
from ppsim.check.progress import Stuck, cycle_lines, wait_cycle
from ppsim.core.errors import CoreError
from ppsim.core.messages import Input
from ppsim.errors import PluginError, PpsimError, RankDied, UsageError
from ppsim.plugin import load
from ppsim.recording import Recording, Verdict
from ppsim.recording.folder import clear_earlier, write_config
from ppsim.recording.rank_file import assemble, write_launch
from ppsim.recording.schema import UNTOLD, Origin, Refused
from ppsim.scenario import Scenario
from ppsim.scenario.rank import rank_config
from ppsim.workload import Arrival
from ppsim.workload.build import controls

NOT_HERE = (
    "run.invariants: INV-07 and INV-08 are not checked on real processes, where nobody knows in which iterations two "
    "ranks are at one moment (ppsim run checks them)"
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What a run leaves; times in nanoseconds from the moment when all ranks were ready.

    ``unfired``: bugs and policies that no rank has asked; known of a run that came to its end.
    """

    recording: Recording
    verdict: Verdict
    unfired: list[str] = field(default_factory=list)
    scenario: Scenario | None = None  # as it ran: prepared, with the shape of the checkpoint

    @property
    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Delivered token ids of each request that got any, in order of delivery."""
        found: dict[str, list[int]] = {}
        for reply in self.recording.replies:
            if reply.token_ids:
                found.setdefault(reply.rid, []).extend(reply.token_ids)
        return {rid: tuple(ids) for rid, ids in found.items()}

    @property
    def inputs_by_iteration(self) -> dict[int, tuple[Input, ...]]:
        """What the first rank read and when: replay this and the same decisions follow."""
        return {ingested.iteration: ingested.live for ingested in self.recording.ingestions}


def execute(
    scenario: Scenario,
    *,
    device: str = "cpu",
    model_dir: str | None = None,
    port: int | None = None,
    inputs_by_iteration: Mapping[int, tuple[Input, ...]] | None = None,
    arrivals: Sequence[Arrival] | None = None,
    progress: Progress | None = None,
    start_method: str = "spawn",
    stall_s: float = STALL_S,
    changes: tuple[str, ...] = (),
    plugin: str | None = None,
    fed: Fed | None = None,
    folder: Path | None = None,
    origin: Origin = UNTOLD,
) -> ExecutionResult:
    """Run ``scenario`` to its end.

    ``model_dir`` overrides ``model.path``. ``inputs_by_iteration`` replays recorded inputs; else ``arrivals`` (default:
    the scenario's workload) come live. ``port``: of the rendezvous store, None: a free one. ``progress`` is called with
    (ended requests, all requests). ``changes``: planted bugs by name and classes as "module:Class", ``plugin``: a file
    (docs/plugins.md), besides the scenario's bugs; every rank loads them in its own process. ``folder``: of the run;
    the prepared scenario and every rank's file are written there while it runs, so that whatever ends it, the caller
    and all ranks included, leaves what happened so far (``ppsim.recording.rank_file.assemble``); ``origin`` stands in
    them. ``fed``: what a run in simulation was answered (``fed.py``), instead of inputs and arrivals. Raises
    UsageError, PluginError and RankDied as the head of this file says.
    """
    changed = load((*changes, *scenario.bugs), plugin)
    check_worlds(changed.change.surroundings, changed.names)
    scenario = prepared(scenario, model_dir, device)
    pp_size = scenario.cluster.pp_size
    recording = Recording(pp_size, name=scenario.name, seed=scenario.seed, world="exec")
    recording.origin = origin._replace(changes=changes)
    if fed is not None:  # of all ranks, and known before one starts
        recording.refusals = [Refused(rid, *refusal) for rid, refusal in fed.refusals.items()]
    if scenario.run.invariants:
        recording.warn(NOT_HERE)
    for sentence in checkpoint_warnings(scenario):
        recording.warn(sentence)
    inputs_by_iteration = fed.inputs if fed is not None else inputs_by_iteration
    inputs = None if inputs_by_iteration is None else dict(inputs_by_iteration)
    live = arrivals_of(scenario, arrivals, inputs, recording)
    scripted = controls(scenario) if inputs is None else ()
    num_requests = len(live) if inputs is None else sum(len(items) for items in inputs.values())

    context: Any = multiprocessing.get_context(start_method)
    configs = [rank_config(scenario, rank) for rank in range(pp_size)]
    if folder is not None:
        clear_earlier(folder)
        write_config(folder, scenario.model_dump(mode="json"))
        write_launch(folder, recording)
    status = Status(context, pp_size, folder, configs[0].num_slots)
    ranks = Ranks(status)
    is_judged = scenario.run.check or scenario.run.invariants  # else nobody is blamed, as in the simulated world
    pulse = pulse_of(scenario, context)
    watchdog = None if pulse is None else Watchdog(status, pulse)

    def on_tick() -> None:
        if progress is not None:
            progress(status.num_ended, num_requests)
        if watchdog is not None:
            watchdog.look(ranks.reports)

    store = open_store(port)
    try:
        for rank in range(pp_size):
            first = rank == 0  # the others have no clients
            job = Job(
                scenario,
                device,
                store.port,
                live if first else (),
                scripted if first else (),
                inputs if first else None,
                changes,
                plugin,
                pulse,
                fed,
                folder,
                recording.origin,
            )
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=run_rank, args=(rank, job, theirs, status), name=f"ppsim-rank-{rank}")
            process.start()
            theirs.close()
            ranks.add(process, ours)
        reports = ranks.wait(on_tick, stall_s)
    except Failed as failure:
        return replace(failed(failure.report, ranks, recording, folder), scenario=scenario)
    except Stuck as stuck:
        waits = status.waits(configs) if is_judged else []
        if stuck.verdict.invariant is not None:  # all wait in a circle; else a process does not run, and says nothing
            ranks.ask()
        recording = gathered(recording, ranks, folder)
        recording.stands = watchdog.stands if watchdog is not None else []
        verdict = verdict_of_stall(ranks.reports, pp_size, stuck.verdict, waits)
        return ExecutionResult(recording, verdict, scenario=scenario)
    except Stalled as stall:
        cycle = wait_cycle(peers_of(status, pulse))
        what = "\n".join([str(stall), *cycle_lines(cycle)])
        verdict = deadlock(status, what, configs)
        waits = status.waits(configs) if is_judged else []
        ranks.ask()
        recording = gathered(recording, ranks, folder)
        recording.stands = status.stands()
        verdict = verdict_of_stall(ranks.reports, pp_size, verdict, waits)
        return ExecutionResult(recording, verdict, scenario=scenario)
    finally:
        ranks.stop()
    recording = gathered(recording, ranks, folder)
    fired = {name for report in reports for name in report.fired}
    unfired = [name for name in changed.names if name not in fired]
    verdict = verdict_of_run(recording, reports)
    recording.stands = status.stands() if verdict.kind != "pass" else []
    return ExecutionResult(recording, verdict, unfired, scenario)


def open_store(port: int | None) -> TCPStore:
    """The rendezvous store lives here, so that it outlives any rank. Raises UsageError for a port that is taken.

    A store that binds its own socket listens on all interfaces, whatever its host name says. So it gets a socket that
    listens on the loopback already.
    """
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port or 0))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        raise port_taken(port, error) from None
    bound = listener.getsockname()[1]
    descriptor = listener.detach()  # the store owns it from now on
    timeout = timedelta(seconds=60)
    try:
        return TCPStore(
            HOST, bound, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=descriptor
        )
    except RuntimeError as error:
        raise port_taken(port, error) from None


def port_taken(port: int | None, error: Exception) -> UsageError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
    return UsageError(f"--port {port}: cannot listen on {HOST}:{port}: {reason} (leave --port out for a free one)")


def failed(report: Report, ranks: Ranks, recording: Recording, folder: Path | None = None) -> ExecutionResult:
    """A rank said why it ended: a broken rule and a limit are verdicts, all else is an error."""
    error = report.error
    if isinstance(error, CoreError | StopRun | GaveUp):
        verdict = verdict_of_failure(ranks.reports, report)
        recording = gathered(recording, ranks, folder)
        recording.stands = ranks.status.stands()
        return ExecutionResult(recording, verdict)
    if isinstance(error, UsageError | PluginError):
        raise error
    who = f"rank {report.rank} of {recording.pp_size}"
    what = f"{who} failed while it was {ranks.doing(report.rank)}: {error}"
    raise RankDied(what, report.rank) from PpsimError(report.trace)


def gathered(recording: Recording, ranks: Ranks, folder: Path | None) -> Recording:
    """The recording of the run: from the files of the ranks where there are some, else from their reports."""
    if folder is None:
        absorb(recording, list(ranks.reports.values()))
        return recording
    ranks.stop()  # what is still being written would be read half
    return assemble(folder)


def absorb(recording: Recording, reports: Sequence[Report]) -> None:
    """Put the parts of the ranks together, rank 0 first."""
    for report in sorted(reports, key=lambda report: report.rank):
        if report.recording is not None:
            recording.absorb(report.rank, report.recording)
    recording.join_messages()
