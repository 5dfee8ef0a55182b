"""What every command shares: exit codes, one clear message for each error, and quiet ends.

Rule: stdout carries the result and nothing else; all else goes to stderr. Bad input ends in one message and its exit
code; Ctrl-C in 130; a reader that closed the pipe ends us without a word. Only a bug in ppsim shows a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, ParamSpec

import typer

from ppsim.errors import EXIT_PASS, EXIT_UNKNOWN, EXIT_USAGE, PpsimError

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells do

P = ParamSpec("P")


class Interrupted(PpsimError):
    """Ctrl-C, told by a command that knows how far it came."""

    exit_code = EXIT_INTERRUPTED


def place(value: str | None) -> str | None:
    """Callback of options that name a file or folder to write: an empty name, as of an unset variable, is none."""
    if value is not None and not value.strip():
        raise typer.BadParameter("is empty; give a name, or leave the option out")
    return value


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: ended like Ctrl-C, in order, with another exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number  # as shells do

    def __str__(self) -> str:
        return f"terminated by {signal.Signals(self.number).name}"


@contextmanager
def told_to_end() -> Iterator[None]:
    """Inside, a request to end comes as an exception, so that what was done so far can be kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ends(number: int, _: object) -> None:
        raise Terminated(number)

    wanted = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, ends) for number in wanted if signal.getsignal(number) == signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending_of(stop: KeyboardInterrupt) -> tuple[str, int]:
    """In words, and the exit code."""
    return (str(stop), stop.exit_code) if isinstance(stop, Terminated) else ("interrupted", EXIT_INTERRUPTED)


def say(message: str) -> None:
    """A line for the user that is no part of the result."""
    print(message, file=sys.stderr, flush=True)


def give_up(message: str) -> NoReturn:
    """End this process, command or worker, where nothing in it can be stopped in order."""
    say(f"ppsim: {message}")
    os._exit(EXIT_UNKNOWN)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Inside, our own warnings are a line of words; a notebook gets them as Python's, with the place in the code."""

    def shown(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category.__module__.startswith("ppsim."):
            say(f"ppsim: {message}")
        else:
            before(message, category, *place, **more)

    before, warnings.showwarning = warnings.showwarning, shown
    try:
        yield
    finally:
        warnings.showwarning = before


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Turn a command that returns an exit code, or raises, into one that ends the process as the rule says."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        code = EXIT_PASS
        try:
            with plain_warnings():
                code = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            close_stdout()
        except PpsimError as error:
            say(f"ppsim: {error}")
            code = error.exit_code
        except KeyboardInterrupt as stop:
            why, code = ending_of(stop)
            say(f"ppsim: {why}")
        except OSError as error:
            say(f"ppsim: {error.filename or 'system'}: {error.strerror or error}")
            code = EXIT_USAGE
        except Exception:
            internal_error()
        raise typer.Exit(code)

    # Typer reads the parameters of the command; the wrapper's own return type must not stand in for it.
    wrapper.__annotations__ = {**command.__annotations__, "return": "None"}
    return wrapper


def close_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush has no broken pipe to complain about."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def internal_error() -> NoReturn:
    """A bug of ours. Exit code 1 would claim a safety violation, so it is 5, unknown."""
    traceback.print_exc()
    say("ppsim: this is a bug in ppsim, not in your input; please report it with the lines above")
    raise typer.Exit(EXIT_UNKNOWN)
