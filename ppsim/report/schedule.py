"""The schedule of a rank: one entry for each of its iterations, in logical terms only.

Rule: what a visit launched and what it harvested are two facts of one iteration about two slots. ``slot``, ``mode``
and ``pieces`` are of the batch launched in ``iteration``; ``harvested`` names the earlier iteration whose batch was
post-processed in it (null: that slot held nothing), and ``delivered``, ``finished`` and ``free_tokens`` belong to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppsim.core.effects import Harvest
from ppsim.errors import UsageError
from ppsim.recording.digest import decision_chains
from ppsim.recording.record import Recording

NOTHING = Harvest(-1, -1, None, (), (), (), 0, 0)


def schedule(recording: Recording, rank: int = 0) -> Iterator[dict[str, Any]]:
    """JSON-ready entries of a rank. Raises UsageError for a rank that the run does not have."""
    check_rank(recording, rank)
    harvests = {harvest.iteration: harvest for harvest in recording.harvests[rank]}
    for decision, link in zip(recording.decisions[rank], decision_chains(recording)[rank]):
        harvest = harvests.get(decision.iteration, NOTHING)
        seen = harvest is not NOTHING
        yield {
            "iteration": decision.iteration,
            "slot": decision.slot,
            "mode": decision.mode,
            "pieces": [list(piece) for piece in decision.pieces],
            "harvested": harvest.harvested,
            "delivered": [list(pair) for pair in harvest.delivered],
            "finished": list(harvest.finished),
            "retracted": list(decision.retracted),
            "free_tokens": harvest.free_tokens if seen else None,
            "evictable_tokens": harvest.evictable_tokens if seen else None,
            "token_ids": list(harvest.token_ids),
            "chunked_rid": decision.chunked_rid,
            "stall": decision.stall,
            "digest": link,
        }


def check_rank(recording: Recording, rank: int) -> None:
    """Raises UsageError for a rank that the run does not have."""
    if not 0 <= rank < recording.num_ranks:
        raise UsageError(f"--rank {rank}: this run has ranks 0 to {recording.num_ranks - 1}")


def schedule_text(recording: Recording, rank: int = 0, *, max_names: int = 6) -> Iterator[str]:
    """The same for people: a line an iteration, at most ``max_names`` pieces or tokens of it spelled out."""
    check_rank(recording, rank)
    yield f"{'iteration':>9} {'slot':>4} {'mode':<7}{'tokens':>7} {'free':>9}  batch / harvest"
    for entry in schedule(recording, rank):
        tokens = sum(new for _, _, new in entry["pieces"])
        batch = shorten([f"{rid}[{prefix}:{prefix + new}]" for rid, prefix, new in entry["pieces"]], max_names)
        done = shorten([f"{rid}#{n}" for rid, n in entry["delivered"]], max_names)
        harvest = "" if entry["harvested"] is None else f" | harvests {entry['harvested']}: {done or 'no token'}"
        ended = f" | ends {shorten(entry['finished'], max_names)}" if entry["finished"] else ""
        retracted = f" | retracts {shorten(entry['retracted'], max_names)}" if entry["retracted"] else ""
        stall = f" | {entry['stall']}" if entry["stall"] else ""
        free = "-" if entry["free_tokens"] is None else entry["free_tokens"]
        yield (
            f"{entry['iteration']:>9} {entry['slot']:>4} {entry['mode']:<7}{tokens:>7} {free:>9}  "
            f"{batch or '-'}{stall}{harvest}{ended}{retracted}"
        )


def shorten(names: list[str], limit: int) -> str:
    shown = " ".join(names[:limit])
    return shown + (f" +{len(names) - limit} more" if len(names) > limit else "")
