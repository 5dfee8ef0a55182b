"""``ppsim.fuzz``, ``explore`` and ``experiments``: a policy against generated experiments, or against all of them.

Nothing is written: a finding is an object, and ``save`` makes the file that ``ppsim replay`` runs.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import get_start_method
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.api.policies import Changes, PolicyLike, changes_of
from ppsim.api.run import Run
from ppsim.api.simulation import ScenarioLike, load, simulated
from ppsim.errors import UsageError
from ppsim.fuzz.campaign import CampaignResult, Finding, run_campaign
from ppsim.fuzz.coverage_probes import PROBES
from ppsim.fuzz.emit import regression_test
from ppsim.fuzz.experiment import Experiment, Terms, is_valid
from ppsim.fuzz.explore import Exploration, chosen, parse_bounds
from ppsim.fuzz.explore import explore as run_all
from ppsim.fuzz.generate import strategy
from ppsim.fuzz.limit import MAX_EXAMPLE_S
from ppsim.fuzz.profiles import profile_named, profile_of_bugs
from ppsim.fuzz.repro import save
from ppsim.fuzz.round import ROUND, Order
from ppsim.scenario.check import check_scenario
from ppsim.scenario.expect_judged import without_expect
from ppsim.scenario.load import validate

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

NUM_EXAMPLES = 1000  # where neither a number nor a time is given


@dataclass(frozen=True, slots=True)
class Found:
    """A failure, shrunk. ``finding`` has all of it (``ppsim.fuzz.campaign``)."""

    finding: Finding
    change: Changes

    @property
    def rule(self) -> str:
        """The invariant that broke (``ppsim list invariants``), or a word: livelock, crash-KeyError, no-end, ..."""
        return self.finding.repro.signature.invariant

    @property
    def message(self) -> str:
        """What broke, and where."""
        return self.finding.outcome.verdict.message

    @property
    def experiment(self) -> Experiment:
        """The smallest experiment that was found to fail so: a scenario and the tape of its choices."""
        return self.finding.repro.experiment

    @property
    def size(self) -> dict[str, int]:
        """What is left of it after shrinking: requests, faults, pp_size, choices."""
        return self.experiment.size()

    def run(self) -> Run:
        """The failure again, with its tables and pictures. A policy that raises does so here: PluginError."""
        scenario = validate(self.experiment.raw)
        check_scenario(scenario)
        made = self.change.loaded(scenario.bugs)
        result = simulated(scenario, made, self.experiment.chooser.choices(self.experiment.tape))
        return Run(result.recording, result.verdict, scenario, unfired=made.unfired())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file that ``ppsim replay`` runs. Raises UsageError for a policy that no file can name."""
        self._check_file()
        target = Path(path)
        try:
            save(target, self.finding.repro)
        except OSError as error:
            raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from None
        return target

    def regression_test(self, name: str) -> str:
        """Source of a pytest that keeps the failure from coming back. Raises UsageError as ``save`` does."""
        self._check_file()
        return regression_test(self.finding.repro, name)

    def _check_file(self) -> None:
        if self.change.policies:
            names = ", ".join(policy.__name__ for policy in self.change.policies)
            raise UsageError(
                f"policy {names}: was given as a class, which a saved failure cannot name; write it as class Policy "
                "into a file of its own and give policy='that_file.py' (docs/plugins.md)"
            )


@dataclass(frozen=True, slots=True)
class Campaign:
    """The end of a campaign. ``result`` has all of it (``ppsim.fuzz.campaign``)."""

    result: CampaignResult
    findings: list[Found]

    @property
    def verdict(self) -> str:
        """fail: something was found; pass: nothing in ``num_examples``; unknown: nothing was run."""
        return "fail" if self.findings else "pass" if self.result.num_examples else "unknown"

    @property
    def num_examples(self) -> int:
        return self.result.num_examples

    @property
    def never_reached(self) -> list[str]:
        """Situations of ``ppsim list probes`` that no example came to: nothing is said about them."""
        return [name for name in PROBES if not self.result.probes[name]]

    @property
    def unfired(self) -> list[str]:
        """Bugs and policies that were on and that no example asked: that nothing was found says nothing of them."""
        return self.result.unfired()

    def __repr__(self) -> str:
        order = self.result.order
        rules = f", {', '.join(found.rule for found in self.findings)}" if self.findings else ""
        rules += "".join(f", {name} fired 0 times" for name in self.unfired)
        return f"<Campaign {order.profile}, seed {order.seed}: {self.verdict}{rules}, {self.num_examples} examples>"


