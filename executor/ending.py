"""How a run on real processes ended: the verdict, from what the ranks reported.

The rules are those of ``ppsim.check``; here the records of separate processes are put into one order and judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from executor.client import GaveUp
from executor.status import Status
from executor.worker import Report
from ppsim.check.client_watch import StopRun
from ppsim.check.describe import Place
from ppsim.check.observers import Seat, phase_of_error
from ppsim.check.owed import Wait
from ppsim.check.together import Together, in_order
from ppsim.check.verdicts import broken, judged, root_cause, verdict_of
from ppsim.core.config import RankConfig
from ppsim.core.errors import CallsDiffer, CoreError, InvariantViolation
from ppsim.core.outcome import PASS, Verdict
from ppsim.errors import EXIT_LIVENESS, EXIT_UNKNOWN
from ppsim.recording import Recording


def verdict_of_error(error: CoreError | StopRun | GaveUp, r: Seat | None = None) -> Verdict:
    """The verdict behind a rule that a rank found broken, or behind a limit that it reached."""
    phase = phase_of_error(error) or (r.phase() if r is not None else "")
    if isinstance(error, GaveUp):
        error = StopRun(error.message, EXIT_UNKNOWN, error.iteration)
    return verdict_of(error, r, phase)


def verdict_of_failure(reports: Mapping[int, Report], report: Report) -> Verdict:
    """Of the ranks that failed by themselves the one that failed first, and what had gone wrong before that.

    ``report``: whose error ended the run, where no report has a verdict of its own.
    """
    own = [(mine, mine.verdict) for mine in reports.values() if mine.verdict is not None and mine.error is not None]
    if not own and isinstance(report.error, CoreError | StopRun | GaveUp):
        own = [(report, verdict_of_error(report.error))]
    first, verdict = min(own, key=lambda item: place_of(item[1]))
    found = first_broken(reports.values())
    if found is not None:
        # What the calls of a rank show is more exact than what lockstep sees of the same iteration.
        is_exact = isinstance(first.error, CallsDiffer)
        before = (found.iteration, found.rank)
        if before < place_of(verdict) or (before == place_of(verdict) and not is_exact):
            verdict = verdict_of(found)
    return blamed(root_cause(verdict, {rank: mine.calls for rank, mine in reports.items()}), reports.values())


def blamed(verdict: Verdict, reports: Iterable[Report]) -> Verdict:
    """The verdict with the guilty rank named: who has parted from its twin (``ppsim.check.blame``)."""
    return judged(verdict, [mine.departure for mine in reports if mine.departure is not None])


def place_of(verdict: Verdict) -> tuple[int, int]:
    """Where a verdict stands in the order of the run."""
    return verdict.iteration or 0, verdict.rank or 0


def deadlock(status: Status, what: str, configs: Sequence[RankConfig]) -> Verdict:
    """All ranks wait for one another. The least advanced of them is named. ``configs``: of all ranks."""
    iteration, rank = min((status.iteration(rank), rank) for rank in range(status.pp_size))
    where = Place("INV-40", rank, iteration, max(iteration, 0) % configs[rank].num_slots)
    came = status.describe(rank)
    return broken(where, f"deadlock: {what}", came=came, code=EXIT_LIVENESS)


def verdict_of_stall(
    reports: Mapping[int, Report], pp_size: int, verdict: Verdict, waits: Sequence[Wait] = ()
) -> Verdict:
    """``verdict`` on ranks that stand still, unless they had broken a rule together before, or called unlike things.

    ``waits``: what they wait for. As in the simulated world a circle in which somebody owes a message is no circle, and
    who has parted from a right rank is to blame.
    """
    if len(reports) < pp_size:  # a process that does not run says nothing, and what it has sent may never leave it
        return judged(verdict, (), waits) if verdict.invariant is not None else verdict
    found = first_broken(reports.values())
    if found is not None:
        return blamed(verdict_of(found), reports.values())
    cause = root_cause(verdict, {rank: mine.calls for rank, mine in reports.items()})
    return judged(cause, [mine.departure for mine in reports.values() if mine.departure is not None], waits)


def verdict_of_run(recording: Recording, reports: Sequence[Report]) -> Verdict:
    """All ranks have ended by themselves: did they stay in lockstep, leave nothing behind and answer everybody?"""
    found = first_broken(reports)
    if found is not None:
        return blamed(verdict_of(found), reports)
    lengths = [len(decisions) for decisions in recording.decisions]
    for rank, length in enumerate(lengths):
        if length != lengths[0]:
            at = min(length, lengths[0])
            text = f"it had {length} iterations, rank 0 had {lengths[0]}"
            longer = max(recording.decisions[0], recording.decisions[rank], key=len)
            where = Place("INV-02", rank, at, longer[at].slot)
            return blamed(broken(where, text, f"{lengths[0]} iterations", f"{length} iterations"), reports)
    left = next((report.verdict for report in reports if report.verdict is not None), PASS)
    return left if left.kind == "pass" else blamed(left, reports)


def first_broken(reports: Iterable[Report]) -> InvariantViolation | None:
    """The first rule that the ranks break together, in the order of iterations and ranks."""
    records = {report.rank: report.records for report in reports}
    together = Together(len(records), check=True, audited=any(report.is_audited for report in reports))
    try:
        for record in in_order(records):
            together.take(record)
    except InvariantViolation as broken:
        return broken
    return None
