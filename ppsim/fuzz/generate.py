"""Hypothesis strategies for whole experiments: configuration, workload, aborts, observations, faults and tape.

Sizes are small on purpose: nearly every bug of a pipeline shows with three ranks, a handful of requests and a pool of a
few pages, and small runs are fast to run and to shrink. What is drawn is always a valid scenario: a pool holds each of
its requests alone, whatever the others take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ppsim.fuzz.experiment import Chooser, Experiment
from ppsim.fuzz.pair import two_sides
from ppsim.fuzz.profiles import Profile
from ppsim.scenario.rank import SGLANG

MAX_ITERATIONS = 3000
CHUNK = 16
TINY_CHUNK = 4  # the decodes of a mixed batch can use it up
RESERVE = 4  # num_reserved_decode_tokens
RARE = (
    "retraction",
    "starved",
    "no_radix",
    "all_slots",
    "prefill_limits",
    "turns",
    "tiny_chunks",
    "gaps",
    "few_rows",
    "uneven_pools",
    "flush",
)
"""Features that keep others from showing; on in one example of four."""


@st.composite
def experiments(draw: DrawFn, profile: Profile) -> Experiment:
    """One experiment of a profile, with a random subset of its features."""
    on = {name for name in profile.features if draw(st.booleans()) and (name not in RARE or draw(st.booleans()))}
    on |= set(profile.always)
    if "hicache" in on:  # nothing is copied where nothing is shared, and nothing evicted where memory is plenty
        on |= {"prefixes", "tight_pool"}
    if on & {"retraction", "starved"}:  # nothing is retracted where memory is plenty
        on |= {"tight_pool", "bursts"}
    role = draw(st.sampled_from(profile.roles))
    work = workload(draw, on)
    raw = {"name": "fuzz", "workload": work, **machine(draw, on, role, work["requests"])}
    surroundings(draw, on, role, raw)
    chance(draw, on, raw)
    if "hicache" in on and role in ("plain", "prefill"):
        tiers(draw, on, raw)
    raw["run"] = {"max_iterations": MAX_ITERATIONS, "invariants": True, "max_wait_iterations": patience(raw)}
    raw["run"] |= {"max_retractions": most_retractions(raw), "max_wait_ms": patience_ms(raw)}
    if role == "pd":
        two_sides(draw, on, raw)
    if "streams" in on:
        stream_choices(draw, role, raw)
    return Experiment(raw, chooser=chooser(draw))


def chooser(draw: DrawFn) -> Chooser:
    """Who answers what the scenario leaves open: nobody, chance, chance for all orders too, or a few surprises."""
    kind = draw(st.sampled_from(("tape", "seeded", "seeded", "shuffled", "pct")))
    if kind == "tape":
        return Chooser()
    seed = draw(number(0, 10**6))
    if kind != "pct":
        return Chooser(kind, seed)
    return Chooser(kind, seed, draw(number(1, 4)), draw(st.sampled_from((20, 100, 500))))


# --- what arrives ------------------------------------------------------------------------------------------------


def workload(draw: DrawFn, on: set[str]) -> dict[str, Any]:
    """Requests, aborts and flushes, all in logical time."""
    num_requests = draw(number(3, 8) if "retraction" in on else number(1, 6))
    requests = [request(draw, on, i) for i in range(num_requests)]
    if "starved" in on:
        starve(draw, requests)
    elif "retraction" in on and draw(st.booleans()):  # all cross the border of a page at once
        for other in requests:
            other.update(prompt=min(requests[0]["prompt"], 4), at_iteration=requests[0]["at_iteration"])
    found: dict[str, Any] = {"source": "requests", "block_tokens": 16, "requests": requests}
    aborts = [abort(draw, requests) for _ in range(draw(number(1, 3)))] if "aborts" in on else []
    if "abort_all" in on and draw(st.booleans()):
        aborts.append({"abort_all": True, "at_iteration": draw(number(0, 24))})
    if aborts:
        found["aborts"] = aborts
    if "flush" in on:
        first = min(int(r["at_iteration"]) for r in requests)  # right behind it only its prompt is in flight
        at = {"flush": draw(number(0, 60)), "early flush": first + draw(number(1, 2))}
        found["flushes"] = [{"rid": rid, "at_iteration": iteration} for rid, iteration in at.items()]
    return found


def abort(draw: DrawFn, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Soon after the request has arrived, mostly; or of a request that nobody knows."""
    target = draw(number(0, len(requests)))
    came = requests[target]["at_iteration"] if target < len(requests) else 0
    return {"rid": name(target), "at_iteration": came + draw(st.sampled_from((0, 1, 2, 3, 4, 5, 6, 8, 11, 16, 24, 32)))}


