"""Experiments with two pipelines: what the generator draws for a role "pd" beyond a single server.

Time is what both sides share, so requests and aborts come at times; an abort may be read by one side only. The decode
side has pools, depths and stages of its own, the wire is slow or fast, limits are short or never reached, and writes
fail or are lost.
"""

from __future__ import annotations

from typing import Any

from ppsim.fuzz.draws import Draws

BUSY_TOKENS, MIN_CHUNKS = 640, 40  # of the prompt that others wait behind
TICK_MS = 0.7  # between two iterations of arrival, so that some meet a busy server and some do not


def two_sides(draw: Draws, on: set[str], raw: dict[str, Any]) -> None:
    """Turn an experiment in logical time into one of two pipelines."""
    cluster, work = raw["cluster"], raw["workload"]
    for request in work["requests"]:
        if "at_iteration" in request:
            request["at_ms"] = round(request.pop("at_iteration") * TICK_MS, 3)
    for abort in work.get("aborts", ()):
        abort["at_ms"] = round(abort.pop("at_iteration") * TICK_MS, 3)
        abort["side"] = draw.one_of(("both", "decode", "prefill"))
    if "aborts" in on and draw.one_of((False, False, False, True)):
        given_up_while_it_waits(draw, raw)
    raw["observations"] = {"max_delay": raw.get("observations", {}).get("max_delay", 0)}
    raw["host"]["schedule_us"] = 50.0
    raw["model"] = {
        "num_hidden_layers": 4,
        "num_attention_heads": cluster["tp_size"],
        "num_key_value_heads": cluster["tp_size"],
    }
    page, pool = raw["scheduler"]["page_size"], raw["scheduler"]["max_total_tokens"]
    pool = min(pool) if isinstance(pool, list) else pool
    raw["disaggregation"] |= {
        "decode_pp_size": draw.one_of((cluster["pp_size"], 1)),
        "decode_pp_async_batch_depth": draw.one_of((0, 1, 2)) if "depth" in on else 0,
        "decode_max_total_tokens": pool + page * draw.one_of(tuple(range(9))),
        "control_latency_us": draw.one_of((0.0, 20.0, 700.0)),
        "kv_bandwidth_gb_per_s": draw.one_of((0.0, 0.01, 0.002)),
        "kv_latency_us": draw.one_of((0.0, 900.0)),
        "bootstrap_timeout_ms": draw.one_of((0.0, 60.0)) if "limits" in on else 0.0,
        "receive_timeout_ms": draw.one_of((0.0, 60.0, 60.0)) if "limits" in on else 0.0,
        # Longer than any write: a sender that lives has stopped by then.
        "lease_ms": 30_000.0 if "big_batches" in on else 500.0,
    }
    if raw.get("faults", {}).get("clock_skew_ms"):  # of all ranks, the prefill side's first
        num_decode = raw["disaggregation"]["decode_pp_size"] * cluster["tp_replicas"]
        raw["faults"]["clock_skew_ms"] += [draw.one_of((-3, 0, 3)) for _ in range(num_decode)]
    if "kv_faults" in on:
        faults = [kv_fault(draw, raw) for _ in range(draw.one_of((1, 2)))]
        raw["disaggregation"]["kv_faults"] = list({(f["rid"], f["rank"], f["nth"]): f for f in faults}.values())
        raw["run"]["max_wait_ms"] += raw["disaggregation"]["lease_ms"]  # nobody ends a lost write before that
    raw["run"].pop("max_wait_iterations", None)  # a side sleeps while it waits, so iterations say nothing


def given_up_while_it_waits(draw: Draws, raw: dict[str, Any]) -> None:
    """A prompt of many chunks keeps the prefill side busy, and decode gives up one that waits behind it (INV-87)."""
    scheduler, (first, *others) = raw["scheduler"], raw["workload"]["requests"]
    chunk, pool = scheduler["chunked_prefill_size"], scheduler["max_total_tokens"]
    if not others or not 0 < chunk <= BUSY_TOKENS // MIN_CHUNKS or isinstance(pool, list) or "at_ms" not in first:
        return
    first |= {"prompt": BUSY_TOKENS, "at_ms": 0.0}
    scheduler |= {"context_length": 2 * BUSY_TOKENS, "max_total_tokens": pool + BUSY_TOKENS}
    abort = {"rid": draw.one_of(others)["rid"], "at_ms": draw.one_of((4.0, 8.0, 12.0)), "side": "decode"}
    raw["workload"]["aborts"] = [abort]


def kv_fault(draw: Draws, raw: dict[str, Any]) -> dict[str, Any]:
    """One KV write that goes wrong. A lost one needs a limit: nobody else ends the wait for it."""
    num_ranks = raw["cluster"]["pp_size"] * raw["cluster"]["tp_replicas"]
    ends = raw["disaggregation"]["receive_timeout_ms"] > 0
    return {
        "rid": draw.one_of(raw["workload"]["requests"])["rid"],
        "rank": draw.one_of(tuple(range(num_ranks))),
        "nth": draw.one_of((1, 1, 2)),
        "what": draw.one_of(("failed", "lost", "lost")) if ends else "failed",
    }
