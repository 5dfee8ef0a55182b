"""From an error to the verdict of the run, and from there to the first cause: one way for both worlds.

Rule: a verdict says which rule broke and where, as far as anybody knows: the error itself, else the rank in which it
was raised.
"""

from __future__ import annotations

from collections.abc import Mapping

from ppsim.check.calls import after_a_crash, named
from ppsim.check.observers import Seat
from ppsim.check.progress import queue_lines
from ppsim.check.watch import StopRun
from ppsim.core.errors import CallsDiffer, CoreError, InvariantViolation, ProtocolError
from ppsim.core.messages import Call
from ppsim.core.outcome import Verdict, VerdictKind
from ppsim.errors import EXIT_LIVENESS, EXIT_SAFETY

LIVENESS_RULES = ("INV-69", "INV-72", "INV-83", "INV-84", "INV-85")  # what takes too long, not what goes wrong


def verdict_of(error: CoreError | StopRun, r: Seat | None = None) -> Verdict:
    """The verdict behind an error that ended a run. ``r``: the rank that gave up, or in which it was raised."""
    if isinstance(error, CallsDiffer):
        error = named(error)
    match error:
        case InvariantViolation():
            code = EXIT_LIVENESS if error.invariant in LIVENESS_RULES else EXIT_SAFETY
            return Verdict(
                "fail", code, str(error), error.invariant, error.rank, error.iteration, error.slot, error.rid
            )
        case ProtocolError():
            text = f"{error.invariant} at {error}"
            return Verdict("fail", EXIT_SAFETY, text, error.invariant, error.rank, error.iteration, error.slot, None)
        case StopRun():
            return given_up(error, r)
        case _:  # the pool or the request table refuses
            return (
                Verdict("fail", EXIT_SAFETY, f"INV-23: {error}", "INV-23")
                if r is None
                else failed("INV-23", r, str(error))
            )


def given_up(stop: StopRun, r: Seat | None) -> Verdict:
    """A run that reached a limit (unknown), or that gets nowhere (liveness): which rank, where, and who waits there."""
    kind: VerdictKind = "fail" if stop.exit_code == EXIT_LIVENESS else "unknown"
    text, slot = str(stop), None
    if r is not None and (kind == "fail" or stop.rank):
        slot = r.rank.slot
        text = f"rank {stop.rank}, iteration {r.rank.iteration}, slot {slot}, phase {r.phase()}: {text}"
    if r is not None and kind == "fail" and r.rank.started is not None:
        text = "\n".join([text, *(f"  {line}" for line in queue_lines(r.rank.scheduler))])
    return Verdict(kind, stop.exit_code, text, None, stop.rank, stop.iteration, slot, None)


def failed(invariant: str, r: Seat, text: str) -> Verdict:
    """A rule that is found broken at a rank, where it stands now."""
    rank = r.rank
    where = f"{invariant} at rank {r.rank_id}, iteration {rank.iteration}, slot {rank.slot}"
    return Verdict("fail", EXIT_SAFETY, f"{where}: {text}", invariant, r.rank_id, rank.iteration, rank.slot, None)


def root_cause(verdict: Verdict, logs: Mapping[int, tuple[Call, ...]]) -> Verdict:
    """If the ranks recorded their calls (``logs``, by rank): the first that differed, if it came before the end."""
    cause = after_a_crash(dict(logs))
    if cause is None or str(cause) == verdict.message or (verdict.iteration or 0) < cause.iteration:
        return verdict
    text = f"{cause}\nwhat followed from it: {verdict.message}"
    return Verdict("fail", EXIT_SAFETY, text, cause.invariant, cause.rank, cause.iteration, cause.slot, cause.rid)


def calls_of(r: Seat) -> tuple[Call, ...]:
    """What the rank consensus checker of a rank still has; empty where it is off."""
    return r.rank.checker.log if r.rank.checker is not None else ()
