"""``ppsim fuzz``: generated experiments against the scheduler, until something breaks or the budget is used up.

stdout is a function of the command line alone; what depends on the machine (seconds, examples a second) is on stderr.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli import completion
from ppsim.cli.guard import EXIT_INTERRUPTED, give_up, guarded, say
from ppsim.cli.options import BugOption, JsonOption, OutOption, PluginOption, check_seconds, plugin_of, tell_unfired

if TYPE_CHECKING:
    from ppsim.fuzz.campaign import CampaignResult
    from ppsim.fuzz.folder import CampaignFolder
    from ppsim.fuzz.round import Order

MAX_SECONDS = 60.0  # of an example: of ten thousand, none takes two


@guarded
def fuzz(
    profiles: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="Which features may be used (ppsim list profiles). Default: all.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    examples: Annotated[int | None, typer.Option("--examples", metavar="N", min=1, help="Number of examples.")] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="SECONDS", help="Time instead of examples.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the campaign.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, max=256, help="Processes on this machine.")] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="Spread over a Ray cluster; 'local' starts one here.")
    ] = None,
    plugin: PluginOption = None,
    bugs: BugOption = None,
    max_seconds: Annotated[
        float,
        typer.Option("--max-seconds", metavar="SECONDS", help="An example that takes longer has no end: a finding."),
    ] = MAX_SECONDS,
    skip: Annotated[
        int, typer.Option("--skip", metavar="N", min=0, help="Go on behind the first N examples, in whole hundreds.")
    ] = 0,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> int:
    """Does any interleaving break it? Generate experiments, check everything, shrink what fails."""
    from ppsim.cli.every_report import write_and_read
    from ppsim.cli.progress import ProgressBar
    from ppsim.errors import EXIT_PASS, EXIT_UNKNOWN, UsageError
    from ppsim.fuzz.campaign import run_campaign
    from ppsim.fuzz.experiment import Terms
    from ppsim.fuzz.folder import CampaignFolder
    from ppsim.fuzz.round import ROUND

    if jobs is not None and ray is not None:
        raise UsageError("--jobs and --ray exclude each other: a Ray cluster has its own number of processes")
    order = order_of(profiles or [], examples, budget, seed, bugs or [], plugin)
    check_seconds("--max-seconds", max_seconds)
    if skip % ROUND:
        raise UsageError(f"--skip {skip}: examples come in rounds of {ROUND}; give a multiple of it")
    order = replace(order, terms=Terms(max_seconds, write_and_read, give_up), num_skipped=skip)
    folder = CampaignFolder(order, out)
    with ProgressBar(f"fuzzing, profile {order.profile}", "examples") as progress:
        result = run_campaign(order, num_jobs=jobs or 1, ray_address=ray, progress=progress, database=folder.database)
    folder.save(result)
    if not result.findings:
        tell_unfired(result.unfired(), "this campaign")
    if result.is_cut and not result.findings:
        say(how_far(result))
        say(f"saved {folder.path}")
        say(go_on(result, jobs, ray, out))
        return EXIT_INTERRUPTED
    if as_json:
        print(json.dumps(campaign_json(result, folder)))
    else:
        print_campaign(result, folder)
    rate = result.num_examples / result.seconds if result.seconds else 0.0
    say(f"{result.seconds:.1f} s, {rate:.1f} examples/s; saved {folder.path}")
    if result.is_cut:
        return EXIT_INTERRUPTED
    if result.findings:
        return result.findings[0].outcome.verdict.exit_code
    return EXIT_PASS if result.num_examples else EXIT_UNKNOWN


def order_of(
    profiles: list[str], examples: int | None, budget: float | None, seed: int, bugs: list[str], plugin: str | None
) -> Order:
    """What the command line asks for. Raises UsageError for what is unknown or contradicts itself."""
    from ppsim.errors import UsageError
    from ppsim.fuzz.profiles import profile_named, profile_of_bugs
    from ppsim.fuzz.round import Order
    from ppsim.plugin import bug

    for name in profiles:
        profile_named(name)
    if len(set(profiles)) > 1:
        raise UsageError(
            f"--profile {profiles[0]} and --profile {profiles[-1]} contradict each other: an example has one profile; "
            "give one of them, or 'all'"
        )
    if examples is not None and budget is not None:
        raise UsageError("--examples and --budget exclude each other: give one of them")
    check_seconds("--budget", budget)
    module = plugin_of(plugin)
    bugs = list(dict.fromkeys(bugs))
    planted = [bug(name, module) for name in bugs]
    profile = profile_of_bugs(profiles[0] if profiles else None, [(b.name, b.profile) for b in planted])
    return Order(profile, seed, 1000 if examples is None and budget is None else examples, budget, tuple(bugs), plugin)


def how_far(result: CampaignResult) -> str:
    """What an interrupted campaign has done."""
    order = result.order
    return (
        f"interrupted after {result.num_examples} examples of profile {order.profile}, seed {order.seed}, "
        f"{result.seconds:.0f} s: no finding"
    )


def go_on(result: CampaignResult, jobs: int | None, ray: str | None, out: str | None) -> str:
    """The command that goes on with the first round that is not whole."""
    from ppsim.fuzz.round import ROUND

    order, done = result.order, result.num_rounds * ROUND
    words = ["ppsim", "fuzz", "--profile", order.profile, "--seed", str(order.seed), "--skip", str(done)]
    if order.max_examples is not None:
        words += ["--examples", str(max(1, order.max_examples - (done - order.num_skipped)))]
    if order.budget_s is not None:
        words += ["--budget", f"{max(1.0, order.budget_s - result.seconds):.0f}"]
    for option, value in (("--jobs", jobs), ("--ray", ray), ("--plugin", order.plugin), ("--out", out)):
        words += [option, str(value)] if value is not None else []
    for name in order.bugs:
        words += ["--bug", name]
    if order.terms.max_s != MAX_SECONDS:
        words += ["--max-seconds", f"{order.terms.max_s:g}"]
    return f"go on with  {shlex.join(words)}"


def verdict_of(result: CampaignResult) -> str:
    """A campaign that has run nothing says nothing."""
    return "fail" if result.findings else "pass" if result.num_examples else "unknown"


def campaign_json(result: CampaignResult, folder: CampaignFolder) -> dict[str, Any]:
    """The JSON of a campaign; ``seconds`` is the only field that is not a function of the order."""
    from ppsim.fuzz.coverage_probes import PAIRS, PROBES

    return {
        "verdict": verdict_of(result),
        "profile": result.order.profile,
        "seed": result.order.seed,
        "examples": result.num_examples,
        "seconds": round(result.seconds, 3),
        "findings": [
            {
                "invariant": f.repro.signature.invariant,
                "role": f.repro.signature.role,
                "message": f.outcome.verdict.message,
                "example": f.example,
                "size": f.repro.experiment.size(),
                "repro": str(folder.repros[i]),
            }
            for i, f in enumerate(result.findings)
        ],
        "probes_hit": [name for name in PROBES if result.probes[name]],
        "probes_never_hit": [name for name in PROBES if not result.probes[name]],
        "arrows_never_taken": [name for name in PAIRS if not result.pairs[name]],
        "digest": result.digest,
    }


def print_campaign(result: CampaignResult, folder: CampaignFolder) -> None:
    """The report of a campaign; a failure ends in a command."""
    from ppsim.cli.finding import print_finding
    from ppsim.fuzz.coverage_probes import PAIRS, PROBES

    order = result.order
    for found, path in zip(result.findings, folder.repros, strict=True):
        print_finding(found, path, order.seed, order.terms.max_s)
    never = [name for name in PROBES if not result.probes[name]]
    arrows = [name for name in PAIRS if not result.pairs[name]]
    print(f"{verdict_of(result).upper()}  {result.num_examples} examples of profile {order.profile}, seed {order.seed}")
    print(f"      {result.twice} of them run twice, digest {result.digest}")
    print(
        f"      probes {len(PROBES) - len(never)}/{len(PROBES)}, "
        f"arrows of the request table {len(PAIRS) - len(arrows)}/{len(PAIRS)}"
    )
    if result.findings:  # it ended early: what it has not reached says nothing
        return
    for what, names in (("probes never reached", never), ("arrows never taken", arrows)):
        if names:
            print(fill(f"{what}: {'; '.join(names)}", 116, initial_indent=" " * 6, subsequent_indent=" " * 8))
