"""Keys of a scenario and figures of a summary in words with their units, for the axes and titles of pictures.

Rule: words and unit first, the key itself behind them, so that a reader of the picture who has never seen a scenario
knows what is drawn, and one who wants to change it knows what to write. Keys that have no words here get those of their
name, and the unit that it ends in; every figure has words (a test goes through all of them).
"""

from __future__ import annotations

from typing import Any, NamedTuple

UNITS = {  # ends of names, the longest first; an empty unit is in the words
    "_ms_per_token2": "ms per token squared",
    "_ms_per_token": "ms per token",
    "_gb_per_s": "GB/s",
    "_per_s": "per second",
    "_tflops": "TFLOP/s",
    "_iterations": "iterations",
    "_percent": "%",
    "_tokens": "tokens",
    "_bytes": "bytes",
    "_ms": "ms",
    "_us": "us",
    "_ns": "ns",
    "_gb": "GB",
    "_s": "s",
}


class Words(NamedTuple):
    """What something is called, and its unit; empty where it is a number of things, a share, a name or a switch."""

    name: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name


KEYS = {
    "scenario": Words("scenario"),
    "seed": Words("seed"),
    "cluster.pp_size": Words("pipeline stages"),
    "cluster.tp_size": Words("GPUs of a stage"),
    "cluster.cp_size": Words("context-parallel ranks"),
    "cluster.pp_async_batch_depth": Words("depth: iterations for which outputs are held back"),
    "scheduler.schedule_policy": Words("order of the waiting queue"),
    "scheduler.chunked_prefill_size": Words("size of a chunk", "tokens"),
    "scheduler.enable_dynamic_chunking": Words("dynamic chunks"),
    "scheduler.dynamic_chunking_smooth_factor": Words("smooth factor of dynamic chunks"),
    "scheduler.enable_mixed_chunk": Words("decode steps in prefill batches"),
    "scheduler.max_total_tokens": Words("KV pool", "tokens"),
    "scheduler.max_running_requests": Words("requests that may run at once"),
    "scheduler.pp_max_micro_batch_size": Words("requests of a slot"),
    "scheduler.page_size": Words("KV page", "tokens"),
    "scheduler.skip_pure_chunked_output_comm": Words("outputs of middle chunks are not sent"),
    "scheduler.rules": Words("rules of the scheduler"),
    "workload.rate_per_s": Words("arriving requests", "per second"),
    "workload.concurrency": Words("clients at once"),
    "workload.num_requests": Words("requests"),
    "workload.num_chunks": Words("chunks of the prompt"),
    "workload.num_sessions": Words("sessions"),
    "links.latency_us": Words("latency of a link", "us"),
    "links.bandwidth_gb_per_s": Words("bandwidth of a link", "GB/s"),
    "links.send": Words("whether a send blocks"),
    "disaggregation.bootstrap": Words("how transfers are agreed on"),
}
FIGURES = {
    "bubble_ratio": Words("bubble: share of the time in which a stage is idle"),
    "input_tokens_per_s": Words("throughput", "input tokens/s"),
    "output_tokens_per_s": Words("throughput", "output tokens/s"),
    "input_tokens": Words("prompts", "tokens"),
    "output_tokens": Words("output", "tokens"),
    "cached_tokens": Words("found in the cache", "tokens"),
    "cache_hit_rate": Words("share of the prompts that the cache had"),
    "makespan_s": Words("makespan", "s"),
    "num_deferred_visits": Words("visits that a rule held up"),
    "num_empty_pieces": Words("chunks launched without a token"),
    "num_iterations": Words("iterations of the first rank"),
    "num_retracted": Words("retractions"),
    "concurrency_clients": Words("clients"),
    "concurrency_mean": Words("requests in flight (mean)"),
    "concurrency_max": Words("requests in flight (most)"),
}
BEGINS = {  # of figures with a statistic
    "ttft_shares_queueing": "time to first token: waiting for memory and a batch",
    "ttft_shares_control": "time to first token: handshakes and votes",
    "ttft_shares_compute": "time to first token: forward passes",
    "ttft_shares_transfer": "time to first token: KV that compute did not hide",
    "ttft_shares_release": "time to first token: until the end of the transfer is agreed on",
    "ttft_from_read": "time to first token, from the first rank's reading",
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "time to last token",
    "admission_all_ranks": "from ready everywhere to admitted on every rank",
    "admission_iterations": "iterations from ready everywhere to admitted",
    "admission": "from ready everywhere to admitted",
    "tier_copies_load": "loads from host memory",
    "tier_copies_write": "writes to host memory",
    "tier_copies_prefetch": "fetches from storage",
}
STATISTICS = {
    "p50": "median",
    "p90": "90th percentile",
    "p99": "99th percentile",
    "num": "number",
    "busy": "of the busiest rank",
}


def key_words(key: str) -> Words:
    """A scenario's key in words."""
    if key in KEYS:
        return KEYS[key]
    leaf = key.rpartition(".")[2]
    ending, unit = next(((end, unit) for end, unit in UNITS.items() if leaf.endswith(end)), ("", ""))
    plain = leaf.removesuffix(ending).removeprefix("num_").replace("_", " ")
    if leaf.startswith("max_"):
        plain = f"most {plain.removeprefix('max ')}"
    return Words(plain or leaf, unit)


def axis_words(key: str) -> str:
    """For an axis: words, unit, and the key."""
    words = key_words(key)
    return str(words) if words.name == key else f"{words} ({key})"


def value_words(key: str, value: str) -> str:
    """For a legend: "pipeline stages 4", "latency of a link 200 us". What follows a colon explains, and is left out."""
    words = key_words(key)
    return f"{words.name.partition(':')[0]} {value} {words.unit}".rstrip()


def figure_words(name: str) -> str:
    """A figure of a summary in words, with its unit."""
    if name in FIGURES:
        return str(FIGURES[name])
    if name.startswith("prefill_"):
        return f"prefill side: {figure_words(name.removeprefix('prefill_'))}"
    for begin, words in BEGINS.items():
        rest = name.removeprefix(f"{begin}_")
        if rest != name:
            unit = "s" if rest.endswith("_s") else ""
            statistic = rest.removesuffix("_s")
            return str(Words(f"{words} ({STATISTICS.get(statistic, statistic)})", unit))
    return str(key_words(name))


def figure_name(name: str) -> str:
    """For a sentence: without unit, statistic and explanation. "bubble", "prefill side: time to first token"."""
    side = "prefill side: " if name.startswith("prefill_") else ""
    words = figure_words(name).removeprefix(side)
    for end in (":", " (", ","):
        words = words.partition(end)[0]
    return side + words


def log_note(is_log: bool) -> str:
    """Behind the words of an axis: a reader should not have to find it out from the ticks."""
    return ", logarithmic scale" if is_log else ""


def shown(value: Any) -> str:
    """A value of a key as a user writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
