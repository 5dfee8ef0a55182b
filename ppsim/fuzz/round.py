"""One round of a campaign: so many generated experiments, each run and checked, in whatever process.

A round is a function of (profile, seed, round number) only; so is its digest. It ends at its first failure.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from ppsim.core.digest import digest
from ppsim.core.parts import Change
from ppsim.errors import EXIT_NONDETERMINISM, ScenarioError, UsageError
from ppsim.fuzz.coverage_probes import hits
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
from ppsim.fuzz.profiles import Profile, profile_named
from ppsim.plugin import Loaded, load
from ppsim.recording.diff import first_difference
from ppsim.world.collector import seldom_collected

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


def run_round(order: Order, number: int, num_examples: int, deadline: float | None = None) -> RoundResult:
    """Generate and run the examples of one round; stops at its first failure, or after ``deadline`` (monotonic)."""
    result = RoundResult(number)
    profile: Profile = profile_named(order.profile)
    made = order.loaded()
    digests: list[str] = []

    try:
        with seldom_collected():  # what an example leaves is given back some examples later
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
