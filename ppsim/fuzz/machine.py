"""What a generated experiment runs on: cluster, scheduler, cost, links, host, and the choices of streams."""

from __future__ import annotations

from typing import Any

from ppsim.fuzz.draws import Draws
from ppsim.scenario.rank import SGLANG

CHUNK = 16
TINY_CHUNK = 4  # the decodes of a mixed batch can use it up
RESERVE = 4  # num_reserved_decode_tokens


def machine(draw: Draws, on: set[str], role: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Cluster, scheduler, cost, links, host."""
    pp_size = draw.one_of((2, 3, 4, 1) if "rendezvous" not in on else (2, 3, 4))
    replicas = draw.one_of((1, 2)) if "replicas" in on else 1
    scheduler = limits(draw, on, role, requests)
    if "uneven_pools" in on:
        pool = scheduler["max_total_tokens"]
        scheduler["max_total_tokens"] = [pool + draw.number(0, 40) for _ in range(pp_size)]
    cluster: dict[str, Any] = {
        "pp_size": pp_size,
        "pp_async_batch_depth": draw.number(0, 2) if "depth" in on else 0,
        "tp_size": replicas,
        "tp_replicas": replicas,
    }
    if "overlap" in on:
        cluster["comm_overlap"] = True
    host: dict[str, Any] = {"schedule_us": 20.0, "process_us": 30.0} if "host" in on else {}
    if "jitter" in on:
        host["stage_jitter_percent"] = 10.0
    return {
        "cluster": cluster,
        "scheduler": scheduler,
        "cost": {"source": "unit", "unit_ms": 1.0},
        "links": links(draw, on, scheduler),
        "host": host,
    }


def links(draw: Draws, on: set[str], scheduler: dict[str, Any]) -> dict[str, Any]:
    """Latencies, bandwidth, and whether a send blocks; the scheduler's order of sends goes with it."""
    found: dict[str, Any] = {}
    if "jitter" in on:
        found = {"latency_us": 20.0, "jitter_us": 50.0}
    if "overlap" in on:
        found["bandwidth_gb_per_s"] = draw.one_of((0.001, 0.01))
    if "rendezvous" in on:
        found["send"] = "rendezvous"
    if on & {"rendezvous", "parity"}:
        scheduler["exchange_order"] = "parity"
    return found


STREAM_CHOICES: dict[str, tuple[str, ...]] = {
    "order": ("stream", "link", "none"),
    "commit": ("all", "requests"),  # with none at all an idle rank runs ahead until its iterations are used up
    "commit_over": ("posted", "received"),
    "graph_fence": ("send", "commit"),
    "schedule_hold": ("commit", "post"),
    "token_read": ("arrival", "schedule_stream"),
    "rendezvous_hold": ("posted", "received"),
    "payload": ("eager", "matched"),
    "early_send": ("after_exchange", "before_exchange"),
}
"""Keys of ``scenario.links`` that the protocol leaves open (docs/streams.md)."""


def stream_choices(draw: Draws, role: str, raw: dict[str, Any]) -> None:
    """What the streams of a rank carry and wait for; nothing that locks the right protocol."""
    found, scheduler = raw["links"], raw["scheduler"]
    raw["cluster"]["cuda_graph"] = draw.flag()
    for key, values in STREAM_CHOICES.items():
        found[key] = draw.one_of(values)
    if role != "plain" or raw.get("hicache", {}).get("storage"):
        found["payload"] = "eager"
    if found["payload"] == "matched":
        scheduler["exchange_order"] = "parity"
    if found["payload"] == "matched" or found.get("send") == "rendezvous":
        found["early_send"] = "after_exchange"  # before it, each waits for a receiver that waits for its output


def limits(draw: Draws, on: set[str], role: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """The scheduler's limits and policies."""
    page = draw.one_of((1, 4)) if "pages" in on else 1
    clip = draw.number(1, 4) if on & {"retraction", "starved"} else 4096
    chunk = chunk_size(draw, on)
    found: dict[str, Any] = {
        "chunked_prefill_size": chunk,
        "page_size": page,
        "max_running_requests": draw.number(1, 4) if "few_rows" in on else 16,
        "pp_max_micro_batch_size": draw.number(1, 3) if "small_slots" in on else 6,
        "enable_mixed_chunk": "mixed" in on and role == "plain",
        "schedule_policy": "lpm" if "lpm" in on and role != "decode" else "fcfs",
        "prefill_decode_interval": draw.number(1, 3) if "decode_interval" in on else 0,
        "disable_radix_cache": "no_radix" in on,
        "skip_pure_chunked_output_comm": "skip_rule" in on,
        "hidden_send": "after_launch" if "early_hidden" in on and role == "plain" else "after_harvest",
        "context_length": 4096 if "big_batches" in on else 256,
        "clip_max_new_tokens": clip,
    }
    if "tight_pool" in on:
        least = max(least_pool(r, clip, page, role) for r in requests)
        if "starved" in on:
            least += page * draw.number(len(requests), 6 * len(requests))
        slack = draw.one_of((0, 12)) if "retraction" in on else 12
        found["max_total_tokens"] = max(CHUNK, chunk, -(-least // page) * page) + page * draw.number(0, slack)
    else:
        found["max_total_tokens"] = 12_000 if "big_batches" in on else 600
    if on & {"retraction", "starved"}:
        found["schedule_conservativeness"] = 0.1
    if "all_slots" in on:
        found["reserve_decode"] = "all_slots"
        found["max_total_tokens"] += sum(r["output"] for r in requests)
    if "prefill_limits" in on:
        found["max_prefill_tokens"] = draw.one_of((8, 24, 64))
        found["prefill_max_requests"] = draw.number(0, 2)
    if "turns" in on and role != "decode":
        prefills, chunks = draw.one_of(((1, 0), (2, 0), (0, 1), (0, 2), (1, 1)))
        found["max_consecutive_prefills"], found["max_consecutive_chunks"] = prefills, chunks
    if "mended" in on:
        found["rules"] = "mended"
    if "rule_keys" in on:  # an explicit value wins over the rule set
        keys = draw.some(sorted(SGLANG), 1, 3)
        found |= {key: draw.flag() for key in keys}
    return found


def chunk_size(draw: Draws, on: set[str]) -> int:
    """Of a prompt's chunks; -1: none are cut. Big ones make batches on both sides of 1,024 tokens."""
    if "big_batches" in on:
        return draw.one_of((2048, 1024, 512)) if "chunks" in on else -1
    if "tiny_chunks" in on:
        return TINY_CHUNK
    if on & {"chunks", "starved"}:
        return CHUNK
    return -1 if "tight_pool" in on else 64


def least_pool(request: dict[str, Any], clip: int, page: int, role: str) -> int:
    """Tokens of a pool that can serve the request alone (``Intake._why_never`` and the decode role's reserve)."""
    prompt, output = int(request["prompt"]), 1 if role == "prefill" else int(request["output"])
    reserve = prompt + min(output, clip) + page + 1
    if request.get("ignore_eos"):  # all of its output counts where the radix cache is off
        reserve = max(reserve, prompt + output + page + 1)
    return int(max(reserve, prompt + output, prompt + RESERVE if role in ("decode", "pd") else 0))
