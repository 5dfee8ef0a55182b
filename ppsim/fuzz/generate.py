"""Hypothesis strategies for whole experiments: configuration, workload, aborts, observations, faults and tape.

Sizes are small on purpose: nearly every bug of a pipeline shows with three ranks, a handful of requests and a pool of a
few pages, and small runs are fast to run and to shrink.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ppsim.fuzz.experiment import Experiment
from ppsim.fuzz.profiles import Profile

MAX_ITERATIONS = 3000
CHUNK = 16


@st.composite
def experiments(draw: DrawFn, profile: Profile) -> Experiment:
    """One experiment of a profile, with a random subset of its features."""
    mask = draw(st.integers(0, 2 ** len(profile.features) - 1))
    on = {name for i, name in enumerate(profile.features) if mask >> i & 1} | set(profile.always)
    role = draw(st.sampled_from(profile.roles))
    raw = base(draw, on, role)
    raw["workload"] = workload(draw, on, role)
    surroundings(draw, on, role, raw)
    num_choices = draw(st.integers(0, 24)) if on & {"delays", "jitter"} else 0
    tape = draw(st.lists(st.integers(0, 15), min_size=num_choices, max_size=num_choices))
    return Experiment(raw, tuple(tape))


def base(draw: DrawFn, on: set[str], role: str) -> dict[str, Any]:
    """Cluster, scheduler, cost, links, host."""
    pp_size = draw(st.sampled_from((2, 3, 4, 1) if "rendezvous" not in on else (2, 3, 4)))
    replicas = draw(st.sampled_from((1, 2))) if "replicas" in on else 1
    page = draw(st.sampled_from((1, 4))) if "pages" in on else 1
    scheduler: dict[str, Any] = {
        "chunked_prefill_size": CHUNK if "chunks" in on else 64,
        "page_size": page,
        "max_total_tokens": draw(st.sampled_from((68, 80, 100, 140))) if "tight_pool" in on else 400,
        "max_running_requests": draw(st.integers(1, 4)) if "few_rows" in on else 16,
        "pp_max_micro_batch_size": draw(st.integers(1, 3)) if "small_slots" in on else 4,
        "enable_mixed_chunk": "mixed" in on and role == "plain",
        "schedule_policy": "lpm" if "lpm" in on and role != "decode" else "fcfs",
        "prefill_decode_interval": draw(st.integers(1, 3)) if "decode_interval" in on else 0,
        "disable_radix_cache": "no_radix" in on,
        "skip_pure_chunked_output_comm": "skip_rule" in on,
        "hidden_send": "after_launch" if "early_hidden" in on and role == "plain" else "after_harvest",
        "context_length": 256,
    }
    if "uneven_pools" in on:
        pool = scheduler["max_total_tokens"]
        scheduler["max_total_tokens"] = [pool + draw(st.integers(0, 40)) for _ in range(pp_size)]
    if "turns" in on:
        scheduler["max_consecutive_prefills"] = draw(st.integers(0, 2))
        scheduler["max_consecutive_chunks"] = draw(st.integers(0, 2))
    links: dict[str, Any] = {}
    if "jitter" in on:
        links = {"latency_us": 20.0, "jitter_us": 50.0}
    if "rendezvous" in on:
        links["send"] = "rendezvous"
        scheduler["exchange_order"] = "parity"
    elif "parity" in on:
        scheduler["exchange_order"] = "parity"
    host = {"schedule_us": 20.0, "process_us": 30.0} if "host" in on else {}
    return {
        "name": "fuzz",
        "cluster": {
            "pp_size": pp_size,
            "pp_async_batch_depth": draw(st.integers(0, 2)) if "depth" in on else 0,
            "tp_size": replicas,
            "tp_replicas": replicas,
        },
        "scheduler": scheduler,
        "cost": {"source": "unit", "unit_ms": 1.0},
        "links": links,
        "host": host,
        "run": {"max_iterations": MAX_ITERATIONS, "invariants": True},
    }


def workload(draw: DrawFn, on: set[str], role: str) -> dict[str, Any]:
    """Requests, aborts and flushes, all in logical time."""
    num_requests = draw(st.integers(1, 6))
    requests = [request(draw, on, i, role) for i in range(num_requests)]
    found: dict[str, Any] = {"source": "requests", "block_tokens": 16, "requests": requests}
    aborts: list[dict[str, Any]] = []
    if "aborts" in on:
        for _ in range(draw(st.integers(1, 3))):
            rid = f"R{draw(st.integers(0, num_requests))}"  # one of them may be unknown
            aborts.append({"rid": rid, "at_iteration": draw(st.integers(0, 30))})
    if "abort_all" in on and draw(st.booleans()):
        aborts.append({"abort_all": True, "at_iteration": draw(st.integers(0, 40))})
    if aborts:
        found["aborts"] = aborts
    if "flush" in on:
        found["flushes"] = [{"rid": "flush", "at_iteration": draw(st.integers(0, 60))}]
    return found


def request(draw: DrawFn, on: set[str], index: int, role: str) -> dict[str, Any]:
    output = draw(st.integers(1, 30 if "long_outputs" in on else 8))
    found: dict[str, Any] = {
        "rid": f"R{index}",
        "at_iteration": draw(st.integers(0, 12)),
        "prompt": draw(st.integers(1, 48)),
        "output": output,
    }
    if "prefixes" in on and draw(st.booleans()):
        found["prefix_blocks"] = draw(st.lists(st.integers(0, 1), min_size=1, max_size=2))
    if "stops" in on and draw(st.booleans()):
        found["stop_after"] = draw(st.integers(1, output))
    if "grammar" in on and draw(st.booleans()):
        found["grammar"] = "json"
    if "skip_rule" in on and draw(st.integers(0, 3)) == 0:
        found["return_logprob"] = True
    return found


def surroundings(draw: DrawFn, on: set[str], role: str, raw: dict[str, Any]) -> None:
    """Roles, observations, timeouts, clocks."""
    if role != "plain":
        raw["disaggregation"] = {
            "role": role,
            "bootstrap": "vote" if "ring_bootstrap" in on else "store",
            "num_reserved_decode_tokens": 8,
        }
    observations: dict[str, Any] = {}
    if "delays" in on:
        observations["max_delay"] = draw(st.integers(1, 6))
    if "listed" in on or "failures" in on:
        observations["listed"] = [listed(draw, on, role, raw) for _ in range(draw(st.integers(0, 2)))]
    if observations:
        raw["observations"] = observations
    if "timeouts" in on:
        raw["timeouts"] = {"waiting_ms": draw(st.integers(5, 30)), "running_ms": draw(st.integers(5, 60))}
        num_ranks = raw["cluster"]["pp_size"] * raw["cluster"]["tp_replicas"]
        raw["faults"] = {"clock_skew_ms": [draw(st.integers(-5, 5)) for _ in range(num_ranks)]}


KINDS = {"plain": ("grammar",), "prefill": ("bootstrap", "transfer"), "decode": ("handshake", "receive")}


def listed(draw: DrawFn, on: set[str], role: str, raw: dict[str, Any]) -> dict[str, Any]:
    """A fact with its own iteration on each rank."""
    num_ranks = raw["cluster"]["pp_size"] * raw["cluster"]["tp_replicas"]
    requests = raw["workload"]["requests"]
    return {
        "what": draw(st.sampled_from(KINDS[role])),
        "rid": requests[draw(st.integers(0, len(requests) - 1))]["rid"],
        "at": [draw(st.integers(0, 20)) for _ in range(num_ranks)],
        "failed": "failures" in on and draw(st.booleans()),
    }


def strategy(profile: Profile) -> SearchStrategy[Experiment]:
    """The experiments of a profile."""
    return experiments(profile)
