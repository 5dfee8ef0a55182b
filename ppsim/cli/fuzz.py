"""``ppsim fuzz``: generated experiments against the scheduler, until something breaks or the budget is used up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import BugOption, JsonOption, OutOption, PluginOption

if TYPE_CHECKING:
    from ppsim.fuzz.campaign import CampaignResult


@guarded
def fuzz(
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="Which features may be used.")] = "all",
    examples: Annotated[int | None, typer.Option("--examples", metavar="N", min=1, help="Number of examples.")] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="SECONDS", help="Time instead of examples.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the campaign.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes on this machine.")] = 1,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="Spread over a Ray cluster; 'local' starts one here.")
    ] = None,
    plugin: PluginOption = None,
    bugs: BugOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> int:
    """Does any interleaving break it? Generate experiments, check everything, shrink what fails."""
    from ppsim.errors import UsageError
    from ppsim.fuzz.campaign import Order, run_campaign
    from ppsim.fuzz.folder import save_campaign
    from ppsim.fuzz.profiles import profile_named
    from ppsim.planted import bug, load_plugin

    profile_named(profile)
    if examples is not None and budget is not None:
        raise UsageError("--examples and --budget exclude each other: give one of them")
    if budget is not None and budget <= 0:
        raise UsageError(f"--budget {budget:g}: must be more than 0 seconds")
    module = load_plugin(plugin) if plugin else None
    for name in bugs or ():
        bug(name, module)
    order = Order(
        profile, seed, 1000 if examples is None and budget is None else examples, budget, tuple(bugs or ()), plugin
    )
    result = run_campaign(order, num_jobs=jobs, ray_address=ray)
    folder = save_campaign(result, out)
    if as_json:
        print(json.dumps(campaign_json(result, folder)))
    else:
        print_campaign(result, folder)
    say(f"saved {folder.path}")
    return result.findings[0].outcome.verdict.exit_code if result.findings else 0


def campaign_json(result: CampaignResult, folder: Any) -> dict[str, Any]:
    """The JSON of a campaign; ``seconds`` is the only field that is not a function of the order."""
    from ppsim.fuzz.probes import PROBES

    return {
        "verdict": "fail" if result.findings else "pass",
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
        "digest": result.digest,
    }


def print_campaign(result: CampaignResult, folder: Any) -> None:
    """The report of a campaign; a failure ends in a command."""
    from ppsim.fuzz.probes import PAIRS, PROBES

    rate = result.num_examples / result.seconds if result.seconds else 0.0
    never = [name for name in PROBES if not result.probes[name]]
    for i, found in enumerate(result.findings):
        print_finding(found, folder.repros[i], result.order.seed)
    verdict = "FAIL" if result.findings else "PASS"
    print(f"{verdict}  {result.num_examples} examples of profile {result.order.profile}, seed {result.order.seed}")
    print(f"      {result.seconds:.1f} s, {rate:.0f} examples/s, {result.twice} run twice, digest {result.digest}")
    pairs = [name for name in PAIRS if result.pairs[name]]
    print(
        f"      probes {len(PROBES) - len(never)}/{len(PROBES)}, arrows of the request table {len(pairs)}/{len(PAIRS)}"
    )
    if never:
        print("      never reached: " + "; ".join(never))


def print_finding(found: Any, path: Any, seed: int) -> None:
    """What broke, where, the sizes before and after shrinking, the saved file and the command that replays it."""
    verdict, before, after = found.outcome.verdict, found.original.size(), found.repro.experiment.size()
    print(f"FAIL  {found.repro.signature.invariant}  seed {seed}  example {found.example}")
    for line in verdict.message.splitlines():
        print(f"  {line}")
    if found.outcome.result is not None:
        print("short log, last decisions (iteration slot mode pieces):")
        recording = found.outcome.result.recording
        for rank in range(recording.num_ranks):
            for d in recording.decisions[rank][-3:]:
                pieces = " ".join(f"{rid}[{p}:{p + n}]" for rid, p, n in d.pieces)
                print(f"  rank {rank}  {d.iteration:>4} {d.slot:>2} {d.mode:<7} {pieces}")
    sizes = "  ".join(f"{name} {before[name]}→{after[name]}" for name in after)
    print(f"shrunk  {sizes}  ({found.shrink_runs} runs, same {found.repro.signature.invariant})")
    print(f"saved   {path}")
    print(f"replay  ppsim replay {path}")
    print(f"keep    ppsim replay {path} --emit-test > tests/regressions/test_{path.stem}.py")
