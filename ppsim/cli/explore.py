"""``ppsim explore``: every execution of a small scenario within stated bounds."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import EXIT_INTERRUPTED, give_up, guarded, say
from ppsim.cli.options import (
    BugOption,
    JsonOption,
    MaxSecondsOption,
    PluginOption,
    ScenarioArg,
    SetOption,
    check_seconds,
    plugin_of,
    scenario_of,
    tell_unfired,
    tell_unjudged,
)

if TYPE_CHECKING:
    from ppsim.fuzz.explore import Bounds, Exploration


@guarded
def explore(
    scenario: ScenarioArg,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="WHAT=N",
            help="delays=KIND:N, aborts=N, failures=KIND:N, executions=N. Repeatable. Without any, it chooses some.",
        ),
    ] = None,
    overrides: SetOption = None,
    bugs: BugOption = None,
    plugin: PluginOption = None,
    unreduced: Annotated[
        bool, typer.Option("--unreduced", help="Every order of equal events, too: tiny runs.")
    ] = False,
    budget: Annotated[float | None, typer.Option("--budget", metavar="SECONDS", help="Stop after so long.")] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="FILE", help="Go on with an exploration that was not finished.")
    ] = None,
    max_seconds: MaxSecondsOption = 60.0,
    as_json: JsonOption = False,
) -> int:
    """Prove it for a small configuration: run every combination of abort times and observation delays."""
    from ppsim.cli.progress import ProgressBar
    from ppsim.errors import EXIT_UNKNOWN, UsageError
    from ppsim.fuzz.experiment import Terms
    from ppsim.fuzz.explore import chosen, parse_bounds
    from ppsim.fuzz.explore import explore as run_all
    from ppsim.fuzz.unfinished import read_unfinished
    from ppsim.plugin import load
    from ppsim.recording.origin import digest_of_file
    from ppsim.scenario.expect_judged import without_expect

    expecting = scenario_of(scenario, None, None, overrides)
    loaded = without_expect(expecting)
    if loaded.workload.source != "requests":
        raise UsageError(f"{loaded.name}: explore needs scripted requests (workload.source = 'requests')")
    check_seconds("--budget", budget)
    check_seconds("--max-seconds", max_seconds)
    bounds = parse_bounds(bound or [], reduced=not unreduced)
    made = load([*(bugs or []), *loaded.bugs], plugin_of(plugin))
    change = made.change
    raw = loaded.model_dump(mode="json", exclude_unset=True)
    raw.pop("bugs", None)
    terms = Terms(max_seconds, last_resort=give_up)
    tell_unjudged(expecting, "explore")
    changed_by = json.dumps([bugs or [], list(loaded.bugs), digest_of_file(plugin)])
    before = read_unfinished(resume, raw, changed_by) if resume is not None else None
    given, bounds = bounds, before.bounds if before is not None else chosen(raw, bounds, change, terms)
    if before is not None and bound and given != bounds:
        raise UsageError(f"--resume {resume}: it has other bounds than --bound gives: {bounds.sentence()}")
    if before is None and bounds != given:
        say(f"no bound was given, so these are chosen: {as_options(bounds)}")
    with ProgressBar(f"exploring {loaded.name}", "executions") as progress:
        found = run_all(raw, bounds, change, budget_s=budget, terms=terms, progress=progress, before=before)
    saved = [save_finding(found, i, loaded.name, tuple(bugs or ()), plugin) for i in range(len(found.findings))]
    if not found.findings:
        tell_unfired(made.unfired(), "this exploration")
    if found.is_cut and not found.findings:
        runs = f"{found.executions} executions ({len(found.runs)} distinct), {len(found.states)} states"
        say(f"interrupted after {runs}, {found.seconds:.0f} s: no violation so far, and nothing is proved")
        keep(found, raw, changed_by, loaded.name)
        return EXIT_INTERRUPTED
    if as_json:
        print(json.dumps(as_dict(found, saved, is_chosen=before is None and bounds != given)))
    else:
        print_exploration(found, saved)
    if not found.findings and not found.complete:
        keep(found, raw, changed_by, loaded.name)
    if found.is_cut:
        return EXIT_INTERRUPTED
    if found.findings:
        return found.findings[0][1].verdict.exit_code
    return 0 if found.complete else EXIT_UNKNOWN


def keep(found: Exploration, raw: dict[str, Any], changed_by: str, name: str) -> None:
    """Save what was run, and say how to go on behind it."""
    import sys

    from ppsim.fuzz.unfinished import UNFINISHED, save_unfinished

    path = Path("runs") / f"explore-{name.replace('/', '-')}" / UNFINISHED
    save_unfinished(path, raw, changed_by, found)
    words = without_resume(sys.argv[1:])
    say(f"saved {path}")
    say(f"go on with  {shlex.join(['ppsim', *words, '--resume', str(path)])}")


def without_resume(words: list[str]) -> list[str]:
    """A command line without an earlier ``--resume``."""
    kept, skip = [], False
    for word in words:
        if not skip and word != "--resume" and not word.startswith("--resume="):
            kept.append(word)
        skip = word == "--resume"
    return kept


def as_options(bounds: Bounds) -> str:
    """The bounds as one would give them."""
    options = [f"aborts={bounds.aborts}", *(f"delays={kind}:{n}" for kind, n in bounds.delays.items())]
    return " ".join(f"--bound {option}" for option in options)


def save_finding(found: Exploration, index: int, name: str, bugs: tuple[str, ...], plugin: str | None) -> str:
    from ppsim.fuzz.repro import Repro, save

    experiment, outcome = found.findings[index]
    assert outcome.signature is not None
    path = Path("runs") / f"explore-{name.replace('/', '-')}" / f"repro_{index}.json"
    save(path, Repro(experiment, outcome.signature, outcome.digest, outcome.verdict.iteration, bugs, plugin))
    say(f"saved {path}")
    return str(path)


def as_dict(found: Exploration, saved: list[str], *, is_chosen: bool) -> dict[str, Any]:
    return {
        "verdict": "fail" if found.findings else "pass" if found.complete else "unknown",
        "complete": found.complete,
        "executions": found.executions,
        "distinct_executions": len(found.runs),
        "states": len(found.states),
        "bounds": {
            "delays": found.bounds.delays,
            "aborts": found.bounds.aborts,
            "failures": found.bounds.failures,
            "executions": found.bounds.executions,
            "reduced": found.bounds.reduced,
            "chosen": is_chosen,
            "sentence": found.sentence(),
        },
        "longest_run": found.num_iterations,
        "seconds": round(found.seconds, 3),
        "findings": [
            {
                "invariant": outcome.signature.invariant if outcome.signature else None,
                "message": outcome.verdict.message,
                "repro": path,
            }
            for (_, outcome), path in zip(found.findings, saved, strict=True)
        ],
    }


def print_exploration(found: Exploration, saved: list[str]) -> None:
    """What was run, what that proves, and what exactly was bounded."""
    runs = f"{found.executions} executions ({len(found.runs)} distinct), {len(found.states)} states"
    for (_, outcome), path in zip(found.findings, saved, strict=True):
        print(outcome.verdict.message)
        print(f"replay  ppsim replay {shlex.quote(str(path))}")
    if found.findings:
        print(f"FAIL  after {runs}, {found.seconds:.1f} s")
    elif found.complete:
        print(f"PASS  no violation in all {runs}, {found.seconds:.1f} s")
    else:
        print(f"UNKNOWN  no violation in the first {runs}, {found.seconds:.1f} s; the exploration is not complete")
    print(f"bounds  {found.sentence()}")
    if found.bounds.aborts and found.complete:
        print(f"longest {any_time(found)}")


def any_time(found: Exploration) -> str:
    """Whether the bound on aborts leaves out any iteration in which one could matter."""
    last = f"without an abort the longest execution takes {found.num_iterations} iterations"
    if found.bounds.aborts >= found.num_iterations:
        return f"{last}: an abort at any time is covered"
    return f"{last}: aborts from iteration {found.bounds.aborts} on are not covered"
