"""A configuration in simulation, with the real scheduler: the judge of the fast path. One rank stands for all of them
where it can (docs/fast.md)."""

from __future__ import annotations

from ppsim.errors import PpsimError
from ppsim.plan.candidate import Candidate, with_candidate, with_probe
from ppsim.plan.evaluate import Figures
from ppsim.plan.trial_load import Probe
from ppsim.recording.summary import summarize
from ppsim.scenario.check import check_scenario
from ppsim.scenario.tree import Scenario
from ppsim.world import simulate


def rerun(s: Scenario, candidate: Candidate, probe: Probe, pool_tokens: int, fast: bool | None = None) -> Figures:
    """Figures of one simulated run, ``fast`` as for ``simulate``. Raises PpsimError if the run does not pass."""
    scenario = with_probe(with_candidate(s, candidate, pool_tokens), probe)
    check_scenario(scenario)
    return figures_of(scenario, fast)


def figures_of(scenario: Scenario, fast: bool | None = None) -> Figures:
    """Simulate, and read the summary. Raises PpsimError with the verdict's exit code if the run does not pass."""
    result = simulate(scenario, fast=fast)
    if result.verdict.kind != "pass":
        error = PpsimError(f"{scenario.name}: the event simulation does not pass: {result.verdict.message}")
        error.exit_code = result.verdict.exit_code
        raise error
    summary = summarize(result.recording, result.verdict)
    ttft = summary["ttft_s"]["mean"]
    return Figures(float(ttft), float(summary["input_tokens_per_s"]), float(summary["bubble_ratio"]))
