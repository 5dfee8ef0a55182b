"""``ppsim replay``: run a saved failure again, bit for bit; or write it down as a regression test; or replay a run."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import give_up, guarded, say
from ppsim.cli.options import JsonOption, MaxSecondsOption, check_seconds, plugin_of, tell_unfired
from ppsim.errors import UsageError

if TYPE_CHECKING:
    from ppsim.fuzz.experiment import Outcome
    from ppsim.fuzz.repro import Repro


class World(StrEnum):
    """Where a saved failure runs again."""

    SIM = "sim"
    EXEC = "exec"


@guarded
def replay(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|RUN",
            help="A reproduction written by ppsim fuzz, or a run of either world: folder, name, latest.",
        ),
    ],
    emit_test: Annotated[bool, typer.Option("--emit-test", help="Print a regression test instead of running.")] = False,
    twice: Annotated[bool, typer.Option("--twice", help="Run it twice and compare.")] = False,
    max_seconds: MaxSecondsOption = 60.0,
    anyway: Annotated[bool, typer.Option("--anyway", help="Run a file that another version wrote.")] = False,
    plugin: Annotated[
        str | None, typer.Option("--plugin", metavar="FILE.py", help="Of a run: where the plug-in it was made with is.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="rank=N,iteration=N", help="Of a run: stop there and show the state of every rank."
        ),
    ] = None,
    invariants: Annotated[
        bool, typer.Option("--invariants", help="Of a run: judge the replay by all rules (run.invariants).")
    ] = False,
    world: Annotated[
        World, typer.Option("--in", help="Run a reproduction in simulation, or on real processes.")
    ] = World.SIM,
    as_json: JsonOption = False,
) -> int:
    """Reproduce a failure, or run a saved run again in simulation, fed with what was recorded, and judge it.

    The exit code is that of the failure, 4 if it does not come back the same or if a record of the run differs.
    """
    from ppsim.cli.replay_run import is_run, replay_run

    if is_run(file):
        if emit_test or twice or anyway:
            raise UsageError(f"{file} is a run: --emit-test, --twice and --anyway are for reproductions of ppsim fuzz")
        if world == World.EXEC:
            raise UsageError(
                f"{file} is a run: it is replayed in simulation; --in exec is for reproductions of ppsim fuzz"
            )
        return replay_run(file, plugin, until, as_json=as_json, invariants=invariants)
    if plugin is not None or until is not None or invariants:
        raise UsageError(f"{file} is a reproduction of ppsim fuzz: --plugin, --until and --invariants are for runs")
    from ppsim.cli.every_report import write_and_read
    from ppsim.errors import EXIT_NONDETERMINISM, EXIT_PASS
    from ppsim.fuzz.campaign import run_twice, terms_of
    from ppsim.fuzz.emit import regression_test
    from ppsim.fuzz.experiment import Terms
    from ppsim.fuzz.repro import load
    from ppsim.recording.origin import digest_of_file, ppsim_version

    check_seconds("--max-seconds", max_seconds)
    repro = load(file)
    terms = terms_of(repro.signature, Terms(max_seconds, write_and_read, give_up))
    if emit_test:
        name = re.sub(r"\W+", "_", f"{Path(file).parent.name}_{Path(file).stem}").strip("_").lower()
        print(regression_test(repro, name), end="")
        return EXIT_PASS
    if repro.version != ppsim_version() and not anyway:
        raise UsageError(
            f"{file}: written by ppsim {repro.version}, this is {ppsim_version()}; the same tape may mean another run "
            "(use --anyway to run it all the same)"
        )
    if repro.plugin is not None and digest_of_file(repro.plugin) not in (None, repro.plugin_digest):
        say(f"ppsim: plug-in {repro.plugin} has changed since {file} was written")
    if world == World.EXEC:
        from ppsim.cli.replay_exec import replay_on_processes

        return replay_on_processes(file, repro, terms, as_json=as_json)
    plugin_of(repro.plugin)  # what is wrong with it is told as by any other command
    made = repro.loaded()
    if twice or of_two(repro):
        outcome, stable = run_twice(repro.experiment, made.change, terms)
    else:
        outcome, stable = repro.run(terms, made), True
    same = not stable if of_two(repro) else repro.again(outcome)
    if as_json:
        print(json.dumps(as_dict(outcome, same)))
    else:
        print(outcome.verdict.message or "the run passes: nothing is broken")
        print(ending(repro, same))
    if not stable:
        say("ppsim: two runs of this file differ: something in it (a plug-in?) is nondeterministic")
        return EXIT_NONDETERMINISM
    if outcome.signature is None:
        tell_unfired(made.unfired())
        return EXIT_PASS
    return outcome.verdict.exit_code if same else EXIT_NONDETERMINISM


def of_two(repro: Repro) -> bool:
    """Whether what was saved is that two runs differ."""
    return repro.signature.invariant == "nondeterminism"


def ending(repro: Repro, same: bool) -> str:
    """Whether what was saved came back."""
    from ppsim.fuzz.experiment import NO_END

    if not same:
        return f"NOT the saved failure ({repro.signature.invariant}, {repro.digest})"
    if repro.signature.invariant == NO_END:
        return "again it does not end"
    return "two runs differ again" if of_two(repro) else "reproduced bit for bit"


def as_dict(outcome: Outcome, same: bool) -> dict[str, Any]:
    return {
        "reproduced": same,
        "invariant": outcome.signature.invariant if outcome.signature else None,
        "digest": outcome.digest,
        "verdict": outcome.verdict.kind,
        "message": outcome.verdict.message,
    }
