"""Reproductions: one JSON file that holds a failing experiment and what it must show again.

A seed dies with the commit, a recorded experiment lives longer: the file has the scenario, the tape of choices, the
planted bugs and the plug-in that were on, and the digest of the run, so that "again" means bit for bit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.fuzz.experiment import Experiment, MakeHooks, Outcome, Signature, run_experiment
from ppsim.planted import hooks_for, load_plugin

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Repro:
    """A saved failure."""

    experiment: Experiment
    signature: Signature
    digest: str
    iteration: int | None
    bugs: tuple[str, ...] = ()
    plugin: str | None = None
    version: str = ""

    def hooks(self) -> MakeHooks:
        """The hooks that were on."""
        return hooks_for(self.bugs, load_plugin(self.plugin) if self.plugin else None)

    def run(self) -> Outcome:
        return run_experiment(self.experiment, self.hooks())

    def again(self, outcome: Outcome) -> bool:
        """Whether a run is the saved one, bit for bit."""
        return outcome.signature == self.signature and outcome.digest == self.digest


def ppsim_version() -> str:
    """The installed version, for the file."""
    try:
        return version("ppsim")
    except PackageNotFoundError:
        return "unknown"


def save(path: Path, repro: Repro) -> None:
    """Write the file; the bytes are a function of the content."""
    content = {
        "format": FORMAT,
        "ppsim": repro.version or ppsim_version(),
        "expect": {
            "invariant": repro.signature.invariant,
            "role": repro.signature.role,
            "iteration": repro.iteration,
            "digest": repro.digest,
        },
        "bugs": list(repro.bugs),
        "plugin": repro.plugin,
        "tape": list(repro.experiment.tape),
        "scenario": repro.experiment.raw,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: str) -> Repro:
    """Read a file. Raises UsageError that says what is damaged or missing."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not a reproduction: {error.msg}") from None
    return parse(path, content)


def parse(path: str, content: Any) -> Repro:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        came = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise UsageError(f"{path}: not a reproduction of format {FORMAT} (format: {came!r})")
    try:
        expect = content["expect"]
        tape = content["tape"]
        if not isinstance(tape, list) or not all(type(v) is int and v >= 0 for v in tape):
            raise UsageError(f"{path}: field 'tape': expected a list of integers from 0 on")
        if not isinstance(content["scenario"], dict):
            raise UsageError(f"{path}: field 'scenario': expected an object")
        return Repro(
            Experiment(content["scenario"], tuple(tape)),
            Signature(str(expect["invariant"]), str(expect["role"])),
            str(expect["digest"]),
            expect.get("iteration"),
            tuple(str(name) for name in content["bugs"]),
            content["plugin"],
            str(content["ppsim"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: damaged: {type(error).__name__} at {error}") from None
