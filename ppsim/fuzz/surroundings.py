"""What each rank of a generated experiment sees alone: roles, local facts, clocks, chance, cache tiers."""

from __future__ import annotations

from typing import Any

from ppsim.fuzz.draws import Draws
from ppsim.fuzz.machine import RESERVE


def surroundings(draw: Draws, on: set[str], role: str, raw: dict[str, Any]) -> None:
    """Roles, observations, timeouts, clocks."""
    if role != "plain":
        raw["disaggregation"] = {
            "role": role,
            "bootstrap": "vote" if "ring_bootstrap" in on else "store",
            "num_reserved_decode_tokens": RESERVE,
        }
        if "store_lag" in on:
            raw["disaggregation"]["store_lag_us"] = draw.one_of((300.0, 3000.0))
            raw["host"]["schedule_us"] = 200.0  # else no time goes by while the first rank waits for the store
    observations: dict[str, Any] = {}
    if "delays" in on:
        observations["max_delay"] = draw.number(1, 6)
    if on & {"listed", "failures"} and role != "pd":
        observations["listed"] = once([listed(draw, on, role, raw) for _ in range(draw.number(0, 3))])
    if "stuck" in on and role in ("prefill", "decode"):
        never = {"what": KINDS[role][0], "rid": raw["workload"]["requests"][0]["rid"], "at": [10**6] * num_ranks(raw)}
        observations["listed"] = once([never, *observations.get("listed", [])])
        raw["timeouts"] = {"waiting_ms": draw.number(5, 30)}
        raw["host"]["schedule_us"] = 1000.0  # what waits for a limit must see time go by
    if observations:
        raw["observations"] = observations
    if "timeouts" in on:
        raw["timeouts"] = {"waiting_ms": draw.number(5, 30), "running_ms": draw.number(5, 60)}
        raw["faults"] = {"clock_skew_ms": [draw.number(-5, 5) for _ in range(num_ranks(raw))]}
    if "pauses" in on:
        pause = {"rank": draw.number(0, num_ranks(raw) - 1), "at_iteration": draw.number(0, 20), "ms": 4.0}
        raw.setdefault("faults", {})["pauses"] = [pause]


CHANCE: dict[str, tuple[str, tuple[int, ...]]] = {
    "late_arrivals": ("max_arrival_delay", (3, 20)),
    "late_aborts": ("max_abort_delay", (3, 12)),
    "skew": ("max_clock_skew_ms", (2, 20)),
    "stalls": ("pause_iterations", (5, 30)),
    "lost_memory": ("max_lost_pages", (1, 8)),
    "refused_memory": ("max_failed_allocations", (1, 3)),
}
"""Feature -> (key of ``scenario.chance``, bounds to draw from)."""


def chance(draw: Draws, on: set[str], raw: dict[str, Any]) -> None:
    """What is left to the choices of the run."""
    found: dict[str, Any] = {key: draw.one_of(bounds) for feature, (key, bounds) in CHANCE.items() if feature in on}
    if "refused_memory" in on:
        found["max_good_allocations"] = draw.one_of((0, 0, 2, 5))
    if "stalls" in on:
        found["pause_ms"] = 4.0
    if "sampled_stops" in on:
        found["stops"] = True
    if found:
        raw["chance"] = found


def tiers(draw: Draws, on: set[str], raw: dict[str, Any]) -> None:
    """Host memory and storage: small, slow, uneven, and with something of what the requests ask for."""
    requests, width = raw["workload"]["requests"], num_ranks(raw)
    raw["scheduler"]["disable_radix_cache"] = False
    host = draw.one_of((4, 16, 32)) if "tiny_host" in on else 256
    found: dict[str, Any] = {
        "enabled": True,
        "write_policy": "write_back" if "write_back" in on else "write_through",
        "host_tokens": host,
    }
    if "uneven_host" in on:
        found["host_tokens"] = [host + draw.number(0, 16) for _ in range(raw["cluster"]["pp_size"])]
    if "slow_tiers" in on:
        found["device_host_gb_per_s"] = draw.one_of((0.1, 1.0))
        found["storage_gb_per_s"] = draw.one_of((0.05, 1.0))
        found["storage_latency_us"] = draw.one_of((0.0, 700.0))
    if "storage" in on:
        found["storage"] = True
        rids = dict.fromkeys(r["rid"] for r in requests)
        found["storage_hits"] = [{"rid": rid, "tokens": [draw.number(0, 48) for _ in range(width)]} for rid in rids]
    raw["hicache"] = found


def copies(draw: Draws, raw: dict[str, Any], num_ranks: int) -> dict[str, Any]:
    """When each rank sees the end of a request's copies between the tiers; of two pipelines all ranks are listed."""
    what = draw.one_of(("write", "load", "prefetch"))
    rid = draw.one_of(raw["workload"]["requests"])["rid"]
    return {"what": what, "rid": rid, "at": [draw.number(0, 40) for _ in range(num_ranks)]}


def once(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each fact is listed once; the first entry counts."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in entries:
        found.setdefault((entry["what"], entry["rid"]), entry)
    return list(found.values())


KINDS = {"plain": (), "prefill": ("bootstrap", "transfer"), "decode": ("handshake", "receive")}


def listed(draw: Draws, on: set[str], role: str, raw: dict[str, Any]) -> dict[str, Any]:
    """A fact with its own iteration on each rank."""
    requests = raw["workload"]["requests"]
    what = draw.one_of(KINDS[role] + (("grammar",) if "grammar" in on or role == "plain" else ()))
    target = requests[draw.number(0, len(requests) - 1)]
    if what == "grammar" and "grammar" in on:
        target["grammar"] = "json"
    return {
        "what": what,
        "rid": target["rid"],
        "at": [draw.number(0, 20) for _ in range(num_ranks(raw))],
        "failed": failures(draw, num_ranks(raw)) if "failures" in on else False,
    }


def failures(draw: Draws, num_ranks: int) -> bool | list[bool]:
    """On all ranks, on none, or on some: then a vote has to make one answer of it."""
    kind = draw.one_of(("none", "all", "some", "some"))
    return [draw.flag() for _ in range(num_ranks)] if kind == "some" else kind == "all"


def num_ranks(raw: dict[str, Any]) -> int:
    cluster: dict[str, int] = raw["cluster"]
    return cluster["pp_size"] * cluster["tp_replicas"]
