"""``ppsim list``: what there is to name, one a line: the name first, then one sentence."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption

app = typer.Typer(help="List what can be named on the command line.", no_args_is_help=True, rich_markup_mode=None)


@app.command("scenarios")
@guarded
def scenarios(as_json: JsonOption = False) -> int:
    """The scenarios that come with ppsim, and those in ./scenarios."""
    from ppsim.scenario.load import SCENARIO_DIRS

    found: dict[str, Path] = {}
    for folder in SCENARIO_DIRS:
        for path in sorted(folder.glob("**/*.toml")):
            found.setdefault(path.relative_to(folder).with_suffix("").as_posix(), path)
    described = {name: description(found[name]) for name in sorted(found)}
    if as_json:
        print(json.dumps([{"name": name, "description": text} for name, text in described.items()]))
    else:
        width = max((len(name) for name in described), default=0)
        for name, text in described.items():
            print(f"{name:<{width}}  {text}".rstrip())
    return 0


def description(path: Path) -> str:
    """The first line of a scenario's description; a file that cannot be read is told on stderr."""
    try:
        text = str(tomllib.loads(path.read_text(encoding="utf-8")).get("description", ""))
    except (OSError, ValueError) as error:
        say(f"ppsim: {path}: {error}")
        return ""
    return " ".join(text.split())
