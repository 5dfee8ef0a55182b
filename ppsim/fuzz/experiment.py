"""One experiment: a whole scenario as plain data, the tape of its choices, and what came out of it.

Everything that a run depends on is in here, so an experiment can be saved, sent, shrunk and run again bit for bit. Two
failures are the same bug if the broken invariant and the role of the rank are alike; the text does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ppsim.core.digest import digest
from ppsim.core.parts import Change
from ppsim.errors import EXIT_SAFETY, EXIT_UNKNOWN, ScenarioError, UsageError
from ppsim.fuzz.coverage import Coverage
from ppsim.fuzz.limit import MAX_EXAMPLE_S, Limit, OutOfTime
from ppsim.plugin.crash import place
from ppsim.recording import Verdict
from ppsim.recording.writer import lines
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import validate
from ppsim.scenario.tree import Scenario
from ppsim.world.choices import Choices, PctChoices, RecordingChoices, SeededChoices, TapeChoices
from ppsim.world.crash import crashed
from ppsim.world.run_setting import Setting
from ppsim.world.simulate import SimulationResult, simulate

ANY_ROLE = "any"
NO_END = "no-end"
Reports = Callable[[Scenario, SimulationResult], None]


@dataclass(frozen=True, slots=True)
class Signature:
    """What makes two failures the same bug."""

    invariant: str  # INV-nn, or a word: livelock, crash-KeyError, report-KeyError, no-end, ...
    role: str  # first | middle | last | ""

    def is_like(self, other: Signature | None) -> bool:
        """The same bug. A middle stage of many may be the last one of few: only the first is unlike the others."""
        if other is None or self.invariant != other.invariant:
            return False
        return ANY_ROLE in (self.role, other.role) or self.role == other.role or "first" not in (self.role, other.role)


@dataclass(frozen=True, slots=True)
class Chooser:
    """Who answers the choices of a generated run; what it answered is the tape by which the run is repeated.

    ``tape``: the experiment's own, then 0. ``seeded``: uniform. ``shuffled``: uniform, the order of equal events too.
    ``pct``: ``depth`` deviations from 0 among the first ``horizon`` questions.
    """

    kind: str = "tape"
    seed: int = 0
    depth: int = 0
    horizon: int = 0

    def choices(self, tape: tuple[int, ...]) -> Choices:
        match self.kind:
            case "seeded" | "shuffled":
                return SeededChoices(self.seed, shuffle_order=self.kind == "shuffled")
            case "pct":
                return PctChoices(self.seed, self.depth, self.horizon)
        return TapeChoices(tape)


@dataclass(frozen=True, slots=True)
class Experiment:
    """``raw`` is a scenario as nested dictionaries; ``tape`` answers its choices, 0 when it runs out.

    A generated one has a ``chooser`` instead of a tape; once it has run it is known by its tape alone.
    """

    raw: dict[str, Any]
    tape: tuple[int, ...] = ()
    chooser: Chooser = Chooser()

    def key(self) -> str:
        """Digest of the content."""
        chooser = self.chooser
        return digest(canonical(self.raw), self.tape, (chooser.kind, chooser.seed, chooser.depth, chooser.horizon))

    def size(self) -> dict[str, int]:
        """What is left of it, for reports."""
        workload = self.raw.get("workload", {})
        observations = self.raw.get("observations", {})
        faults = self.raw.get("faults", {})
        return {
            "requests": len(workload.get("requests", ())),
            "faults": len(workload.get("aborts", ())) + len(observations.get("listed", ())) + len(faults),
            "pp_size": self.raw.get("cluster", {}).get("pp_size", 1),
            "choices": sum(1 for value in self.tape if value),  # 0 is what happens anyway
        }


def tape_of(text: str) -> tuple[int, ...]:
    """A tape as regression tests write it: "3 0x12 1" is a 3, twelve zeros and a 1."""
    tape: list[int] = []
    for word in text.split():
        value, _, times = word.partition("x")
        tape += [int(value)] * int(times or 1)
    return tuple(tape)


@dataclass(frozen=True, slots=True)
class Terms:
    """How an experiment is run, beside what it is.

    ``max_s``: seconds of the user's time after which it counts as one without an end. ``reports``: writes and reads
    everything that a run leaves, and raises where that goes wrong; given from outside, for reports are none of ours.
    ``last_resort``: ends the process where a run cannot be stopped.
    """

    max_s: float = MAX_EXAMPLE_S
    reports: Reports | None = None
    last_resort: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one run. ``signature`` is None where nothing is wrong."""

    verdict: Verdict
    digest: str
    signature: Signature | None
    tape: tuple[int, ...]  # what was really chosen
    result: SimulationResult | None = field(default=None, compare=False)
    coverage: Coverage | None = field(default=None, compare=False)  # of the first rank; None: it has not begun


