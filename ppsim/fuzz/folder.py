"""The folder of a campaign: ``campaign.json``, one reproduction for each finding, and the example database.

Rule as for runs: without ``--out`` each campaign gets the next free number, and a folder that was named is refused if
it holds somebody's files. It is made before the campaign, so that a long one cannot end where nothing can be written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.fuzz.campaign import CampaignResult
from ppsim.fuzz.database import EXAMPLES, ExampleDatabase
from ppsim.fuzz.repro import save
from ppsim.fuzz.round import Order
from ppsim.recording.folder import RUNS, make, next_free

CAMPAIGN = "campaign.json"


class CampaignFolder:
    """Where a campaign is saved; ``repros`` in the order of the findings, once it has ended."""

    def __init__(self, order: Order, out: str | None) -> None:
        """Make the folder. Raises UsageError if it cannot be written or is not that of a campaign."""
        if out is None:
            name = f"fuzz-{order.profile}-{order.seed}" + "".join(f"-{bug}" for bug in order.bugs)
            self.path = next_free(RUNS, name)
        else:
            self.path = Path(out)
            make(self.path)
            foreign = sorted(entry.name for entry in self.path.iterdir() if not is_ours(entry))
            if foreign:
                raise UsageError(f"--out {out}: holds {foreign[0]}, which is not of a campaign; choose another folder")
        self.repros: tuple[Path, ...] = ()
        self.database = ExampleDatabase(self.path, order.profile)
        try:
            (self.path / EXAMPLES).mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {self.path}: cannot be written: {error.strerror}") from None

    def save(self, result: CampaignResult) -> None:
        """Write everything. Raises UsageError if the folder cannot be written."""
        order, repros = result.order, []
        try:
            for old in self.path.glob("repro_*.json"):  # of an earlier campaign in this folder
                old.unlink()
            for i, found in enumerate(result.findings):
                repro = self.path / f"repro_{found.repro.signature.invariant.lower().replace('-', '')}_{i}.json"
                save(repro, found.repro)
                repros.append(repro)
            summary: dict[str, Any] = {
                "profile": order.profile,
                "seed": order.seed,
                "examples": result.num_examples,
                "digest": result.digest,
                "bugs": list(order.bugs),
                "probes": dict(sorted(result.probes.items())),
                "arrows": dict(sorted(result.pairs.items())),
            }
            if order.num_skipped:
                summary["skipped"] = order.num_skipped
            if result.is_cut:
                summary["interrupted"] = True
            (self.path / CAMPAIGN).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {self.path}: cannot be written: {error.strerror}") from None
        self.repros = tuple(repros)


def is_ours(entry: Path) -> bool:
    return entry.name in (CAMPAIGN, EXAMPLES) or (entry.name.startswith("repro_") and entry.suffix == ".json")


def save_campaign(result: CampaignResult, out: str | None) -> CampaignFolder:
    """A folder for a campaign that has ended."""
    folder = CampaignFolder(result.order, out)
    folder.save(result)
    return folder
