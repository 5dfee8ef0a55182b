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

from ppsim.core.digest import digest
from ppsim.core.parts import Change
from ppsim.errors import EXIT_SAFETY, UsageError
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
from ppsim.fuzz.repro import Repro
from ppsim.fuzz.round import ROUND, Order, RoundResult, differ, nondeterministic, round_sizes, run_round
from ppsim.fuzz.shrink import Shrinker
from ppsim.fuzz.workers import WorkerDied, in_processes
from ppsim.recording import Verdict


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
