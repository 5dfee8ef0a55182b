"""The catalogue of public bugs as data: the scenarios, what each must show, and how a run of one is made."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppsim.plugin import load
from ppsim.scenario.expect import Outcome
from ppsim.scenario.load import load_scenario
from ppsim.world import SimulationResult, simulate

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scenarios" / "bugs"
BARE = ("run.check=false", "run.invariants=false", "run.max_wait_iterations=0", "run.max_agreement_wait_ms=0")


@dataclass(frozen=True)
class Entry:
    """One table of ``bug_scenarios.toml``, and the planted bug under ``[expect]`` of its scenario, with the outcome."""

    name: str
    source: str
    bug: str
    outcome: Outcome
    healthy: dict[str, Any]
    bare: dict[str, Any] | None = None

    @property
    def number(self) -> str:
        """B01 and so on."""
        return self.name[:3].upper()

    def run(self, *overrides: str, bug: bool = False, bugs: tuple[str, ...] = ()) -> SimulationResult:
        """Simulate the scenario as it is in its file, with overrides, with its bug or with others."""
        scenario = load_scenario(str(FOLDER / f"{self.name}.toml"), overrides)
        return simulate(scenario, change=load((self.bug,) if bug else bugs).change)


def entries() -> dict[str, Entry]:
    """By name, in the order of the catalogue."""
    tables = tomllib.loads((Path(__file__).parent / "bug_scenarios.toml").read_text(encoding="utf-8"))
    found = {}
    for name, table in sorted(tables.items()):
        expect = load_scenario(str(FOLDER / f"{name}.toml")).expect
        assert expect is not None, f"{name} expects nothing"
        ((bug, outcome),) = expect.bugs.items()
        found[name] = Entry(name, bug=bug, outcome=outcome, **table)
    return found
