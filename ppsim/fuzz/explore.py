"""Exhaustive exploration of a small configuration: every abort time, every combination of observation delays.

What is left out, and why that is sound: between two observations the ranks are a deterministic dataflow network (design
decision 11), so the order in which ready ranks run, and how long a message takes, can influence a run only through the
iteration in which an input is read or a local fact is seen. Exactly those iterations are enumerated; all orders that
agree about them are one execution. ``tests/worlds`` shuffles the order to hold that claim.

"No violation in all N executions" is a proof for the configuration and the bounds that are printed with it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ppsim.errors import UsageError
from ppsim.fuzz.experiment import Experiment, MakeHooks, Outcome, Signature, run_experiment
from ppsim.recording.digest import run_digest
from ppsim.world.choices import ExhaustiveChoices

KINDS = ("grammar", "bootstrap", "transfer", "handshake", "receive", "abort")


@dataclass(frozen=True, slots=True)
class Bounds:
    """``delays``: kind of fact -> each rank sees it after 0..N iterations. ``aborts``: one abort before iteration N."""

    delays: dict[str, int] = field(default_factory=dict)
    aborts: int = 0
    executions: int = 1_000_000

    def sentence(self) -> str:
        """What exactly was bounded."""
        parts = [f"each {kind} fact 0..{n} iterations late on each rank" for kind, n in self.delays.items()]
        if self.aborts:
            parts.append(f"no abort, or one abort of any one request in any iteration before {self.aborts}")
        parts.append("all other facts at once; orders that agree about these are one execution")
        return "; ".join(parts)


@dataclass(slots=True)
class Exploration:
    """What was found. ``complete`` is False where the limit of executions or time ended it."""

    bounds: Bounds
    complete: bool = False
    executions: int = 0
    runs: dict[str, int] = field(default_factory=dict)  # distinct executions by digest
    states: dict[str, int] = field(default_factory=dict)  # distinct states of the first rank
    findings: list[tuple[Experiment, Outcome]] = field(default_factory=list)
    seconds: float = 0.0


def parse_bounds(texts: list[str]) -> Bounds:
    """From ``delays=transfer:3``, ``aborts=20``, ``executions=50000``. Raises UsageError for anything else."""
    delays: dict[str, int] = {}
    numbers = {"aborts": 0, "executions": 1_000_000}
    for text in texts:
        key, _, value = text.partition("=")
        if key == "delays":
            kind, _, limit = value.partition(":")
            if kind not in KINDS:
                raise UsageError(f"--bound {text}: unknown kind of fact {kind!r}; there are: {', '.join(KINDS)}")
            delays[kind] = positive(text, limit)
        elif key in numbers:
            numbers[key] = positive(text, value)
        else:
            raise UsageError(f"--bound {text}: expected delays=KIND:N, aborts=N or executions=N")
    return Bounds(delays, numbers["aborts"], numbers["executions"])


def positive(text: str, value: str) -> int:
    if not value.isdigit() or int(value) == 0:
        raise UsageError(f"--bound {text}: expected a whole number from 1 on, got {value!r}")
    return int(value)


class BoundedChoices(ExhaustiveChoices):
    """Only the delays of the bounded kinds branch; everything else is 0."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self.bounds = bounds

    def below(self, stream: str, n: int) -> int:
        words = stream.split()
        limit = self.bounds.delays.get(words[1]) if words[0] == "delay" else None
        if limit is None:
            return 0
        return super().below(stream, min(n, limit + 1))


def abort_variants(raw: dict[str, Any], bounds: Bounds) -> Iterator[dict[str, Any]]:
    """The scenario without a further abort, then with each single one."""
    yield raw
    for request in raw["workload"]["requests"] if bounds.aborts else ():
        for iteration in range(bounds.aborts):
            variant = copy.deepcopy(raw)
            variant["workload"].setdefault("aborts", []).append({"rid": request["rid"], "at_iteration": iteration})
            yield variant


def explore(
    raw: dict[str, Any],
    bounds: Bounds,
    hooks: MakeHooks | None = None,
    *,
    max_findings: int = 1,
    budget_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exploration:
    """Run every execution within the bounds, or until ``max_findings`` different failures are found."""
    raw = copy.deepcopy(raw)
    raw.setdefault("observations", {})["max_delay"] = max(bounds.delays.values(), default=0)
    raw.setdefault("run", {})["invariants"] = True
    found = Exploration(bounds)
    seen: list[Signature] = []
    started = time.monotonic()
    for variant in abort_variants(raw, bounds):
        choices = BoundedChoices(bounds)
        more = True
        while more:
            outcome = run_experiment(Experiment(variant), hooks, choices)
            record(found, outcome)
            if outcome.signature is not None and outcome.signature not in seen:
                seen.append(outcome.signature)
                found.findings.append((Experiment(variant, outcome.tape), outcome))
            found.seconds = time.monotonic() - started
            out_of_time = budget_s is not None and found.seconds > budget_s
            if len(seen) >= max_findings or found.executions >= bounds.executions or out_of_time:
                return found
            if progress is not None:
                progress(found.executions, 0)
            more = choices.advance()
    found.complete = True
    return found


def record(found: Exploration, outcome: Outcome) -> None:
    found.executions += 1
    # What was decided, delivered and answered; when it happened makes no other execution.
    run = outcome.digest if outcome.result is None else run_digest(outcome.result.recording)
    found.runs[run] = found.runs.get(run, 0) + 1
    if outcome.result is not None:
        for decision in outcome.result.recording.decisions[0]:
            found.states[decision.state_digest] = 1
