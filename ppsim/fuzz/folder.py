"""The folder of a campaign: ``campaign.json`` and one reproduction for each finding."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ppsim.errors import UsageError
from ppsim.fuzz.campaign import CampaignResult
from ppsim.fuzz.repro import save

RUNS = Path("runs")


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    """Where a campaign was saved; ``repros`` in the order of the findings."""

    path: Path
    repros: tuple[Path, ...]


def save_campaign(result: CampaignResult, out: str | None) -> CampaignFolder:
    """Write everything. Raises UsageError if the folder cannot be written."""
    order = result.order
    name = f"fuzz-{order.profile}-{order.seed}" + "".join(f"-{bug}" for bug in order.bugs)
    path = Path(out) if out else RUNS / name
    repros = []
    try:
        path.mkdir(parents=True, exist_ok=True)
        for i, found in enumerate(result.findings):
            repro = path / f"repro_{found.repro.signature.invariant.lower().replace('-', '')}_{i}.json"
            save(repro, found.repro)
            repros.append(repro)
        summary = {
            "profile": order.profile,
            "seed": order.seed,
            "examples": result.num_examples,
            "digest": result.digest,
            "bugs": list(order.bugs),
            "probes": dict(sorted(result.probes.items())),
            "arrows": dict(sorted(result.pairs.items())),
        }
        (path / "campaign.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {path}: cannot be written: {error.strerror}") from None
    return CampaignFolder(path, tuple(repros))
