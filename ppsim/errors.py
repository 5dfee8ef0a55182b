"""Errors that a user may see, and the exit code of each.

Every message says who, where, what was expected, what came, and what to do. All fields are positional: SimPy rebuilds
an exception that crosses a process from its ``.args`` (design decision 7).
"""

from __future__ import annotations

EXIT_PASS = 0
EXIT_SAFETY = 1
EXIT_USAGE = 2
EXIT_LIVENESS = 3
EXIT_NONDETERMINISM = 4
EXIT_UNKNOWN = 5


class PpsimError(Exception):
    """Base of all errors that end in one clear message instead of a traceback."""

    exit_code = EXIT_UNKNOWN


class UsageError(PpsimError):
    """Bad input: a scenario, a trace, a flag, a file."""

    exit_code = EXIT_USAGE


class ScenarioError(UsageError):
    """A scenario key is unknown or has an impossible value. ``field`` is its dotted name."""

    def __init__(self, field: str, problem: str, hint: str = "") -> None:
        super().__init__(field, problem, hint)
        self.field, self.problem, self.hint = field, problem, hint

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" + (f" ({self.hint})" if self.hint else "")


class TraceError(UsageError):
    """A line of a trace file cannot be read; line 0: the file as a whole."""

    def __init__(self, path: str, line: int, field: str, problem: str) -> None:
        super().__init__(path, line, field, problem)
        self.path, self.line, self.field, self.problem = path, line, field, problem

    def __str__(self) -> str:
        if not self.line:
            return f"{self.path}: {self.problem}"
        return f"{self.path}:{self.line}: field {self.field!r}: {self.problem}"


class PluginError(PpsimError):
    """A plug-in or a planted bug raises while it runs: the change is broken, whatever it wanted to show."""

    exit_code = EXIT_SAFETY


class RankDied(PpsimError):
    """A rank process of the executor ended before the run did."""

    exit_code = EXIT_LIVENESS

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message, rank)
        self.message, self.rank = message, rank

    def __str__(self) -> str:
        return self.message
