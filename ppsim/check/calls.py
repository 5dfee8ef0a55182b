"""Which agreed call was the first to differ: from the logs of the rank consensus checker (``core/checker.py``).

A log holds the calls of the ranks that agree so far, oldest first; what a call is declared for is the invariant named.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.core.errors import CallsDiffer, InvariantViolation
from ppsim.core.messages import Call, CallLog

NOTHING = Call(-1, -1, "", "", "makes no further call")


def named(error: CallsDiffer) -> InvariantViolation:
    """The first call that differs, where the last stage has found that one does."""
    found = f"found when the calls up to iteration {error.iteration} were compared"
    violation = first_difference(error.logs, found)
    assert violation is not None, "digests differ although the calls are the same"
    return violation


def first_difference(logs: Sequence[CallLog], found: str, *, unfinished: bool = False) -> InvariantViolation | None:
    """The first place at which the logs differ, as the violation of the invariant that the call is declared for.

    The side with more ranks is taken to be right, with equally many the one of the lowest rank. ``unfinished``: the
    logs were taken while the ranks ran, so one may simply have come further than another.
    """
    length = (min if unfinished else max)((len(log.calls) for log in logs), default=0)
    for place in range(length):
        entries = [log.calls[place] if place < len(log.calls) else NOTHING for log in logs]
        if any(entry != entries[0] for entry in entries):
            return _named(logs, entries, place, found)
    return None


def _named(logs: Sequence[CallLog], entries: Sequence[Call], place: int, found: str) -> InvariantViolation:
    sides: dict[Call, list[int]] = {}
    for log, entry in zip(logs, entries, strict=True):
        sides[entry] = sorted([*sides.get(entry, []), *log.ranks])
    usual = min(sides, key=lambda entry: (-len(sides[entry]), sides[entry][0]))
    odd = min((entry for entry in sides if entry is not usual), key=lambda entry: sides[entry][0])
    ahead = {entry: log.calls[place:] for log, entry in zip(logs, entries, strict=True)}
    call = odd if odd is not NOTHING and _is_extra(odd, usual, ahead) else usual
    shown = "; ".join(f"{_ranks(ranks)} {_text(entry, call)}" for entry, ranks in sides.items())
    first = min((entry for entry in entries if entry is not NOTHING), key=lambda entry: entry.iteration)
    rank = sides[odd][0]
    detail = f"{call.name} differs between ranks: {shown}; {found}"
    return InvariantViolation(call.invariant, rank, first.iteration, first.slot, "", detail)


def _is_extra(odd: Call, usual: Call, ahead: dict[Call, tuple[Call, ...]]) -> bool:
    """Whether the odd rank makes a call too many (it comes to the usual one later) rather than leaving one out."""

    def distance(entry: Call, calls: tuple[Call, ...]) -> int:
        return calls.index(entry) if entry in calls else len(calls) + 1

    return usual is NOTHING or distance(usual, ahead[odd]) < distance(odd, ahead[usual])


def _text(entry: Call, call: Call) -> str:
    """What a side shows; with its name and iteration where it is another call."""
    if entry is NOTHING or (entry.name == call.name and entry.iteration == call.iteration):
        return entry.text
    return f"{entry.text} of {entry.name} in iteration {entry.iteration}"


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in ranks)


def after_a_crash(logs: dict[int, tuple[Call, ...]]) -> InvariantViolation | None:
    """The same for ranks that stopped anywhere, from the logs that they still keep: what came before the crash."""
    kept = {rank: calls for rank, calls in logs.items() if calls}
    if len(kept) < 2:
        return None
    start = max(calls[0].iteration for calls in kept.values())
    common = [CallLog((r,), "", tuple(c for c in calls if c.iteration >= start)) for r, calls in sorted(kept.items())]
    return first_difference(common, "found when the run had failed", unfinished=True)
