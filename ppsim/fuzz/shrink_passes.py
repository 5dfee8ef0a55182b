"""The passes of shrinking: each yields smaller candidates of an experiment, those that leave out most first.

Whether a candidate still shows the bug is asked in ``shrink.py``. A pass knows the form of a scenario, nothing of runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from ppsim.fuzz.experiment import Experiment
from ppsim.fuzz.generate import patience
from ppsim.scenario.load import validate
from ppsim.scenario.rank import SGLANG

Candidate = Callable[[Experiment], Iterator[Experiment]]
MAX_SINGLE = 40  # choices that are made smaller one by one
MANY_REQUESTS = 3

DEFAULTS: tuple[tuple[str, str, Any], ...] = (
    ("links", "send", "eager"),
    ("links", "payload", "eager"),
    ("links", "order", "stream"),
    ("links", "commit", "all"),
    ("links", "commit_over", "posted"),
    ("links", "graph_fence", "send"),
    ("links", "schedule_hold", "commit"),
    ("links", "token_read", "arrival"),
    ("links", "early_send", "after_exchange"),
    ("links", "rendezvous_hold", "posted"),
    ("links", "jitter_us", 0.0),
    ("links", "latency_us", 0.0),
    ("host", "schedule_us", 0.0),
    ("host", "process_us", 0.0),
    ("scheduler", "exchange_order", "send_first"),
    ("scheduler", "hidden_send", "after_harvest"),
    ("scheduler", "enable_mixed_chunk", False),
    ("scheduler", "schedule_policy", "fcfs"),
    ("scheduler", "prefill_decode_interval", 0),
    ("scheduler", "disable_radix_cache", False),
    ("scheduler", "skip_pure_chunked_output_comm", False),
    ("scheduler", "page_size", 1),
    ("scheduler", "max_running_requests", 16),
    ("scheduler", "pp_max_micro_batch_size", 4),
    ("scheduler", "chunked_prefill_size", 64),
    ("scheduler", "max_total_tokens", 400),
    ("observations", "max_delay", 0),
    ("cluster", "comm_overlap", False),
    ("cluster", "cuda_graph", True),
    ("links", "bandwidth_gb_per_s", 0.0),
    ("host", "stage_jitter_percent", 0.0),
    ("scheduler", "reserve_decode", "slot"),
    ("scheduler", "max_prefill_tokens", 16384),
    ("scheduler", "prefill_max_requests", 0),
    ("scheduler", "max_consecutive_prefills", 0),
    ("scheduler", "max_consecutive_chunks", 0),
    ("scheduler", "clip_max_new_tokens", 4096),
    ("scheduler", "schedule_conservativeness", 1.0),
    ("disaggregation", "bootstrap", "store"),
    ("disaggregation", "store_lag_us", 0.0),
    ("disaggregation", "decode_pp_async_batch_depth", 0),
    ("disaggregation", "control_latency_us", 0.0),
    ("disaggregation", "kv_bandwidth_gb_per_s", 0.0),
    ("disaggregation", "kv_latency_us", 0.0),
    ("disaggregation", "bootstrap_timeout_ms", 0.0),
    ("disaggregation", "receive_timeout_ms", 0.0),
    ("chance", "max_arrival_delay", 0),
    ("chance", "max_abort_delay", 0),
    ("chance", "max_clock_skew_ms", 0),
    ("chance", "pause_iterations", 0),
    ("chance", "max_lost_pages", 0),
    ("chance", "max_failed_allocations", 0),
    ("chance", "max_good_allocations", 0),
    ("workload", "concurrency", 0),
    ("chance", "stops", False),
    ("hicache", "write_policy", "write_through"),
    ("hicache", "storage", False),
    ("hicache", "device_host_gb_per_s", 0.0),
    ("hicache", "storage_gb_per_s", 0.0),
    ("hicache", "storage_latency_us", 0.0),
)


def stages(e: Experiment) -> int:
    """pp_size of an experiment."""
    return int(e.raw["cluster"]["pp_size"])


def edited(experiment: Experiment, edit: Callable[[dict[str, Any]], None]) -> Experiment:
    raw = copy.deepcopy(experiment.raw)
    edit(raw)
    return Experiment(raw, experiment.tape, experiment.chooser)


def without_items(section: str, key: str) -> Candidate:
    """Drop halves, then single entries of a list; at least one request stays."""

    def candidates(e: Experiment) -> Iterator[Experiment]:
        items = e.raw.get(section, {}).get(key, [])
        least = 1 if key == "requests" else 0
        size = len(items) // 2
        while size >= 1:
            for start in range(0, len(items), size):
                rest = items[:start] + items[start + size :]
                if len(rest) >= least and len(rest) < len(items):
                    yield edited(e, lambda raw, rest=rest: raw[section].__setitem__(key, rest))  # type: ignore[misc]
            size //= 2
        if items and not least:
            yield edited(e, lambda raw: raw[section].pop(key))

    return candidates


def without_sections(e: Experiment) -> Iterator[Experiment]:
    """Drop whole sections of surroundings."""
    for name in ("chance", "faults", "timeouts", "observations", "hicache", "disaggregation", "links", "host"):
        if name in e.raw:
            yield edited(e, lambda raw, name=name: raw.pop(name))  # type: ignore[misc]


def fewer_where_less_fits(e: Experiment) -> Iterator[Experiment]:
    """Drop a request or two of many, where only a smaller batch or a smaller pool lets the others do without them."""
    requests, scheduler = e.raw["workload"].get("requests", ()), e.raw["scheduler"]
    if len(requests) <= MANY_REQUESTS:
        return
    pool, batch = scheduler.get("max_total_tokens"), scheduler.get("pp_max_micro_batch_size", 1)
    for pair in reversed([(i, j) for i in range(len(requests)) for j in range(i, len(requests))]):
        rest = [request for k, request in enumerate(requests) if k not in pair]
        edits: list[tuple[str, Any]] = [("pp_max_micro_batch_size", size) for size in (1, 2) if size < batch]
        if isinstance(pool, int):
            held = sum(requests[i]["prompt"] + requests[i].get("output", 1) for i in set(pair))
            smaller = dict.fromkeys(
                pool - less for less in (held, held - len({*pair}), held // 2, pool // 4, pool // 8)
            )
            edits += [("max_total_tokens", size) for size in smaller if 0 < size < pool]
        for key, size in edits:
            yield edited(e, lambda raw, rest=rest, key=key, size=size: fewer_with(raw, rest, key, size))  # type: ignore[misc]


def fewer_with(raw: dict[str, Any], rest: list[dict[str, Any]], key: str, size: int) -> None:
    raw["workload"]["requests"] = rest
    raw["scheduler"][key] = size


def less_patience(e: Experiment) -> Iterator[Experiment]:
    """As many iterations to wait as what is left of the work may take: what stands still is found out sooner."""
    limit = e.raw.get("run", {}).get("max_wait_iterations", 0)
    if limit and patience(e.raw) < limit:
        yield edited(e, lambda raw: raw["run"].__setitem__("max_wait_iterations", patience(raw)))


def fewer_ranks(e: Experiment) -> Iterator[Experiment]:
    """Smaller pipelines; lists with an entry for each rank are cut with them."""
    cluster = e.raw["cluster"]
    for pp_size in range(1, cluster["pp_size"]):
        yield edited(e, lambda raw, p=pp_size: resize(raw, p, cluster.get("tp_replicas", 1)))  # type: ignore[misc]
    if cluster.get("tp_replicas", 1) > 1:
        yield edited(e, lambda raw: resize(raw, cluster["pp_size"], 1))
    for depth in range(cluster.get("pp_async_batch_depth", 0)):
        yield edited(e, lambda raw, d=depth: raw["cluster"].__setitem__("pp_async_batch_depth", d))  # type: ignore[misc]
    if e.raw.get("disaggregation", {}).get("decode_pp_size", 1) > 1:
        yield edited(e, one_decode_stage)


def one_decode_stage(raw: dict[str, Any]) -> None:
    raw["disaggregation"]["decode_pp_size"] = 1
    replicas = raw["cluster"].get("tp_replicas", 1)
    cut_lists(raw, raw["cluster"]["pp_size"] * replicas, raw["cluster"]["pp_size"] * replicas, replicas)


def cut_lists(raw: dict[str, Any], before: int, after: int, num_decode: int) -> None:
    """What has an entry for each rank: the ranks of a decode side come behind the ``before`` of the first pipeline."""
    for entry in raw.get("observations", {}).get("listed", ()):
        for key in ("at", "failed"):
            if isinstance(entry.get(key), list):
                entry[key] = of_fewer(entry[key][:before], after) + entry[key][before:][:num_decode]
    skews = raw.get("faults", {}).get("clock_skew_ms")
    if skews:
        raw["faults"]["clock_skew_ms"] = skews[:after] + skews[before:][:num_decode]


def resize(raw: dict[str, Any], pp_size: int, replicas: int) -> None:
    before = raw["cluster"]["pp_size"] * raw["cluster"].get("tp_replicas", 1)
    after = pp_size * replicas
    raw["cluster"].update(pp_size=pp_size, tp_size=replicas, tp_replicas=replicas)
    num_decode = resize_decode_side(raw, pp_size, replicas)
    pool = raw["scheduler"].get("max_total_tokens")
    if isinstance(pool, list):
        raw["scheduler"]["max_total_tokens"] = pool[:pp_size]
    cut_lists(raw, before, after, num_decode)
    faults, tiers = raw.get("faults", {}), raw.get("hicache", {})
    for pause in faults.get("pauses", ()):
        pause["rank"] = min(pause["rank"], after - 1)
    if isinstance(tiers.get("host_tokens"), list):
        tiers["host_tokens"] = tiers["host_tokens"][:pp_size]
    for hit in tiers.get("storage_hits", ()):
        hit["tokens"] = of_fewer(hit["tokens"], after)


def of_fewer(values: list[Any], num: int) -> list[Any]:
    """One value for each of fewer ranks: those of the first and the last are kept, for a bug is most often between."""
    return [*values[: num - 1], values[-1]] if num > 1 else values[:1]


def resize_decode_side(raw: dict[str, Any], pp_size: int, replicas: int) -> int:
    """The number of its ranks: a second pipeline has as many stages as the first, or one; 0 if there is none."""
    sides = raw.get("disaggregation", {})
    if sides.get("role") != "pd":
        return 0
    if sides.get("decode_pp_size", pp_size) > 1:
        sides["decode_pp_size"] = pp_size
    raw.setdefault("model", {}).update(num_attention_heads=replicas, num_key_value_heads=replicas)
    faults = [f | {"rank": min(f["rank"], pp_size * replicas - 1)} for f in sides.get("kv_faults", ())]
    if faults:  # each write goes wrong once
        sides["kv_faults"] = list({(f["rid"], f["rank"], f.get("nth", 1)): f for f in faults}.values())
    return int(sides.get("decode_pp_size", pp_size)) * replicas


def default_features(e: Experiment) -> Iterator[Experiment]:
    """Switch features off, one at a time."""
    for section, key, value in DEFAULTS:
        if key in e.raw.get(section, {}) and e.raw[section][key] != value:
            yield edited(e, lambda raw, s=section, k=key, v=value: raw[s].__setitem__(k, v))  # type: ignore[misc]
    for key in ("rules", *SGLANG):
        if key in e.raw["scheduler"]:
            yield edited(e, lambda raw, k=key: raw["scheduler"].pop(k))  # type: ignore[misc]
    for i, request in enumerate(e.raw["workload"].get("requests", ())):
        for key in ("prefix_blocks", "stop_after", "return_logprob", "grammar", "priority", "ignore_eos"):
            if key in request:
                yield edited(e, lambda raw, i=i, k=key: raw["workload"]["requests"][i].pop(k))  # type: ignore[misc]


def smaller_numbers(e: Experiment) -> Iterator[Experiment]:
    """Lengths, iterations and delays towards their smallest value: at once, by half, by less and less, by one."""
    for path, value, least in numbers(e.raw):
        parts = (value - (value - least) // part for part in (2, 4, 16))
        for smaller in dict.fromkeys((least, *parts, value - 1)):
            if least <= smaller < value:
                yield edited(e, lambda raw, p=path, v=smaller: assign(raw, p, v))  # type: ignore[misc]


def numbers(raw: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any, int]]:
    """(path, value, smallest value) of everything that can be made smaller."""
    for i, request in enumerate(raw["workload"].get("requests", ())):
        for key, least in (("output", 1), ("prompt", 1), ("at_iteration", 0), ("at_ms", 0), ("stop_after", 1)):
            if key in request:
                yield ("workload", "requests", i, key), request[key], least
    for key in ("aborts", "flushes"):
        for i, entry in enumerate(raw["workload"].get(key, ())):
            for when in ("at_iteration", "at_ms"):
                if when in entry:
                    yield ("workload", key, i, when), entry[when], 0
    for i, entry in enumerate(raw.get("observations", {}).get("listed", ())):
        for k, at in enumerate(entry["at"]):
            yield ("observations", "listed", i, "at", k), at, 0
    for i, entry in enumerate(raw.get("hicache", {}).get("storage_hits", ())):
        for k, tokens in enumerate(entry["tokens"]):
            yield ("hicache", "storage_hits", i, "tokens", k), tokens, 0


def assign(raw: Any, path: tuple[Any, ...], value: int) -> None:
    for part in path[:-1]:
        raw = raw[part]
    raw[path[-1]] = value


def without_last_zeros(tape: tuple[int, ...]) -> tuple[int, ...]:
    """The same choices: a tape answers 0 when it runs out."""
    length = len(tape)
    while length and tape[length - 1] == 0:
        length -= 1
    return tape[:length]


def simpler_tape(e: Experiment) -> Iterator[Experiment]:
    """Shorter, then zeros in blocks, then smaller choices; of a run with a chooser: nothing left to chance."""
    if e.chooser.kind != "tape":
        yield Experiment(e.raw)
        return
    tape = without_last_zeros(e.tape)
    yield Experiment(e.raw, tape)
    for length in dict.fromkeys((0, len(tape) // 2, len(tape) - 1)):
        if 0 <= length < len(tape):
            yield Experiment(e.raw, tape[:length])
    size = len(tape) // 2
    while size >= max(2, len(tape) // 32):
        for start in range(0, len(tape), size):
            if any(tape[start : start + size]):
                zeros = (0,) * len(tape[start : start + size])
                yield Experiment(e.raw, (*tape[:start], *zeros, *tape[start + size :]))
        size //= 2
    for i, value in [(i, value) for i, value in enumerate(tape) if value][:MAX_SINGLE]:
        for smaller in dict.fromkeys((0, value // 2, value - 1)):
            if 0 <= smaller < value:
                yield Experiment(e.raw, (*tape[:i], smaller, *tape[i + 1 :]))


def tidied(e: Experiment) -> Iterator[Experiment]:
    """Without what says no more than the defaults; the number of stages is always told."""
    raw = validate(e.raw).model_dump(mode="json", exclude_defaults=True)
    raw.setdefault("cluster", {})["pp_size"] = e.raw["cluster"]["pp_size"]
    yield Experiment(raw, e.tape, e.chooser)


PASSES: tuple[Candidate, ...] = (
    without_items("workload", "requests"),
    less_patience,
    without_items("workload", "aborts"),
    without_items("workload", "flushes"),
    without_items("observations", "listed"),
    without_items("faults", "pauses"),
    without_items("disaggregation", "kv_faults"),
    without_items("hicache", "storage_hits"),
    without_sections,
    fewer_ranks,
    default_features,
    smaller_numbers,
    less_patience,
    simpler_tape,
    fewer_where_less_fits,
)
