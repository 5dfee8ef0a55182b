"""What a configuration is judged by: a few prompts of one output token each, and when they come.

    ttft          the longest prompt of the workload through an empty pipeline
    throughput    prompts of the workload, all there from the start (the published figures: sixteen in a row)
    ttft_at_rate  the same prompts, arriving at a rate: mean time to the first token, queueing included

Prompts share no prefix and decode nothing: what is tuned is prefill. The lengths are the workload's own, evenly spaced
over the sorted lengths where there are more than are asked for, then shuffled back into order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ppsim.core.tokens import count
from ppsim.errors import ScenarioError, UsageError
from ppsim.scenario.bounds import MAX_TOKENS
from ppsim.scenario.tree import Scenario
from ppsim.scenario.workload_keys import ScriptedRequest, Workload
from ppsim.workload import build_workload
from ppsim.workload.draws import NS_PER_S, Stream

Objective: TypeAlias = Literal["ttft", "throughput", "ttft_at_rate"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

NUM_REQUESTS = 16
NS_PER_MS = 1e6
MAX_RATE_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class Probe:
    """Prompts in tokens with their arrivals in nanoseconds, both in order of arrival; the first comes at 0."""

    objective: Objective
    prompts: tuple[int, ...]
    arrivals_ns: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return sum(self.prompts)

    def workload(self) -> Workload:
        """The same as a scenario's workload."""
        requests = tuple(
            ScriptedRequest(rid=f"R{i + 1}", at_ms=at / NS_PER_MS, prompt=length, output=1)
            for i, (length, at) in enumerate(zip(self.prompts, self.arrivals_ns))
        )
        return Workload(source="requests", requests=requests)

    def describe(self) -> str:
        """One line for people."""
        lengths = (
            f"{min(self.prompts)}" if len(set(self.prompts)) == 1 else f"{min(self.prompts)} to {max(self.prompts)}"
        )
        if self.objective == "ttft":
            return f"one prompt of {lengths} tokens, the pipeline empty"
        when = "all at once" if self.objective == "throughput" else f"over {self.arrivals_ns[-1] / NS_PER_S:.4g} s"
        return f"{len(self.prompts)} prompts of {lengths} tokens, {when}"


def probe_of(
    s: Scenario,
    objective: str,
    *,
    rate_per_s: float | None = None,
    prompt: int | None = None,
    num_requests: int = NUM_REQUESTS,
) -> Probe:
    """The probe of a scenario. ``prompt`` replaces the workload's lengths. Raises UsageError or ScenarioError."""
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective!r}: expected one of {', '.join(OBJECTIVES)}")
    if not 1 <= num_requests <= 4096:
        raise UsageError(f"--requests {num_requests}: expected 1 to 4096 prompts")
    if prompt is not None and not 1 <= prompt <= MAX_TOKENS:
        raise UsageError(f"--prompt {prompt}: expected 1 to {MAX_TOKENS} tokens")
    lengths = prompt_lengths(s, prompt)
    if objective == "ttft":
        return Probe("ttft", (max(lengths),), (0,))
    prompts = some_of(lengths, num_requests)
    if objective == "throughput":
        return Probe("throughput", prompts, (0,) * len(prompts))
    return Probe("ttft_at_rate", prompts, arrivals(s, rate_of(s, rate_per_s), len(prompts)))


def rate_of(s: Scenario, given: float | None) -> float:
    """Requests a second: given, or the workload's own. Raises UsageError."""
    rate = given
    if rate is None and s.workload.source == "generated" and s.workload.arrival != "burst":
        rate = s.workload.rate_per_s
    if rate is None:
        raise UsageError(f"--rate: is needed, the workload of {s.name} has no rate of its own; requests a second")
    if not 0.0 < rate <= MAX_RATE_PER_S:
        raise UsageError(
            f"--rate {rate:g}: expected a positive number of requests a second, at most {MAX_RATE_PER_S:g}"
        )
    return rate


def arrivals(s: Scenario, rate_per_s: float, num: int) -> tuple[int, ...]:
    """Poisson arrivals from a stream of the scenario's seed; equal gaps where the workload's arrivals are so."""
    if s.workload.source == "generated" and s.workload.arrival == "fixed":
        return tuple(round(i * NS_PER_S / rate_per_s) for i in range(num))
    gaps = Stream(s.seed, "tune.arrivals")
    at_ns = [0]
    while len(at_ns) < num:
        at_ns.append(at_ns[-1] + gaps.exponential_ns(rate_per_s))
    return tuple(at_ns)


def prompt_lengths(s: Scenario, instead: int | None = None) -> list[int]:
    """Prompt lengths of the workload in order of arrival. Raises ScenarioError if no prompt fits the context."""
    if instead is not None:
        lengths = [instead]
    elif s.workload.source == "requests":
        lengths = [r.prompt for r in s.workload.requests]
    else:
        lengths = [count(a.request.prompt) for a in build_workload(s).arrivals]
    fits = [n for n in lengths if n < s.scheduler.context_length]
    if not fits:
        longest = max(lengths, default=0)
        raise ScenarioError(
            "scheduler.context_length",
            f"{s.scheduler.context_length} tokens hold no prompt; the longest has {longest} tokens",
            "a longer context, or a shorter --prompt",
        )
    return fits


def some_of(lengths: list[int], num: int) -> tuple[int, ...]:
    """``num`` lengths: the list again and again if it is shorter, else evenly spaced by rank, in order of arrival."""
    if len(lengths) <= num:
        return tuple(lengths[i % len(lengths)] for i in range(num))
    by_length = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    picked = sorted(by_length[(2 * j + 1) * len(lengths) // (2 * num)] for j in range(num))
    return tuple(lengths[i] for i in picked)
