"""Generated scenarios in which one rank can stand for all, and the text of a run."""

from __future__ import annotations

from typing import Any

from ppsim.fuzz.generate import generated
from ppsim.fuzz.profiles import PROFILES
from ppsim.recording import Recording
from ppsim.recording.writer import lines
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import validate
from ppsim.scenario.tree import Scenario
from ppsim.world.representative import cannot_represent

COSTS: tuple[dict[str, Any], ...] = (
    {"source": "unit", "unit_ms": 1.0},
    {"source": "unit", "unit_ms": 0.07},
    {"source": "quadratic", "prefill_b_ms_per_token": 0.05, "prefill_a_ms_per_token2": 0.001},
)
LINKS: tuple[dict[str, Any], ...] = (
    {},
    {"latency_us": 120.0},
    {"latency_us": 30.0, "control_latency_us": 400.0, "bandwidth_gb_per_s": 0.05},
    {"latency_us": 900.0, "bandwidth_gb_per_s": 0.002, "latency_on_stream": True},
)


def plain_scenario(seed: int, index: int) -> Scenario:
    """Example ``index`` of the fuzzer's plain profile without what only the event world has, with costs and links of
    all sizes beside each other."""
    raw = generated(PROFILES["plain"], seed, 0, index).raw
    raw["cluster"] |= {"tp_replicas": 1, "pp_size": raw["cluster"]["pp_size"] + (index % 3 == 0) * 2}
    pool = raw["scheduler"]["max_total_tokens"]
    if isinstance(pool, list):
        raw["scheduler"]["max_total_tokens"] = pool + [pool[0]] * (raw["cluster"]["pp_size"] - len(pool))
    raw["cost"] = COSTS[index % len(COSTS)]
    links = raw["links"]
    for key in ("send", "jitter_us", "payload", "rendezvous_hold"):
        links.pop(key, None)
    links |= LINKS[index // 3 % len(LINKS)]
    raw["host"].pop("stage_jitter_percent", None)
    if index % 5 == 0:
        raw["host"]["free_empty_visit"] = True
    for key in ("faults", "timeouts", "observations"):
        raw.pop(key, None)
    for key in ("pause_iterations", "pause_ms", "max_clock_skew_ms"):
        raw.get("chance", {}).pop(key, None)
    raw["workload"].pop("flushes", None)
    for request in raw["workload"]["requests"]:
        request.pop("grammar", None)
    raw["run"] = {"max_iterations": raw["run"]["max_iterations"]}
    made = validate(raw)
    check_scenario(made)
    assert not cannot_represent(made)
    return made


def text(recording: Recording) -> list[str]:
    """The file of a recording, line by line."""
    return list(lines(recording))
