"""The published H20 figures beside ours, through the real scheduler on scenario files (``scenarios/paper``).

One constant is fitted: the efficiency at which the PP1 run of Qwen takes the published 55.5 s. Everything else is a
prediction, or says that it is not one: pure tensor parallelism over 32 GPUs crosses the unpublished network of the
cluster, so the bandwidth that would give the published figure is computed and no figure is claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ppsim.cost.published import POST, Row, figures, fit_efficiency, h20_rates, ring_gb_per_s_for
from ppsim.errors import PpsimError
from ppsim.recording.summary import summarize
from ppsim.scenario import Scenario, load_scenario
from ppsim.world import simulate

NUM_REQUESTS = 16
FITTED = "qwen_pp1_ttft_128k"


@dataclass(frozen=True, slots=True)
class Source:
    """Scenario of a figure; ``baseline`` set: the figure is a ratio of throughputs."""

    scenario: str
    baseline: str | None = None


SOURCES: dict[str, Source] = {
    FITTED: Source("qwen3_235b_h20_pp1"),
    "qwen_pp8_ttft_128k": Source("qwen3_235b_h20_pp8"),
    "qwen_pp8_ttft_256k": Source("qwen3_235b_h20_pp8_256k"),
    "qwen_pp8_ttft_512k": Source("qwen3_235b_h20_pp8_512k"),
    "qwen_pp8_ttft_1m": Source("qwen3_235b_h20_pp8_1m"),
    "deepseek_pp1_ttft_128k": Source("deepseek_v31_h20_pp1"),
    "deepseek_pp4_ttft_128k": Source("deepseek_v31_h20_pp4"),
    "deepseek_pp4_speedup_dynamic": Source("deepseek_v31_h20_pp4", "deepseek_v31_h20_pp1"),
    "deepseek_pp4_speedup_4096": Source("deepseek_v31_h20_pp4_fixed_4096", "deepseek_v31_h20_pp1"),
    "deepseek_pp4_speedup_12288": Source("deepseek_v31_h20_pp4_fixed_12288", "deepseek_v31_h20_pp1"),
    "qwen_pp8_speedup_dynamic": Source("qwen3_235b_h20_pp8", "qwen3_235b_h20_pp1"),
    "qwen_pp8_speedup_6144": Source("qwen3_235b_h20_pp8_fixed_6144", "qwen3_235b_h20_pp1"),
}


class PaperRuns:
    """Runs of the scenario files with one efficiency; each distinct run is made once. ``sets`` change all of them;
    ``fast``: whether one rank stands for all, None: where it can."""

    def __init__(self, efficiency: float, sets: tuple[str, ...] = (), fast: bool | None = None) -> None:
        self.efficiency, self.sets, self.fast = efficiency, sets, fast
        self._seconds: dict[tuple[str, int], float] = {}

    def ttft_s(self, name: str) -> float:
        """Seconds to the first token of one prompt."""
        return self._makespan(name, 1)

    def seconds_per_request(self, name: str, num_requests: int) -> float:
        """Mean seconds a prompt, of equal prompts that are all there from the start."""
        return self._makespan(name, num_requests) / num_requests

    def _makespan(self, name: str, num_requests: int) -> float:
        key = (name, num_requests)
        if key not in self._seconds:
            scenario = paper_scenario(name, self.efficiency, num_requests, self.sets)
            self._seconds[key] = makespan_s(scenario, self.fast)
        return self._seconds[key]


def paper_scenario(name: str, efficiency: float, num_requests: int = 1, sets: tuple[str, ...] = ()) -> Scenario:
    """A scenario file with an efficiency, its one request repeated, and what ``sets`` change."""
    one = load_scenario(f"paper/{name}").workload.requests[0]
    rows = ", ".join(f'{{rid="R{i + 1}", at_iteration=0, prompt={one.prompt}, output=1}}' for i in range(num_requests))
    return load_scenario(f"paper/{name}", [f"cost.efficiency={efficiency!r}", f"workload.requests=[{rows}]", *sets])


def makespan_s(scenario: Scenario, fast: bool | None = None) -> float:
    """Seconds until the last reply; ``fast`` as for ``simulate``. Raises PpsimError if the run does not pass."""
    result = simulate(scenario, fast=fast)
    if result.verdict.kind != "pass":
        raise PpsimError(f"{scenario.name}: {result.verdict.message}")
    return float(summarize(result.recording, result.verdict)["makespan_s"])


def fitted_efficiency(fast: bool | None = None) -> float:
    """The one constant: Qwen PP1 takes the published 55.5 s."""
    target = float(figures()[FITTED]["value"])
    name = SOURCES[FITTED].scenario
    return fit_efficiency(lambda e: makespan_s(paper_scenario(name, e), fast), target, low=0.5, high=1.0)


def paper_table(runs: PaperRuns, progress: Callable[[str], None] | None = None) -> tuple[Row, ...]:
    """All published figures with ours, in the order of the data file."""
    rows = []
    for key, figure in figures().items():
        if progress is not None:
            progress(figure["name"])
        published = float(figure["value"])
        source = SOURCES.get(key)
        ours = ring_gb_per_s_for(published, h20_rates()) if source is None else figure_of(runs, source)
        rows.append(
            Row(
                name=figure["name"],
                source=POST,
                published=published,
                ours=ours,
                error=None if source is None else ours / published - 1.0,
                used_to_fit=figure["role"] != "prediction",
                unit="GB/s of ring bandwidth that give it" if source is None else figure["unit"],
                setting=figure["setting"] + ("" if source is None else f"; scenarios/paper/{source.scenario}.toml"),
            )
        )
    return tuple(rows)


def figure_of(runs: PaperRuns, source: Source) -> float:
    """TTFT in seconds, or throughput over that of the baseline."""
    if source.baseline is None:
        return runs.ttft_s(source.scenario)
    return runs.seconds_per_request(source.baseline, 1) / runs.seconds_per_request(source.scenario, NUM_REQUESTS)
