"""What recording costs a real run, and how long a run of N iterations takes to read and to replay.

    python -m bench.bench_replay replay    [--iterations 10000]   a simulated run: seconds of CPU to make, read, replay
    python -m bench.bench_replay overhead  [--rounds 5] [--shape tiny|135m]   real ranks: CPU of recording an iteration

Every call of a rank's file is timed on the CPU clock of its process, and held against the CPU of the whole loop.
``tiny`` is the model of the tests, the smallest there is, so its share is the largest there is; ``135m`` has the shape
of the smallest checkpoint that people run (SmolLM2-135M, its config.json) and drawn weights.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppsim.core.effects import Effects
from ppsim.core.loop import Loop
from ppsim.core.rank import Plan, Rank
from ppsim.plugin import load
from ppsim.recording.agreement import disagreement
from ppsim.recording.rank_file import KeptRecording
from ppsim.recording.reader import read_recording
from ppsim.recording.writer import write_recording
from ppsim.scenario import Scenario
from ppsim.world import simulate
from ppsim.world.replayed import replay
from tests.executor.small import small_scenario

LENGTHS = {"input_length": {"kind": "fixed", "value": 30}, "output_length": {"kind": "fixed", "value": 8}}


SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "135m": {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
    },
}


def one_by_one(num_requests: int, shape: str = "tiny") -> Scenario:
    """A scenario of about 14 iterations a request on two ranks."""
    work = {"source": "generated", "num_requests": num_requests, "concurrency": 1, **LENGTHS}
    return small_scenario(workload=work, model=SHAPES[shape])


def timed(what: str, do: Callable[[], Any]) -> Any:
    began, cpu = time.perf_counter(), time.process_time()
    result = do()
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    print(f"{what:<22} {used:7.2f} s of CPU  {wall:7.2f} s", flush=True)
    return result


def measure_replay(num_iterations: int) -> None:
    scenario = one_by_one(max(1, num_iterations // 13))
    recorded = timed("simulate", lambda: simulate(scenario)).recording
    print(f"iterations {len(recorded.decisions[0])}, ranks {recorded.num_ranks}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.jsonl"
        timed("write", lambda: write_recording(recorded, path))
        print(f"bytes {path.stat().st_size}")
        again = timed("read", lambda: read_recording(path))
    ((_, mine, out),) = timed("replay", lambda: replay(again, scenario, load().change))
    found = timed("compare", lambda: disagreement(mine, out.recording, is_whole=True))
    print("equal" if found is None else f"different: {found}")


class Timed(Loop):
    """Measures, in the process of a rank, what its recording takes: every call that puts something into it."""

    def plan(self) -> Plan:
        measure_recording()
        return super().plan()

    def at_end(self) -> Plan:
        return (*super().at_end(), tell)


METHODS = (
    *("decision", "harvest", "observed", "span", "visited", "has_left", "has_come", "arrival", "ingested"),
    *("reply", "sampled", "flush"),
)
spent: dict[str, Any] = {"s": 0.0, "calls": 0, "began": 0.0, "folder": None}


def measure_recording() -> None:
    if spent["began"]:
        return
    for name in METHODS:
        setattr(KeptRecording, name, clocked(getattr(KeptRecording, name)))
    spent["began"] = time.thread_time()


def clocked(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: KeptRecording, *given: Any) -> Any:
        began = time.thread_time()
        try:
            return method(self, *given)
        finally:
            spent["s"] += time.thread_time() - began
            spent["calls"] += 1
            spent["folder"] = self.file.path.parent.parent

    return call


def tell(rank: Rank) -> Effects[None]:
    loop_s = time.thread_time() - spent["began"]
    told = {"recording_s": spent["s"], "loop_s": loop_s, "calls": spent["calls"], "iterations": rank.iteration}
    path = Path(spent["folder"]) / f"cpu-{rank.config.pp_rank}.json"
    path.write_text(json.dumps(told))
    yield from ()


def measure_overhead(rounds: int, shape: str) -> None:
    from executor.launch import execute

    multiprocessing.set_forkserver_preload(["bench.bench_replay", "executor.serve"])
    shares = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            execute(
                one_by_one(20, shape),
                start_method="forkserver",
                folder=Path(folder),
                changes=("bench.bench_replay:Timed",),
            )
            for path in sorted(Path(folder).glob("cpu-*.json")):
                told = json.loads(path.read_text())
                shares.append(told["recording_s"] / told["loop_s"])
                print(f"{path.stem}: {told}  {100 * shares[-1]:.2f} %", flush=True)
    shares.sort()
    print(f"share of recording: median {100 * shares[len(shares) // 2]:.2f} %, most {100 * shares[-1]:.2f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("replay", "overhead"))
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="tiny")
    asked = parser.parse_args()
    if asked.what == "replay":
        measure_replay(asked.iterations)
    else:
        measure_overhead(asked.rounds, asked.shape)


if __name__ == "__main__":
    sys.exit(main())
