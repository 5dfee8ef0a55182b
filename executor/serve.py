"""What a rank process does: load its stage, meet the others, run the event loop, look back, report."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from traceback import format_exc

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from executor.client import Client, GaveUp, LiveClient, ReplayClient
from executor.driver import Answers
from executor.ending import verdict_of_error
from executor.fed import Fed, FedChoices, FedClient, FedRank
from executor.judged_rank import Place
from executor.stage import kv_of, load_stage
from executor.status import LOADING, MEETING, Status
from executor.store import ConsensusStore
from executor.surroundings import Surroundings
from executor.timing import ForwardTimer
from executor.transport import PeerLost, Transport
from executor.watchdog import attach
from executor.worker import HOST, Job, Report
from ppsim.check.client_watch import StopRun
from ppsim.check.observers import phase_of_error
from ppsim.check.verdicts import calls_of
from ppsim.core import surroundings as behaviour_of
from ppsim.core.effects import Launch
from ppsim.core.errors import CoreError
from ppsim.core.loop import event_loop_pp
from ppsim.core.outcome import Verdict
from ppsim.errors import PpsimError, UsageError
from ppsim.plugin import load
from ppsim.plugin.crash import crash_of
from ppsim.plugin.crash import place as raised_in
from ppsim.plugin.right import right_ranks
from ppsim.recording import Recording
from ppsim.recording.rank_file import CannotRecord
from ppsim.scenario.rank import local_capacity_tokens, rank_config
from ppsim.workload.refusals import Refusals

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
ASKED_EVERY_S = 0.2
FOREVER = timedelta(days=365)  # an idle rank waits as long as no client sends anything; the launcher watches for deaths


def attempt(rank: int, job: Job, status: Status, pipe: Connection) -> Report:
    """Run the rank; every exception becomes a report."""
    config = rank_config(job.scenario, rank)
    try:
        recording = job.recording_of(rank)
        made = load((*job.changes, *job.scenario.bugs), job.plugin)
        core, right = made.change.rank(config), right_ranks(made.change)[0](config)
        behaviour = made.change.surroundings()
    except PpsimError as known:
        return Report(rank, error=known, trace=format_exc())
    except Exception as unknown:
        return Report(rank, error=crash_of(f"rank {rank}", unknown), trace=format_exc())
    place = Place(core, job.scenario, right)
    # Of a rank with a file the file is the recording: what it knows more is read from there.
    ended = Report(rank, recording if job.folder is None else None, is_audited=job.scenario.run.invariants)
    threading.Thread(target=report_when_asked, args=(place, ended, status, pipe), daemon=True).start()
    try:
        verdict = serve(place, job, status, recording, behaviour)
        ended = replace(ended, verdict=verdict, records=tuple(place.records), fired=tuple(made.fired))
        return replace(ended, departure=place.departure())
    except PeerLost as lost:
        error = PpsimError(f"lost rank {lost.peer} while {lost.doing} it")
        ended = replace(ended, error=error, lost_peer=lost.peer, calls=calls_of(place))
        return replace(ended, records=tuple(place.records), departure=place.departure())
    except (CoreError, PpsimError) as known:
        verdict = verdict_of_error(known, place) if isinstance(known, CoreError | StopRun | GaveUp) else None
        ended = replace(ended, error=known, trace=format_exc(), verdict=verdict, calls=calls_of(place))
        return replace(ended, records=tuple(place.records), departure=place.departure(known))
    except Exception as unknown:
        at, phase = place.rank, phase_of_error(unknown) or place.phase()
        where = f"rank {rank}, iteration {at.iteration}, slot {at.slot}, phase {phase}"
        error = PpsimError(f"{type(unknown).__name__}: {unknown} ({raised_in(unknown)}) at {where}")
        if made.names and in_the_loop(unknown):
            error = crash_of(f"rank {rank}", unknown, where)
        return replace(ended, error=error, trace=format_exc())


def report_when_asked(place: Place, ended: Report, status: Status, pipe: Connection) -> None:
    """The thread that speaks for a rank which stands still: what it is held against the others by, for the launcher.

    All ranks wait for one another then, so nothing changes under the reader; the process is ended afterwards.
    """
    while not status.asked.value:
        time.sleep(ASKED_EVERY_S)
    departure = None
    with suppress(Exception):
        departure = place.departure()
    with suppress(Exception):
        pipe.send(replace(ended, records=tuple(place.records), calls=calls_of(place), departure=departure))


def in_the_loop(error: BaseException) -> bool:
    """Whether the rank itself has raised it, and not what answers it: sockets, devices, the model."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is event_loop_pp.__code__:
            return True
        trace = trace.tb_next
    return False


