"""Random scenarios, each run in both worlds: on real ranks and then in simulation, and the other way round.

    python -m tests.executor.random_runs 200 [--first SEED] [--way there|back] [--log FILE]

``there``: a scenario of this file's own (retraction, aborts, flushes, prefixes, chunks, depths, grammars, time limits,
the prefill role) runs on processes with its files, and is replayed in simulation from those alone: equal record by
record. Tokens of requests that came to their end are those of transformers' own greedy generation.

``back``: an example of the fuzzer's profiles runs in simulation and passes; real ranks that are fed with what it was
answered make the same records. An example with parts that processes lack is left out, as its row says.

Ranks are forked from one warm server. With a log, what is in it already is not run again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from bench.bench_replayed import HERE, has_parts
from executor.fed import fit_to_feed
from executor.launch import execute
from executor.oracle import Oracle
from executor.prepare import prepared
from ppsim.cli.replay_exec import WATCHDOG_MS, what_it_was_answered
from ppsim.core.tokens import unpack
from ppsim.fuzz.experiment import run_experiment
from ppsim.fuzz.generate import generated
from ppsim.fuzz.profiles import PROFILES
from ppsim.plugin import load
from ppsim.recording import Recording
from ppsim.recording.agreement import disagreement
from ppsim.recording.digest import run_digest
from ppsim.recording.rank_file import assemble
from ppsim.scenario import Scenario
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import validate
from ppsim.workload import build_workload
from ppsim.world.choices import RecordingChoices
from ppsim.world.replayed import replay
from tests.executor.campaign_log import Log, cpu_seconds
from tests.executor.small import small_scenario

# --- what a seed stands for ------------------------------------------------------------------------------------


def scenario_of(seed: int) -> Scenario:
    """A function of the seed. ``tight``: a pool of little more than the longest request, whose admission hopes for
    short answers, so that requests are retracted."""
    random = Random(seed)
    kind = random.choice(("tight", "tight", "loose", "loose", "prefill"))
    pp_size, depth = random.choice((1, 2, 2, 3, 3, 4, 4)), random.choice((0, 0, 1, 2))
    requests = [request_of(random, n, kind) for n in range(random.randint(4, 7))]
    sections: dict[str, Any] = {
        "model": {"dtype_bytes": 2 if random.random() < 0.1 else 4},
        "cluster": {"pp_size": pp_size, "pp_async_batch_depth": depth},
        "scheduler": scheduler_of(random, kind, pp_size, requests),
        "workload": {"source": "requests", "block_tokens": 8, "requests": requests, **controls_of(random, requests)},
        "observations": {"max_delay": random.choice((0, 2, 5))},
        "run": {
            "max_iterations": 3000,
            "invariants": random.random() < 0.3,
            "consensus_check_interval": random.choice((0, 0, 1, 5)),
            "watchdog_ms": random.choice((0.0, 0.0, 30_000.0)),
        },
    }
    if random.random() < 0.2:
        sections["timeouts"] = {"waiting_ms": random.choice((0, 20, 60)), "running_ms": random.choice((30, 80, 200))}
        sections["faults"] = {"clock_skew_ms": [random.randint(-5, 5) for _ in range(pp_size)]}
    if kind == "prefill":
        sections["disaggregation"] = {"role": "prefill", "bootstrap": random.choice(("vote", "store"))}
    listed = listed_of(random, kind, pp_size, requests)
    if listed is not None:
        sections["observations"]["listed"] = [listed]
    made = small_scenario(random.choice(("llama", "qwen3")), **sections)
    check_scenario(made)
    return made


def request_of(random: Random, n: int, kind: str) -> dict[str, Any]:
    is_tight = kind == "tight"
    row: dict[str, Any] = {
        "rid": f"R{n}",
        "at_iteration": random.randint(0, 3 if is_tight else 12),
        "prompt": random.randint(3, 20) if is_tight else random.randint(1, 45),
        "output": random.randint(8, 24) if is_tight else random.randint(1, 12),
    }
    if random.random() < 0.5:
        row["prefix_blocks"] = [1, 2, 3][: random.randint(1, 3)]
    if kind != "prefill" and random.random() < 0.25:
        row["grammar"] = f"g{n % 2}"
    if random.random() < 0.15:
        row["stop_after"] = 1  # real ranks stop where the model samples the token
    if random.random() < 0.15:
        row["return_logprob"] = True
    return row


def scheduler_of(random: Random, kind: str, pp_size: int, requests: list[dict[str, Any]]) -> dict[str, Any]:
    page = random.choice((1, 2, 4))
    least = max(r["prompt"] + r["output"] for r in requests) + page + 1
    slack = random.randint(0, 10) if kind == "tight" else random.choice((16, 48, 400))
    pool = -(-least // page) * page + page * slack
    pools = [pool + page * random.randint(0, 4) for _ in range(pp_size)] if random.random() < 0.3 else pool
    chunk = 16 if kind == "prefill" else random.choice((-1, 8, 16, 20))
    has_mixed = kind != "prefill" and chunk != -1 and random.random() < 0.3
    return {
        "chunked_prefill_size": chunk,
        "page_size": page,
        "max_total_tokens": pools,
        "max_running_requests": random.choice((2, 8, 16)) if kind != "tight" else 16,
        "pp_max_micro_batch_size": random.choice((0, 0, 2, 6)),
        "enable_mixed_chunk": has_mixed,
        "schedule_conservativeness": 0.1 if kind == "tight" else random.choice((0.3, 1.0)),
        "clip_max_new_tokens": random.randint(1, 4) if kind == "tight" else 4096,
        "schedule_policy": random.choice(("fcfs", "fcfs", "lpm")),
        "disable_radix_cache": random.random() < 0.15,
        "prefill_decode_interval": random.choice((0, 0, 1, 2)),
        "skip_pure_chunked_output_comm": random.random() < 0.3,
        "hidden_send": random.choice(("after_harvest", "after_launch")) if kind != "prefill" else "after_harvest",
        "exchange_order": random.choice(("send_first", "send_first", "parity", "paired" if pp_size == 2 else "parity")),
        "rules": random.choice(("sglang", "mended")),
    }


def controls_of(random: Random, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Aborts of one request, of several, of all; a flush of the cache."""
    found: dict[str, Any] = {}
    if random.random() < 0.5:
        gone = random.sample(requests, random.randint(1, 2))
        found["aborts"] = [{"rid": r["rid"], "at_iteration": r["at_iteration"] + random.randint(0, 20)} for r in gone]
    elif random.random() < 0.15:
        found["aborts"] = [{"abort_all": True, "at_iteration": random.randint(2, 30)}]
    if random.random() < 0.15:
        found["flushes"] = [{"rid": "F", "at_iteration": random.randint(1, 60)}]
    return found


