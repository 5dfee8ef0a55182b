"""Where every rank stands when a run has failed: what pictures of it show."""

from __future__ import annotations

from ppsim.recording import Verdict
from ppsim.recording.schema import Stand
from ppsim.world.driver import SimulatedRank
from ppsim.world.ending import describe
from ppsim.world.setting import Setting


def with_stands(verdict: Verdict, setting: Setting) -> Verdict:
    """The verdict, and of a failure where all ranks stand; of two pipelines both."""
    if verdict.kind == "pass":
        return verdict
    sides = [("", setting)] if setting.peer is None else [("prefill", setting.peer), ("decode", setting)]
    return verdict._replace(stands=tuple(stand(name, r) for name, side in sides for r in side.ranks))


def stand(side: str, r: SimulatedRank) -> Stand:
    """One rank, by its local clock."""
    waits_for = None
    if r.done:
        doing = "has ended"
    elif r.is_paused:
        doing = f"{r.phase()}: is paused (faults.pauses)"
    else:
        waits_for = r.waits_for
        doing = f"{r.phase()}: {'waits in' if waits_for is not None else 'is in'} {describe(r.effect)}"
    return Stand(side, r.rank_id, r.rank.iteration, r.rank.slot, doing, waits_for, r.now)