USUAL = Terms()


def canonical(value: Any) -> Any:
    """Nested tuples with sorted keys: the same text for the same content."""
    if isinstance(value, dict):
        return tuple((key, canonical(value[key])) for key in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(canonical(item) for item in value)
    return value


def is_valid(experiment: Experiment) -> bool:
    """Whether the scenario is one that a run would accept."""
    try:
        check_scenario(validate(experiment.raw))
    except ScenarioError:
        return False
    return True


def run_experiment(
    experiment: Experiment, change: Change | None = None, choices: Choices | None = None, terms: Terms = USUAL
) -> Outcome:
    """Run it. A run without an end is a finding, as is an exception of the core, a change, the world or a report.

    Raises ScenarioError for a scenario that no run would accept, UsageError for a change that cannot be built.
    """
    scenario = validate(experiment.raw)
    check_scenario(scenario)
    recorder = RecordingChoices(choices or experiment.chooser.choices(experiment.tape))
    limit = Limit(terms.max_s, terms.last_resort)
    result = None
    heard: list[Coverage] = []

    def began(setting: Setting) -> None:
        limit.began(setting)
        heard.append(Coverage(setting.ranks[0].rank.journal))

    try:
        with limit:
            result = simulate(scenario, change=change, choices=recorder, began=began)
            if terms.reports is not None and result.verdict.kind == "pass":
                terms.reports(scenario, result)
    except ScenarioError:
        raise
    except OutOfTime as stop:
        verdict = Verdict("unknown", EXIT_UNKNOWN, f"no end: {stop}", None, stop.rank, stop.iteration)
        return Outcome(verdict, digest(NO_END), Signature(NO_END, ""), tuple(recorder.tape))
    except (Exception, SystemExit) as error:  # whatever a changed scheduler raises: the fuzzer reports it and goes on
        if isinstance(error, UsageError) and result is None:
            raise
        what = "crash" if result is None else "report"
        verdict = crashed(limit.setting, error)
        if result is not None:
            verdict = Verdict("fail", EXIT_SAFETY, f"report: {type(error).__name__}: {error} ({place(error)})")
        signature = Signature(f"{what}-{type(error).__name__}", "")
        return Outcome(verdict, digest(signature.invariant), signature, tuple(recorder.tape), result, *heard)
    verdict = result.verdict
    pp_size = scenario.cluster.pp_size
    found = None if verdict.kind == "pass" else Signature(broken(verdict), role_of(verdict, pp_size, result))
    return Outcome(verdict, digest_of(result), found, tuple(recorder.tape), result, *heard)


def digest_of(result: SimulationResult) -> str:
    """Of everything a run leaves, times too, of both pipelines, and of its verdict: the same bits, the same digest."""
    total = blake2b(digest_size=8)
    for recording in (result.recording, result.recording.peer):
        for line in lines(recording) if recording is not None else ():
            total.update(line.encode("utf-8"))
            total.update(b"\n")
    total.update(repr(tuple(result.verdict)).encode("utf-8"))
    return total.hexdigest()


def broken(verdict: Verdict) -> str:
    """The invariant of a verdict, or a word for what has no number."""
    if verdict.invariant:
        return verdict.invariant
    return "livelock" if verdict.kind == "fail" else "unfinished"


def role_of(verdict: Verdict, pp_size: int, result: SimulationResult) -> str:
    """Whether the first, the last or a middle stage is named."""
    if verdict.rank is None:
        return ""
    stage = verdict.rank // result.setting.scenario.cluster.tp_replicas
    if stage == 0:
        return "first"
    return "last" if stage == pp_size - 1 else "middle"
