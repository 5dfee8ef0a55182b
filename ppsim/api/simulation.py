"""``ppsim.load`` and ``ppsim.simulate``: a scenario with keys, and one run of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ppsim.api.keys import pairs_of, plain
from ppsim.api.policies import PolicyLike, changes_of
from ppsim.api.run import Run
from ppsim.errors import PpsimError, UsageError
from ppsim.fuzz.experiment import Experiment
from ppsim.plugin import Loaded
from ppsim.scenario.expect_judged import with_change
from ppsim.scenario.load import read_scenario, scenario_with
from ppsim.scenario.tree import Scenario
from ppsim.sglang.result import LaunchLine
from ppsim.world.choices import Choices
from ppsim.world.crash import crash_in
from ppsim.world.run_setting import Setting
from ppsim.world.simulate import simulate as simulate_world

if TYPE_CHECKING:
    from ppsim.world.simulate import SimulationResult

ScenarioLike: TypeAlias = "str | os.PathLike[str] | Scenario | Mapping[str, Any] | LaunchLine"
"""A name of ``ppsim list scenarios``, the path of a TOML file, a Scenario, its content as dictionaries, or a server of
``ppsim.read_launch``."""


def load(scenario: ScenarioLike, /, **keys: Any) -> Scenario:
    """A validated scenario with keys changed.

    Keys are whole dotted names (``**{"cluster.pp_size": 8}``) or short ones where only one key ends so (``pp_size=8``);
    values are as in TOML, tuples and numpy's numbers may stand for lists and numbers. Raises ScenarioError for an
    unknown or ambiguous key (it lists the candidates) and an impossible value, UsageError for a file that cannot be
    read.
    """
    pairs = pairs_of(keys)
    match scenario:
        case Scenario():
            raw = scenario.model_dump(mode="json", exclude_unset=True)
        case LaunchLine():
            raw, pairs = {"name": "launch"}, [*keys_of_line(scenario, dict(pairs)), *pairs]
        case Mapping():
            raw = plain("scenario", scenario)
        case str() | os.PathLike():
            raw = read_scenario(os.fspath(scenario))
        case _:
            raise UsageError(
                f"scenario: expected a name, a path, a Scenario, a dictionary or a launch line, got {scenario!r}"
            )
    return scenario_with(raw, pairs)


def keys_of_line(line: LaunchLine, keys: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What a launch line says, as keys. A GPU among ``keys`` brings times from first principles, as ``--gpu`` does."""
    from ppsim.sglang.settle import settled_line

    gpu = keys.get("gpu.key")
    return list(settled_line(line, gpu if isinstance(gpu, str) else None)["overrides"].items())


def simulate(
    scenario: ScenarioLike | Experiment, /, *, policy: PolicyLike = None, fast: bool | None = None, **keys: Any
) -> Run:
    """One run of a scenario in simulation, to its end. Same scenario, seed and policy: the same run.

    ``scenario`` and ``keys`` as for ``load``; an experiment of ``ppsim.experiments`` runs with the choices it has.
    ``policy``: a subclass of ``ppsim.Policy`` (each rank makes its own), several, or a plug-in file.
    ``fast``: one rank stands for all, to the same bytes (docs/fast.md). None: where it can; False: never; True: or
    ScenarioError says why it cannot.

    A failure of the protocol is no exception but the run's ``verdict``. Raises ScenarioError, TraceError or UsageError
    for bad input, PluginError for a policy that raises (the exception is its cause).
    """
    change = changes_of(policy)
    choices: Choices | None = None
    if isinstance(scenario, Experiment):
        choices = scenario.chooser.choices(scenario.tape)
        scenario = scenario.raw
    loaded = load(scenario, **keys)
    made = change.loaded(loaded.bugs)
    result = simulated(loaded, made, choices, fast=fast)
    for side in (result.recording, result.recording.peer):
        if side is not None:
            side.origin = change.origin()
    if not change.is_none:
        loaded = with_change(loaded, "the policy")
    return Run(result.recording, result.verdict, loaded, unfired=made.unfired())


def simulated(
    scenario: Scenario, made: Loaded, choices: Choices | None = None, *, fast: bool | None = False
) -> SimulationResult:
    """The world's run; what a changed scheduler raises is its own failure: PluginError."""
    begun: list[Setting] = []
    try:
        return simulate_world(scenario, change=made.change, choices=choices, began=begun.append, fast=fast)
    except PpsimError:
        raise
    except (Exception, SystemExit) as error:
        if not made.names:
            raise
        raise crash_in(scenario.name, begun[0] if begun else None, error) from error
