"""``ppsim bugs``: the fuzzer against planted bugs, one after the other: found or not, how fast, how small."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, Any

import typer

from ppsim.cli import completion
from ppsim.cli.guard import EXIT_INTERRUPTED, guarded, say
from ppsim.cli.options import JsonOption, PluginOption, check_seconds, plugin_of, tell_unfired


@guarded
def bugs(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Planted bugs to look for.", autocompletion=completion.bugs),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", help="Time for each bug.")] = 60.0,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Test the tester: is every planted bug found by its profile?"""
    from ppsim.errors import EXIT_SAFETY, UsageError
    from ppsim.plugin import all_bugs, bug

    module = plugin_of(plugin)
    if not names and not everything:
        raise UsageError("name at least one planted bug, or give --all (see: ppsim list bugs)")
    check_seconds("--budget", budget)
    chosen = list(all_bugs().values()) if everything else [bug(name, module) for name in names or ()]
    rows: list[dict[str, Any]] = []
    left = [planted.name for planted in chosen]
    for planted in chosen:
        try:
            row = look_for(planted, budget, seed, plugin, f"looking for {planted.name}")
        except KeyboardInterrupt:
            row = None
        if row is None:  # interrupted: what it has not found so far says nothing
            break
        left.pop(0)
        rows.append(row)
        if not as_json:
            print_row(row)
        else:
            say(f"{planted.name}: {'found' if row['found'] else 'NOT FOUND'}")
    if as_json:
        print(json.dumps(rows))
    else:
        print(f"{sum(row['found'] for row in rows)} of {len(rows)} found")
    if left:
        more = [*left, "--budget", f"{budget:g}", "--seed", str(seed), *(["--plugin", plugin] if plugin else [])]
        say(f"interrupted at {left[0]}: {len(rows)} of {len(chosen)} bugs were looked for")
        say(f"go on with  {shlex.join(['ppsim', 'bugs', *more])}")
        return EXIT_INTERRUPTED
    return 0 if all(row["found"] for row in rows) else EXIT_SAFETY


def look_for(planted: Any, budget: float, seed: int, plugin: str | None, label: str) -> dict[str, Any] | None:
    """One campaign against one planted bug. None if it was interrupted before it found it."""
    from ppsim.cli.progress import ProgressBar
    from ppsim.fuzz.campaign import run_campaign
    from ppsim.fuzz.folder import save_campaign
    from ppsim.fuzz.round import Order

    with ProgressBar(label, "examples") as progress:
        result = run_campaign(Order(planted.profile, seed, None, budget, (planted.name,), plugin), progress=progress)
    if result.is_cut and not result.findings:
        return None
    folder = save_campaign(result, None)
    found = result.findings[0] if result.findings else None
    if found is None:
        tell_unfired(result.unfired(), "its examples")
    size = found.repro.experiment.size() if found else {}
    return {
        "name": planted.name,
        "found": found is not None,
        "examples": result.num_examples,
        "seconds": round(found.seconds if found else result.seconds, 3),
        "invariant": found.repro.signature.invariant if found else None,
        "expected": planted.breaks,
        "shrunk": {key: size[key] for key in ("requests", "pp_size", "choices")} if found else None,
        "repro": str(folder.repros[0]) if found else None,
    }


def print_row(row: dict[str, Any]) -> None:
    shrunk = row["shrunk"] or {}
    sizes = " ".join(f"{key}={value}" for key, value in shrunk.items())
    mark = "found" if row["found"] else "NOT FOUND"
    head = f"{row['name']:<36} {mark:<9} {row['invariant'] or '-':<8}"
    print(f"{head} {row['examples']:>6} ex {row['seconds']:>7.2f} s  {sizes}")
