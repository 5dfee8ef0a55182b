"""An exploration that was not finished: what it has run, and the place at which it goes on.

Rule: what was run is not run again, and counts. The file holds the scenario and the bounds; another one of either is
another exploration, and is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.fuzz.explore import Bounds, Exploration, Place
from ppsim.parsing import parse_json

UNFINISHED = "unfinished.json"


def save_unfinished(path: Path, raw: dict[str, Any], changed_by: str, found: Exploration) -> None:
    """Write it. ``raw``: the scenario as it was given; ``changed_by``: bugs and plug-in. Raises UsageError."""
    assert found.place is not None
    content = {
        "scenario": raw,
        "changed_by": changed_by,
        "bounds": asdict(found.bounds),
        "place": {"number": found.place.number, "path": found.place.path},
        "executions": found.executions,
        "runs": found.runs,
        "states": list(found.states),
        "longest": found.num_iterations,
        "seconds": found.seconds,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_unfinished(path: str, raw: dict[str, Any], changed_by: str) -> Exploration:
    """What has been run. Raises UsageError for a file that is none, and for one of something else."""
    try:
        content = parse_json(Path(path).read_bytes())
        found = Exploration(
            Bounds(**content["bounds"]),
            executions=content["executions"],
            runs=content["runs"],
            states=dict.fromkeys(content["states"], 1),
            num_iterations=content["longest"],
            seconds=content["seconds"],
            place=Place(content["place"]["number"], tuple((value, n) for value, n in content["place"]["path"])),
        )
    except OSError as error:
        raise UsageError(f"--resume {path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"--resume {path}: is no unfinished exploration") from None
    if (content["scenario"], content["changed_by"]) != (json.loads(json.dumps(raw)), changed_by):
        raise UsageError(f"--resume {path}: is of another scenario, bug or plug-in, or of an earlier state of it")
    return found
