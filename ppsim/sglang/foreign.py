"""JSON of other tools that is recognised and told, though no command computes with it: profiler traces and benchmark
results. Every field is in what is told: numbers with their value, lists with their length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

BENCH_FIELDS = (
    "request_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "mean_tpot_ms",
    "total_input_tokens",
    "completed",
)
ONE_BATCH_FIELDS = ("prefill_latency", "prefill_throughput", "median_decode_latency", "overall_throughput")
SUMMARY_FIELDS = ("request_throughput", "request_latency", "time_to_first_token", "inter_token_latency")  # AIPerf's
MAX_NAMES = 8


def chrome_events(data: Any) -> list[Any] | None:
    """Events of a Chrome trace, as an object or as the bare array; None if it is none."""
    if isinstance(data, Mapping):
        events = data.get("traceEvents")
        return events if isinstance(events, list) else None
    is_array = isinstance(data, list) and data and all(isinstance(e, Mapping) and "ph" in e for e in data[:20])
    return data if is_array else None


def is_torch(data: Any) -> bool:
    """Written by torch.profiler: it names its schema or the devices."""
    return isinstance(data, Mapping) and any(
        key in data for key in ("schemaVersion", "deviceProperties", "record_shapes")
    )


def trace_sentences(data: Any, events: Sequence[Any]) -> list[str]:
    """What a Chrome or torch trace holds. Times are microseconds in the file."""
    spans = [e for e in events if isinstance(e, Mapping) and e.get("ph") == "X" and finite(e.get("ts"))]
    found = [f"{len(events)} events, {len(spans)} of them spans"]
    if spans:
        begin = min(float(e["ts"]) for e in spans)
        end = max(float(e["ts"]) + (float(e["dur"]) if finite(e.get("dur")) else 0.0) for e in spans)
        found.append(f"{(end - begin) / 1e6:.6g} s from the first to the last")
    for field, what in (("cat", "time by category"), ("name", "longest by name")):
        sums: dict[str, float] = {}
        for event in spans:
            if field in event:
                spent = float(event["dur"]) if finite(event.get("dur")) else 0.0
                sums[str(event[field])] = sums.get(str(event[field]), 0.0) + spent
        top = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMES]
        if top:
            more = f", and {len(sums) - len(top)} more" if len(sums) > len(top) else ""
            found.append(f"{what}: " + ", ".join(f"{name[:60]} {us / 1e3:.6g} ms" for name, us in top) + more)
    other = {k: v for k, v in data.items() if k != "traceEvents"} if isinstance(data, Mapping) else {}
    if other:
        found.append("beside the events: " + ", ".join(shown(key, value) for key, value in other.items()))
    return found


def bench_kind(record: Mapping[str, Any]) -> str:
    """The kind of benchmark whose result a JSON object is; empty if it is none."""
    if sum(field in record for field in ONE_BATCH_FIELDS) >= 2:
        return "result of a one-batch benchmark"
    num_summed = sum(isinstance(record.get(field), Mapping) and "avg" in record[field] for field in SUMMARY_FIELDS)
    is_served = num_summed >= 2 or sum(field in record for field in BENCH_FIELDS) >= 2
    return "result of a serving benchmark" if is_served else ""


def bench_sentence(record: Mapping[str, Any]) -> str:
    """All fields of a benchmark result."""
    return ", ".join(shown(key, value) for key, value in record.items())


def shown(name: str, value: Any) -> str:
    """A field in a few words."""
    if isinstance(value, bool) or value is None:
        return f"{name} {str(value).lower() if value is not None else 'null'}"
    if isinstance(value, (int, float)):
        return f"{name} {value:.10g}" if finite(value) else f"{name} {value}"
    if isinstance(value, str):
        return f"{name} {value[:60]}"
    if isinstance(value, Mapping) and finite(value.get("avg")):
        parts = (f"{key} {inner:.10g}" for key, inner in value.items() if finite(inner))
        return f"{name} ({', '.join(parts)}{', ' + value['unit'] if isinstance(value.get('unit'), str) else ''})"
    return f"{name} ({len(value)} entries)"


def finite(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )
