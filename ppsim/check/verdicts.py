"""From an error to the verdict of the run, and from there to the first cause and to who is to blame: one way for both
worlds.

Rule: every verdict says which rule broke, at which rank, iteration, slot, phase and request, what was expected and what
came. Who raised an error knows some of it; its seat, or the traceback, knows the rest; what a rule expects when nobody
said more is the rule itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ppsim.check.blame import Departure, earliest
from ppsim.check.calls import after_a_crash, named
from ppsim.check.client_watch import StopRun
from ppsim.check.describe import Place
from ppsim.check.invariants import BY_NAME
from ppsim.check.observers import Seat
from ppsim.check.owed import Wait, overdue
from ppsim.check.progress import queue_lines
from ppsim.core.errors import CallsDiffer, CoreError, InvariantViolation, ProtocolError
from ppsim.core.messages import Call
from ppsim.core.outcome import Verdict, VerdictKind
from ppsim.errors import EXIT_LIVENESS, EXIT_SAFETY

FOLLOWED = "what followed from it: "
LIVENESS_RULES = ("INV-69", "INV-72", "INV-83", "INV-84", "INV-85")  # what takes too long, not what goes wrong


def verdict_of(error: CoreError | StopRun, r: Seat | None = None, phase: str = "") -> Verdict:
    """The verdict behind an error that ended a run.

    ``r``: the rank that gave up, or in which it was raised; ``phase``: where its loop stood, if the error unwound it.
    """
    if isinstance(error, CallsDiffer):
        error = named(error)
    match error:
        case InvariantViolation():
            where = Place(error.invariant, error.rank, error.iteration, error.slot, error.phase or phase, error.rid)
            return broken(where, error.detail, error.expected, error.came)
        case ProtocolError():
            text = f"expected {error.expected}, got {error.came}; {error.blame}"
            where = Place(error.invariant, error.rank, error.iteration, error.slot, phase, error.rid)
            return broken(where, text, error.expected, error.came)
        case StopRun():
            return given_up(error, r)
        case _:  # the pool or the request table refuses
            if r is None:
                return Verdict("fail", EXIT_SAFETY, f"INV-23: {error}", "INV-23", came=str(error))
            return failed("INV-23", r, str(error), phase=phase)


def broken(where: Place, text: str, expected: str = "", came: str = "", code: int | None = None) -> Verdict:
    """A rule is broken: the verdict, with the place at the head of its text. ``code``: another exit code than usual."""
    if code is None:
        code = EXIT_LIVENESS if where.invariant in LIVENESS_RULES else EXIT_SAFETY
    expected = expected or BY_NAME[where.invariant].statement
    where_ = (where.invariant, where.rank, where.iteration, where.slot, where.rid)
    return Verdict("fail", code, f"{where}: {text}", *where_, where.phase or None, expected, came or text)


def given_up(stop: StopRun, r: Seat | None) -> Verdict:
    """A run that reached a limit (unknown), or that gets nowhere (liveness): which rank, where, and who waits there."""
    kind: VerdictKind = "fail" if stop.exit_code == EXIT_LIVENESS else "unknown"
    text, slot, phase = str(stop), None, None
    if r is not None and (kind == "fail" or stop.rank):
        slot, phase = r.rank.slot, r.phase()
        text = f"rank {stop.rank}, iteration {r.rank.iteration}, slot {slot}, phase {phase}: {text}"
    rid = None
    if r is not None and kind == "fail" and r.rank.started is not None:
        text = "\n".join([text, *(f"  {line}" for line in queue_lines(r.rank.scheduler))])
        rid = next(iter(r.rank.scheduler.requests), None)  # the oldest of those that get nowhere
    expected = "something is read, launched or answered again and again" if kind == "fail" else "the run ends"
    return Verdict(kind, stop.exit_code, text, None, stop.rank, stop.iteration, slot, rid, phase, expected, str(stop))


def failed(invariant: str, r: Seat, text: str, rid: str = "", phase: str = "") -> Verdict:
    """A rule that is found broken at a rank, where it stands now."""
    rank = r.rank
    return broken(Place(invariant, r.rank_id, rank.iteration, rank.slot, phase or r.phase(), rid), text)


def root_cause(verdict: Verdict, logs: Mapping[int, tuple[Call, ...]]) -> Verdict:
    """If the ranks recorded their calls (``logs``, by rank): the first that differed, if it came before the end."""
    cause = after_a_crash(dict(logs))
    if cause is None or str(cause) == verdict.message or (verdict.iteration or 0) < cause.iteration:
        return verdict
    found = verdict_of(cause)
    return found._replace(exit_code=EXIT_SAFETY, message=f"{found.message}\n{FOLLOWED}{verdict.message}")


def calls_of(r: Seat) -> tuple[Call, ...]:
    """What the rank consensus checker of a rank still has; empty where it is off."""
    return r.rank.checker.log if r.rank.checker is not None else ()


def judged(verdict: Verdict, departures: Sequence[Departure], waits: Sequence[Wait] = ()) -> Verdict:
    """The verdict with the rank that is to blame. ``departures``: of all ranks that have parted from their twins;
    ``waits``: of all that stand in a receive.

    Whoever is named and has parted stays named. A rank that has done all along what a right one would is not to blame
    if another one has parted: then that one is, at the place where it did. A circle of waits in which somebody owes a
    message is no circle: the debt is what is broken.
    """
    is_stuck = verdict.exit_code == EXIT_LIVENESS and verdict.invariant in (None, "INV-40")
    guilty = earliest(d for d in departures if d.owes) or (overdue(waits, departures) if is_stuck else None)
    is_innocent = all(d.rank != verdict.rank for d in departures)
    misses_one = is_stuck or (verdict.invariant == "INV-31" and is_innocent)  # or has taken the next one for it
    if misses_one and guilty is not None:
        debt = guilty.owes[0]
        where = Place(debt.rule, guilty.rank, guilty.iteration, guilty.slot, guilty.phase, guilty.rid)
        text = f"it owes rank {debt.dst} the {debt.what} and has gone on without sending it"
        found = broken(where, text, guilty.expected, guilty.came)
        return found._replace(message=f"{found.message}\n{FOLLOWED}{verdict.message}")
    first = earliest(departures)
    if first is None or any(d.rank == verdict.rank for d in departures):
        return verdict
    rule = verdict.invariant
    where = Place(rule or "", first.rank, first.iteration, first.slot, first.phase, first.rid or verdict.rid or "")
    text = f"it {first.came}, where a right rank with the same replies {first.expected}"
    if rule is None:
        return verdict._replace(message=f"{verdict.message}\n  rank {first.rank} is to blame: {str(where)[4:]}: {text}")
    found = broken(where, text, first.expected, first.came, verdict.exit_code)
    return found._replace(message=f"{found.message}\n{FOLLOWED}{verdict.message}")
