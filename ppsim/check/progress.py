"""Who stands still, who is to blame, and what a rank looks like from outside: the pure part of the watchdogs.

Rule: progress is a completed effect, whatever the slot holds. SGLang's watchdog counts forward passes and is only armed
while a batch is being worked on, so a rank that is stuck on an empty slot is never seen (protocol.md section 9; bugs.md
B30). The first rank that made no progress is found through who waits for whom: the others wait for it, directly or
through a chain; that of the clocks alone would often be a neighbour that had just begun to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ppsim.check.describe import Place
from ppsim.core.effects import (
    Act,
    AwaitLocal,
    AwaitTokens,
    Commit,
    Decided,
    Decision,
    Drop,
    Effect,
    Harvested,
    Ingest,
    Launch,
    Observe,
    Recv,
    Reply,
    Send,
)
from ppsim.core.outcome import Verdict
from ppsim.core.rank import Rank
from ppsim.core.schedule.request import Request
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import Slot
from ppsim.errors import EXIT_LIVENESS, PpsimError

DOES: dict[type[Effect], str] = {  # what a rank does in an effect that is over at once, in words of a reader
    Act: "asks its surroundings to do something",
    AwaitLocal: "waits for a local fact",
    AwaitTokens: "waits for sampled tokens",
    Commit: "waits in the commit of a send",
    Decided: "writes down its decision",
    Drop: "gives up a send",
    Harvested: "writes down its harvest",
    Ingest: "looks for inputs of clients",
    Launch: "starts a forward pass",
    Observe: "looks at a local fact",
    Recv: "waits in a receive",
    Reply: "answers a client",
    Send: "starts a send",
}
MAX_NAMES = 8  # requests shown of a queue
NUM_DECISIONS = 4


class Stuck(PpsimError):
    """A rank made no progress for too long; carries the verdict of the run."""

    exit_code = EXIT_LIVENESS

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        return self.verdict.message


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank stands. ``runs``: whether the rank itself could go on (False: paused, stopped, gone)."""

    rank: int
    iteration: int
    doing: str  # for a sentence: "waits in a receive on lane control"
    waits_for: int | None  # the peer, None if it waits for nobody
    since_ns: int  # when it completed its last effect
    runs: bool = True
    done: bool = False
    slot: int | None = None  # None: not known
    phase: str = ""  # likewise empty
    rid: str = ""  # the oldest of its requests, where it is known

    def sentence(self, now_ns: int) -> str:
        """One line of a report."""
        peer = f" for rank {self.waits_for}" if self.waits_for is not None else ""
        waited = f", no progress for {(now_ns - self.since_ns) / 1e6:.1f} ms"
        return f"rank {self.rank}: iteration {self.iteration}, {self.doing}{peer}" + ("" if self.done else waited)


def no_progress(
    standings: Sequence[Standing], now_ns: int, limit: str, states: Iterable[str], slow: int | None = None
) -> Verdict:
    """The watchdog's report: each rank's effect, the rank to look at first, and every rank's state below.

    ``limit``: in words. ``slow``: a rank that has not stopped, but took longer than the limit for one effect.
    """
    first, cycle = (slow, ()) if slow is not None else first_without_progress(standings)
    guilty = standings[first]
    where = Place("INV-40", first, guilty.iteration, guilty.slot, guilty.phase, guilty.rid)
    lines = [(f"{where}: " if cycle else "") + f"watchdog: no progress for {limit}; first: {guilty.sentence(now_ns)}"]
    lines += [f"  {s.sentence(now_ns)}" for s in standings if s.rank != first]
    lines += [*cycle_lines(cycle), *states]
    invariant = "INV-40" if cycle else None
    place = (first, guilty.iteration, guilty.slot, guilty.rid or None, guilty.phase or None)
    expected = f"every rank completes an effect within {limit}"
    return Verdict("fail", EXIT_LIVENESS, "\n".join(lines), invariant, *place, expected, guilty.sentence(now_ns))


def first_without_progress(standings: Sequence[Standing]) -> tuple[int, tuple[int, ...]]:
    """The rank to look at first, and the wait-for cycle if that is what holds everybody (else empty).

    A rank that cannot run comes first, then one that waits for nobody, then the least advanced of a cycle; among
    several the one that stands still for longest. At least one rank must not be done.
    """
    left = [s for s in standings if not s.done]
    for group in ([s for s in left if not s.runs], [s for s in left if s.waits_for is None]):
        if group:
            return min(group, key=lambda s: (s.since_ns, s.rank)).rank, ()
    cycle = wait_cycle({s.rank: s.waits_for for s in left})
    guilty = [s for s in left if s.rank in cycle] or left
    return min(guilty, key=lambda s: (s.iteration, s.since_ns, s.rank)).rank, cycle


