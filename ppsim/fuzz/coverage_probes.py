"""Declared probes: interesting situations that a campaign should reach, and the arrows of the request table.

A campaign prints what it never reached. A probe that no campaign reaches is either impossible (then it is wrong here)
or a hole in the generator. ``NOTED`` are situations that ``coverage.py`` counts; ``DERIVED`` are read off those and off
the finished run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from ppsim.core.memory.hicache import HiRadixCache
from ppsim.core.schedule.request import TABLE
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.fuzz.coverage import Coverage
from ppsim.fuzz.experiment import Outcome
from ppsim.recording import Recording
from ppsim.scenario.tree import Scenario
from ppsim.world.run_setting import Setting

THRESHOLD = 1024  # tokens of a batch from which kernels and policies may take another path

NOTED: tuple[str, ...] = (
    "abort waiting at rest",
    "abort grammar at rest",
    "abort bootstrap at rest",
    "abort prealloc at rest",
    "abort transfer at rest",
    "abort inflight at rest",
    "abort chunked in flight",
    "abort chunked at rest",
    "abort last chunk in flight",
    "abort decode in flight",
    "abort decode at rest",
    "abort several chunks in flight",
    "abort after retraction",
    "abort twice",
)


@dataclass(frozen=True)
class Evidence:
    """A finished run as probes see it: rank 0's records, what its journal told, and its scheduler at the end.

    Of two pipelines it is the decode side's. ``prompts`` is the server that computes prompts: of two the other one.
    """

    scenario: Scenario
    recording: Recording
    scheduler: Scheduler
    coverage: Coverage
    prompts: Setting
    is_pair: bool

    def met(self, situation: str) -> bool:
        return self.coverage.situations[situation] > 0

    @cached_property
    def modes(self) -> list[str]:
        return [d.mode for d in self.recording.decisions[0]]

    @cached_property
    def num_slots(self) -> int:
        return self.scenario.cluster.pp_size + self.scenario.cluster.pp_async_batch_depth

    @cached_property
    def aborts_read(self) -> dict[int, int]:
        """Aborts among the inputs of each iteration."""
        found: dict[int, int] = {}
        for entry in self.recording.ingestions:
            found[entry.iteration] = sum(1 for item in entry.inputs if item.kind == "abort")
        return found

    @cached_property
    def requests_read(self) -> dict[int, int]:
        return {e.iteration: sum(1 for i in e.inputs if i.kind == "new") for e in self.recording.ingestions}

    @cached_property
    def batch_tokens(self) -> list[int]:
        """New tokens of each batch with a piece of a prompt."""
        decisions = self.prompts.recording.decisions[0]
        return [sum(new for _, _, new in d.pieces) for d in decisions if d.mode in ("extend", "mixed")]

    @cached_property
    def tiers(self) -> HiRadixCache | None:
        """Of the server that computes prompts."""
        started = self.prompts.ranks[0].rank.started
        return None if started is None else started.kv.tiers

    @cached_property
    def came_again(self) -> set[str]:
        """Ids that were read more than once."""
        read = [item.rid for entry in self.recording.ingestions for item in entry.inputs if item.kind == "new"]
        return {rid for rid in read if read.count(rid) > 1}

    def fails_on_some(self, *kinds: str) -> bool:
        """A fact of such a kind fails on some ranks and comes true on others, and its request ended for it."""
        mixed = {
            entry.rid
            for entry in self.scenario.observations.listed
            if entry.what in kinds and not isinstance(entry.failed, bool) and len(set(entry.failed)) > 1
        }
        words = ("handshake", "KV transfer", "grammar failed")
        return any(r.rid in mixed and any(word in r.reason for word in words) for r in self.recording.replies)

    def statuses(self, status: str) -> int:
        return sum(1 for reply in self.recording.replies if reply.status == status)

    def reasons(self, part: str) -> int:
        return sum(1 for reply in self.recording.replies if part in reply.reason)

    def within_a_round(self, first: str, second: str) -> bool:
        """A visit of one mode is followed by one of the other within L visits."""
        modes = self.modes
        return any(first == m and second in modes[i + 1 : i + self.num_slots] for i, m in enumerate(modes))


def shared_prefix_hit(e: Evidence) -> bool:
    """A first piece starts behind a cached prefix."""
    seen: dict[str, int] = {}
    for d in e.recording.decisions[0]:
        for rid, prefix, _ in d.pieces:
            if rid not in seen and prefix > 0:
                return True
            seen[rid] = prefix
    return False


def chunks_in_all_slots(e: Evidence) -> bool:
    run = 0
    for d in e.recording.decisions[0]:
        run = run + 1 if d.chunked_rid is not None else 0
        if run >= e.num_slots:
            return True
    return False


def chunk_beside_others(e: Evidence) -> bool:
    return any(d.chunked_rid is not None and len(d.pieces) > 1 for d in e.recording.decisions[0])


def retracted_again(e: Evidence) -> bool:
    seen: dict[str, int] = {}
    for d in e.recording.decisions[0]:
        for rid in d.retracted:
            seen[rid] = seen.get(rid, 0) + 1
    return any(n > 1 for n in seen.values())


def served_again(e: Evidence) -> bool:
    """An id came again, and both requests were taken."""
    taken = [r.rid for r in e.recording.replies if r.status in ("finished", "aborted")]
    return any(taken.count(rid) > 1 for rid in e.came_again)


def refused_behind_a_launch(e: Evidence) -> bool:
    """The world refused memory to a launch of a request that had launched before."""
    left = e.prompts.ranks[0].rank.refusals
    return any(
        refusal.behind and left.get(rid, refusal.num_failing) < refusal.num_failing
        for rid, refusal in e.prompts.failing.items()
    )


def thresholds(e: Evidence) -> bool:
    return any(n > THRESHOLD for n in e.batch_tokens) and any(n < THRESHOLD for n in e.batch_tokens)


def abort_in_retraction(e: Evidence) -> bool:
    return any(d.retracted and e.aborts_read.get(d.iteration) for d in e.recording.decisions[0])


DERIVED: dict[str, Callable[[Evidence], bool]] = {
    "a batch of one request": lambda e: any(len(d.pieces) == 1 for d in e.recording.decisions[0]),
    "a batch of several requests": lambda e: any(len(d.pieces) > 1 for d in e.recording.decisions[0]),
    "a mixed batch": lambda e: "mixed" in e.modes,
    "a decode batch": lambda e: "decode" in e.modes,
    "an empty visit between batches": lambda e: e.within_a_round("empty", "extend"),
    "prefill and decode in one round": lambda e: e.within_a_round("decode", "extend"),
    "all slots busy at once": lambda e: any(
        all(m != "empty" for m in e.modes[i : i + e.num_slots]) for i in range(len(e.modes) - e.num_slots)
    ),
    "a chunk in every slot at once": chunks_in_all_slots,
    "a chunk beside another request": chunk_beside_others,
    "a prompt of three chunks or more": lambda e: e.met("third chunk"),
    "a cached prefix is used": shared_prefix_hit,
    "a retraction": lambda e: any(d.retracted for d in e.recording.decisions[0]),
    "several retracted at once": lambda e: any(len(d.retracted) > 1 for d in e.recording.decisions[0]),
    "a request retracted twice": retracted_again,
    "an abort in the iteration of a retraction": abort_in_retraction,
    "an eviction": lambda e: e.scheduler.kv.tree.num_evicted > 0,
    "a node split": lambda e: e.scheduler.kv.tree.num_splits > 0,
    "a duplicate prefix computed twice": lambda e: e.scheduler.kv.num_duplicates > 0,
    "a chunk parked for want of memory": lambda e: e.met("chunk parked"),
    "a chunk cut by memory": lambda e: e.met("chunk cut by memory"),
    "a request put back after admission": lambda e: e.met("put back"),
    "an unfit last request is aborted": lambda e: e.met("unfit"),
    "batch_is_full was set": lambda e: e.met("batch is full"),
    "no free row for a waiting request": lambda e: e.met("no free row"),
    "admission stopped by NO_TOKEN": lambda e: e.met("no token"),
    "a request refused": lambda e: e.statuses("refused") > 0,
    "two aborts in one iteration": lambda e: any(n > 1 for n in e.aborts_read.values()),
    "an abort of an unknown request": lambda e: e.scheduler.num_ignored_aborts > 0,
    "an abort read with its request": lambda e: any(n and e.requests_read.get(i) for i, n in e.aborts_read.items()),
    "an abort before any token": lambda e: any(
        r.status == "aborted" and r.num_output_tokens == 0 for r in e.recording.replies
    ),
    "an abort after tokens": lambda e: any(r.status == "aborted" and r.num_output_tokens for r in e.recording.replies),
    "a stop token ends a request": lambda e: e.reasons("stop") > 0,
    "the length ends a request": lambda e: e.reasons("length") > 0,
    "one output token": lambda e: any(r.status == "finished" and r.num_output_tokens == 1 for r in e.recording.replies),
    "a waiting timeout": lambda e: e.reasons("waiting for more") > 0,
    "a running timeout": lambda e: e.reasons("running for more") > 0,
    "a flush while idle": lambda e: e.reasons("flushed") > 0,
    "a flush under load": lambda e: e.reasons("flush_cache") > 0,
    "a grammar fails": lambda e: e.reasons("grammar failed") > 0,
    "a handshake fails": lambda e: e.reasons("handshake") > 0,
    "a transfer fails": lambda e: e.reasons("KV transfer") > 0,
    "a released prefill": lambda e: e.reasons("transferred") > 0,
    "a prealloc misfit blocks the queue": lambda e: e.met("prealloc misfit"),
    "a retraction during votes": lambda e: e.met("retracted under votes"),
    "a retracted request resumes": lambda e: e.met("resumed"),
    "a load-back": lambda e: e.scheduler.kv.tiers is not None and e.scheduler.kv.tiers.num_loaded_tokens > 0,
    "a prefetch hit": lambda e: e.scheduler.kv.tiers is not None and e.scheduler.kv.tiers.num_fetched_tokens > 0,
    "an eviction from host memory": lambda e: (
        e.scheduler.kv.tiers is not None and e.scheduler.kv.tiers.num_host_evicted > 0
    ),
    "no room in host memory": lambda e: e.scheduler.kv.tiers is not None and e.scheduler.kv.tiers.num_unwritten > 0,
    "a request waits for storage": lambda e: e.met("waits for storage"),
    "a decode waits for a copy": lambda e: e.met("decode waits for a copy"),
    "an idle reset": lambda e: e.scheduler.num_idle_resets > 0,
    "a skipped output exchange": lambda e: e.met("skipped output"),
    "more than one stage": lambda e: e.scenario.cluster.pp_size > 1,
    "a middle stage": lambda e: e.scenario.cluster.pp_size > 2,
    "a slot more than stages": lambda e: e.scenario.cluster.pp_async_batch_depth > 0,
    "tensor-parallel replicas": lambda e: e.scenario.cluster.tp_replicas > 1,
    "tensor-parallel replicas load back from host memory": lambda e: (
        e.scenario.cluster.tp_replicas > 1 and e.tiers is not None and e.tiers.num_loaded_tokens > 0
    ),
    "two pipelines: a load-back": lambda e: e.is_pair and e.tiers is not None and e.tiers.num_loaded_tokens > 0,
    "two pipelines: a prefetch hit": lambda e: e.is_pair and e.tiers is not None and e.tiers.num_fetched_tokens > 0,
    "memory refused to a later launch": refused_behind_a_launch,
    "batches above and below 1,024 tokens": thresholds,
    "an id comes again and is served": served_again,
    "an id comes again and is refused": lambda e: e.reasons("is already here") > 0,
    "clients that wait for answers": lambda e: 0 < e.scenario.workload.concurrency < len(e.recording.arrivals),
    "a handshake fails on some ranks": lambda e: e.fails_on_some("bootstrap", "handshake"),
    "a transfer fails on some ranks": lambda e: e.fails_on_some("transfer", "receive"),
    "a grammar fails on some ranks": lambda e: e.fails_on_some("grammar"),
    "facts at different iterations on different ranks": lambda e: any(
        len(set(o.at)) > 1 for o in e.scenario.observations.listed
    ),
}

PROBES: tuple[str, ...] = (*NOTED, *DERIVED)
PAIRS: tuple[str, ...] = tuple(f"{state.value} x {event.value}" for state, event in TABLE)


def hits(outcome: Outcome) -> tuple[list[str], list[str]]:
    """Probes and table arrows that a run reached."""
    result, coverage = outcome.result, outcome.coverage
    assert result is not None
    assert coverage is not None
    rank = result.setting.ranks[0].rank
    if rank.started is None:
        return [], []
    scheduler = rank.started
    setting, peer = result.setting, result.setting.peer
    evidence = Evidence(setting.scenario, result.recording, scheduler, coverage, peer or setting, peer is not None)
    found = [name for name in NOTED if name in coverage.situations]
    found += [name for name, test in DERIVED.items() if test(evidence)]
    return found, [f"{state.value} x {event.value}" for state, event in coverage.arrows]
