"""Where every rank stands when a run has failed: what pictures of it show."""

from __future__ import annotations

from ppsim.check.progress import describe, name_of
from ppsim.core.outcome import Stand
from ppsim.world.run_setting import Setting, SimulatedSeat


def record_stands(setting: Setting) -> None:
    """Put into the recording where its ranks stand; of two pipelines into both."""
    setting.recording.stands = [stand(r) for r in setting.ranks]
    if setting.peer is not None:
        record_stands(setting.peer)


def stand(r: SimulatedSeat) -> Stand:
    """One rank, by its local clock."""
    waits_for = None
    if r.done:
        doing = "has ended"
    elif r.is_paused:
        doing = f"{r.phase()}: is paused (faults.pauses)"
    else:
        waits_for = r.waits_for
        doing = f"{r.phase()}: {describe(r.effect) if waits_for is None else f'waits in {name_of(r.effect)}'}"
    return Stand(r.rank_id, r.rank.iteration, r.rank.slot, doing, waits_for, r.now)
