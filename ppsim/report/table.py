"""A summary for people: plain text, fixed columns, the same bytes on a terminal and in a pipe.

Rule: a number here is the number in ``summary.json``, rounded; nothing is computed a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PERCENTILES = ("mean", "p50", "p90", "p99")
LATENCIES = (
    ("ttft", "ttft_s", "first token, from the client's arrival"),
    ("ttft read", "ttft_from_read_s", "the same, from the first rank's reading"),
    ("tpot", "tpot_s", "per output token after the first"),
    ("e2e", "e2e_s", "last token, from the client's arrival"),
)
SHARES = (
    ("queueing", "to be read, for memory, for a place in a batch"),
    ("control", "handshakes, votes of admission, the token's way to all ranks"),
    ("compute", "first forward pass to the end of the last one"),
    ("transfer", "KV that compute did not hide"),
    ("release", "until the vote on the end of the transfer lets the token out"),
)


def summary_text(summary: Mapping[str, Any]) -> str:
    """The table that ``ppsim run`` and ``ppsim show`` print; ``summary`` is the dictionary of ``summarize``."""
    s = summary
    lines = [
        f"{s['name']}  seed {s['seed']}  verdict {s['verdict']}  digest {s['digest'] or '- (run.keep)'}",
        "",
        f"requests    {s['num_finished']} of {s['num_requests']} finished, {s['num_refused']} refused, "
        f"{s['num_aborted']} aborted, {s['num_retracted']} retractions",
        f"time        {seconds(s['makespan_s'])} in {s['num_iterations']} iterations of the first rank, "
        f"bubble {bubbles_text(s)}",
        *clients_text(s),
        f"throughput  {s['input_tokens_per_s']:,.1f} input tokens/s, {s['output_tokens_per_s']:,.1f} output tokens/s",
        f"cache       {s['cached_tokens']:,} prompt tokens found, hit rate {percent(s['cache_hit_rate'])}",
        *tiers_text(s),
        *[f"rules       {sentence}" for sentence in s["rules_told"]],
        *[f"rules       prefill: {sentence}" for sentence in s.get("prefill", {"rules_told": ()})["rules_told"]],
        "",
        f"{'latency':<10}" + "".join(f"{name:>11}" for name in PERCENTILES) + nearness_text(s),
        *[latency_row(name, s[key], meaning) for name, key, meaning in LATENCIES],
        *shares_text(s),
        "",
        f"{'stage':<10}{'busy':>11}{'idle':>11}{'bubble':>11}",
        *[stage_row(stage) for stage in s["stages"]],
        *[stage_row(stage, "prefill ") for stage in s.get("prefill", {"stages": ()})["stages"]],
    ]
    lines += [f"warning: {message}" for message in s["warnings"]]
    return "\n".join(line.rstrip() for line in lines)


def bubbles_text(s: Mapping[str, Any]) -> str:
    """Of two pipelines that of each."""
    mine = percent(s["bubble_ratio"])
    return f"{mine} (decode), {percent(s['prefill']['bubble_ratio'])} (prefill)" if "prefill" in s else mine


def clients_text(s: Mapping[str, Any]) -> list[str]:
    """Of a closed loop: its clients, and how many requests were under way."""
    if "concurrency" not in s:
        return []
    loop = s["concurrency"]
    return [f"clients     {loop['clients']}, requests in flight {loop['mean']:.2f} on average, {loop['max']} at most"]


def nearness_text(s: Mapping[str, Any]) -> str:
    """Of a run that has kept no records: how near its percentiles are."""
    found = s.get("percentiles", "exact")
    return "" if found == "exact" else f"   percentiles {found}, means exact"


TIERS = {"load": "loads from host", "write": "writes to host", "prefetch": "fetches from storage"}


def tiers_text(s: Mapping[str, Any]) -> list[str]:
    """Copies of a rank between device, host memory and storage, and how long the busiest rank's link took for them."""
    copies = s.get("tier_copies", {})
    parts = [f"{mine['num']} {TIERS[name]} {seconds(mine['busy_s'])}" for name, mine in copies.items()]
    return [f"tiers       {', '.join(parts)}"] if parts else []


def latency_row(name: str, values: Mapping[str, float | None], meaning: str) -> str:
    return f"{name:<10}" + "".join(f"{seconds(values[p]):>11}" for p in PERCENTILES) + f"   {meaning}"


def shares_text(s: Mapping[str, Any]) -> list[str]:
    """Where the time to the first token goes in a disaggregated run; the shares add up to it, request by request."""
    if "ttft_shares_s" not in s:
        return []
    lines = ["", f"{'ttft':<10}" + "".join(f"{name:>11}" for name in PERCENTILES)]
    lines += [latency_row(name, s["ttft_shares_s"][name], meaning) for name, meaning in SHARES]
    iterations = s["admission_iterations"]["mean"]
    if iterations is not None:
        lines.append(
            f"admission   {iterations:.1f} iterations of the first rank ({seconds(s['admission_s']['mean'])}) from "
            f"ready everywhere, {seconds(s['admission_all_ranks_s']['mean'])} until it holds on every rank"
        )
    return lines


def stage_row(stage: Mapping[str, Any], side: str = "") -> str:
    times = f"{seconds(stage['busy_s']):>11}{seconds(stage['idle_s']):>11}"
    return f"{side + str(stage['pp_rank']):<10}{times}{percent(stage['bubble_ratio']):>11}"


def seconds(value: float | None) -> str:
    """A time with three or more digits that mean something, in s, ms or us; "-" where there is none."""
    if value is None:
        return "-"
    for scale, unit in ((1, "s"), (1e3, "ms")):
        if abs(value * scale) >= 1:
            return f"{value * scale:,.2f} {unit}"
    return f"{value * 1e6:,.2f} us" if value else "0 s"


def percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
