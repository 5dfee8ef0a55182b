"""The example database of a campaign: what has failed before is tried first, and stays until it passes.

It is Hypothesis' own database, in the folder ``examples`` of the campaign, so a campaign that is given the same folder
again (``--out``) begins where the last one ended. Nothing of it enters the digest: that is of the generated rounds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase

from ppsim.fuzz.experiment import Experiment, is_valid
from ppsim.parsing import parse_json

EXAMPLES = "examples"


@dataclass(frozen=True, slots=True)
class Kept:
    """A failing experiment, with its tape. ``is_small``: shrunk already."""

    experiment: Experiment
    is_small: bool

    def as_bytes(self) -> bytes:
        """The same bytes for the same experiment."""
        content = {"raw": self.experiment.raw, "tape": self.experiment.tape, "small": self.is_small}
        return json.dumps(content, sort_keys=True).encode()


class ExampleDatabase:
    """Failing experiments by profile."""

    def __init__(self, folder: Path, profile: str) -> None:
        self.store = DirectoryBasedExampleDatabase(folder / EXAMPLES)
        self.key = f"failing/{profile}".encode()

    def failing(self) -> list[Kept]:
        """All that is kept, the shortest first; what this version cannot run any more is dropped."""
        found: list[Kept] = []
        for text in sorted(self.store.fetch(self.key), key=lambda text: (len(text), text)):
            kept = parsed(text)
            if kept is None or not is_valid(kept.experiment):
                self.store.delete(self.key, text)
            else:
                found.append(kept)
        return found

    def keep(self, experiment: Experiment, *, is_small: bool) -> None:
        """Raises ValueError for an experiment whose choices are not on a tape."""
        if experiment.chooser.kind != "tape":
            raise ValueError(f"an experiment with chooser {experiment.chooser.kind!r}; run it and take its tape")
        self.store.save(self.key, Kept(experiment, is_small).as_bytes())

    def drop(self, kept: Kept) -> None:
        self.store.delete(self.key, kept.as_bytes())


def parsed(text: bytes) -> Kept | None:
    """What ``as_bytes`` made; None where somebody else made it."""
    try:
        content = parse_json(text)
        raw, tape, is_small = content["raw"], tuple(int(value) for value in content["tape"]), bool(content["small"])
    except (ValueError, KeyError, TypeError):
        return None
    return Kept(Experiment(raw, tape), is_small) if isinstance(raw, dict) else None
