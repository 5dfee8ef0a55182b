"""A campaign: many generated experiments, each checked, some run twice; the first failure is shrunk and saved.

Examples come in rounds of ``ROUND``. A round is a function of (profile, seed, round number) only, so rounds can run in
any process, and the digest of a campaign is that of its rounds in order: the same on every machine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from ppsim.core.digest import digest
from ppsim.core.parts import Change
from ppsim.errors import EXIT_NONDETERMINISM, EXIT_SAFETY, ScenarioError, UsageError
from ppsim.fuzz.cluster import ray_rounds
from ppsim.fuzz.database import ExampleDatabase
from ppsim.fuzz.experiment import (
    NO_END,
    USUAL,
    Experiment,
    Outcome,
    Signature,
    Terms,
    run_experiment,
)
from ppsim.fuzz.generate import generated
from ppsim.fuzz.probes import hits
from ppsim.fuzz.profiles import Profile, profile_named
from ppsim.fuzz.repro import Repro
from ppsim.fuzz.shrink import Shrinker
from ppsim.fuzz.workers import WorkerDied, in_processes
from ppsim.plugin import Loaded, load
from ppsim.recording import Verdict
from ppsim.recording.diff import first_difference

ROUND = 100
TWICE_EVERY = 20  # one example in so many is run a second time
REPORTS_EVERY = 50  # of one in so many everything that it leaves is written, read back and shown


@dataclass(frozen=True, slots=True)
class Order:
    """What a campaign is asked to do. ``max_examples`` or ``budget_s`` ends it, whichever is given.

    ``num_skipped``: whole rounds of examples that another campaign with this seed has run already.
    """

    profile: str
    seed: int
    max_examples: int | None = None
    budget_s: float | None = None
    bugs: tuple[str, ...] = ()
    plugin: str | None = None
    terms: Terms = USUAL
    num_skipped: int = 0
    policies: tuple[type, ...] = ()  # classes of the caller's own process, which no file can name

    def loaded(self) -> Loaded:
        """The change, read anew: each process that runs examples has one of its own."""
        return load(self.bugs, self.plugin, self.policies)


@dataclass(slots=True)
class RoundResult:
    """What one round found."""

    number: int
    num_examples: int = 0
    digest: str = ""
    probes: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    failing: Experiment | None = None
    signature: Signature | None = None
    twice: int = 0
    endless: Outcome | None = None  # of the failing example, where running it again would take as long
    is_cut: bool = False  # the user interrupted it
    fired: Counter[str] = field(default_factory=Counter)  # how often each change was asked
    refused: str = ""  # why the change cannot be built


@dataclass(slots=True)
class Finding:
    """A failure, shrunk."""

    repro: Repro
    outcome: Outcome
    original: Experiment
    shrink_runs: int
    example: int
    seconds: float
    is_cut: bool = False  # the user interrupted the shrinking: it is as it was found


@dataclass(slots=True)
class CampaignResult:
    """The end of a campaign."""

    order: Order
    num_examples: int
    seconds: float
    digest: str
    probes: Counter[str]
    pairs: Counter[str]
    findings: list[Finding]
    twice: int
    num_rounds: int = 0  # whole ones, those that were skipped too
    is_cut: bool = False  # the user interrupted it
    names: tuple[str, ...] = ()  # of the bugs and policies that were on
    fired: Counter[str] = field(default_factory=Counter)  # how often each was asked, in all processes

    def unfired(self) -> list[str]:
        """Bugs and policies that no example has asked; of a campaign that has run something."""
        return [name for name in self.names if not self.fired[name]] if self.num_examples else []


def run_round(order: Order, number: int, num_examples: int, deadline: float | None = None) -> RoundResult:
    """Generate and run the examples of one round; stops at its first failure, or after ``deadline`` (monotonic)."""
    result = RoundResult(number)
    profile: Profile = profile_named(order.profile)
    made = order.loaded()
    digests: list[str] = []

    try:
        for index in range(num_examples):
            if deadline is not None and time.monotonic() > deadline:
                break
            experiment = generated(profile, order.seed, number, index)
            try:
                outcome = examine(experiment, made.change, result, order.terms)
            except UsageError as error:
                result.refused = str(error)
                break
            if outcome is None:
                continue
            digests.append(outcome.digest)
            if outcome.signature is not None:
                result.failing = experiment
                result.signature = outcome.signature
                result.endless = outcome if outcome.signature.invariant == NO_END else None
                break
    except KeyboardInterrupt:
        result.is_cut = True
    result.digest = digest(number, tuple(digests))
    result.fired = made.fired
    return result


def examine(experiment: Experiment, change: Change, result: RoundResult, terms: Terms = USUAL) -> Outcome | None:
    """Run one example, count what it reached; one in twenty is run twice. None for an impossible scenario."""
    shown = (result.num_examples + 1) % REPORTS_EVERY == 0
    try:
        outcome = run_experiment(experiment, change, terms=terms if shown else replace(terms, reports=None))
    except ScenarioError:
        return None
    result.num_examples += 1
    if outcome.result is not None:
        reached, pairs = hits(outcome)
        result.probes.update(reached)
        result.pairs.update(pairs)
    if outcome.signature is None and result.num_examples % TWICE_EVERY == 0:
        result.twice += 1
        again = run_experiment(experiment, change, terms=replace(terms, reports=None))
        if differ(outcome, again):
            return nondeterministic(outcome, again)
    return outcome


def differ(one: Outcome, other: Outcome) -> bool:
    """Whether two runs of the same experiment are not the same run."""
    return (one.digest, one.tape, one.signature) != (other.digest, other.tape, other.signature)


def nondeterministic(one: Outcome, other: Outcome) -> Outcome:
    """The finding that two runs of an experiment differ: a change, or the core, looks at what is no part of it."""
    ends = [outcome.verdict.message or f"it passes, with digest {outcome.digest}" for outcome in (one, other)]
    text = (
        "nondeterminism: two runs of the same experiment differ; a change reads a clock, draws a random number, keeps "
        f"state between runs, or walks over a set\n  one run:     {ends[0]}\n  another run: {ends[1]}"
        f"\n  first difference: {where_they_part(one, other)}"
    )
    verdict = one.verdict._replace(kind="fail", exit_code=EXIT_NONDETERMINISM, message=text, invariant=None)
    return replace(one, verdict=verdict, signature=Signature("nondeterminism", ""))


def where_they_part(one: Outcome, other: Outcome) -> str:
    """The first record in which two runs differ, in logical time."""
    if one.result is None or other.result is None:
        return "one of them crashes" if one.result is not other.result else "both crash, in different places"
    pairs = [(one.result.recording, other.result.recording)]
    if pairs[0][0].peer is not None and pairs[0][1].peer is not None:
        pairs.append((pairs[0][0].peer, pairs[0][1].peer))
    for left, right in pairs:
        found = first_difference(left, right, times=True)
        if found is not None:
            values = f"{found.left!r} in one, {found.right!r} in the other"
            return f"{found.kind} of {found.place()}, {found.field or 'the record'}: {values}"
    return "no record, only the end"


def round_sizes(order: Order) -> Iterator[tuple[int, int]]:
    """(number, examples) of each round, endless where only time ends the campaign."""
    first = order.num_skipped // ROUND
    if order.max_examples is None:
        yield from ((number, ROUND) for number in count(first))
        return
    left, number = order.max_examples, first
    while left > 0:
        yield number, min(ROUND, left)
        left, number = left - ROUND, number + 1


def run_campaign(
    order: Order,
    *,
    num_jobs: int = 1,
    ray_address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    shrink: bool = True,
    database: ExampleDatabase | None = None,
) -> CampaignResult:
    """What failed before comes first; then rounds until the examples or the time are used up, or a failure is found.

    Raises UsageError for a change that cannot be built.
    """
    started = time.monotonic()
    deadline = None if order.budget_s is None else started + order.budget_s
    total = CampaignResult(order, 0, 0.0, "", Counter(), Counter(), [], 0, names=order.loaded().names)
    digests: list[str] = []
    again = None if database is None else still_failing(order, database)
    if again is not None:
        failed, is_small = again
        total.findings.append(finding(order, failed, 0, time.monotonic() - started, shrink and not is_small))
    results: Iterator[RoundResult] = (
        iter(())
        if again is not None
        else (
            ray_rounds(order, round_sizes(order), ray_address, order.budget_s)
            if ray_address is not None
            else rounds(order, num_jobs, deadline)
        )
    )
    total.num_rounds = order.num_skipped // ROUND
    try:
        for result in results:
            if result.refused:
                raise UsageError(result.refused)
            take(total, digests, result)
            if progress is not None:
                progress(total.num_examples, order.max_examples or 0)
            if result.failing is not None and result.signature is not None:
                found_after = time.monotonic() - started
                total.findings.append(finding(order, result, total.num_examples, found_after, shrink))
                if database is not None:
                    database.keep(total.findings[-1].original, is_small=False)
                    database.keep(total.findings[-1].repro.experiment, is_small=True)
                break
            if result.is_cut or (deadline is not None and time.monotonic() > deadline):
                break
    except KeyboardInterrupt:  # in a process of its own, or between two rounds
        total.is_cut = True
    total.seconds = time.monotonic() - started
    total.digest = digest(order.profile, order.seed, tuple(digests))
    return total


def take(total: CampaignResult, digests: list[str], result: RoundResult) -> None:
    """Count what a round has found."""
    total.probes.update(result.probes)
    total.pairs.update(result.pairs)
    total.fired.update(result.fired)
    total.twice += result.twice
    total.num_examples += result.num_examples
    total.num_rounds += not result.is_cut
    total.is_cut |= result.is_cut
    digests.append(result.digest)


def still_failing(order: Order, database: ExampleDatabase) -> tuple[RoundResult, bool] | None:
    """The first kept example that still fails, and whether it is small; those before it pass now and are dropped."""
    change = order.loaded().change
    for kept in database.failing():
        outcome = run_experiment(kept.experiment, change, terms=order.terms)
        if outcome.signature is not None:
            endless = outcome if outcome.signature.invariant == NO_END else None
            failed = RoundResult(-1, failing=kept.experiment, signature=outcome.signature, endless=endless)
            return failed, kept.is_small
        database.drop(kept)
    return None


def rounds(order: Order, num_jobs: int, deadline: float | None) -> Iterator[RoundResult]:
    """Results of the rounds, in order."""
    sizes = round_sizes(order)
    if num_jobs == 1:
        for number, size in sizes:
            yield run_round(order, number, size, deadline)
        return
    run = partial(one_round, order, deadline)
    try:
        for result in in_processes(run, sizes, num_jobs):
            yield result
            if result.failing is not None or result.refused or (deadline is not None and time.monotonic() > deadline):
                return
    except WorkerDied as died:
        hint = f"that round alone is --seed {order.seed} --skip {died.number * ROUND} --examples {ROUND} --jobs 1"
        raise WorkerDied(died.number, died.ended_with, hint) from None


def one_round(order: Order, deadline: float | None, number: int, size: int) -> RoundResult:
    """``run_round``, for a process that is told the number last."""
    return run_round(order, number, size, deadline)


def finding(order: Order, result: RoundResult, example: int, seconds: float, shrink: bool) -> Finding:
    """Shrink the failing experiment and run the smallest form again; what does not come back is nondeterminism."""
    assert result.failing is not None
    assert result.signature is not None
    if result.endless is not None:
        return endless_finding(order, result.failing, result.endless, example, seconds)
    change, terms = order.loaded().change, terms_of(result.signature, order.terms)
    shrinker = Shrinker(result.signature, change, terms=terms)
    smallest, outcome, stable = result.failing, *run_twice(result.failing, change, terms)
    before, is_cut = Experiment(smallest.raw, outcome.tape), False
    if stable and shrink and result.signature.is_like(outcome.signature):
        try:
            smallest = shrinker.shrink(result.failing)
        except KeyboardInterrupt:  # what is found is not lost
            is_cut = True
        outcome, stable = run_twice(smallest, change, terms)
    if stable and not shrinker.signature.is_like(outcome.signature):  # it has happened once, and not again
        other = Outcome(Verdict("fail", EXIT_SAFETY, f"{result.signature.invariant} is broken"), "", None, ())
        outcome = nondeterministic(outcome, other)
    if smallest.chooser.kind != "tape":
        smallest = Experiment(smallest.raw, outcome.tape)
    signature = outcome.signature or result.signature
    repro = Repro(smallest, signature, outcome.digest, outcome.verdict.iteration, order.bugs, order.plugin)
    return Finding(repro, outcome, before, shrinker.runs, example, seconds, is_cut)


def endless_finding(order: Order, experiment: Experiment, outcome: Outcome, example: int, seconds: float) -> Finding:
    """A run without end, as it is: to shrink it, or to run it twice, would take its whole limit each time."""
    assert outcome.signature is not None
    before = Experiment(experiment.raw, outcome.tape)
    repro = Repro(before, outcome.signature, outcome.digest, outcome.verdict.iteration, order.bugs, order.plugin)
    return Finding(repro, outcome, before, 0, example, seconds)


def terms_of(signature: Signature, terms: Terms) -> Terms:
    """The terms under which a failure shows again: reports are made only where one of them failed."""
    return terms if signature.invariant.startswith("report-") else replace(terms, reports=None)


def run_twice(experiment: Experiment, change: Change, terms: Terms = USUAL) -> tuple[Outcome, bool]:
    """The outcome of an experiment, and whether a second run is the same."""
    one, other = (run_experiment(experiment, change, terms=terms) for _ in range(2))
    return (nondeterministic(one, other), False) if differ(one, other) else (one, True)
