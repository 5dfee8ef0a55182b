"""Exhaustive exploration of a small configuration: every abort time, every failure, every combination of delays.

What is left out, and why that is sound: between two observations the ranks are a deterministic dataflow network (design
decision 11), so the order in which ready ranks run, and how long a message takes, can influence a run only through the
iteration in which an input is read or a local fact is seen. Exactly those iterations are enumerated; all orders that
agree about them are one execution. ``reduced=False`` leaves nothing out: every order of equal events, and every message
in time or as late as the scenario's jitter allows. ``tests/fuzz/test_explore.py`` compares the two.

"No violation in all N executions" is a proof for the configuration and the bounds that are printed with it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from ppsim.core.parts import Change
from ppsim.errors import UsageError
from ppsim.fuzz.experiment import USUAL, Experiment, Outcome, Signature, Terms, run_experiment
from ppsim.recording.digest import run_digest
from ppsim.scenario.load import validate
from ppsim.scenario.tree import Chance, Scenario
from ppsim.world.choices import ExhaustiveChoices

MAX_CHOSEN = 20_000  # executions that an exploration may take whose bounds nobody gave: some minutes
KINDS = ("grammar", "bootstrap", "transfer", "handshake", "receive", "abort")

TIMED: dict[str, Callable[[Scenario], bool]] = {
    "arrivals and aborts by the clock": lambda s: (
        any(r.at_iteration is None for r in s.workload.requests)
        or any(a.at_iteration is None for a in s.workload.aborts)
    ),
    "clients that wait for answers": lambda s: s.workload.concurrency > 0,
    "the consensus store": lambda s: (
        s.disaggregation.role in ("prefill", "pd") and s.disaggregation.bootstrap == "store"
    ),
    "limits on time": lambda s: bool(s.timeouts.waiting_ms or s.timeouts.running_ms),
    "copies between cache tiers": lambda s: s.hicache.enabled,
    "transfers between two pipelines": lambda s: s.disaggregation.role == "pd",
}
"""What of a scenario looks at the time, so that the length of a message may matter to it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """``delays``: kind of fact -> each rank sees it after 0..N iterations. ``aborts``: one abort before iteration N.

    ``failures``: kind of fact -> one fact of that kind fails, and each rank sees it in some iteration before N. At most
    one abort or failure is added to what the scenario has. Without reduction: the first ``messages`` may be late.
    """

    delays: dict[str, int] = field(default_factory=dict)
    aborts: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    executions: int = 1_000_000
    messages: int = 1_000_000
    reduced: bool = True

    def sentence(self) -> str:
        """What exactly was bounded."""
        parts = [f"each {kind} fact 0..{n} iterations late on each rank" for kind, n in self.delays.items()]
        if self.aborts:
            parts.append(f"no abort, or one abort of any one request in any iteration before {self.aborts}")
        for kind, n in self.failures.items():
            fails = f"one {kind} of any one request fails, seen by each rank in any iteration before {n}"
            parts.append(f"or {fails}" if self.aborts else f"no failure, or {fails}")
        if self.reduced:
            parts.append("all other facts at once; orders that agree about these are one execution")
        else:
            which = "every message" if self.messages >= 1_000_000 else f"each of the first {self.messages} messages"
            parts.append(f"all other facts at once; every order of equal events, {which} in time or late")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an exploration stands: the variant, by number, and [choice, number of choices] of each question so far."""

    number: int
    path: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Exploration:
    """What was found. ``complete`` is False where the limit of executions or time, or a finding ended it."""

    bounds: Bounds
    complete: bool = False
    executions: int = 0
    runs: dict[str, int] = field(default_factory=dict)  # distinct executions, by digest of decisions, tokens, replies
    states: dict[str, int] = field(default_factory=dict)  # distinct states of the first rank
    num_iterations: int = 0  # of the longest execution of the scenario as it is: later aborts find nothing
    findings: list[tuple[Experiment, Outcome]] = field(default_factory=list)
    timed: tuple[str, ...] = ()  # what reads the time
    leaves_chance: bool = False  # the scenario has a section ``chance``; all of that is as written
    seconds: float = 0.0
    is_cut: bool = False  # the user interrupted it
    place: Place | None = None  # of the first execution that has not been run, where it is not complete
    unfired: list[str] = field(default_factory=list)  # bugs and policies that no execution has asked

    def sentence(self) -> str:
        """What exactly was bounded, and what the scenario keeps from being covered."""
        times = f"; {', '.join(self.timed)}: at the times of this scenario only" if self.timed else ""
        chance = "; what is left to chance: as written" if self.leaves_chance else ""
        return self.bounds.sentence() + times + chance


def parse_bounds(texts: list[str], *, reduced: bool = True) -> Bounds:
    """From ``delays=transfer:3``, ``aborts=20``, ``failures=bootstrap:4``, ``executions=50000``, ``messages=6``.

    Raises UsageError for anything else.
    """
    by_kind: dict[str, dict[str, int]] = {"delays": {}, "failures": {}}
    numbers = {"aborts": 0, "executions": 1_000_000, "messages": 1_000_000}
    for text in texts:
        key, _, value = text.partition("=")
        if key in by_kind:
            kind, _, limit = value.partition(":")
            known = KINDS if key == "delays" else KINDS[:-1]
            if kind not in known:
                raise UsageError(f"--bound {text}: unknown kind of fact {kind!r}; there are: {', '.join(known)}")
            by_kind[key][kind] = positive(text, limit)
        elif key in numbers:
            numbers[key] = positive(text, value)
        else:
            expected = "delays=KIND:N, aborts=N, failures=KIND:N, executions=N or messages=N"
            raise UsageError(f"--bound {text}: expected {expected}")
    if reduced and numbers["messages"] < 1_000_000:
        raise UsageError("--bound messages=N: only --unreduced looks at messages that are late")
    return Bounds(
        by_kind["delays"], numbers["aborts"], by_kind["failures"], numbers["executions"], numbers["messages"], reduced
    )


def chosen(raw: dict[str, Any], bounds: Bounds, change: Change | None, terms: Terms = USUAL) -> Bounds:
    """Bounds that leave something to explore, where those that were given leave one execution, which proves nothing.

    One abort of any request at any time; then each kind of fact that the scenario has, in time or an iteration late,
    as long as ``MAX_CHOSEN`` executions are enough. Raises UsageError where they are not even for the aborts.
    """
    if bounds.delays or bounds.aborts or bounds.failures or not bounds.reduced:
        return bounds
    scenario = validate(raw)
    num_requests, num_iterations = len(scenario.workload.requests), length(raw, bounds, change, terms)
    total = 1 + num_requests * num_iterations
    if total > MAX_CHOSEN:
        raise UsageError(
            f"{scenario.name}: explore needs a bound: {num_requests} requests and {num_iterations} iterations make "
            f"{total} executions for one abort at any time alone, more than {MAX_CHOSEN}; give --bound aborts=N "
            "(before iteration N), --bound delays=KIND:N or --bound failures=KIND:N, or a smaller scenario"
        )
    delays: dict[str, int] = {}
    for kind, num_facts in facts_of(scenario).items():
        total *= 2 ** min(64, num_facts * scenario.cluster.pp_size * scenario.cluster.tp_replicas)
        if num_facts and total <= MAX_CHOSEN:
            delays[kind] = 1
    late = replace(bounds, aborts=num_iterations, delays=delays)
    return replace(late, aborts=max(num_iterations, length(raw, late, change, terms))) if delays else late


class Latest(ExhaustiveChoices):
    """Every fact of the bounded kinds as late as it may be."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(fixed=())
        self.bounds = bounds

    def below(self, stream: str, n: int) -> int:
        words = stream.split()
        return min(n - 1, self.bounds.delays.get(words[1], 0)) if words[0] == "delay" else 0


