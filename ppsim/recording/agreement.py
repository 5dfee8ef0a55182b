"""Whether a replay makes the records that were recorded.

Rule: of a run that came to its end everything must be equal. A recording that breaks off is a prefix: of each rank and
kind the replay must make every record that is there, and what it makes beyond is nobody's business, for nobody knows
how far the recorded rank would have come.
"""

from __future__ import annotations

from typing import Any, TypeVar

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
