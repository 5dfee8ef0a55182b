"""``ppsim.sweep``: a scenario, or several, at many values of their keys, as one table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.api.frames import load_pandas
from ppsim.api.keys import full_key, pairs_of, plain
from ppsim.api.policies import PolicyLike, changes_of
from ppsim.api.run import DRAWING, Drawing
from ppsim.api.simulation import ScenarioLike, load
from ppsim.errors import UsageError
from ppsim.sweeps.folder import SweepFolder
from ppsim.sweeps.one import PASS
from ppsim.sweeps.order import content_digest, prepared
from ppsim.sweeps.points import SCENARIO, Keys, points_of
from ppsim.sweeps.sweep import Runner, Sweep, changed_ranks, num_cpus, refusing, run_sweep
from ppsim.sweeps.table import table_of

if TYPE_CHECKING:
    import pandas as pd

    from ppsim.scenario.tree import Scenario


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep that has ended. ``sweep`` has all of it (``ppsim.sweeps``); ``changed``: points of ``out`` that were run
    again, because what they depend on has changed since."""

    sweep: Sweep
    changed: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every point passed."""
        return all(result is not None and result.outcome == PASS for result in self.sweep.results)

    @property
    def columns(self) -> dict[str, list[Any]]:
        """Column -> values, a value a point: the table without pandas."""
        return table_of(self.sweep.order.points, self.sweep.results, self.sweep.order.keys)

    def table(self) -> pd.DataFrame:
        """A row a point, in the order of the points: ``point``, ``scenario``, the keys, ``outcome`` (pass, fail,
        unknown, refused, crash, stopped, died), ``exit_code``, ``rule``, ``digest``, the figures of a run that passed
        by the names of [expect.figures], ``message``. Units stand last in a column's name."""
        made: pd.DataFrame = load_pandas().DataFrame(self.columns)
        return made

    def plot(self, x: str | None = None, y: str | Sequence[str] = (), format: str = "png") -> Drawing:
        """Figures (``y``: columns of the table) over a key (``x``). Raises UsageError for what cannot be drawn."""
        from ppsim.report.sweep import chart_of, plot_sweep, title_of

        columns, keys = self.columns, self.sweep.order.keys
        axis = x if x is None or x in ("scenario", *keys) else full_key(x)
        chart = chart_of(columns, keys, axis, (y,) if isinstance(y, str) else tuple(y))
        title = title_of(list(dict.fromkeys(columns["scenario"])), len(columns["point"]), chart)
        with DRAWING:
            return Drawing(plot_sweep(columns, keys, Path(f"sweep.{format}"), title, chart), format.lower())

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for result in self.sweep.results:
            name = "pending" if result is None else result.outcome
            counts[name] = counts.get(name, 0) + 1
        return f"<Swept {', '.join(f'{count} {name}' for name, count in counts.items())}>"


def sweep(
    scenario: ScenarioLike | Sequence[ScenarioLike],
    grid: Mapping[str, Sequence[Any]] | None = None,
    /,
    *,
    points: Sequence[Mapping[str, Any]] = (),
    policy: PolicyLike = None,
    num_jobs: int | None = None,
    ray: str | None = None,
    max_s: float = 3600.0,
    out: str | os.PathLike[str] | None = None,
    fast: bool | None = None,
    **keys: Any,
) -> Swept:
    """Run every combination of ``grid``, as ``ppsim sweep``: key -> values. Returns a table; no point raises.

    ``scenario``: as for ``load``, or a list of them. ``points``: a list of keys instead of, or beside, the grid. Keys
    may be short, as for ``load``; ``keys`` are alike in all points. ``num_jobs``: processes, None: as many as CPUs, 0:
    none, all points here. ``ray``: the address of a cluster instead. ``max_s``: seconds of a point on your clock.
    ``out``: a folder that keeps every finished point; those that it has are not run again. ``fast``: as for
    ``simulate``; True refuses the points that one rank cannot stand for.

    The table is a function of the arguments, whatever ``num_jobs``. Raises UsageError or ScenarioError where none of
    the points could be run, KeyboardInterrupt at Ctrl-C (``out`` keeps what is finished).
    """
    if num_jobs is not None and (num_jobs < 0 or ray is not None):
        raise UsageError(f"num_jobs {num_jobs}: must be 0 or more, and not beside ray")
    if not 0 < max_s < float("inf"):
        raise UsageError(f"max_s {max_s:g}: must be a number of seconds more than 0")
    named = scenarios_of(scenario)
    change = changes_of(policy)
    fixed = pairs_of(keys)
    axes = {full_key(key): [plain(key, value) for value in values] for key, values in (grid or {}).items()}
    listed = [{k if k == SCENARIO else full_key(k): plain(k, v) for k, v in row.items()} for row in points]

    def one(name: str, given: Keys) -> Scenario:
        return load(named.get(name, name), **dict(fixed), **dict(given))

    digest = content_digest(Path(change.plugin)) if change.plugin is not None else ""
    changed_by = json.dumps([[cls.__qualname__ for cls in change.policies], digest, *refusing(fast)])
    if change.policies and out is not None:
        raise UsageError("policy: what a class does cannot be kept beside out; write it into a file and give that")
    order = prepared(points_of(list(named), axes, listed), one, changed_by)
    runner = Runner(changed_ranks(change.plugin, change.policies), max_s, fast=fast)
    folder = None if out is None else SweepFolder(order.points[0].scenario, os.fspath(out))
    wanted = num_cpus() if num_jobs is None else num_jobs
    done = run_sweep(order, runner, num_jobs=min(wanted, len(order.points)), ray_address=ray, folder=folder)
    if folder is not None:
        folder.close(order.points)
    if done.is_cut:
        raise KeyboardInterrupt
    return Swept(done, () if folder is None else tuple(folder.changed))


def scenarios_of(given: ScenarioLike | Sequence[ScenarioLike]) -> dict[str, ScenarioLike]:
    """Name -> scenario. Raises UsageError for two of one name."""
    several: Sequence[ScenarioLike]
    if isinstance(given, str | os.PathLike | Mapping) or not isinstance(given, Sequence):
        several = [given]
    else:
        several = given
    found: dict[str, ScenarioLike] = {}
    for one in several:
        name = os.fspath(one) if isinstance(one, str | os.PathLike) else load(one).name
        if name in found:
            raise UsageError(f"scenario: two of them are called {name!r}; give each a name of its own")
        found[name] = one
    return found
