"""What a changed scheduler raises is its own failure: one error with the place where it happened, in every world."""

from __future__ import annotations

import sysconfig
from pathlib import PurePath

from ppsim.errors import PluginError
from ppsim.plugin import watched

OURS = PurePath(__file__).parents[1]  # this package
BUGS = OURS / "fuzz" / "bugs"
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def place(error: BaseException) -> str:
    """File, line and method in which an exception was raised: the innermost of the user's own, else the innermost.

    SimPy raises another one from it. What was raised because of a method's answer happened where the method was asked,
    not where that was looked at.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    trace, innermost, users = error.__traceback__, "an unknown place", ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename != watched.__file__:
            innermost = f"{PurePath(code.co_filename).name}, line {trace.tb_lineno}, in {code.co_qualname}"
            users = innermost if is_users(code.co_filename) else users
        trace = trace.tb_next
    return users or innermost


def is_users(file: str) -> bool:
    """Whether a file is neither of this package nor of a library. Planted bugs are what a user could have written."""
    path = PurePath(file)
    if path.is_relative_to(OURS):
        return path.is_relative_to(BUGS)
    return not file.startswith(("<", *LIBRARIES))


def crash_of(name: str, error: BaseException, where: str = "") -> PluginError:
    """What a changed scheduler raised, as its own failure. ``where``: rank, iteration, slot and phase, if it ran."""
    return PluginError(f"{name}: {told(error, where)}")


def told(error: BaseException, where: str = "") -> str:
    """One line of what was raised, in which file and method, and where the rank stood."""
    what = f"crash: {type(error).__name__}: {error} ({place(error)})"
    return f"{what} at {where}" if where else what
