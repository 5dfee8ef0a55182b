"""What a changed scheduler raised is its own failure, told like any other: where the rank was, in which method."""

from __future__ import annotations

from ppsim.check.observers import phase_of_error
from ppsim.core.outcome import Verdict
from ppsim.errors import EXIT_SAFETY, PluginError
from ppsim.plugin.crash import crash_of, told
from ppsim.world.run_setting import Setting, SimulatedSeat


def crashed(setting: Setting | None, error: BaseException) -> Verdict:
    """The verdict of a run that an exception has ended. ``setting``: of the run, None if it had not begun."""
    expected, came = "the method returns", f"{type(error).__name__}: {error}"
    if setting is None:
        return Verdict("fail", EXIT_SAFETY, told(error), expected=expected, came=came)
    side, r = rank_of(setting)
    phase = phase_of_error(error) or r.phase()
    where = (r.rank_id, r.rank.iteration, r.rank.slot)
    return Verdict("fail", EXIT_SAFETY, told(error, stood(side, r, phase)), None, *where, None, phase, expected, came)


def crash_in(name: str, setting: Setting | None, error: BaseException) -> PluginError:
    """The same as an error, for who has no run folder."""
    if setting is None:
        return crash_of(name, error)
    side, r = rank_of(setting)
    return crash_of(name, error, stood(side, r, phase_of_error(error) or r.phase()))


def stood(side: str, r: SimulatedSeat, phase: str) -> str:
    return f"{side}rank {r.rank_id}, iteration {r.rank.iteration}, slot {r.rank.slot}, phase {phase}"


def rank_of(setting: Setting) -> tuple[str, SimulatedSeat]:
    """The rank that ran, and the name of its pipeline where there are two. What happens between two pipelines is asked
    of no rank: the first one stands for it."""
    peer = setting.peer
    if peer is None:
        return "", setting.running or setting.ranks[0]
    if setting.running is not None:
        return "decode side, ", setting.running
    return "prefill side, ", peer.running or peer.ranks[0]
