"""Plans: the best configuration, three ways to use the same GPUs, and a prompt in chunks; each with its table."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.api.frames import load_pandas
from ppsim.api.run import DRAWING
from ppsim.api.simulation import ScenarioLike, load
from ppsim.cost.chunk_report import PLANNERS, ChunkQuestion, ChunkReport, chunk_report
from ppsim.errors import ScenarioError, UsageError
from ppsim.plan.compare import Comparison, Question, Standing
from ppsim.plan.compare import compare as compare_ways
from ppsim.plan.trial_load import NUM_REQUESTS
from ppsim.plan.tune import Wish, tuned_scenario
from ppsim.plan.tune import tune as search
from ppsim.plan.tuning import Tuning
from ppsim.scenario.expect_judged import without_expect
from ppsim.scenario.tree import Scenario

if TYPE_CHECKING:
    import pandas as pd


# --- tune ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search found. ``tuning`` has all of it (``ppsim.plan.tuning``): path, sensitivity, contests, notes."""

    scenario: Scenario
    tuning: Tuning

    @property
    def best(self) -> dict[str, Any]:
        """The best row of the table, as ``ppsim tune --json`` has it."""
        return self.tuning.best.to_dict()

    @property
    def launch_line(self) -> str | None:
        """SGLang's command for the best; None where nothing is recommended (``assumed`` says why)."""
        return None if self.tuning.assumed else self.tuning.judged[0].launch_line

    @property
    def assumed(self) -> str:
        """What nobody gave and the figures stand on; empty if nothing."""
        return self.tuning.assumed

    @property
    def notes(self) -> list[str]:
        """What the figures rest on and leave out, as sentences."""
        return list(self.tuning.notes)

    def best_scenario(self) -> Scenario:
        """The scenario in the best configuration, ready for ``ppsim.simulate``."""
        winner = self.tuning.best.candidate
        assert winner is not None  # a search without a feasible split raises
        return tuned_scenario(self.scenario, winner)

    def table(self) -> pd.DataFrame:
        """A row a configuration, the best first, splits that cannot run last with ``why_not``.

        The knobs, then ``ttft_s``, ``input_tokens_per_s``, ``bubble_ratio``, ``feasible`` and ``why_not``.
        """
        rows = [row.to_dict() for row in self.tuning.table]
        flat = [{**row.pop("config"), **row} for row in rows]
        made: pd.DataFrame = load_pandas().DataFrame(flat)
        return made

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the figures over pairs of knobs to a .png, .svg or .pdf. Raises UsageError."""
        from ppsim.report.heatmap import plot_heat_maps

        target = Path(path)
        with DRAWING:
            plot_heat_maps(self.tuning.maps, f"{self.scenario.name}: {self.tuning.probe.describe()}", target)
        return target


def tune(
    scenario: ScenarioLike,
    /,
    *,
    objective: str | None = None,
    num_gpus: int | None = None,
    at_rate_per_s: float | None = None,
    prompt_tokens: int | None = None,
    num_prompts: int = NUM_REQUESTS,
    max_cp_size: int = 0,
    fast: bool | None = None,
    **keys: Any,
) -> Tuned:
    """The best split, chunk, smooth factor, depth and layers, as ``ppsim tune`` finds them.

    ``scenario`` and ``keys`` as for ``load``. ``objective``: ttft, throughput, or ttft_at_rate, which needs
    ``at_rate_per_s`` or a rate of the workload. ``num_gpus``: None, as many as the scenario has. ``prompt_tokens``
    replaces the workload's lengths; ``num_prompts`` of throughput and ttft_at_rate. ``max_cp_size`` 0: any.
    ``fast``: as for ``simulate``, of the runs of the best. Raises UsageError or ScenarioError for what cannot be,
    PpsimError if a run of the best fails.
    """
    if at_rate_per_s is not None and objective not in (None, "ttft_at_rate"):
        raise UsageError(f"at_rate_per_s: belongs to objective 'ttft_at_rate', not to {objective!r}")
    if max_cp_size < 0:
        raise UsageError(f"max_cp_size {max_cp_size}: expected 0 (any) or more")
    aim = objective or ("ttft" if at_rate_per_s is None else "ttft_at_rate")
    loaded = without_expect(load(scenario, **keys))
    wish = Wish(aim, num_gpus, at_rate_per_s, prompt_tokens, num_prompts, max_cp_size, fast)
    return Tuned(loaded, search(loaded, wish))


# --- compare -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
    """Pipeline, tensor and context parallelism with the same GPUs. ``comparison`` has all of it."""

    comparison: Comparison

    @property
    def notes(self) -> list[str]:
        """What the figures rest on, as sentences."""
        return list(self.comparison.notes)

    @property
    def cannot_run(self) -> dict[str, str]:
        """way -> why it is not in the table."""
        return dict(self.comparison.cannot_run)

    def table(self) -> pd.DataFrame:
        """A row a way and link: ``way`` (base: one group of GPUs), ``pp_size``, ``tp_size``, ``cp_size``,
        ``link_gb_per_s``, ``input_tokens_per_s``, ``ttft_s``, ``chunk`` and ``ttft_chunk`` (settings behind the two),
        ``speedup`` and ``ttft_speedup`` over the base, ``efficiency`` and ``ttft_efficiency`` (for each GPU)."""
        rows = [standing_row(s) for s in (self.comparison.base, *self.comparison.standings)]
        made: pd.DataFrame = load_pandas().DataFrame(rows)
        return made

    def crossovers(self) -> pd.DataFrame:
        """Where ``way`` overtakes ``rival`` in what ``by`` names, at ``link_gb_per_s``; ``ahead`` where nowhere."""
        rows = [
            {"way": c.way, "rival": c.rival, "by": c.by, "link_gb_per_s": c.gb_per_s, "ahead": c.ahead or None}
            for c in self.comparison.crossovers
        ]
        made: pd.DataFrame = load_pandas().DataFrame(rows, columns=["way", "rival", "by", "link_gb_per_s", "ahead"])
        return made


def standing_row(s: Standing) -> dict[str, Any]:
    split = {"pp_size": s.split.pp_size, "tp_size": s.split.tp_size, "cp_size": s.split.cp_size}
    rest = {name: value for name, value in asdict(s).items() if name not in ("way", "split")}
    return {"way": s.way, **split, **rest, "efficiency": s.efficiency, "ttft_efficiency": s.ttft_efficiency}


def compare(
    model: str,
    gpu: str,
    num_gpus: int,
    *,
    prompt: int = 131072,
    tp_size: int | None = None,
    link_gb_per_s: float | tuple[float, ...] = (),
    efficiency: float | None = None,
    chunk: int | None = None,
    num_requests: int = NUM_REQUESTS,
) -> Compared:
    """PP against TP against CP with the same GPUs, and the link at which their order changes (``ppsim compare``).

    ``model``: a known name, a config.json, or a folder with one. ``prompt``: tokens. ``tp_size``: GPUs of a group,
    None: a node. ``link_gb_per_s``: between the groups, one direction; several are several rows. ``efficiency``:
    reached share of the peak rate. ``chunk``: one size for all ways, None: each its best. Raises ScenarioError or
    UsageError.
    """
    links = (link_gb_per_s,) if isinstance(link_gb_per_s, int | float) else tuple(link_gb_per_s)
    return Compared(
        compare_ways(Question(model, gpu, num_gpus, prompt, tp_size, links, efficiency, chunk, num_requests))
    )


# --- chunks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A prompt in chunks, by a planner and by its rivals. ``report`` has the plans (``ppsim.cost.chunk_report``)."""

    planner: str
    report: ChunkReport
    assumed: str = ""  # a sentence, where nobody has measured the efficiency of the GPU

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens of each chunk, in order."""
        return self.report.judged[self.planner].plan.sizes

    @property
    def ttft_s(self) -> float:
        """Time of the prompt through an empty pipeline."""
        return self.report.judged[self.planner].ttft_ms / 1e3

    def table(self) -> pd.DataFrame:
        """A row a chunk: ``prefix`` (tokens before it), ``size``, ``predicted_s`` on the slowest stage."""
        made: pd.DataFrame = load_pandas().DataFrame(self.report.rows(self.planner))
        return made

    def planners(self) -> pd.DataFrame:
        """A row a planner: ``planner``, ``num_chunks``, ``first``, ``last``, ``ttft_s``, ``over_best``, ``remark``.

        ``over_best``: 0.02 is two per cent slower than the best plan.
        """
        rows = [
            {
                "planner": name,
                "num_chunks": len(judged.plan.sizes),
                "first": judged.plan.sizes[0],
                "last": judged.plan.sizes[-1],
                "ttft_s": judged.ttft_ms / 1e3,
                "over_best": judged.over_optimum,
                "remark": judged.remark,
            }
            for name, judged in self.report.judged.items()
        ]
        made: pd.DataFrame = load_pandas().DataFrame(rows)
        return made


def chunk_plan(model: str, num_tokens: int = 131072, *, planner: str = "sglang", **question: Any) -> ChunkPlan:
    """How a planner cuts a prompt: fixed, sglang, equal_time or optimal (``ppsim chunks``).

    ``question``: the other fields of ``ppsim.cost.chunk_report.ChunkQuestion`` (gpu, pp_size, tp_size, partition,
    chunk, smooth_factor, page_size, max_chunk, min_tail, cached_tokens, host_ms, depth, efficiency, ...).
    Raises ScenarioError for an unknown planner or field and for what cannot be.
    """
    if planner not in PLANNERS:
        raise ScenarioError("planner", f"unknown planner {planner!r}", f"one of {', '.join(PLANNERS)}")
    known = [name for name in ChunkQuestion.__dataclass_fields__ if name not in ("model", "num_tokens")]
    for name in question:
        if name not in known:
            raise ScenarioError(name, "unknown field of a chunk plan", f"there are: planner, {', '.join(known)}")
    asked = ChunkQuestion(model, num_tokens, **question)
    return ChunkPlan(planner, chunk_report(asked), asked.assumed)