def serve(
    place: Place, job: Job, status: Status, recording: Recording, behaviour: behaviour_of.Surroundings
) -> Verdict | None:
    """Load, connect, run the event loop to its end, leave together. The reply is what this rank left behind, if any."""
    torch.set_num_threads(1)
    core = place.rank
    rank = core.config.pp_rank
    scenario, device = job.scenario, device_of(job.device, rank)
    status.begins(rank, LOADING)
    stage = load_stage(scenario, rank, device)
    capacity_tokens = local_capacity_tokens(scenario, rank)
    try:
        kv = kv_of(scenario, stage, capacity_tokens)
    except RuntimeError as error:  # torch's out-of-memory errors, of host and device
        raise UsageError(
            f"scheduler.max_total_tokens: rank {rank} cannot hold the KV of {capacity_tokens} tokens: {error}"
        ) from None
    status.begins(rank, MEETING)
    start_ns = connect(rank, job)
    store = consensus_store(rank, job)
    transport = Transport(rank, device)
    timer = ForwardTimer(start_ns, device)
    choices = None if job.fed is None else FedChoices(job.fed.draws)
    held = None if job.fed is None else job.fed.stored
    surroundings = Surroundings(core, scenario, timer.now_ns, store, behaviour, choices, held)
    client = client_of(job, timer)
    place.facts, place.stored, place.now_ns = surroundings.facts, surroundings.stored, timer.now_ns
    answers = Answers(
        rank, stage, kv, capacity_tokens, transport, client, recording, timer, status, surroundings, place.observers
    )
    if job.fed is not None:
        answers.fed = FedRank(job.fed, rank)
        refuse(place, job.fed)
    core.policy.wall_clock_ns = answers.wall_clock_ns
    if place.twin is not None:
        place.twin.right.policy.wall_clock_ns = answers.clock_of_twin
    place.judge()
    attach(place, recording, scenario, job.pulse)
    try:
        place.loop = event_loop_pp(core)
        answers.drive(core, place.loop)
        verdict = place.left_behind(recording, [work.kind for work in transport.outstanding.values()])
        transport.finish()
        if rank == 0:
            recording.warn_of_ignored_aborts(core.scheduler.num_ignored_aborts)
            for sentence in client.told():
                recording.warn(sentence)
        answers.settle()
        recording.close()
        status.over(rank)
    except BaseException:
        answers.settle()
        with suppress(CannotRecord):
            recording.flush()
        raise
    if store is not None:
        store.close()
    dist.destroy_process_group()
    return verdict


def device_of(name: str, rank: int) -> torch.device:
    """The CPU, or a GPU in turn: ranks share GPUs where there are fewer of them."""
    if name != "cuda":
        return torch.device(name)
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def connect(rank: int, job: Job) -> int:
    """Meet the other ranks; the reply is the moment 0 of the run, the same number on every rank."""
    if sys.platform in LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK[
            sys.platform
        ]  # whatever the surroundings say: nobody else may come in
    store = TCPStore(HOST, job.port, is_master=False, timeout=timedelta(seconds=60))
    store.set_timeout(FOREVER)
    pp_size = job.scenario.cluster.pp_size
    dist.init_process_group("gloo", store=store, rank=rank, world_size=pp_size, timeout=FOREVER)
    dist.barrier()
    if rank == 0:
        store.set("start_ns", str(time.monotonic_ns()))
    return int(store.get("start_ns"))


def consensus_store(rank: int, job: Job) -> ConsensusStore | None:
    """The store of a prefill server whose bootstrap is agreed through it; the first rank tells where it listens."""
    wanted = job.scenario.disaggregation
    if wanted.role != "prefill" or wanted.bootstrap != "store":
        return None
    meeting = TCPStore(HOST, job.port, is_master=False, timeout=timedelta(seconds=60))
    num_ranks = job.scenario.cluster.pp_size
    if rank == 0:
        store = ConsensusStore(0, num_ranks)
        meeting.set("consensus_store", store.endpoint)
        return store
    return ConsensusStore(rank, num_ranks, meeting.get("consensus_store").decode())


def refuse(place: Place, fed: Fed) -> None:
    """The memory that a rank, and its twin, does not get although admission has counted on it."""
    for core in (place.rank, place.twin.right if place.twin is not None else None):
        if core is not None:
            refusals = Refusals(dict(fed.refusals))
            core.refusals = refusals.left
            place.observers.after(partial(launched, refusals), Launch)


def launched(refusals: Refusals, effect: Launch, _: object) -> None:
    refusals.launched(effect.batch)


def client_of(job: Job, timer: ForwardTimer) -> Client:
    if job.fed is not None:
        return FedClient(job.fed, job.scenario.run.max_iterations)
    if job.inputs is not None:
        return ReplayClient(job.inputs)
    limit = job.scenario.run.max_iterations
    concurrency = job.scenario.workload.concurrency
    return LiveClient(job.arrivals, timer.now_ns, lambda ns: time.sleep(ns / 1e9), limit, job.controls, concurrency)