def wait_cycle(waits_for: dict[int, int | None]) -> tuple[int, ...]:
    """Ranks that wait for each other in a circle, from the smallest on; empty if there is none."""
    for start in waits_for:
        path: list[int] = []
        at: int | None = start
        while at is not None and at in waits_for and at not in path:
            path.append(at)
            at = waits_for[at]
        if at is not None and at in path:
            cycle = path[path.index(at) :]
            low = cycle.index(min(cycle))
            return tuple(cycle[low:] + cycle[:low])
    return ()


def cycle_lines(cycle: Sequence[int]) -> list[str]:
    """The line of a report that shows a wait-for cycle; none where there is none."""
    return ["  wait-for cycle: " + " -> ".join(str(rank) for rank in [*cycle, cycle[0]])] if cycle else []


def name_of(effect: Effect | None) -> str:
    """An effect as a noun, without the peer: what a rank is in."""
    match effect:
        case Recv():
            return f"receive on lane {effect.lane.value}"
        case Send():
            return f"send of {effect.message.kind.value} (iteration {effect.message.iteration})"
        case Commit():
            return "commit of a send"
        case _:
            return type(effect).__name__.lower()


def describe(effect: Effect | None) -> str:
    """What a rank does, without the peer."""
    match effect:
        case None:
            return "has not started"
        case Recv():
            return f"waits in a {name_of(effect)}"
        case Send():
            return f"is in a {name_of(effect)}"
        case Commit():
            return f"waits in the {name_of(effect)}"
        case AwaitTokens():
            return f"waits for the tokens of iteration {effect.output.iteration}"
        case AwaitLocal():
            return f"waits for its own {effect.what} of {effect.key}"
        case _:
            return DOES.get(type(effect), f"is in {name_of(effect)}")


def state_lines(rank: Rank, decisions: Sequence[Decision]) -> list[str]:
    """Slots, queues, pools, sends and the last decisions of a rank, one fact a line."""
    if rank.started is None:
        return ["not started: the ranks have not agreed on the capacity"]
    scheduler = rank.scheduler
    visited = scheduler.slots.current(rank.iteration)
    lines = [f"slot {s.index}{' (visited)' if s is visited else ''}: {slot_text(s)}" for s in scheduler.slots.slots]
    lines += queue_lines(scheduler)
    pool, tree = scheduler.kv.pool, scheduler.kv.tree
    lines.append(
        f"pool: {pool.free_tokens} of {pool.capacity_tokens} tokens free, {tree.evictable_tokens} evictable, "
        f"{tree.protected_tokens} locked; {len(scheduler.kv.free_rows)} request rows free"
    )
    lines.append(
        f"sends not committed: {len(rank.send_req_work)} request lists, {len(rank.send_proxy_work)} hidden, "
        f"{len(rank.send_output_work)} outputs, {sum(map(len, rank.vote_work.values()))} votes, "
        f"{sum(map(len, rank.conclusion_work.values()))} conclusions, {sum(map(len, rank.side_work.values()))} side; "
        f"{rank.link.inbox_size} messages put aside, "
        f"{len(rank.last_rank_comm_queue)} outputs not released"
    )
    lines += [f"decided: {decision_text(d)}" for d in decisions[-NUM_DECISIONS:]]
    return lines


def slot_text(slot: Slot) -> str:
    launched = "empty"
    if slot.launched is not None:
        state = "in flight" if slot.in_flight else "harvested"
        launched = f"{slot.launched.forward.mode.value} of iteration {slot.launched.iteration}, {state}"
    full = ", full" if slot.batch_is_full else ""
    return f"{launched}; running {names(slot.running)}{full}"


def queue_lines(scheduler: Scheduler) -> list[str]:
    queues = {"waiting": scheduler.waiting, "grammar": scheduler.grammar_queue, **scheduler.role.queues()}
    lines = [f"queue {name}: {names(queue)}" for name, queue in queues.items()]
    if scheduler.chunked is not None:
        chunked = scheduler.chunked
        lines.append(f"chunked: {chunked.rid}, {chunked.kv_len} of {chunked.seq_len} tokens")
    return lines


def names(requests: Sequence[Request]) -> str:
    shown = " ".join(r.rid for r in requests[:MAX_NAMES])
    more = f" and {len(requests) - MAX_NAMES} more" if len(requests) > MAX_NAMES else ""
    return f"{len(requests)}" + (f" ({shown}{more})" if requests else "")


def decision_text(d: Decision) -> str:
    pieces = " ".join(f"{rid}[{prefix}+{new}]" for rid, prefix, new in d.pieces[:MAX_NAMES])
    more = f" and {len(d.pieces) - MAX_NAMES} more" if len(d.pieces) > MAX_NAMES else ""
    return f"iteration {d.iteration}, slot {d.slot}: {d.mode} {pieces}{more}".rstrip()
