"""``ppsim list``: what there is to name, in groups, one a line: the name first, then one sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption

app = typer.Typer(help="List what can be named on the command line.", no_args_is_help=True, rich_markup_mode=None)


@app.command("scenarios")
@guarded
def scenarios(as_json: JsonOption = False) -> int:
    """The scenarios that come with ppsim, and those in ./scenarios, by folder."""
    from ppsim.scenario.load import folder_sentence, known_scenarios

    described = {name: description(path) for name, path in known_scenarios().items()}
    folders = dict.fromkeys(sorted(name.rpartition("/")[0] for name in described))
    if as_json:
        rows = [{"name": n, "folder": n.rpartition("/")[0], "description": text} for n, text in described.items()]
        print(json.dumps(rows))
        return 0
    for number, folder in enumerate(folders):
        mine = {name: text for name, text in described.items() if name.rpartition("/")[0] == folder}
        width = max(len(name) for name in mine)
        if number:
            print()
        print(f"{folder or 'scenarios'}: {folder_sentence(folder)}".rstrip(" :"))
        for name, text in mine.items():
            print(f"  {name:<{width}}  {text}".rstrip())
    return 0


def description(path: Path) -> str:
    """The first line of a scenario's description; a file that cannot be read is told on stderr."""
    from ppsim.parsing import decoded, parse_toml

    try:
        text = str(parse_toml(decoded(path.read_bytes())).get("description", ""))
    except (OSError, ValueError) as error:
        say(f"ppsim: {path}: {error}")
        return ""
    return " ".join(text.split())


@app.command("bugs")
@guarded
def bugs(as_json: JsonOption = False) -> int:
    """The planted bugs: what each breaks, which fuzz profile finds it, and where the idea comes from."""
    from ppsim.plugin import all_bugs

    found = list(all_bugs().values())
    if as_json:
        rows = [{"name": b.name, "breaks": b.breaks, "profile": b.profile, "source": b.source} for b in found]
        print(json.dumps(rows))
        return 0
    print_groups([(f"profile {b.profile}", b.name, f"{b.breaks}  {b.summary}") for b in found])
    return 0


def print_groups(rows: Sequence[tuple[str, str, str]]) -> None:
    """(group, name, text) of each: the groups below their names, in the order in which they first come."""
    groups = dict.fromkeys(group for group, _, _ in rows)
    for number, group in enumerate(groups):
        mine = [(name, text) for of, name, text in rows if of == group]
        width = max(len(name) for name, _ in mine)
        print(f"{chr(10) * bool(number)}{group}: {len(mine)}")
        for name, text in mine:
            print(f"  {name:<{width}}  {text}".rstrip())


@app.command("profiles")
@guarded
def profiles(as_json: JsonOption = False) -> int:
    """The fuzz profiles: server roles, features that an example may switch on, and those it always has."""
    from ppsim.fuzz.profiles import PROFILES

    found = list(PROFILES.values())
    if as_json:
        rows = [
            {"name": p.name, "roles": sorted(set(p.roles)), "features": p.features, "always": p.always} for p in found
        ]
        print(json.dumps(rows))
        return 0
    for p in found:
        always = f"; always {', '.join(p.always)}" if p.always else ""
        print(f"{p.name:<10}  {', '.join(sorted(set(p.roles)))}: {', '.join(p.features)}{always}")
    return 0


@app.command("probes")
@guarded
def probes(as_json: JsonOption = False) -> int:
    """The situations that a campaign should reach, and the arrows of the request table."""
    from ppsim.fuzz.coverage_probes import PAIRS, PROBES

    if as_json:
        print(json.dumps({"probes": PROBES, "arrows": PAIRS}))
        return 0
    print_groups(
        [
            *(("situations", name, "") for name in PROBES),
            *(("arrows of the request table", name, "") for name in PAIRS),
        ]
    )
    return 0


@app.command("invariants")
@guarded
def invariants(as_json: JsonOption = False) -> int:
    """The invariants of lockstep, the rules of bug reports after them, and who checks each."""
    from ppsim.check.invariants import BY_NAME, INVARIANTS

    if as_json:
        print(json.dumps([{"name": i.name, "statement": i.statement, "owner": i.checked_by} for i in BY_NAME.values()]))
        return 0
    print_groups(
        [
            (
                "lockstep (docs/protocol.md, section 12)" if i in INVARIANTS else "from public bug reports",
                i.name,
                f"{i.statement}  [{i.checked_by}]",
            )
            for i in BY_NAME.values()
        ]
    )
    return 0


@app.command("models")
@guarded
def models(as_json: JsonOption = False) -> int:
    """The models whose shape is known; any config.json does as well."""
    from ppsim.cost.config_json import checkpoint_of, known_models

    rows = [
        {"name": key, "checkpoint": checkpoint_of(key), "num_hidden_layers": config["num_hidden_layers"]}
        for key, config in known_models().items()
    ]
    if as_json:
        print(json.dumps(rows))
        return 0
    print_groups(
        [
            (
                str(row["checkpoint"]).partition("/")[0],
                str(row["name"]),
                f"{row['num_hidden_layers']:>3} layers  {row['checkpoint']}",
            )
            for row in rows
        ]
    )
    return 0


@app.command("gpus")
@guarded
def gpus(as_json: JsonOption = False) -> int:
    """The GPUs whose rates are known, and where the figures come from."""
    from dataclasses import asdict

    from ppsim.cost.gpu import known_gpus, load_gpu

    found = [load_gpu(key) for key in known_gpus()]
    if as_json:
        print(json.dumps([asdict(gpu) for gpu in found]))
        return 0
    print(f"{'GPU':<10} {'BF16 TF':>8} {'GB':>5} {'HBM GB/s':>9} {'link GB/s':>9} {'NIC GB/s':>9}  source")
    for gpu in found:
        nic = "unknown" if gpu.nic_gb_per_s is None else f"{gpu.nic_gb_per_s:g}"
        rates = f"{gpu.bf16_tflops:>8g} {gpu.memory_gb:>5g} {gpu.hbm_gb_per_s:>9g} {gpu.link_gb_per_s:>9g} {nic:>9}"
        print(f"{gpu.key:<10} {rates}  {gpu.source}")
    return 0