def length(raw: dict[str, Any], bounds: Bounds, change: Change | None, terms: Terms) -> int:
    """Iterations of the scenario with all delays; at least 1."""
    outcome = run_experiment(Experiment(as_explored(raw, bounds)), change, Latest(bounds), terms)
    return max(1, 0 if outcome.result is None else len(outcome.result.recording.decisions[0]))


def facts_of(s: Scenario) -> dict[str, int]:
    """Kinds of local facts that a scenario has, and how many of each: the rarest first."""
    num = len(s.workload.requests)
    kinds = {"prefill": ("bootstrap", "transfer"), "decode": ("handshake", "receive")}.get(s.disaggregation.role, ())
    return {"grammar": sum(r.grammar is not None for r in s.workload.requests), **dict.fromkeys(kinds, num)}


def as_explored(raw: dict[str, Any], bounds: Bounds) -> dict[str, Any]:
    """The scenario with room for the delays, and every invariant checked."""
    raw = copy.deepcopy(raw)
    raw.setdefault("observations", {})["max_delay"] = max(bounds.delays.values(), default=0)
    raw.setdefault("run", {})["invariants"] = True
    return raw


def positive(text: str, value: str) -> int:
    if not value.isdigit() or int(value) == 0:
        raise UsageError(f"--bound {text}: expected a whole number from 1 on, got {value!r}")
    return int(value)


