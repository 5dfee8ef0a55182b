"""``ppsim bugs``: the fuzzer against planted bugs, one after the other: found or not, how fast, how small."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption, PluginOption


@guarded
def bugs(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Planted bugs to look for.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", help="Time for each bug.")] = 60.0,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Test the tester: is every planted bug found by its profile?"""
    from ppsim.errors import EXIT_SAFETY, UsageError
    from ppsim.planted import all_bugs, bug, load_plugin

    module = load_plugin(plugin) if plugin else None
    if not names and not everything:
        raise UsageError("name at least one planted bug, or give --all (see: ppsim list bugs)")
    if budget <= 0:
        raise UsageError(f"--budget {budget:g}: must be more than 0 seconds")
    chosen = list(all_bugs().values()) if everything else [bug(name, module) for name in names or ()]
    rows = []
    for planted in chosen:
        row = look_for(planted, budget, seed, plugin)
        rows.append(row)
        if not as_json:
            print_row(row)
        else:
            say(f"{planted.name}: {'found' if row['found'] else 'NOT FOUND'}")
    if as_json:
        print(json.dumps(rows))
    else:
        print(f"{sum(row['found'] for row in rows)} of {len(rows)} found")
    return 0 if all(row["found"] for row in rows) else EXIT_SAFETY


def look_for(planted: Any, budget: float, seed: int, plugin: str | None) -> dict[str, Any]:
    """One campaign against one planted bug."""
    from ppsim.fuzz.campaign import Order, run_campaign
    from ppsim.fuzz.folder import save_campaign

    result = run_campaign(Order(planted.profile, seed, None, budget, (planted.name,), plugin))
    folder = save_campaign(result, None)
    found = result.findings[0] if result.findings else None
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
