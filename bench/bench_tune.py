"""How many configurations a second the tuner's fast path evaluates on one core, and how far it is from the simulation.

    python bench/bench_tune.py [--objective ttft|throughput|ttft_at_rate ...]

A row is a search space of a real scenario: one split, all chunk sizes of the tuner's grid, eleven smooth factors, two
depths. Times are CPU seconds of the process, costs and profiles included, so a busy machine changes them little. The
last columns are one configuration of the space in the event simulation: what the fast path saves, and its error.
"""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import dataclass

from ppsim.plan.candidate import Candidate, given_candidate
from ppsim.plan.evaluate import FastPath
from ppsim.plan.grid import chunk_sizes
from ppsim.plan.rerun import rerun
from ppsim.plan.trial_load import OBJECTIVES, probe_of
from ppsim.scenario import Scenario, load_scenario

SCENARIOS = ("paper/qwen3_235b_h20_pp8", "paper/deepseek_v31_h20_pp4", "mooncake")
RATES_PER_S = {"mooncake": 3.0}  # else one prompt every ten seconds
FACTORS = (0.0, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
DEPTHS = (0, 1)


@dataclass(frozen=True, slots=True)
class Measured:
    """One search space."""

    scenario: str
    objective: str
    num_configs: int
    configs_per_s: float
    simulated_s: float
    worst_error: float  # of the checked configurations, relative


def space(s: Scenario, longest: int) -> list[Candidate]:
    """The configurations of a row."""
    own = given_candidate(s)
    sizes = chunk_sizes(s, longest)
    between = {n * 3 // 2 for n in sizes if n * 3 // 2 % 64 == 0}
    return [
        own.but(chunked_prefill_size=n, smooth_factor=f, pp_async_batch_depth=d)
        for n in sorted({*sizes, *between})
        for f in FACTORS
        for d in DEPTHS
    ]


def measure(name: str, objective: str) -> Measured:
    """Evaluate a space, then a few of its configurations in the event simulation."""
    s = load_scenario(name)
    probe = probe_of(s, objective, rate_per_s=RATES_PER_S.get(name, 0.1) if objective == "ttft_at_rate" else None)
    candidates = space(s, max(probe.prompts))
    fast = FastPath(s, probe)
    figures = fast.figures(candidates)
    checked = candidates[:: len(candidates) // 3 + 1]
    began, worst = time.process_time(), 0.0
    for candidate in checked:
        real = rerun(s, candidate, probe, fast.pool(candidate.split, candidate.layer_partition))
        worst = max(worst, abs(figures[candidates.index(candidate)].ttft_s / real.ttft_s - 1.0))
    simulated_s = (time.process_time() - began) / len(checked)
    return Measured(name, objective, len(candidates), len(candidates) / fast.cpu_s, simulated_s, worst)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--objective", action="append", choices=OBJECTIVES)
    chosen = parser.parse_args().objective or list(OBJECTIVES)
    print(f"python {platform.python_version()} on {platform.machine()}, one core")
    print(f"{'scenario':<28} {'objective':<13} {'configs':>7} {'a second':>9} {'simulated':>10} {'error':>9}")
    for objective in chosen:
        for name in SCENARIOS:
            m = measure(name, objective)
            print(
                f"{m.scenario:<28} {m.objective:<13} {m.num_configs:>7} {m.configs_per_s:>9,.0f} "
                f"{m.simulated_s:>8.2f} s {m.worst_error:>9.1e}"
            )


if __name__ == "__main__":
    main()
