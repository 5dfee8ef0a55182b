"""One point: its scenario is simulated, and what came of it is plain data, whatever it was.

Rule: a point never raises. Bad input, a broken protocol, a policy that raises, a run without end and a bug of ours are
all outcomes, with an exit code and a message; so no point stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ppsim.core.parts import Change
from ppsim.errors import EXIT_UNKNOWN, PluginError, PpsimError, UsageError
from ppsim.fuzz.limit import Limit, OutOfTime
from ppsim.plugin.crash import told
from ppsim.recording.summary import summarize
from ppsim.scenario.check import check_scenario
from ppsim.scenario.expect_judged import figures_of
from ppsim.scenario.files import file_digest, named_files
from ppsim.scenario.load import validate
from ppsim.sweeps.order import Task
from ppsim.world.simulate import simulate

PASS, FAIL, UNKNOWN, REFUSED, CRASH, STOPPED, DIED, PENDING = OUTCOMES = (
    "pass",  # it came to its end, and nothing broke
    "fail",  # the protocol broke, or nothing went on
    "unknown",  # a limit of the scenario was reached
    "refused",  # bad input
    "crash",  # a policy raised, or a bug of ours
    "stopped",  # --max-seconds
    "died",  # the process ended under it
    "pending",  # not done yet
)
AGAIN = (STOPPED, DIED, PENDING)  # what another try may change
STAGES = "stages_"  # figures of single stages: their number differs from point to point

Made = Callable[[Iterable[str]], Change]
"""What a rank is built with, given the bugs of a scenario."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a point. ``figures``: numbers of the summary by the names of [expect.figures]; of a pass only."""

    outcome: str
    exit_code: int
    message: str = ""
    rule: str = ""
    digest: str = ""
    figures: dict[str, float | int | None] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_point(
    task: Task,
    made: Made,
    max_s: float,
    last_resort: Callable[[str], None] | None = None,
    fast: bool | None = None,
) -> Result:
    """Simulate one point, at most ``max_s`` seconds of the user's clock. ``last_resort`` ends the process of one that
    cannot be stopped. ``fast``: as for ``simulate``."""
    limit = Limit(max_s, last_resort)
    try:
        scenario = validate(task.config)
        check_scenario(scenario)
        for key, path in named_files(scenario).items():
            if file_digest(path) != task.files.get(key):
                raise UsageError(f"{key}: {path} has changed since the sweep began; start the sweep again")
        missing = [key for key in task.files if key not in named_files(scenario)]
        if missing:
            raise UsageError(f"{missing[0]}: its file is gone, or not on this machine")
        with limit:
            ran = simulate(scenario, change=made(scenario.bugs), began=limit.began, fast=fast)
        verdict, recording = ran.verdict, ran.recording
        if verdict.kind != PASS:
            return Result(verdict.kind, verdict.exit_code, first_line(verdict.message), verdict.invariant or "")
        summary = summarize(recording, verdict)
    except OutOfTime as stop:
        return Result(STOPPED, EXIT_UNKNOWN, f"no end: {stop}")
    except UsageError as error:
        return Result(REFUSED, error.exit_code, first_line(str(error)))
    except PluginError as error:
        return Result(CRASH, error.exit_code, first_line(str(error)))
    except PpsimError as error:
        return Result(UNKNOWN, error.exit_code, first_line(str(error)))
    except (Exception, SystemExit) as error:
        return Result(CRASH, EXIT_UNKNOWN, first_line(told(error)))
    figures = {key: value for key, value in figures_of(summary).items() if STAGES not in key}
    return Result(PASS, 0, "", "", summary["digest"] or "", figures)


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
