"""Reproductions: one JSON file that holds a failing experiment and what it must show again.

A seed dies with the commit, a recorded experiment lives longer: the file has the scenario, the tape of choices, the
planted bugs and the plug-in that were on, and the digest of the run, so that "again" means bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.fuzz.experiment import USUAL, Experiment, Outcome, Signature, Terms, run_experiment
from ppsim.parsing import decoded, parse_json
from ppsim.plugin import Loaded
from ppsim.plugin import load as load_change
from ppsim.recording.origin import digest_of_file, ppsim_version

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
    plugin_digest: str | None = None  # of the plug-in's text when the file was written

    def loaded(self) -> Loaded:
        """The change that was on."""
        return load_change(self.bugs, self.plugin)

    def run(self, terms: Terms = USUAL, made: Loaded | None = None) -> Outcome:
        """``made``: the change that was on, where it is loaded already."""
        return run_experiment(self.experiment, (made or self.loaded()).change, terms=terms)

    def again(self, outcome: Outcome) -> bool:
        """Whether a run is the saved one, bit for bit."""
        return outcome.signature == self.signature and outcome.digest == self.digest


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
        "plugin_digest": repro.plugin_digest or digest_of_file(repro.plugin),
        "tape": list(repro.experiment.tape),
        "scenario": repro.experiment.raw,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: str) -> Repro:
    """Read a file. Raises UsageError that says what is damaged or missing."""
    try:
        content = parse_json(decoded(Path(path).read_bytes()))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not a reproduction: {error.msg}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not a reproduction: {error}") from None
    return parse(path, content)


def parse(path: str, content: Any) -> Repro:
    """The content of a file. Raises UsageError that names the field."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        came = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise UsageError(f"{path}: not a reproduction of format {FORMAT} (format: {came!r})")
    for field, fits, wanted in FIELDS:
        if field not in content:
            raise UsageError(f"{path}: damaged: field {field!r} is missing")
        if not fits(content[field]):
            raise UsageError(f"{path}: damaged: field {field!r}: expected {wanted}")
    expect = content["expect"]
    return Repro(
        Experiment(content["scenario"], tuple(content["tape"])),
        Signature(expect["invariant"], expect["role"]),
        expect["digest"],
        expect["iteration"],
        tuple(content["bugs"]),
        content["plugin"],
        content["ppsim"],
        content.get("plugin_digest"),
    )


def is_expectation(value: Any) -> bool:
    texts = ("invariant", "role", "digest")
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in texts)
        and isinstance(value.get("iteration"), int | None)
    )


def is_tape(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("ppsim", lambda v: isinstance(v, str), "a version"),
    ("expect", is_expectation, "an object with invariant, role, digest and iteration"),
    ("tape", is_tape, "a list of integers from 0 on"),
    ("scenario", lambda v: isinstance(v, dict), "an object"),
    ("bugs", lambda v: isinstance(v, list) and all(isinstance(b, str) for b in v), "a list of names"),
    ("plugin", lambda v: isinstance(v, str | None), "a path, or null"),
)
"""Fields of a file, what each must be, and that in words."""
