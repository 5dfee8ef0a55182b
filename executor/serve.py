"""What a rank process does: load its stage, meet the others, run the event loop, look back, report."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from traceback import format_exc

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from executor.client import Client, LiveClient, ReplayClient
from executor.driver import Answers
from executor.stage import kv_of, load_stage
from executor.status import Status
from executor.store import ConsensusStore
from executor.surroundings import Surroundings
from executor.timing import ForwardTimer
from executor.transport import PeerLost, Transport
from executor.watchdog import attach
from executor.worker import HOST, Job, Report
from ppsim.core.errors import CoreError
from ppsim.core.loop import build_rank
from ppsim.core.messages import Call
from ppsim.core.rank import Rank
from ppsim.errors import PpsimError, UsageError
from ppsim.recording import Recording
from ppsim.scenario.rank import local_capacity_tokens, rank_config

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
FOREVER = timedelta(days=365)  # an idle rank waits as long as no client sends anything; the launcher watches for deaths


def attempt(rank: int, job: Job, status: Status) -> Report:
    """Run the rank; every exception becomes a report."""
    recording = Recording(job.scenario.cluster.pp_size, name=job.scenario.name, seed=job.scenario.seed, world="exec")
    core = build_rank(rank_config(job.scenario, rank), job.hooks(rank, 0))
    try:
        serve(core, job, status, recording)
        return Report(rank, recording, left_behind=left_behind(core))
    except PeerLost as lost:
        error = PpsimError(f"lost rank {lost.peer} while {lost.doing} it")
        return Report(rank, recording, error, lost_peer=lost.peer, calls=calls_of(core))
    except (CoreError, PpsimError) as known:
        return Report(rank, recording, known, trace=format_exc(), calls=calls_of(core))
    except Exception as unknown:
        return Report(rank, error=PpsimError(f"{type(unknown).__name__}: {unknown}"), trace=format_exc())


def calls_of(core: Rank) -> tuple[Call, ...]:
    """What the rank consensus checker of this rank has recorded lately."""
    return core.checker.log if core.checker is not None else ()


def serve(core: Rank, job: Job, status: Status, recording: Recording) -> None:
    """Load, connect, run the event loop to its end, leave together."""
    torch.set_num_threads(1)
    rank = core.config.pp_rank
    scenario, device = job.scenario, device_of(job.device, rank)
    stage = load_stage(scenario, rank, device)
    capacity_tokens = local_capacity_tokens(scenario, rank)
    try:
        kv = kv_of(scenario, stage, capacity_tokens)
    except RuntimeError as error:  # torch's out-of-memory errors, of host and device
        raise UsageError(
            f"scheduler.max_total_tokens: rank {rank} cannot hold the KV of {capacity_tokens} tokens: {error}"
        ) from None
    start_ns = connect(rank, job)
    store = consensus_store(rank, job)
    transport = Transport(rank, device)
    timer = ForwardTimer(start_ns, device)
    surroundings = Surroundings(core, scenario, timer.now_ns, store)
    client = client_of(job, timer)
    answers = Answers(rank, stage, kv, capacity_tokens, transport, client, recording, timer, status, surroundings)
    attach(answers, core, scenario, job.pulse)
    try:
        answers.drive(core)
        transport.finish()
        if rank == 0:
            recording.warn_of_ignored_aborts(core.scheduler.num_ignored_aborts)
            for sentence in client.told():
                recording.warn(sentence)
    finally:
        answers.settle()
    if store is not None:
        store.close()
    dist.destroy_process_group()


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


def client_of(job: Job, timer: ForwardTimer) -> Client:
    if job.inputs is not None:
        return ReplayClient(job.inputs)
    limit = job.scenario.run.max_iterations
    concurrency = job.scenario.workload.concurrency
    return LiveClient(job.arrivals, timer.now_ns, lambda ns: time.sleep(ns / 1e9), limit, job.controls, concurrency)


def left_behind(core: Rank) -> str:
    """What a rank still holds after its last iteration; empty if it ended as it began."""
    scheduler, kv = core.scheduler, core.scheduler.kv
    if scheduler.requests or scheduler.waiting or scheduler.chunked:
        return f"requests are left in the queues: {list(scheduler.requests)[:3]}"
    if core.last_rank_comm_queue:
        return f"{len(core.last_rank_comm_queue)} outputs were never released"
    if core.link.inbox_size:
        return f"{core.link.inbox_size} messages were received and never used"
    if kv.tree.protected_tokens:
        return f"{kv.tree.protected_tokens} cached tokens are still locked"
    problem = kv.audit()
    kv.tree.reset()
    if problem or kv.pool.free_tokens != kv.pool.capacity_tokens:
        return problem or f"{kv.pool.free_tokens} of {kv.pool.capacity_tokens} KV tokens are free"
    if len(kv.free_rows) != scheduler.config.max_running_requests:
        return f"{len(kv.free_rows)} of {scheduler.config.max_running_requests} request rows are free"
    return ""
