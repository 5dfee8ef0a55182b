"""The example database of a campaign: what has failed before is tried first, and stays until it passes.

It is Hypothesis' own database, in the folder ``examples`` of the campaign, so a campaign that is given the same folder
again (``--out``) begins where the last one ended. Nothing of it enters the digest: that is of the generated rounds.
"""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase

from ppsim.fuzz.experiment import Experiment, is_valid

EXAMPLES = "examples"


class ExampleDatabase:
    """Failing experiments by profile, each with the tape of its choices."""

    def __init__(self, folder: Path, profile: str) -> None:
        self.store = DirectoryBasedExampleDatabase(folder / EXAMPLES)
        self.key = f"failing/{profile}".encode()

    def failing(self) -> list[Experiment]:
        """All that is kept, the shortest first; what this version cannot run any more is dropped."""
        found: list[Experiment] = []
        for text in sorted(self.store.fetch(self.key), key=lambda text: (len(text), text)):
            experiment = parsed(text)
            if experiment is None or not is_valid(experiment):
                self.store.delete(self.key, text)
            else:
                found.append(experiment)
        return found

    def keep(self, experiment: Experiment) -> None:
        self.store.save(self.key, as_bytes(experiment))

    def drop(self, experiment: Experiment) -> None:
        self.store.delete(self.key, as_bytes(experiment))


def as_bytes(experiment: Experiment) -> bytes:
    """The same bytes for the same experiment, which must be one with a tape."""
    assert experiment.chooser.kind == "tape"
    return json.dumps({"raw": experiment.raw, "tape": experiment.tape}, sort_keys=True).encode()


def parsed(text: bytes) -> Experiment | None:
    """What ``as_bytes`` made; None where somebody else made it."""
    try:
        content = json.loads(text)
        raw, tape = content["raw"], tuple(int(value) for value in content["tape"])
    except (ValueError, KeyError, TypeError):
        return None
    return Experiment(raw, tape) if isinstance(raw, dict) else None