def fuzz(
    policy: PolicyLike = None,
    *,
    budget_s: float | None = None,
    num_examples: int | None = None,
    profile: str | None = None,
    seed: int = 0,
    bugs: Iterable[str] = (),
    num_jobs: int = 1,
    max_s: float = MAX_EXAMPLE_S,
    skip: int = 0,
) -> Campaign:
    """Generated experiments against a policy until something breaks, as ``ppsim fuzz``. What fails is shrunk.

    ``budget_s``: seconds on your clock; ``num_examples``: instead of a time, default 1000. ``profile``: which features
    may be used (``ppsim list profiles``). ``bugs``: planted bugs by name. ``num_jobs``: processes. ``max_s``: an
    example that takes longer has no end, which is a finding (in the main thread only: others have no alarms).
    ``skip``: go on behind so many examples, in whole hundreds.

    With ``num_examples`` the answer is a function of the arguments. Raises UsageError for what is unknown or
    contradicts itself.
    """
    if num_examples is not None and budget_s is not None:
        raise UsageError("num_examples and budget_s exclude each other: give one of them")
    for name, value, least in (("num_examples", num_examples, 1), ("num_jobs", num_jobs, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise UsageError(f"{name} {value}: must be at least {least}")
    for name, seconds in (("budget_s", budget_s), ("max_s", max_s)):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UsageError(f"{name} {seconds:g}: must be a number of seconds more than 0")
    if skip < 0 or skip % ROUND:
        raise UsageError(f"skip {skip}: examples come in rounds of {ROUND}; give a multiple of it")
    if profile is not None:
        profile_named(profile)
    change = changes_of(policy, bugs)
    chosen_profile = profile_of_bugs(profile, [(b.name, b.profile) for b in change.planted()])
    order = Order(
        chosen_profile,
        seed,
        NUM_EXAMPLES if num_examples is None and budget_s is None else num_examples,
        budget_s,
        change.bugs,
        change.plugin,
        Terms(max_s),
        skip,
        change.policies,
    )
    if num_jobs > 1 and get_start_method() != "fork":
        check_can_travel(order)
    result = run_campaign(order, num_jobs=num_jobs)
    if result.is_cut and not result.findings:
        raise KeyboardInterrupt
    return Campaign(result, [Found(finding, change) for finding in result.findings])


def check_can_travel(order: Order) -> None:
    """Raises UsageError for policies that another process could not be given."""
    try:
        pickle.dumps(order)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(f"num_jobs: the policy cannot be given to other processes ({error}); use a file") from None


def explore(
    scenario: ScenarioLike,
    /,
    *,
    bounds: str | Sequence[str] = (),
    policy: PolicyLike = None,
    unreduced: bool = False,
    budget_s: float | None = None,
    **keys: Any,
) -> Exploration:
    """Every execution of a small scenario within bounds: a proof, if it is ``complete`` and has no ``findings``.

    ``scenario`` and ``keys`` as for ``load``; it needs scripted requests. ``bounds`` as for ``ppsim explore --bound``:
    "aborts=20", "delays=transfer:3", "failures=bootstrap:4", "executions=50000"; without any some are chosen, and
    ``bounds`` of the answer has them. ``sentence()`` says what exactly was bounded. ``unreduced``: every order of equal
    events, too. Raises UsageError or ScenarioError.
    """
    loaded = without_expect(load(scenario, **keys))
    if loaded.workload.source != "requests":
        raise UsageError(f"{loaded.name}: explore needs scripted requests (workload.source = 'requests')")
    if budget_s is not None and not 0 < budget_s < float("inf"):
        raise UsageError(f"budget_s {budget_s:g}: must be a number of seconds more than 0")
    made = changes_of(policy).loaded(loaded.bugs)
    changed = made.change
    raw = loaded.model_dump(mode="json", exclude_unset=True)
    raw.pop("bugs", None)
    given = parse_bounds([bounds] if isinstance(bounds, str) else list(bounds), reduced=not unreduced)
    found = run_all(raw, chosen(raw, given, changed), changed, budget_s=budget_s)
    if found.is_cut and not found.findings:
        raise KeyboardInterrupt
    found.unfired = made.unfired()
    return found


def experiments(profile: str = "all") -> SearchStrategy[Experiment]:
    """A Hypothesis strategy of whole experiments, for ``@given`` in one's own tests; ``simulate`` runs one.

    ``profile``: which features may be used (``ppsim list profiles``). Raises UsageError for an unknown one.
    """
    return strategy(profile_named(profile)).filter(is_valid)