class BoundedChoices(ExhaustiveChoices):
    """Only the delays of the bounded kinds branch; everything else is 0. Without reduction orders and links do too."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(fixed=())
        self.bounds = bounds
        self.num_messages = 0

    def below(self, stream: str, n: int) -> int:
        words = stream.split()
        limit = self.bounds.delays.get(words[1]) if words[0] == "delay" else None
        if limit is not None:
            return super().below(stream, min(n, limit + 1))
        if self.bounds.reduced or n < 2:
            return 0
        if words[0] == "jitter":
            self.num_messages += 1
            return super().below(stream, 2) * (n - 1) if self.num_messages <= self.bounds.messages else 0
        return super().below(stream, n) if words[0] == "order" else 0

    def advance(self) -> bool:
        self.num_messages = 0
        return super().advance()


def variants(raw: dict[str, Any], bounds: Bounds) -> Iterator[dict[str, Any]]:
    """The scenario as it is, then with each single further abort, then with each single failure."""
    yield raw
    requests = raw["workload"]["requests"]
    for request in requests if bounds.aborts else ():
        for iteration in range(bounds.aborts):
            variant = copy.deepcopy(raw)
            variant["workload"].setdefault("aborts", []).append({"rid": request["rid"], "at_iteration": iteration})
            yield variant
    cluster = raw.get("cluster", {})
    num_ranks = cluster.get("pp_size", 1) * cluster.get("tp_replicas", 1)
    for kind, limit in bounds.failures.items():
        for request, at in product(requests, product(range(limit), repeat=num_ranks)):
            variant = copy.deepcopy(raw)
            fails = {"what": kind, "rid": request["rid"], "at": list(at), "failed": True}
            variant["observations"]["listed"] = [fails, *variant["observations"].get("listed", ())]
            yield variant


def explore(
    raw: dict[str, Any],
    bounds: Bounds,
    change: Change | None = None,
    *,
    max_findings: int = 1,
    budget_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    terms: Terms = USUAL,
    before: Exploration | None = None,
) -> Exploration:
    """Run every execution within the bounds, or until ``max_findings`` different failures are found.

    ``before``: what an exploration with these bounds has run already; it goes on at its place, and counts it.

    Ctrl-C ends it as a limit of time does; an execution that takes longer than the terms allow has no end: a failure.
    """
    raw = as_explored(raw, bounds)
    scenario = validate(raw)
    timed = tuple(what for what, reads in TIMED.items() if reads(scenario))
    found = before if before is not None else Exploration(bounds)
    found.timed, found.leaves_chance = timed, scenario.chance != Chance()
    first = found.place or Place(0)
    seen: list[Signature] = []
    spent_s = found.seconds
    started = time.monotonic()
    try:
        for number, variant in enumerate(variants(raw, bounds)):
            if number < first.number:
                continue
            choices = BoundedChoices(bounds)
            if number == first.number:
                choices.path = [list(entry) for entry in first.path]
            more = True
            while more:
                found.place = Place(number, tuple((value, n) for value, n in choices.path))
                out_of_time = budget_s is not None and found.seconds - spent_s > budget_s
                if len(seen) >= max_findings or found.executions >= bounds.executions or out_of_time:
                    return found
                outcome = run_experiment(Experiment(variant), change, choices, terms)
                record(found, outcome, is_first=number == 0)
                if outcome.signature is not None and outcome.signature not in seen:
                    seen.append(outcome.signature)
                    found.findings.append((Experiment(variant, outcome.tape), outcome))
                found.seconds = spent_s + time.monotonic() - started
                if progress is not None:
                    progress(found.executions, 0)
                more = choices.advance()
    except KeyboardInterrupt:
        found.is_cut = True
        return found
    found.complete, found.place = True, None
    return found


def record(found: Exploration, outcome: Outcome, *, is_first: bool) -> None:
    """Count an execution: what was decided, delivered and answered; when it happened makes no other one."""
    found.executions += 1
    if outcome.result is None:  # it crashed
        found.runs[outcome.digest] = found.runs.get(outcome.digest, 0) + 1
        return
    recording = outcome.result.recording
    run = run_digest(recording)
    found.runs[run] = found.runs.get(run, 0) + 1
    for decision in recording.decisions[0]:
        found.states[decision.state_digest] = 1
    if is_first:
        found.num_iterations = max(found.num_iterations, len(recording.decisions[0]))
