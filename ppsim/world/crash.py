"""What a changed scheduler raised is its own failure, told like any other: where the rank was, in which method."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import FrameType

import ppsim
from ppsim.check.observers import phase_of_error
from ppsim.core.outcome import Verdict
from ppsim.errors import EXIT_SAFETY
from ppsim.world.driver import SimulatedRank
from ppsim.world.setting import Setting

OURS = str(Path(ppsim.__file__).parent)
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def crashed(setting: Setting | None, error: BaseException) -> Verdict:
    """The verdict of a run that an exception has ended. ``setting``: of the run, None if it had not begun."""
    what = f"crash: {type(error).__name__}: {error} ({place(error)})"
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


def place(error: BaseException) -> str:
    """File, line and method in which an exception was raised: the innermost of the user's own, else the innermost."""
    while error.__cause__ is not None:  # SimPy raises another one from it
        error = error.__cause__
    trace, innermost, users = error.__traceback__, "an unknown place", ""
    while trace is not None:
        innermost = told(trace.tb_frame, trace.tb_lineno)
        if is_users(trace.tb_frame.f_code.co_filename):
            users = innermost
        trace = trace.tb_next
    return users or innermost


def is_users(file: str) -> bool:
    """Whether a file is neither of this package nor of a library. Planted bugs are what a user could have written."""
    if file.startswith(OURS):
        return file.startswith(str(Path(OURS) / "planted"))
    return not file.startswith(("<", *LIBRARIES))


def told(frame: FrameType, line: int) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).name}, line {line}, in {code.co_qualname}"
