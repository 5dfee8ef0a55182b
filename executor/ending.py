"""How a run on real processes ended: the verdict, from what the ranks reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from executor.client import GaveUp
from executor.worker import Report
from ppsim.core.checker import after_a_crash
from ppsim.core.effects import Decision, Harvest
from ppsim.core.errors import CoreError, InvariantViolation, ProtocolError
from ppsim.errors import EXIT_SAFETY, EXIT_UNKNOWN
from ppsim.recording import PASS, Recording, Verdict


def verdict_of_error(error: CoreError | GaveUp) -> Verdict:
    """The verdict behind a rule that a rank found broken, or behind a limit that it reached."""
    text = str(error)
    if isinstance(error, GaveUp):
        return Verdict("unknown", EXIT_UNKNOWN, text, rank=0, iteration=error.iteration)
    if isinstance(error, InvariantViolation):
        return Verdict("fail", EXIT_SAFETY, text, error.invariant, error.rank, error.iteration, error.slot, error.rid)
    if isinstance(error, ProtocolError):
        return Verdict("fail", EXIT_SAFETY, text, error.invariant, error.rank, error.iteration, error.slot)
    return Verdict("fail", EXIT_SAFETY, text, "INV-23")


def root_cause(verdict: Verdict, reports: Mapping[int, Report]) -> Verdict:
    """If the ranks recorded their calls: the first one that differed, where it came before what ended the run."""
    cause = after_a_crash({rank: report.calls for rank, report in reports.items()})
    if cause is None or str(cause) == verdict.message or (verdict.iteration or 0) < cause.iteration:
        return verdict
    text = f"{cause}\nwhat followed from it: {verdict.message}"
    return Verdict("fail", EXIT_SAFETY, text, cause.invariant, cause.rank, cause.iteration, cause.slot, cause.rid)


def verdict_of_run(recording: Recording, reports: Sequence[Report]) -> Verdict:
    """All ranks have ended by themselves: did they stay in lockstep, leave nothing behind and answer everybody?"""
    return lockstep(recording) or left_behind(reports) or unanswered(recording) or PASS


def lockstep(recording: Recording) -> Verdict | None:
    """Every rank decided and harvested what rank 0 did. Equal records are one object (``Recording.absorb``)."""
    kinds: tuple[tuple[str, str, Sequence[Sequence[Decision | Harvest]]], ...] = (
        ("decided", "INV-11", recording.decisions),
        ("harvested", "INV-41", recording.harvests),
    )
    for verb, invariant, lists in kinds:
        for rank, records in enumerate(lists):
            for mine, first in zip(records, lists[0]):
                if mine != first:
                    text = f"{invariant}: rank {rank} {verb} {mine}, rank 0 {verb} {first}"
                    return Verdict("fail", EXIT_SAFETY, text, invariant, rank, mine.iteration, mine.slot)
            if len(records) != len(lists[0]):
                text = f"INV-02: rank {rank} had {len(records)} iterations, rank 0 had {len(lists[0])}"
                return Verdict("fail", EXIT_SAFETY, text, "INV-02", rank)
    return None


def left_behind(reports: Sequence[Report]) -> Verdict | None:
    for report in reports:
        if report.left_behind:
            text = f"INV-46: rank {report.rank} at the end of the run: {report.left_behind}"
            return Verdict("fail", EXIT_SAFETY, text, "INV-46", report.rank)
    return None


def unanswered(recording: Recording) -> Verdict | None:
    """Each request has one terminal reply (invariant 61)."""
    ended = [reply.rid for reply in recording.replies if reply.status != "token"]
    for arrival in recording.arrivals:
        if ended.count(arrival.rid) != 1:
            text = f"INV-61: request {arrival.rid} got {ended.count(arrival.rid)} terminal replies, expected 1"
            return Verdict("fail", EXIT_SAFETY, text, "INV-61", 0, rid=arrival.rid)
    return None
