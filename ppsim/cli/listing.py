"""``ppsim list``: what there is to name, one a line: the name first, then one sentence. Scenarios stand in folders."""

from __future__ import annotations

import json
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
    from ppsim.parsing import parse_toml

    try:
        text = str(parse_toml(path.read_text(encoding="utf-8")).get("description", ""))
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
    width = max((len(b.name) for b in found), default=0)
    for b in found:
        print(f"{b.name:<{width}}  {b.breaks}  {b.profile:<8} {b.summary}")
    return 0


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
    for name in PROBES:
        print(name)
    for name in PAIRS:
        print(f"arrow {name}")
    return 0


@app.command("invariants")
@guarded
def invariants(as_json: JsonOption = False) -> int:
    """The invariants of lockstep, the rules of bug reports after them, and who checks each."""
    from ppsim.check.invariants import BY_NAME

    if as_json:
        print(json.dumps([{"name": i.name, "statement": i.statement, "owner": i.checked_by} for i in BY_NAME.values()]))
        return 0
    for i in BY_NAME.values():
        print(f"{i.name}  {i.statement}  [{i.checked_by}]")
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
    for row in rows:
        print(f"{row['name']:<22} {row['num_hidden_layers']:>3} layers  {row['checkpoint']}")
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
