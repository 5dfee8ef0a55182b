"""What it costs that ranks observe things alone: the tables of docs/results/votes.md.

    python bench/bench_votes.py

Virtual time needs no clock, so these numbers are the same on every machine, and a test holds the tables against the
page. Only the last one, the price of the rank consensus checker, is CPU time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

from ppsim.core.effects import Effects
from ppsim.core.loop import Loop, event_loop_pp
from ppsim.core.parts import UNCHANGED, Change, Parts
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.journal import AbortFound
from ppsim.core.start import agree_on_start
from ppsim.fuzz.coverage import situations_of
from ppsim.plugin.plans import behind
from ppsim.recording import PASS, Recording
from ppsim.recording.shares import SHARES, admissions, ttft_shares
from ppsim.recording.summary import request_lives, summarize
from ppsim.scenario.load import load_scenario, put, validate
from ppsim.world import SimulationResult, simulate

MS = 1_000_000

UNIT: dict[str, Any] = {
    "scheduler.chunked_prefill_size": 4,
    "scheduler.max_total_tokens": 8192,
    "scheduler.max_running_requests": 64,
    "scheduler.pp_max_micro_batch_size": 4,
    "cost.source": "unit",
    "cost.unit_ms": 1.0,
    "workload.source": "requests",
}


def simulated(keys: dict[str, Any], change: Change = UNCHANGED, *, must_pass: bool = True) -> SimulationResult:
    raw: dict[str, Any] = {}
    for key, value in {**UNIT, **keys}.items():
        put(raw, key, value)
    result = simulate(validate(raw), change=change)
    assert result.verdict.kind == "pass" or not must_pass, result.verdict.message
    return result


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(str, cells)) + " |" for cells in rows]


def row(rid: str, prompt: int, output: int = 1, **more: Any) -> dict[str, Any]:
    return {"rid": rid, "prompt": prompt, "output": output, "ignore_eos": True, **more}


def prefill_of(result: SimulationResult) -> Recording:
    assert result.recording.peer is not None
    return result.recording.peer


# --- admission ---------------------------------------------------------------------------------------------------


def admission_table() -> list[str]:
    """Two passes round the ring against store and leader chain, on a prefill pipeline that is busy all the time."""

    def rows() -> Iterable[list[object]]:
        for pp_size in (2, 4, 8, 16):
            found: list[object] = []
            for bootstrap in ("vote", "store"):
                result = busy(pp_size, bootstrap)
                mine = next(a for a in admissions(prefill_of(result)) if a.rid == "R")
                lives = [life for life in request_lives(result.recording) if life.rid == "R"]
                control = ttft_shares(result.recording, lives)[0]["control"]
                found += [mine.iterations, f"{mine.all_ranks_ns / MS:.1f}", f"{control / MS:.1f}"]
            yield [pp_size, *found]

    columns = ("may run on the first rank", "on all ranks", "control share of TTFT")
    return markdown(["pp", *(f"{name}: {column}" for name in ("votes", "store") for column in columns)], rows())


def busy(pp_size: int, bootstrap: str) -> SimulationResult:
    """R comes while the prefill side works through a prompt of 5 P chunks: each visit takes 1 ms."""
    return simulated(
        {
            "cluster.pp_size": pp_size,
            "disaggregation.role": "pd",
            "disaggregation.decode_pp_size": 1,
            "disaggregation.decode_max_total_tokens": 8192,
            "disaggregation.num_reserved_decode_tokens": 4,
            "disaggregation.control_latency_us": 10.0,
            "disaggregation.bootstrap": bootstrap,
            "host.schedule_us": 10.0,
            "workload.requests": [row("long", 20 * pp_size, at_ms=0.0), row("R", 4, at_ms=pp_size + 0.5)],
        }
    )


def serving_table() -> list[str]:
    """Where the time to the first token goes: 16 requests of the shipped trace at two rates, in milliseconds."""

    def rows() -> Iterable[list[object]]:
        for scale, rate in ((1.0, "1x"), (0.2, "5x")):
            for pp_size in (4, 8):
                for bootstrap in ("vote", "store"):
                    sets = [
                        "workload.num_requests=16",
                        f"workload.time_scale={scale}",
                        f"cluster.pp_size={pp_size}",
                        f'disaggregation.bootstrap="{bootstrap}"',
                    ]
                    result = simulate(load_scenario("pd_mooncake", sets))
                    s = summarize(result.recording, result.verdict)
                    times = [s["ttft_s"], *s["ttft_shares_s"].values(), s["admission_all_ranks_s"]]
                    ms = [f"{1000 * mine['mean']:.1f}" for mine in times]
                    yield [rate, pp_size, bootstrap, *ms[:-1], f"{s['admission_iterations']['mean']:.1f}", ms[-1]]

    head = ["rate", "pp", "admission by", "mean TTFT", *SHARES, "visits until admitted", "until on all ranks"]
    return markdown(head, rows())


# --- transfer ----------------------------------------------------------------------------------------------------

WHOLE = ["scheduler.chunked_prefill_size=-1", "scheduler.max_prefill_tokens=65536"]


def transfer_table() -> list[str]:
    """A prompt of 65536 tokens on four stages, its KV sent chunk by chunk or in one piece."""

    def rows() -> Iterable[list[object]]:
        free = {"chunks": long_prompt(0.0, [])[0], "one piece": long_prompt(0.0, WHOLE)[0]}
        for gb_per_s in (500.0, 50.0, 25.0, 5.0, 2.5):
            for how, sets in (("chunks", []), ("one piece", WHOLE)):
                ttft_s, load = long_prompt(gb_per_s, sets)
                extra = 100 * (ttft_s / free[how] - 1)
                yield [f"{gb_per_s:g}", how, f"{100 * load:.1f} %", f"{ttft_s:.3f}", f"{extra:.2f} %"]

    head = ["KV link (GB/s)", "sent in", "of the shortest pass", "TTFT (s)", "more than with free links"]
    return markdown(head, rows())


def long_prompt(gb_per_s: float, sets: list[str]) -> tuple[float, float]:
    """TTFT in s; transfer of a chunk over the shortest forward pass of the first stage."""
    result = simulate(load_scenario("pd_chunked_transfer", [f"disaggregation.kv_bandwidth_gb_per_s={gb_per_s}", *sets]))
    spans = prefill_of(result).spans[0]
    passes = [s.end_ns - s.start_ns for s in spans if s.stream == "forward"]
    writes = [s.end_ns - s.start_ns for s in spans if s.stream == "kv"]
    ttft_s = summarize(result.recording, result.verdict)["ttft_s"]["mean"]
    return float(ttft_s), max(writes, default=0) / min(passes)


# --- variants ----------------------------------------------------------------------------------------------------

VARIANTS = ("agreed", "fresh_poll", "forwards_applied", "released")
BARE = {"run.check": False, "run.invariants": False, "run.max_iterations": 400}
FAULTS: dict[str, dict[str, Any]] = {
    "a handshake fails, seen in iterations 9 and 5": {
        "disaggregation.role": "prefill",
        "disaggregation.bootstrap": "vote",
        "observations.listed": [{"what": "bootstrap", "rid": "R1", "at": [9, 5], "failed": True}],
        "workload.requests": [row("R1", 4), row("R2", 4), row("R3", 4)],
    },
    "a transfer fails, seen in iterations 9 and 6": {
        "disaggregation.role": "decode",
        "disaggregation.num_reserved_decode_tokens": 4,
        "observations.listed": [{"what": "receive", "rid": "R1", "at": [9, 6], "failed": True}],
        "workload.requests": [row("R1", 4, 4), row("R2", 4, 4), row("R3", 4, 4)],
    },
}


def variant_table() -> list[str]:
    """What the released ways of applying and passing on a conclusion break at two stages."""

    def rows() -> Iterable[list[object]]:
        for fault, keys in FAULTS.items():
            for variant in VARIANTS:
                mine = {**keys, "cluster.pp_size": 2, "disaggregation.variant": variant, "run.max_iterations": 400}
                verdict = simulated(mine, must_pass=False).verdict
                seen = "both ranks end it together"
                if verdict.kind == "fail":
                    seen = f"{verdict.invariant}, rank {verdict.rank}, iteration {verdict.iteration}"
                bare = simulated({**mine, **BARE}, must_pass=False)
                left = [list(r.rank.scheduler.requests) for r in bare.setting.ranks]
                yield [fault, variant, seen, "; ".join(" ".join(rids) or "nobody" for rids in left)]

    return markdown(
        ["what happens", "variant", "with lockstep", "left behind without any check, rank 0; rank 1"], rows()
    )


# --- abort -------------------------------------------------------------------------------------------------------


def abort_table() -> list[str]:
    """pp 4, depth 0: visits from the one that reads an abort to the one that ends its request."""
    found: dict[tuple[str, str], set[int]] = {}
    for role in ("plain", "prefill", "decode"):
        for iteration in range(1, 28):
            for rid in "AC":
                result = simulated(aborted(role, rid, iteration), Change(Parts(loop=Watch)))
                ended = [h.iteration for h in result.recording.harvests[0] if rid in h.finished]
                if Watch.found:
                    found.setdefault((role, Watch.found), set()).add(ended[0] - iteration)
    rows = [[role, what, " or ".join(map(str, sorted(visits)))] for (role, what), visits in sorted(found.items())]
    return markdown(["role", "where the abort finds it", "visits until it has ended"], rows)


def aborted(role: str, rid: str, iteration: int) -> dict[str, Any]:
    """Three requests; C has a grammar that is ready in iteration 6, transfers end a few iterations after they begin."""
    sizes = {"prefill": (12, 1), "decode": (12, 6), "plain": (12, 6)}[role]
    return {
        "cluster.pp_size": 4,
        "disaggregation.role": role,
        "disaggregation.num_reserved_decode_tokens": 4,
        "observations.listed": [{"what": "grammar", "rid": "C", "at": [6] * 4}],
        "workload.requests": [row("A", *sizes), row("B", *sizes), row("C", *sizes, grammar="json")],
        "workload.aborts": [{"rid": rid, "at_iteration": iteration}],
    }


class Watch(Loop):
    """Notes in which situation the abort finds its request, on the first rank."""

    found = ""

    def plan(self) -> Plan:
        Watch.found = "" if self.config.pp_rank == 0 else Watch.found

        def note(rank: Rank) -> Effects[None]:
            yield from ()
            for entry in rank.journal.of(AbortFound):
                Watch.found = Watch.found or situations_of(entry)[0].removeprefix("abort ")

        return super().plan() if self.config.pp_rank else behind(super().plan(), "apply_inputs", note)


# --- cache tiers -------------------------------------------------------------------------------------------------


def tier_table() -> list[str]:
    """scenarios/hicache.toml: four documents of 16384 tokens, asked about twice; the pool holds one of them."""

    def rows() -> Iterable[list[object]]:
        yield ["none", "-", *questions(["hicache.enabled=false"])]
        for policy in ("write_through", "write_back"):
            for gb_per_s in (0.0, 50.0, 10.0, 2.0):
                sets = [f'hicache.write_policy="{policy}"', f"hicache.device_host_gb_per_s={gb_per_s}"]
                yield [policy, f"{gb_per_s:g}" if gb_per_s else "free", *questions(sets)]
        for tokens in ("[131072, 32768]", "[16384, 131072]"):
            yield ["write_through", f"50, host_tokens {tokens}", *questions([f"hicache.host_tokens={tokens}"])]

    return markdown(
        ["host tier", "device-host (GB/s)", "agreed host tokens", "prompt tokens found", "TTFT, first", "TTFT, again"],
        rows(),
    )


def questions(sets: list[str]) -> list[object]:
    """Agreed host capacity, tokens found, mean TTFT (ms) of the first and of the second question about a document."""
    result = simulate(load_scenario("hicache", sets))
    assert result.verdict.kind == "pass", result.verdict.message
    tiers = [r.rank.scheduler.kv.tiers for r in result.setting.ranks]
    capacities = {0 if t is None else t.host.capacity_tokens for t in tiers}
    assert len(capacities) == 1, "all ranks agree on one token count"
    lives = request_lives(result.recording)
    ttft = {n: [life.token_ns[0] - (life.arrived_ns or 0) for life in lives if life.rid.endswith(n)] for n in "12"}
    found = summarize(result.recording, PASS)["cached_tokens"]
    return [capacities.pop(), found, *(f"{sum(mine) / len(mine) / MS:.1f}" for mine in ttft.values())]


def termination_table() -> list[str]:
    """Eight crowds in a pool that holds the largest request alone: who ends without memory, by rule and host tier."""

    def rows() -> Iterable[list[object]]:
        for policy in ("none", "write_through", "write_back"):
            for rule in ("slot", "all_slots"):
                count: Counter[str] = Counter()
                for seed in range(8):
                    tiers = {} if policy == "none" else {"hicache.enabled": True, "hicache.write_policy": policy}
                    result = simulated({**crowd(seed), **tiers, "scheduler.reserve_decode": rule})
                    replies, decisions = result.recording.replies, result.recording.decisions[0]
                    count["aborted"] += sum(reply.reason.startswith("out of KV memory") for reply in replies)
                    count["retracted"] += sum(len(decision.retracted) for decision in decisions)
                    count["iterations"] += result.setting.ranks[0].rank.iteration
                yield [policy, rule, count["aborted"], count["retracted"], count["iterations"]]

    return markdown(["host tier", "reserve_decode", "aborted for memory", "retractions", "iterations"], rows())


def crowd(seed: int) -> dict[str, Any]:
    """4 to 10 requests whose prompts share beginnings, on one to three stages; copies are seen late."""
    rng, at = Random(f"crowd {seed}"), 0
    rows: list[dict[str, Any]] = []
    for n in range(rng.randint(4, 10)):
        at += rng.choice([0, 0, 1, 4])
        rows.append(row(f"R{n}", rng.randint(8, 64), rng.randint(1, 32), at_iteration=at, prefix_blocks=[n % 3]))
    largest = max(r["prompt"] + r["output"] for r in rows)
    return {
        "cluster.pp_size": rng.choice([1, 2, 3]),
        "scheduler.chunked_prefill_size": rng.choice([16, 32]),
        "scheduler.max_total_tokens": int(largest * rng.uniform(1.05, 1.6)) + 2,
        "workload.block_tokens": 16,
        "workload.requests": rows,
        "hicache.host_tokens": 256,
        "observations.max_delay": rng.choice([0, 2, 6]),
    }


# --- rank consensus checker ----------------------------------------------------------------------------------------


def checker_table() -> list[str]:
    """CPU seconds of one run, the best of seven: without the checker's test, off, and on."""
    ways = {"test removed": 0, "off": 0, "every 16 iterations": 16, "every iteration": 1}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(7):
        for way, interval in ways.items():
            best[way] = min(best[way], checked_s(interval, removed=way == "test removed"))
    floor = best["test removed"]
    return markdown(["checker", "CPU (s)", "ratio"], [[way, f"{s:.2f}", f"{s / floor:.2f}"] for way, s in best.items()])


