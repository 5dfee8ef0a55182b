"""Whether a replay makes the records that were recorded, and comes to the same verdict.

Rule: of a run that came to its end everything must be equal. A recording that breaks off is a prefix: of each rank and
kind the replay must make every record that is there, and what it makes beyond is nobody's business, for nobody knows
how far the recorded rank would have come.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ppsim.core.outcome import Verdict
from ppsim.recording.diff import Difference, first_difference
from ppsim.recording.record import Recording

T = TypeVar("T")

OF_EACH_RANK = ("decisions", "harvests", "observations")
OF_THE_RUN = ("ingestions", "samples", "replies")


def disagreement(recorded: Recording, replayed: Recording, *, is_whole: bool) -> Difference | None:
    """The first record of one pipeline in which the two part: ``left`` was recorded, ``right`` was replayed."""
    mine, other = bare(recorded, None), bare(replayed, None if is_whole else recorded)
    return first_difference(mine, other)


def bare(source: Recording, like: Recording | None) -> Recording:
    """What is compared, of one side alone; no longer than ``like``."""
    found = Recording(source.pp_size, tp_replicas=source.tp_replicas)
    for name in OF_EACH_RANK:
        lists: list[list[Any]] = getattr(source, name)
        limits = [None] * len(lists) if like is None else [len(mine) for mine in getattr(like, name)]
        setattr(found, name, [mine[:limit] for mine, limit in zip(lists, limits)])
    for name in OF_THE_RUN:
        limit = None if like is None else len(getattr(like, name))
        setattr(found, name, getattr(source, name)[:limit])
    return found


NOT_JUDGED_AGAIN = {
    "INV-52": "when a transfer was over is not recorded",
    "INV-64": "what tensors held is not recorded",
    "INV-65": "when a transfer began is not recorded",
    "INV-70": "what the other server did is not recorded",
    "INV-72": "limits in time are not judged again",
    "INV-75": "what the other server wrote is not recorded",
    "INV-78": "what tensors held is not recorded",
    "INV-81": "when copies were over is not recorded",
    "INV-82": "when copies were over is not recorded",
    "INV-85": "limits in time are not judged again",
    "INV-87": "what the other server did is not recorded",
}
"""Rules that a replay may pass although the run broke them: they hang on what only its world could know."""


def same_verdict(recorded: Verdict, replayed: Verdict) -> bool:
    """Whether the rules say the same of both: the same one is broken, with the same exit code, or none is."""
    return (recorded.invariant, of_rule(recorded)) == (replayed.invariant, of_rule(replayed))


def of_rule(verdict: Verdict) -> int:
    """The exit code where a rule is broken; else 0: that a process died or a user stopped it is no rule."""
    return verdict.exit_code if verdict.invariant is not None else 0


def why_not(recorded: Verdict) -> str:
    """Why a replay may pass although the run did not; empty: there is no reason."""
    return NOT_JUDGED_AGAIN.get(recorded.invariant or "", "")
