"""A run as a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing: ``ppsim trace``.

Rule: everything here is in the recording, or follows from it as said below; what a recording has not is said in
``otherData.left_out`` and never drawn.

    process        a rank
    host           an iteration, from its decision to the next one
    forward, copy  spans of the streams
    send           hidden states, outputs and KV, from the first byte to the last one
    receive        the same, as long as they were sent, up to their arrival
    flows          send -> receive -> the forward pass that needs it
    counters       KV tokens of each rank; running and waiting requests of the first one
    instants       aborts, refusals, retractions, what was observed and agreed (votes), and where a failed run stood

Of a single role the KV transfers to a modelled peer have no receive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ppsim.core.effects import Decision
from ppsim.recording.digest import run_digest
from ppsim.recording.record import Recording
from ppsim.recording.schema import Span, Verdict
from ppsim.report.lanes import Part, rank_name, streams
from ppsim.report.phases import doing_words
from ppsim.report.series import Series, kv_use, request_counts
from ppsim.report.trace_format import (
    THREADS_OF_A_PROCESS,
    Slice,
    event,
    flow,
    inside,
    names,
    side_by_side,
    slice_event,
)
from ppsim.report.waits import stands_of
from ppsim.report.window import Window

MAX_NAMES = 32  # requests named in an event; more are counted
COPIES = ("load", "write", "prefetch")
KINDS = ("host", "forward", "copy", "send", "receive")  # of threads, from the top down
INPUTS = ("abort", "flush", "shutdown")  # of the clients, with an instant each
MARKS = {
    "ready": "handshake is over",
    "admitted": "admitted on the first rank",
    "in_force": "admitted on all ranks",
    "agreed": "handshake agreed",
    "allocated": "has its KV pages",
    "landed": "KV has left",
    "sent": "last KV sent by all ranks",
    "received": "KV has come",
}
"""What was observed and agreed (``ppsim.world.milestones``), in words."""


class Place(NamedTuple):
    """Where a slice has been put."""

    tid: int
    slice: Slice


@dataclass(slots=True)
class Process:
    """A rank: its slices by kind of thread, and after ``settle`` where each of them is."""

    pid: int
    name: str
    slices: dict[str, list[Slice]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    threads: dict[int, str] = field(default_factory=dict)
    places: dict[tuple[str, str], list[Place]] = field(default_factory=dict)  # by kind of thread and name of the slice

    def settle(self, window: Window | None) -> None:
        """Put the slices of the window on threads."""
        for kind, slices in self.slices.items():
            for thread in side_by_side(s for s in slices if window is None or meets(s, window)):
                tid = self.pid * THREADS_OF_A_PROCESS + len(self.threads)
                before = sum(name.startswith(kind) for name in self.threads.values())
                self.threads[tid] = kind if not before else f"{kind} ({before + 1})"
                for s in thread:
                    self.places.setdefault((kind, s.name), []).append(Place(tid, s))

    def events(self) -> Iterator[str]:
        yield from names(self.pid, self.name, self.threads)
        for (kind, _), places in self.places.items():
            yield from (slice_event(kind, self.pid, place.tid, place.slice) for place in places)


class Trace(NamedTuple):
    """A timeline before it is a file. ``other`` is its metadata, ``left_out`` among it."""

    events: Iterable[str]
    other: dict[str, Any]


def trace(parts: Sequence[Part], verdict: Verdict | None = None, window: Window | None = None) -> Trace:
    """The events of one pipeline, or of both; ``window``: what begins before its end and ends after its start."""
    processes: list[list[Process]] = []
    pid = 1
    for part in parts:
        processes.append([rank_process(part, rank, pid + rank) for rank in range(part.recording.num_ranks)])
        pid += part.recording.num_ranks
    arrows = [arrow for part, mine in zip(parts, processes) for arrow in channel_slices(part, mine)]
    arrows += kv_slices(parts, processes)
    for process in (process for mine in processes for process in mine):
        process.settle(window)
    return Trace(all_events(parts, processes, arrows, verdict, window), metadata(parts, verdict))


def meets(s: Slice, window: Window) -> bool:
    return s.start_ns < window.end_ns and s.end_ns >= window.start_ns


def all_events(
    parts: Sequence[Part],
    processes: Sequence[Sequence[Process]],
    arrows: Sequence[Arrow],
    verdict: Verdict | None,
    window: Window | None,
) -> Iterator[str]:
    for mine in processes:
        for process in mine:
            yield from process.events()
    for number, arrow in enumerate(arrows, 1):
        if window is None or all(meets(s, window) for _, _, s in arrow.ends):
            yield from arrow.events(number)
    for part, mine in zip(parts, processes):
        for rank, process in enumerate(mine):
            use = kv_use(part.recording, rank)
            yield from counter("KV tokens", process.pid, {"in use": use.in_use, "cached": use.cached}, window)
            yield from in_window(observations(part.recording, rank, process), window)
        counts = request_counts(part.recording)
        yield from counter("requests", mine[0].pid, {"running": counts.running, "waiting": counts.waiting}, window)
        yield from in_window(instants(part.recording, mine[0]), window)
    if verdict is not None and verdict.kind != "pass":
        yield from in_window(ends(parts, processes), window)


# --- slices ------------------------------------------------------------------------------------------------------


def rank_process(part: Part, rank: int, pid: int) -> Process:
    """A rank with what it did itself; sends and receives come later."""
    recording = part.recording
    process = Process(pid, rank_name(part, rank))
    decisions = {decision.iteration: decision for decision in recording.decisions[rank]}
    process.slices["host"] = host_slices(recording, rank)
    for span in streams(recording, rank, "forward"):
        process.slices["forward"].append(forward_slice(span, decisions.get(span.iteration)))
    for stream in COPIES:
        for span in streams(recording, rank, stream):
            args = {"iteration": span.iteration, "slot": span.slot}
            process.slices["copy"].append(Slice(f"{stream} {span.iteration}", span.start_ns, span.end_ns, args))
    return process


def host_slices(recording: Recording, rank: int) -> list[Slice]:
    """Iterations, each up to the next one; the last has no end that is known, and gets that of its forward pass."""
    visits = recording.visits[rank]
    harvests = {harvest.iteration: harvest for harvest in recording.harvests[rank]}
    found = []
    for decision in recording.decisions[rank]:
        i = decision.iteration
        if i >= len(visits):
            continue
        after = max([visits[i], *(s.end_ns for s in recording.spans[rank][-1:] if s.iteration == i)])
        stop = visits[i + 1] if i + 1 < len(visits) else after
        args: dict[str, Any] = {"iteration": i, "slot": decision.slot, **batch_args(decision)}
        harvest = harvests.get(i)
        if harvest is not None:
            said = {
                "harvests": harvest.harvested,
                "delivered": shortened([f"{rid}#{count}" for rid, count in harvest.delivered]),
                "finished": shortened(list(harvest.finished)),
            }
            args.update({name: value for name, value in said.items() if value not in (None, [])})
        found.append(Slice(f"{decision.mode} {i}", visits[i], stop, args))
    return found


def forward_slice(span: Span, decision: Decision | None) -> Slice:
    mode = decision.mode if decision is not None else "forward"
    args: dict[str, Any] = {"iteration": span.iteration, "slot": span.slot}
    return Slice(f"{mode} {span.iteration}", span.start_ns, span.end_ns, {**args, **batch_args(decision)})


def batch_args(decision: Decision | None) -> dict[str, Any]:
    """The batch in words; nothing of an empty one."""
    if decision is None or (not decision.pieces and not decision.retracted):
        return {}
    pieces = [f"{rid}[{prefix}:{prefix + new}]" for rid, prefix, new in decision.pieces]
    args: dict[str, Any] = {"tokens": sum(new for _, _, new in decision.pieces), "batch": shortened(pieces)}
    if decision.retracted:
        args["retracted"] = shortened(list(decision.retracted))
    if decision.chunked_rid is not None:
        args["chunked"] = decision.chunked_rid
    return args


def shortened(words: list[str]) -> list[str]:
    return words if len(words) <= MAX_NAMES else [*words[:MAX_NAMES], f"and {len(words) - MAX_NAMES} more"]


# --- messages ----------------------------------------------------------------------------------------------------


class Arrow(NamedTuple):
    """A message: (process, kind of thread, slice) of its ends, in order of time."""

    name: str
    ends: tuple[tuple[Process, str, Slice], ...]

    def events(self, number: int) -> Iterator[str]:
        yield from flow(self.name, number, [(p.pid, tid_of(p, kind, s), inside(s)) for p, kind, s in self.ends])


def tid_of(process: Process, kind: str, s: Slice) -> int:
    return next(place.tid for place in process.places[kind, s.name] if place.slice is s)


def channel_slices(part: Part, processes: Sequence[Process]) -> list[Arrow]:
    """A send and a receive for each message between the ranks of a pipeline."""
    arrows = []
    passes = [{s.args["iteration"]: s for s in process.slices["forward"]} for process in processes]
    for (src, dst, kind), messages in sorted(part.recording.messages.items()):
        sender, receiver = processes[src], processes[dst]
        for m in messages:
            args = {"kind": kind, "iteration": m.iteration}
            sent = Slice(f"{kind} {m.iteration} to {receiver.name}", m.leaves_ns, m.sent_ns, args)
            came = m.arrival_ns - (m.sent_ns - m.leaves_ns)
            received = Slice(f"{kind} {m.iteration} from {sender.name}", came, m.arrival_ns, args)
            sender.slices["send"].append(sent)
            receiver.slices["receive"].append(received)
            needs = passes[dst].get(m.iteration) if kind == "hidden" else None
            used = ((receiver, "forward", needs),) if needs is not None else ()
            arrows.append(Arrow(kind, ((sender, "send", sent), (receiver, "receive", received), *used)))
    return arrows


def kv_slices(parts: Sequence[Part], processes: Sequence[Sequence[Process]]) -> list[Arrow]:
    """KV transfers: sends of the prefill side; received by the same stage of the decode side, or by its only one."""
    arrows = []
    for part, mine in zip(parts, processes):
        others = processes[-1] if len(parts) == 2 and part is parts[0] else None
        for rank, process in enumerate(mine):
            for span in streams(part.recording, rank, "kv"):
                args = {"kind": "kv", "iteration": span.iteration, "slot": span.slot}
                sent = Slice(f"kv {span.iteration}", span.start_ns, span.end_ns, args)
                process.slices["send"].append(sent)
                if others is None:
                    continue
                to = others[rank if parts[-1].recording.pp_size > 1 else rank % part.recording.tp_replicas]
                received = Slice(f"kv {span.iteration} from {process.name}", span.start_ns, span.end_ns, args)
                to.slices["receive"].append(received)
                arrows.append(Arrow("kv", ((process, "send", sent), (to, "receive", received))))
    return arrows


# --- counters and instants ---------------------------------------------------------------------------------------


class Instant(NamedTuple):
    """Something that happened at once."""

    name: str
    cat: str
    process: Process
    at_ns: int
    args: Mapping[str, Any]


def in_window(happened: Iterable[Instant], window: Window | None) -> Iterator[str]:
    for one in happened:
        if window is None or window.start_ns <= one.at_ns < window.end_ns:
            pid = one.process.pid
            tid = pid * THREADS_OF_A_PROCESS
            yield event("i", one.name, pid, tid, one.at_ns, cat=one.cat, s="p", args=one.args)


def counter(name: str, pid: int, series: Mapping[str, Series], window: Window | None) -> Iterator[str]:
    """An event for each instant at which one of the series changes; a window begins with what held before."""
    times = sorted({time for one in series.values() for time in one.times})
    if window is not None:
        times = [window.start_ns, *(time for time in times if window.start_ns < time < window.end_ns)]
    for time in times:
        yield event("C", name, pid, 0, time, args={key: value_at(one, time) for key, one in series.items()})


def value_at(series: Series, time: int) -> int:
    before = bisect_right(series.times, time)
    return series.values[before - 1] if before else 0


def observations(recording: Recording, rank: int, process: Process) -> Iterator[Instant]:
    """What a rank saw for a vote, at the decision of that iteration; before the first iteration (-1): at the start."""
    visits = recording.visits[rank]
    for seen in recording.observations[rank]:
        if seen.iteration < len(visits):
            at_ns = visits[seen.iteration] if seen.iteration >= 0 else 0
            words = [f"{key}: {value}" for key, value in zip(seen.keys, seen.values)]
            args = {"iteration": seen.iteration, "seen": shortened(words)}
            yield Instant(f"observes {seen.what}", "votes", process, at_ns, args)


def instants(recording: Recording, first: Process) -> Iterator[Instant]:
    """Aborts and other controls, refusals, retractions, and what came of the votes, on the first rank."""
    for ingested in recording.ingestions:
        for item in ingested.inputs:
            if item.kind in INPUTS:
                args = {"iteration": ingested.iteration, **{name: str(value) for name, value in item.fields}}
                yield Instant(f"{item.kind} {item.rid}".strip(), "inputs", first, ingested.time_ns, args)
    for reply in recording.replies:
        if reply.status in ("aborted", "refused"):
            args = {"reason": reply.reason, "tokens": reply.num_output_tokens}
            yield Instant(f"{reply.rid} {reply.status}", "replies", first, reply.time_ns, args)
    visits = recording.visits[0]
    for decision in recording.decisions[0]:
        if decision.retracted and decision.iteration < len(visits):
            args = {"iteration": decision.iteration, "requests": shortened(list(decision.retracted))}
            yield Instant(f"retracts {len(decision.retracted)}", "retractions", first, visits[decision.iteration], args)
    for mark in recording.marks:
        what = MARKS.get(mark.what, mark.what)
        yield Instant(f"{mark.rid} {what}", "votes", first, mark.time_ns, {"iteration": mark.iteration})


def ends(parts: Sequence[Part], processes: Sequence[Sequence[Process]]) -> Iterator[Instant]:
    """Where each rank stood, at its last step."""
    by_name = {process.name: process for mine in processes for process in mine}
    for name, (_, stand) in stands_of(parts).items():
        if stand.since_ns is not None:
            args = {"iteration": stand.iteration, "waits for rank": stand.waits_for}
            yield Instant(f"stands: {doing_words(stand.doing)}", "verdict", by_name[name], stand.since_ns, args)


# --- metadata ----------------------------------------------------------------------------------------------------


def metadata(parts: Sequence[Part], verdict: Verdict | None) -> dict[str, Any]:
    """What the file says of itself."""
    first = parts[0].recording
    other: dict[str, Any] = {
        "run": first.name,
        "world": first.world,
        "seed": first.seed,
        "digest": {part.name or "run": run_digest(part.recording) for part in parts},
        "left_out": left_out(parts),
    }
    if verdict is not None:
        other["verdict"] = verdict.kind
        if verdict.kind != "pass":
            other["says"] = verdict.message
    return other


def left_out(parts: Sequence[Part]) -> list[str]:
    """Sentences on what is not in the file because it is not in the recording."""
    told = ["request lists, votes and other messages between hosts are not recorded"]
    told += ["where a receive begins is not recorded: it is drawn as long as its send, up to the arrival"]
    told += ["when a harvest happens is not recorded: counters of KV change at the decision that follows it"]
    if any(not visits for part in parts for visits in part.recording.visits):
        told.append("this recording has no times of decisions: no host threads, and no instants of votes")
    if any(part.recording.pp_size > 1 and not part.recording.messages for part in parts):
        told.append("this recording has no messages between ranks: no sends, receives and flows of them")
    return told
