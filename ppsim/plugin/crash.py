"""What a changed scheduler raises is its own failure: one error with the place where it happened, in every world."""

from __future__ import annotations

from pathlib import Path

from ppsim.errors import PluginError
from ppsim.plugin import watched


def place(error: BaseException) -> str:
    """File, line and function in which an exception was raised; SimPy raises another one from it.

    What was raised because of a method's answer happened where the method was asked, not where that was looked at.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    trace = error.__traceback__
    assert trace is not None
    at = trace
    while trace.tb_next is not None:
        trace = trace.tb_next
        if trace.tb_frame.f_code.co_filename != watched.__file__:
            at = trace
    code = at.tb_frame.f_code
    return f"{Path(code.co_filename).name}, line {at.tb_lineno}, in {code.co_name}"


def crash_of(name: str, error: BaseException) -> PluginError:
    """What a changed scheduler raised, as its own failure, with the place where it happened."""
    return PluginError(f"{name}: crash: {type(error).__name__}: {error} ({place(error)})")
