"""How a run ended: the deadlock report, and what must hold once everything is over (invariants 35, 36, 38, 61; I11)."""

from __future__ import annotations

from ppsim.check.describe import Place
from ppsim.check.leftovers import rank_leftover, unanswered
from ppsim.check.physical import never_committed
from ppsim.check.progress import cycle_lines, name_of, wait_cycle
from ppsim.check.verdicts import broken, calls_of, failed, root_cause
from ppsim.core.outcome import Verdict
from ppsim.errors import EXIT_LIVENESS
from ppsim.world.run_setting import Setting, SimulatedSeat


def deadlock(setting: Setting) -> Verdict | None:
    """The event queue is quiet: any rank that is not done waits for ever. None if all are done."""
    stuck = [r for r in setting.ranks if not r.done]
    if not stuck:
        return None
    paused = [r for r in stuck if r.is_paused]
    what = f"rank {paused[0].rank_id} is paused" if paused else "deadlock"
    lines = [f"{what}: the event queue is empty and {len(stuck)} of {len(setting.ranks)} ranks wait for ever"]
    lines += [f"  {waiting_line(r)}" for r in stuck]
    cycle = wait_cycle({r.rank_id: r.waits_for for r in stuck})
    lines += cycle_lines(cycle)
    suspects = paused or [r for r in stuck if not cycle or r.rank_id in cycle]
    first = min(suspects, key=lambda r: (r.rank.iteration, r.rank_id))
    rid = next(iter(first.rank.scheduler.requests), "") if first.rank.started is not None else ""
    where = Place("INV-40", first.rank_id, first.rank.iteration, first.rank.slot, first.phase(), rid)
    expected = "every rank comes to an end or to its next effect"
    came = waiting_line(first)
    if not paused:
        return broken(where, "\n".join(lines), came=came, code=EXIT_LIVENESS)
    place = (first.rank_id, first.rank.iteration, first.rank.slot, rid, first.phase())
    return Verdict("fail", EXIT_LIVENESS, "\n".join(lines), None, *place, expected, came)


def first_cause(verdict: Verdict, setting: Setting) -> Verdict:
    """If the ranks recorded their calls: the first one that differed, where it came before what ended the run."""
    return root_cause(verdict, {r.rank_id: calls_of(r) for r in setting.ranks})


def waiting_line(r: SimulatedSeat) -> str:
    """Who waits, where, in which effect, for whom."""
    if r.is_paused:
        where = f"iteration {r.rank.iteration}, slot {r.rank.slot}, phase {r.phase()}"
        return f"rank {r.rank_id}: {where}, is paused (faults.pauses) since {r.now / 1e9:.6f} s"
    return (
        f"rank {r.rank_id}: iteration {r.rank.iteration}, slot {r.rank.slot}, phase {r.phase()}, "
        f"waits in {name_of(r.effect)} for rank {r.waits_for} since {r.now / 1e9:.6f} s"
    )


def leftovers(setting: Setting) -> Verdict | None:
    """After the last iteration: pools full, queues empty, every send committed, one terminal reply a request."""
    for simulated in setting.ranks:
        problem = rank_leftover(simulated.rank)
        if problem:
            invariant, text = problem
            return failed(invariant, simulated, text)
    missing = unanswered(setting.watch, [a.rid for a in setting.recording.arrivals])
    if missing is not None:
        return failed(missing[0], setting.ranks[0], missing[1])
    sends = list(setting.network.works.values())
    wrong = never_committed([parcel.message.kind.value for parcel in sends])
    if wrong:
        return failed("INV-38", setting.ranks[sends[0].src], wrong)
    return None


def warn_of_what_had_no_effect(setting: Setting) -> None:
    """Requests of a trace that could never run, and aborts that named nobody: counted, and the user is told once."""
    recording = setting.recording
    for sentence in setting.client.told():
        recording.warn(sentence)
    num_refused, num_arrived, first = recording.refused_requests()
    if num_refused:
        recording.warn(f"{num_refused} of {num_arrived} requests were refused; first {first}")
    scheduler = setting.ranks[0].rank.started
    if scheduler is not None:  # a rank that stands still from the start has read nothing
        recording.warn_of_ignored_aborts(scheduler.num_ignored_aborts)