def checked_s(interval: int, *, removed: bool) -> float:
    """One run of 64 requests that decode on four stages, each rank for itself.

    ``removed``: the loop does not even ask whether the checker is on.
    """
    keys = {
        "cluster.pp_size": 4,
        "run.consensus_check_interval": interval,
        "workload.requests": [row(f"R{n}", 64, 120) for n in range(64)],
        "scheduler.chunked_prefill_size": 256,
        "scheduler.max_total_tokens": 65536,
        "scheduler.pp_max_micro_batch_size": 16,
    }
    with patch("ppsim.world.driver.event_loop_pp", loop_without_checker if removed else event_loop_pp):
        started = time.process_time()
        simulated(keys)
        return time.process_time() - started


def loop_without_checker(rank: Rank) -> Effects[None]:
    """``event_loop_pp`` without its two lines for the checker."""
    yield from agree_on_start(rank)
    while True:
        for phase in rank.plan:
            yield from phase(rank)
            if rank.stopped:
                for last in rank.at_end:
                    yield from last(rank)
                return
        rank.journal.flush()
        rank.iteration += 1


TABLES = {
    "admission": admission_table,
    "serving": serving_table,
    "transfer": transfer_table,
    "variants": variant_table,
    "abort": abort_table,
    "cache tiers": tier_table,
    "termination": termination_table,
}
"""The page is held against them."""


def main() -> None:
    for name, table in {**TABLES, "rank consensus checker": checker_table}.items():
        print(f"\n{name}: {(table.__doc__ or '').splitlines()[0]}\n")
        print("\n".join(table()))


if __name__ == "__main__":
    main()
