"""What a changed scheduler raised is its own failure, told like any other: where the rank was, in which method."""

from __future__ import annotations

from ppsim.check.observers import phase_of_error, place_of_error
from ppsim.core.outcome import Verdict
from ppsim.errors import EXIT_SAFETY
from ppsim.world.driver import SimulatedRank
from ppsim.world.setting import Setting


def crashed(setting: Setting | None, error: BaseException) -> Verdict:
    """The verdict of a run that an exception has ended. ``setting``: of the run, None if it had not begun."""
    what = f"crash: {type(error).__name__}: {error} ({place_of_error(error)})"
    expected, came = "the method returns", f"{type(error).__name__}: {error}"
    if setting is None:
        return Verdict("fail", EXIT_SAFETY, what, expected=expected, came=came)
    side, r = rank_of(setting)
    phase = phase_of_error(error) or r.phase()
    where = (r.rank_id, r.rank.iteration, r.rank.slot)
    text = f"{what} at {side}rank {where[0]}, iteration {where[1]}, slot {where[2]}, phase {phase}"
    return Verdict("fail", EXIT_SAFETY, text, None, *where, None, phase, expected, came)


def rank_of(setting: Setting) -> tuple[str, SimulatedRank]:
    """The rank that ran, and the name of its pipeline where there are two. What happens between two pipelines asks the
    plug-in of the first rank."""
    peer = setting.peer
    if peer is None:
        return "", setting.running or setting.ranks[0]
    if setting.running is not None:
        return "decode side, ", setting.running
    return "prefill side, ", peer.running or peer.ranks[0]