def name(index: int) -> str:
    """Ids of which some begin with another one, as an abort by prefix would find them (protocol.md 7.1)."""
    return f"R{index % 3}" + "x" * (index // 3)


def starve(draw: DrawFn, requests: list[dict[str, Any]]) -> None:
    """Short prompts that decode for long, then a long prompt: they take the memory that its chunks count on."""
    requests += [{"rid": name(len(requests) + i)} for i in range(3)]
    for other in requests[:-1]:
        other.update(prompt=draw(number(1, 4)), output=draw(number(16, 30)), at_iteration=draw(number(0, 1)))
    requests[-1].update(prompt=draw(number(60, 100)), output=draw(number(1, 4)), at_iteration=draw(number(2, 5)))


def request(draw: DrawFn, on: set[str], index: int) -> dict[str, Any]:
    """One request; its arrival is early, late, or at once with all others."""
    output = draw(number(8, 30) if "retraction" in on else number(1, 30 if "long_outputs" in on else 8))
    longest = 120 if "long_prompts" in on else 48
    if "retraction" in on:  # short prompts grow into each other; one long one is cut while they do
        longest = draw(st.sampled_from((6, 6, 12, 80)))
    found: dict[str, Any] = {
        "rid": name(index),
        "at_iteration": draw(number(0, 2 if "bursts" in on else 30 if "gaps" in on else 12)),
        "prompt": draw(number(1, longest)),
        "output": output,
    }
    if "prefixes" in on and ("hicache" in on or draw(st.booleans())):
        last = 3 if "many_prefixes" in on else 1
        found["prefix_blocks"] = draw(st.lists(number(0, last), min_size=1, max_size=2))
    if "stops" in on and draw(st.booleans()):
        found["stop_after"] = draw(number(1, output))
    if "grammar" in on and draw(st.booleans()):
        found["grammar"] = "json"
    if "priorities" in on and draw(st.booleans()):
        found["priority"] = draw(number(-1, 2))
    if "skip_rule" in on and draw(number(0, 3)) == 0:
        found["return_logprob"] = True
    if "ignore_eos" in on and draw(st.booleans()):
        found["ignore_eos"] = True
    return found


# --- what it runs on -----------------------------------------------------------------------------------------------


def machine(draw: DrawFn, on: set[str], role: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Cluster, scheduler, cost, links, host."""
    pp_size = draw(st.sampled_from((2, 3, 4, 1) if "rendezvous" not in on else (2, 3, 4)))
    replicas = draw(st.sampled_from((1, 2))) if "replicas" in on else 1
    scheduler = limits(draw, on, role, requests)
    if "uneven_pools" in on:
        pool = scheduler["max_total_tokens"]
        scheduler["max_total_tokens"] = [pool + draw(number(0, 40)) for _ in range(pp_size)]
    cluster: dict[str, Any] = {
        "pp_size": pp_size,
        "pp_async_batch_depth": draw(number(0, 2)) if "depth" in on else 0,
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


def links(draw: DrawFn, on: set[str], scheduler: dict[str, Any]) -> dict[str, Any]:
    """Latencies, bandwidth, and whether a send blocks; the scheduler's order of sends goes with it."""
    found: dict[str, Any] = {}
    if "jitter" in on:
        found = {"latency_us": 20.0, "jitter_us": 50.0}
    if "overlap" in on:
        found["bandwidth_gb_per_s"] = draw(st.sampled_from((0.001, 0.01)))
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


def stream_choices(draw: DrawFn, role: str, raw: dict[str, Any]) -> None:
    """What the streams of a rank carry and wait for; nothing that locks the right protocol."""
    found, scheduler = raw["links"], raw["scheduler"]
    raw["cluster"]["cuda_graph"] = draw(st.booleans())
    for key, values in STREAM_CHOICES.items():
        found[key] = draw(st.sampled_from(values))
    if role != "plain" or raw.get("hicache", {}).get("storage"):
        found["payload"] = "eager"
    if found["payload"] == "matched":
        scheduler["exchange_order"] = "parity"
    if found["payload"] == "matched" or found.get("send") == "rendezvous":
        found["early_send"] = "after_exchange"  # before it, each waits for a receiver that waits for its output


def limits(draw: DrawFn, on: set[str], role: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """The scheduler's limits and policies."""
    page = draw(st.sampled_from((1, 4))) if "pages" in on else 1
    clip = draw(number(1, 4)) if on & {"retraction", "starved"} else 4096
    found: dict[str, Any] = {
        "chunked_prefill_size": TINY_CHUNK
        if "tiny_chunks" in on
        else CHUNK
        if on & {"chunks", "starved"}
        else -1
        if "tight_pool" in on
        else 64,
        "page_size": page,
        "max_running_requests": draw(number(1, 4)) if "few_rows" in on else 16,
        "pp_max_micro_batch_size": draw(number(1, 3)) if "small_slots" in on else 6,
        "enable_mixed_chunk": "mixed" in on and role == "plain",
        "schedule_policy": "lpm" if "lpm" in on and role != "decode" else "fcfs",
        "prefill_decode_interval": draw(number(1, 3)) if "decode_interval" in on else 0,
        "disable_radix_cache": "no_radix" in on,
        "skip_pure_chunked_output_comm": "skip_rule" in on,
        "hidden_send": "after_launch" if "early_hidden" in on and role == "plain" else "after_harvest",
        "context_length": 256,
        "clip_max_new_tokens": clip,
    }
    if "tight_pool" in on:
        least = max(least_pool(r, clip, page, role) for r in requests)
        if "starved" in on:
            least += page * draw(number(len(requests), 6 * len(requests)))
        slack = draw(st.sampled_from((0, 12))) if "retraction" in on else 12
        found["max_total_tokens"] = max(CHUNK, -(-least // page) * page) + page * draw(number(0, slack))
    else:
        found["max_total_tokens"] = 600
    if on & {"retraction", "starved"}:
        found["schedule_conservativeness"] = 0.1
    if "all_slots" in on:
        found["reserve_decode"] = "all_slots"
        found["max_total_tokens"] += sum(r["output"] for r in requests)
    if "prefill_limits" in on:
        found["max_prefill_tokens"] = draw(st.sampled_from((8, 24, 64)))
        found["prefill_max_requests"] = draw(number(0, 2))
    if "turns" in on and role != "decode":
        prefills, chunks = draw(st.sampled_from(((1, 0), (2, 0), (0, 1), (0, 2), (1, 1))))
        found["max_consecutive_prefills"], found["max_consecutive_chunks"] = prefills, chunks
    if "mended" in on:
        found["rules"] = "mended"
    if "rule_keys" in on:  # an explicit value wins over the rule set
        keys = draw(st.lists(st.sampled_from(sorted(SGLANG)), min_size=1, max_size=3, unique=True))
        found |= {key: draw(st.booleans()) for key in keys}
    return found


def least_pool(request: dict[str, Any], clip: int, page: int, role: str) -> int:
    """Tokens of a pool that can serve the request alone (``Intake._why_never`` and the decode role's reserve)."""
    prompt, output = int(request["prompt"]), 1 if role == "prefill" else int(request["output"])
    reserve = prompt + min(output, clip) + page + 1
    if request.get("ignore_eos"):  # all of its output counts where the radix cache is off
        reserve = max(reserve, prompt + output + page + 1)
    return int(max(reserve, prompt + output, prompt + RESERVE if role in ("decode", "pd") else 0))


# --- what each rank sees alone -------------------------------------------------------------------------------------


def surroundings(draw: DrawFn, on: set[str], role: str, raw: dict[str, Any]) -> None:
    """Roles, observations, timeouts, clocks."""
    if role != "plain":
        raw["disaggregation"] = {
            "role": role,
            "bootstrap": "vote" if "ring_bootstrap" in on else "store",
            "num_reserved_decode_tokens": RESERVE,
        }
        if "store_lag" in on:
            raw["disaggregation"]["store_lag_us"] = draw(st.sampled_from((300.0, 3000.0)))
            raw["host"]["schedule_us"] = 200.0  # else no time goes by while the first rank waits for the store
    observations: dict[str, Any] = {}
    if "delays" in on:
        observations["max_delay"] = draw(number(1, 6))
    if on & {"listed", "failures"} and role != "pd":
        observations["listed"] = [listed(draw, on, role, raw) for _ in range(draw(number(0, 3)))]
    if "stuck" in on and role in ("prefill", "decode"):
        never = {"what": KINDS[role][0], "rid": raw["workload"]["requests"][0]["rid"], "at": [10**6] * num_ranks(raw)}
        observations["listed"] = [never, *observations.get("listed", [])]
        raw["timeouts"] = {"waiting_ms": draw(number(5, 30))}
        raw["host"]["schedule_us"] = 1000.0  # what waits for a limit must see time go by
    if observations:
        raw["observations"] = observations
    if "timeouts" in on:
        raw["timeouts"] = {"waiting_ms": draw(number(5, 30)), "running_ms": draw(number(5, 60))}
        raw["faults"] = {"clock_skew_ms": [draw(number(-5, 5)) for _ in range(num_ranks(raw))]}
    if "pauses" in on:
        pause = {"rank": draw(number(0, num_ranks(raw) - 1)), "at_iteration": draw(number(0, 20)), "ms": 4.0}
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


def chance(draw: DrawFn, on: set[str], raw: dict[str, Any]) -> None:
    """What is left to the choices of the run."""
    found: dict[str, Any] = {
        key: draw(st.sampled_from(bounds)) for feature, (key, bounds) in CHANCE.items() if feature in on
    }
    if "stalls" in on:
        found["pause_ms"] = 4.0
    if "sampled_stops" in on:
        found["stops"] = True
    if found:
        raw["chance"] = found


def tiers(draw: DrawFn, on: set[str], raw: dict[str, Any]) -> None:
    """Host memory and storage: small, slow, uneven, and with something of what the requests ask for."""
    requests, width = raw["workload"]["requests"], num_ranks(raw)
    raw["scheduler"]["disable_radix_cache"] = False
    host = draw(st.sampled_from((4, 16, 32))) if "tiny_host" in on else 256
    found: dict[str, Any] = {
        "enabled": True,
        "write_policy": "write_back" if "write_back" in on else "write_through",
        "host_tokens": host,
    }
    if "uneven_host" in on:
        found["host_tokens"] = [host + draw(number(0, 16)) for _ in range(raw["cluster"]["pp_size"])]
    if "slow_tiers" in on:
        found["device_host_gb_per_s"] = draw(st.sampled_from((0.1, 1.0)))
        found["storage_gb_per_s"] = draw(st.sampled_from((0.05, 1.0)))
        found["storage_latency_us"] = draw(st.sampled_from((0.0, 700.0)))
    if "storage" in on:
        found["storage"] = True
        hits = [draw(st.lists(number(0, 48), min_size=width, max_size=width)) for _ in requests]
        found["storage_hits"] = [{"rid": r["rid"], "tokens": hit} for r, hit in zip(requests, hits, strict=True)]
    raw["hicache"] = found
    if "listed" in on:
        at = draw(st.lists(number(0, 40), min_size=width, max_size=width))
        what = draw(st.sampled_from(("write", "load", "prefetch")))
        entry = {"what": what, "rid": draw(st.sampled_from(requests))["rid"], "at": at}
        raw.setdefault("observations", {}).setdefault("listed", []).append(entry)


KINDS = {"plain": (), "prefill": ("bootstrap", "transfer"), "decode": ("handshake", "receive")}


def listed(draw: DrawFn, on: set[str], role: str, raw: dict[str, Any]) -> dict[str, Any]:
    """A fact with its own iteration on each rank."""
    requests = raw["workload"]["requests"]
    what = draw(st.sampled_from(KINDS[role] + (("grammar",) if "grammar" in on or role == "plain" else ())))
    target = requests[draw(number(0, len(requests) - 1))]
    if what == "grammar" and "grammar" in on:
        target["grammar"] = "json"
    return {
        "what": what,
        "rid": target["rid"],
        "at": [draw(number(0, 20)) for _ in range(num_ranks(raw))],
        "failed": "failures" in on and draw(st.booleans()),
    }


def num_ranks(raw: dict[str, Any]) -> int:
    cluster: dict[str, int] = raw["cluster"]
    return cluster["pp_size"] * cluster["tp_replicas"]


def patience(raw: dict[str, Any]) -> int:
    """Iterations that a request may stand still: all others may have to run to their end first, one after the other.

    Each takes its chunks and a round of L visits for each token; a retraction may repeat all of it. What a rank sees
    late comes within 20 iterations, and a vote takes two rounds. Copies between cache tiers may hold a prompt up.
    """
    num_slots = int(raw["cluster"]["pp_size"] + raw["cluster"]["pp_async_batch_depth"])
    chunk = raw["scheduler"]["chunked_prefill_size"]
    requests = raw["workload"]["requests"]
    if chunk == TINY_CHUNK:  # beside decodes a chunk may get a single token
        chunk = 1
    visits = sum(int((1 if chunk < 0 else -(-r["prompt"] // chunk)) + r["output"]) for r in requests)
    copies = 200 if "hicache" in raw else 0
    return min(60 + copies + 4 * num_slots * (visits + 2), MAX_ITERATIONS - 1)


def most_retractions(raw: dict[str, Any]) -> int:
    """How often one request may be put out of memory: twice for each of them, and a few times for its own growth.

    The least advanced goes first, so the others get through meanwhile.
    """
    return 4 + 2 * len(raw["workload"]["requests"])


def patience_ms(raw: dict[str, Any]) -> float:
    """Milliseconds that a request may wait: for all iterations of all requests, all limits, all KV on a slow wire.

    An iteration takes up to about 2 ms a stage. At the 0.002 GB/s of the slowest wire a token takes about 1 ms for each
    rank that sends it, and there are at most 8.
    """
    requests = raw["workload"]["requests"]
    iterations = 60 + 4 * num_ranks(raw) * sum(2 + r["prompt"] + r["output"] for r in requests)
    tokens = sum(r["prompt"] + r["output"] + 64 for r in requests)
    limits_ms = 2000.0  # a lease, the limits of a handshake and of a transfer, pauses, skewed clocks
    return limits_ms + 2.0 * float(iterations) + 10.0 * float(tokens)


# --- drawing -------------------------------------------------------------------------------------------------------


def number(least: int, most: int) -> SearchStrategy[int]:
    """Uniform, which ``integers`` is not: it prefers 0, and numbers of few bits."""
    return st.sampled_from(range(least, most + 1))


def strategy(profile: Profile) -> SearchStrategy[Experiment]:
    """The experiments of a profile."""
    return experiments(profile)


@contextmanager
def from_the_seed_alone() -> Iterator[None]:
    """Two habits of Hypothesis that an example must do without, here.

    It likes to draw constants that it finds in the source of loaded modules: what has been imported, or where ppsim is
    installed, would otherwise change what a seed generates. And it makes five of six examples from the one before, by
    copying a drawn value to a place of the same kind: ranks would see a fact in the same iteration nearly always, and
    a hundred examples would be worth twenty. Later versions of Hypothesis may do this elsewhere; tests compare
    campaigns of two processes with different imports, and count what is drawn twice.
    """
    replaced = [
        ("hypothesis.internal.conjecture.providers", "HypothesisProvider", "_maybe_draw_constant"),
        ("hypothesis.internal.conjecture.engine", "ConjectureRunner", "generate_mutations_from"),
    ]
    found = [(getattr(import_module(module), owner, None), method) for module, owner, method in replaced]
    before = [(owner, method, getattr(owner, method)) for owner, method in found if hasattr(owner, method)]
    for owner, method, _ in before:
        setattr(owner, method, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        for owner, method, original in before:
            setattr(owner, method, original)
