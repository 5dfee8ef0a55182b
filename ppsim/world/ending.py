"""How a run ended: the deadlock report, and what must hold once everything is over (invariants 35, 36, 38, 61; I11)."""

from __future__ import annotations

from ppsim.core import effects as fx
from ppsim.core.checker import after_a_crash
from ppsim.errors import EXIT_LIVENESS, EXIT_SAFETY
from ppsim.recording import Verdict
from ppsim.world.driver import SimulatedRank
from ppsim.world.setting import Setting


def deadlock(setting: Setting) -> Verdict | None:
    """The event queue is quiet: any rank that is not done waits for ever. None if all are done."""
    stuck = [r for r in setting.ranks if not r.done]
    if not stuck:
        return None
    paused = [r for r in stuck if r.is_paused]
    what = f"rank {paused[0].rank_id} is paused" if paused else "deadlock"
    lines = [f"{what}: the event queue is empty and {len(stuck)} of {len(setting.ranks)} ranks wait for ever"]
    lines += [f"  {waiting_line(r)}" for r in stuck]
    cycle = wait_cycle(setting.ranks)
    if cycle:
        lines.append("  wait-for cycle: " + " -> ".join(str(rank) for rank in [*cycle, cycle[0]]))
    suspects = paused or [r for r in stuck if not cycle or r.rank_id in cycle]
    first = min(suspects, key=lambda r: (r.rank.iteration, r.rank_id))
    invariant = None if paused else "INV-40"
    return Verdict(
        "fail", EXIT_LIVENESS, "\n".join(lines), invariant, first.rank_id, first.rank.iteration, first.rank.slot, None
    )


def root_cause(verdict: Verdict, setting: Setting) -> Verdict:
    """If the ranks recorded their calls: the first one that differed, where it came before what ended the run."""
    logs = {r.rank_id: r.rank.checker.log for r in setting.ranks if r.rank.checker is not None}
    cause = after_a_crash(logs)
    if cause is None or str(cause) == verdict.message or (verdict.iteration or 0) < cause.iteration:
        return verdict
    text = f"{cause}\nwhat followed from it: {verdict.message}"
    return Verdict("fail", EXIT_SAFETY, text, cause.invariant, cause.rank, cause.iteration, cause.slot, cause.rid)


def waiting_line(r: SimulatedRank) -> str:
    """Who waits, where, in which effect, for whom."""
    if r.is_paused:
        where = f"iteration {r.rank.iteration}, slot {r.rank.slot}, phase {r.phase()}"
        return f"rank {r.rank_id}: {where}, is paused (faults.pauses) since {r.now / 1e9:.6f} s"
    return (
        f"rank {r.rank_id}: iteration {r.rank.iteration}, slot {r.rank.slot}, phase {r.phase()}, "
        f"waits in {describe(r.effect)} for rank {r.waits_for} since {r.now / 1e9:.6f} s"
    )


def describe(effect: fx.Effect | None) -> str:
    match effect:
        case fx.Recv():
            return f"receive on lane {effect.lane.value}"
        case fx.Send():
            return f"send of {effect.message.kind.value} (iteration {effect.message.iteration})"
        case fx.Commit():
            return "commit of a send"
        case _:
            return type(effect).__name__.lower()


def wait_cycle(ranks: list[SimulatedRank]) -> list[int]:
    """Ranks that wait for each other in a circle, from the smallest on; empty if there is none."""
    for start in ranks:
        path: list[int] = []
        at: int | None = start.rank_id
        while at is not None and at not in path and not ranks[at].done:
            path.append(at)
            at = ranks[at].waits_for
        if at is not None and at in path:
            cycle = path[path.index(at) :]
            low = cycle.index(min(cycle))
            return cycle[low:] + cycle[:low]
    return []


def leftovers(setting: Setting) -> Verdict | None:
    """After the last iteration: pools full, queues empty, every send committed, one terminal reply a request."""
    for simulated in setting.ranks:
        problem = rank_leftover(simulated)
        if problem:
            invariant, text = problem
            return failed(invariant, simulated, text)
    missing = unanswered(setting)
    if missing:
        text = f"{len(missing)} requests or flushes got no terminal reply: {missing[:3]}"
        return failed("INV-61", setting.ranks[0], text)
    if setting.network.works:
        parcel = next(iter(setting.network.works.values()))
        return failed(
            "INV-38",
            setting.ranks[parcel.src],
            f"the send of a {parcel.message.kind.value} message was never committed",
        )
    return None


def unanswered(setting: Setting) -> list[str]:
    """Ids that got fewer terminal replies than were read of them, and arrivals that nobody has read."""
    watch, arrivals = setting.watch, setting.recording.arrivals
    unread = [a.rid for a in arrivals if a.rid not in watch.ended and a.rid not in watch.owed]
    return unread + [rid for rid, num_owed in watch.owed.items() if num_owed]


def rank_leftover(simulated: SimulatedRank) -> tuple[str, str] | None:
    scheduler = simulated.rank.scheduler
    kv = scheduler.kv
    if scheduler.requests or scheduler.waiting or scheduler.chunked:
        return "INV-46", f"requests are left in the queues: {list(scheduler.requests)[:3]}"
    if simulated.rank.last_rank_comm_queue:
        return "INV-35", f"{len(simulated.rank.last_rank_comm_queue)} outputs were never released"
    if simulated.rank.link.inbox_size:
        return "INV-36", f"{simulated.rank.link.inbox_size} messages were received and never used"
    problem = kv.audit()
    if problem:
        return "INV-23", problem
    if kv.tree.protected_tokens:
        return "INV-25", f"{kv.tree.protected_tokens} cached tokens are still locked"
    if kv.outstanding:
        return "INV-28", f"copies between the tiers are still under way: {kv.outstanding[:3]}"
    kv.tree.reset()
    if kv.tree.leftover():
        return "INV-28", kv.tree.leftover()
    if kv.pool.free_tokens != kv.pool.capacity_tokens:
        return "INV-23", f"only {kv.pool.free_tokens} of {kv.pool.capacity_tokens} KV tokens are free at the end"
    if len(kv.free_rows) != scheduler.config.max_running_requests:
        return "INV-24", f"only {len(kv.free_rows)} of {scheduler.config.max_running_requests} request rows are free"
    if scheduler.role.num_buffers != scheduler.role.total_buffers:
        return "INV-24", f"{scheduler.role.num_buffers} of {scheduler.role.total_buffers} metadata buffers are free"
    return None


def failed(invariant: str, simulated: SimulatedRank, text: str) -> Verdict:
    rank = simulated.rank
    return Verdict(
        "fail",
        EXIT_SAFETY,
        f"{invariant} at rank {simulated.rank_id}, iteration {rank.iteration}, slot {rank.slot}: {text}",
        invariant,
        simulated.rank_id,
        rank.iteration,
        rank.slot,
        None,
    )


def warn_of_what_had_no_effect(setting: Setting) -> None:
    """Requests of a trace that could never run, and aborts that named nobody: counted, and the user is told once."""
    recording = setting.recording
    for sentence in setting.client.told():
        recording.warn(sentence)
    arrived = {a.rid for a in recording.arrivals}
    refused = [r for r in recording.replies if r.status == "refused" and r.rid in arrived]
    if refused:
        first = f"{refused[0].rid}: {refused[0].reason}"
        recording.warn(f"{len(refused)} of {len(arrived)} requests were refused; first {first}")
    scheduler = setting.ranks[0].rank.started
    if scheduler is not None:  # a rank that stands still from the start has read nothing
        recording.warn_of_ignored_aborts(scheduler.num_ignored_aborts)