def listed_of(random: Random, kind: str, pp_size: int, requests: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A fact with its own iteration, and perhaps a failure, on each rank."""
    if kind == "prefill":
        what, about = random.choice(("bootstrap", "transfer")), requests
    else:
        what, about = "grammar", [r for r in requests if "grammar" in r]
    if not about or random.random() < 0.5:
        return None
    at = [random.randint(0, 15) for _ in range(pp_size)]
    failed = [random.random() < 0.3 for _ in range(pp_size)]
    return {"what": what, "rid": random.choice(about)["rid"], "at": at, "failed": failed}


# --- there: from processes into simulation ---------------------------------------------------------------------


def run_one(seed: int, folder: Path) -> Recording:
    """Run, replay, compare. Raises AssertionError that names the seed."""
    scenario = scenario_of(seed)
    result = execute(scenario, start_method="forkserver", folder=folder)
    assert result.verdict.kind == "pass", f"seed {seed}: {result.verdict.message}"
    recorded = assemble(folder)
    assert recorded.cuts == [], f"seed {seed}"
    ((_, mine, out),) = replay(recorded, scenario, load().change)
    found = disagreement(mine, out.recording, is_whole=True)
    assert found is None, f"seed {seed}: {found}"
    assert out.verdict.kind == "pass", f"seed {seed}: {out.verdict.message}"
    assert run_digest(recorded) == run_digest(out.recording), f"seed {seed}"
    if scenario.model.dtype_bytes == 4:  # rounded to bfloat16, a batch of another size gives other last digits
        check_tokens(seed, scenario, recorded, result.tokens)
    return recorded


def check_tokens(seed: int, scenario: Scenario, recorded: Recording, tokens: dict[str, tuple[int, ...]]) -> None:
    """Those of the unsplit model, for all that was not cut short; of a prefill server the first one."""
    finished = {reply.rid for reply in recorded.replies if reply.status == "finished"}
    oracle = Oracle(scenario)
    num_tokens = 1 if scenario.disaggregation.role == "prefill" else None
    for arrival in build_workload(scenario).arrivals:
        request = arrival.request
        if request.rid in finished:
            right = oracle.generate(
                unpack(request.prompt), num_tokens or request.max_new_tokens, request.stop_token_ids
            )
            assert tokens[request.rid] == tuple(right), f"seed {seed}: tokens of {request.rid}"


def row_there(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        told = run_one(seed, Path(folder))
    return {
        "digest": run_digest(told),
        "iterations": len(told.decisions[0]),
        "retracted": sum(len(d.retracted) for d in told.decisions[0]),
        "aborted": sum(reply.status == "aborted" for reply in told.replies),
        "kind": kind_of(scenario_of(seed)),
    }


def kind_of(scenario: Scenario) -> str:
    """In words, for the table of a page."""
    cluster = scenario.cluster
    return f"{scenario.disaggregation.role} pp {cluster.pp_size} depth {cluster.pp_async_batch_depth}"


# --- back: from simulation to processes ------------------------------------------------------------------------

PROFILES_HERE = [profile for profile in PROFILES.values() if set(profile.roles) & set(HERE)]


class NotHere(Exception):
    """The example asks for something that processes lack, or does not pass in simulation."""


def run_back(seed: int) -> Recording:
    """Simulate, feed, compare. Raises AssertionError that names the seed, and NotHere."""
    profile = PROFILES_HERE[seed % len(PROFILES_HERE)]
    example = generated(profile, 77, 0, seed)
    if not has_parts(example.raw):
        raise NotHere("replicas, tiers, a decode server")
    asked = RecordingChoices(example.chooser.choices(example.tape))
    outcome = run_experiment(example, None, asked)
    if outcome.signature is not None:
        raise NotHere(f"it does not pass in simulation: {outcome.signature.invariant}")
    scenario = prepared(fit_to_feed(validate(example.raw), WATCHDOG_MS), None, "cpu")
    result = execute(scenario, fed=what_it_was_answered(outcome, asked), start_method="forkserver", stall_s=5.0)
    assert result.verdict.kind == "pass", f"{profile.name} {seed}: {result.verdict.message}"
    assert outcome.result is not None
    found = disagreement(outcome.result.recording, result.recording, is_whole=True)
    assert found is None, f"{profile.name} {seed}: {found}"
    return result.recording


def row_back(seed: int) -> dict[str, Any]:
    try:
        told = run_back(seed)
    except NotHere as reason:
        return {"left_out": str(reason)}
    return {
        "digest": run_digest(told),
        "iterations": len(told.decisions[0]),
        "retracted": sum(len(d.retracted) for d in told.decisions[0]),
        "aborted": sum(reply.status == "aborted" for reply in told.replies),
        "kind": f"{PROFILES_HERE[seed % len(PROFILES_HERE)].name} pp {told.pp_size}",
    }


# --- a campaign ------------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[int], dict[str, Any]]] = {"there": row_there, "back": row_back}


def measured(way: str, seed: int) -> dict[str, Any]:
    """The row of one experiment, with what it cost."""
    began = cpu_seconds()
    try:
        row = WAYS[way](seed)
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"}
    return {"way": way, "seed": seed, **row, "cpu_s": round(cpu_seconds() - began, 2)}


def main() -> None:
    import multiprocessing

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("num", type=int, help="runs that count: what is left out does not")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--way", choices=sorted(WAYS), default="there")
    parser.add_argument("--log", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # of the oracle: it would wait for cores that ranks have
    models = [f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen3")]
    multiprocessing.set_forkserver_preload(["executor.serve", *models])
    log, seed, num_run, num_wrong = Log(asked.log), asked.first, 0, 0
    while num_run < asked.num:
        row = log.find(asked.way, seed)
        if row is None:
            row = measured(asked.way, seed)
            log.add(row)
        num_run += "left_out" not in row
        num_wrong += "error" in row
        seed += 1
    print(f"{num_run - num_wrong} of {num_run} equal")
    sys.exit(num_wrong > 0)


if __name__ == "__main__":
    main()
