"""Random scenarios for real ranks: retraction, aborts, prefixes, depths, grammars, the prefill role.

    python -m tests.executor.random_runs 200 [--first SEED]

Each runs on processes with its files, and is replayed in simulation from those alone: equal record by record. Tokens of
requests that came to their end are those of transformers' own greedy generation. Ranks are forked from one warm server.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from executor.launch import execute
from executor.oracle import Oracle
from ppsim.core.tokens import unpack
from ppsim.plugin import load
from ppsim.recording import Recording
from ppsim.recording.agreement import disagreement
from ppsim.recording.rank_file import assemble
from ppsim.scenario import Scenario
from ppsim.workload import build_workload
from ppsim.world.replayed import replay
from tests.executor.small import small_scenario


def scenario_of(seed: int) -> Scenario:
    """What a seed stands for; pools small enough that some runs retract."""
    random = Random(seed)
    pp_size, prefill = random.choice((1, 2, 2, 3, 3, 4)), random.random() < 0.2
    requests = [request_of(random, n, prefill) for n in range(random.randint(3, 7))]
    page_size = random.choice((1, 2, 4))
    longest = max(r["prompt"] + r["output"] for r in requests)
    work: dict[str, Any] = {"source": "requests", "block_tokens": 8, "requests": requests}
    if random.random() < 0.5:
        gone = random.choice(requests)
        work["aborts"] = [{"rid": gone["rid"], "at_iteration": gone["at_iteration"] + random.randint(0, 14)}]
    scheduler = {
        "chunked_prefill_size": random.choice((-1, 8, 16, 20)) if not prefill else 16,
        "page_size": page_size,
        "max_total_tokens": -(-(longest + random.choice((16, 48, 400))) // 8) * 8,
        "max_running_requests": random.choice((2, 8, 16)),
        "enable_mixed_chunk": not prefill and random.random() < 0.3,
        "schedule_conservativeness": random.choice((0.3, 1.0)),
    }
    if scheduler["chunked_prefill_size"] == -1:
        scheduler["enable_mixed_chunk"] = False
    sections: dict[str, Any] = {
        "cluster": {"pp_size": pp_size, "pp_async_batch_depth": random.choice((0, 0, 1, 2))},
        "scheduler": scheduler,
        "workload": work,
        "observations": {"max_delay": random.choice((0, 2, 5))},
        "run": {"max_iterations": 3000, "invariants": random.random() < 0.3},
    }
    if prefill:
        sections["disaggregation"] = {"role": "prefill", "bootstrap": random.choice(("vote", "store"))}
    return small_scenario(random.choice(("llama", "qwen3")), **sections)


def request_of(random: Random, n: int, prefill: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "rid": f"R{n}",
        "at_iteration": random.randint(0, 12),
        "prompt": random.randint(1, 45),
        "output": random.randint(1, 12),
    }
    if random.random() < 0.5:
        row["prefix_blocks"] = [1, 2, 3][: random.randint(1, 3)]
    if not prefill and random.random() < 0.25:
        row["grammar"] = f"g{n % 2}"
    return row


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
    finished = {reply.rid for reply in recorded.replies if reply.status == "finished"}
    oracle = Oracle(scenario)
    for arrival in build_workload(scenario).arrivals:
        request = arrival.request
        if request.rid in finished and scenario.disaggregation.role == "plain":
            right = tuple(oracle.generate(unpack(request.prompt), request.max_new_tokens))
            assert result.tokens[request.rid] == right, f"seed {seed}: tokens of {request.rid}"
    return recorded


def main() -> None:
    import multiprocessing

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("num", type=int)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    multiprocessing.set_forkserver_preload(["executor.serve", "tests.executor"])
    wrong = 0
    for seed in range(asked.first, asked.first + asked.num):
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = run_one(seed, Path(folder))
            except AssertionError as error:
                wrong += 1
                print(error, flush=True)
                continue
        retracted = sum(len(d.retracted) for d in told.decisions[0])
        print(f"seed {seed}: equal, {len(told.decisions[0])} iterations, {retracted} retracted", flush=True)
    print(f"{asked.num - wrong} of {asked.num} equal")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
