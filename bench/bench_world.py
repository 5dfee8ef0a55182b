"""How fast the simulated world is: rank-iterations a second, memory, and what of it is the price of SimPy.

    python bench/bench_world.py [--requests N]

Each row runs in a process of its own, so that peak memory is that of one run. A rank-iteration is one visit of a slot
by one rank. The bare loop passes as many messages between as many SimPy processes, and does nothing else: it is the
floor of any simulator that takes an event for each message. Times are CPU seconds of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXCERPT = ROOT.parent / "shared" / "data" / "traces" / "mooncake_conversation_1000.jsonl"
PP_SIZES = (4, 8)
NUM_STARTS = 5
KIB = 1024
COMPILED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(ROOT / "runs" / "bench" / "pyc")}
"""For the environment of a process: its modules are compiled once, as on every machine that runs it twice."""


def simulated(pp_size: int, num_requests: int, check: bool) -> dict[str, float]:
    """One run of scenario ``mooncake``."""
    from ppsim.scenario import load_scenario
    from ppsim.world import simulate

    trace = [f"workload.trace={EXCERPT}"] if EXCERPT.is_file() else []
    sets = [f"cluster.pp_size={pp_size}", f"workload.num_requests={num_requests}", f"run.check={str(check).lower()}"]
    scenario = load_scenario(str(ROOT / "scenarios" / "mooncake.toml"), [*sets, *trace])
    before = time.process_time()
    result = simulate(scenario)
    cpu_s = time.process_time() - before
    assert result.verdict.kind == "pass", result.verdict.message
    return {
        "cpu_s": cpu_s,
        "rank_iterations": sum(len(decisions) for decisions in result.recording.decisions),
        "messages": result.setting.network.num_sent,
    }


def bare(pp_size: int, num_messages: int) -> dict[str, float]:
    """A ring of SimPy processes with a store each: so many messages, one put and one get each."""
    from simpy import Environment, Store

    env = Environment()
    stores = [Store(env) for _ in range(pp_size)]
    share = num_messages // pp_size

    def rank(number: int) -> Generator[Any, Any, None]:
        following = stores[(number + 1) % pp_size]
        for message in range(share):
            yield following.put(message)
            yield stores[number].get()

    for number in range(pp_size):
        env.process(rank(number))
    before = time.process_time()
    env.run()
    return {"cpu_s": time.process_time() - before, "messages": share * pp_size}


MEASURES: dict[str, Callable[..., dict[str, float]]] = {"simulated": simulated, "bare": bare}


def in_own_process(measure: str, *arguments: object) -> dict[str, float]:
    """Run a measurement in a fresh interpreter; adds its peak memory in MiB."""
    command = [sys.executable, __file__, "--measure", json.dumps([measure, *arguments])]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **COMPILED})
    return dict(json.loads(done.stdout))


def measure_here(text: str) -> None:
    """The other end of ``in_own_process``."""
    name, *arguments = json.loads(text)
    found = MEASURES[name](*arguments)
    print(json.dumps({**found, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB}))


def start_up_s(*arguments: str) -> float:
    """Wall time of Python with these arguments, the best of a few, modules compiled, as a second call finds them."""
    command = [sys.executable, *arguments]
    best = float("inf")
    for _ in range(NUM_STARTS):
        before = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env={**os.environ, **COMPILED})
        best = min(best, time.perf_counter() - before)
    return best


def row(pp_size: int, num_requests: int) -> str:
    checked = in_own_process("simulated", pp_size, num_requests, True)
    unchecked = in_own_process("simulated", pp_size, num_requests, False)
    floor = in_own_process("bare", pp_size, int(checked["messages"]))
    rate = checked["rank_iterations"] / checked["cpu_s"]
    return (
        f"{pp_size:>3} {checked['rank_iterations']:>11,.0f} {checked['messages']:>10,.0f} {checked['cpu_s']:>8.2f} "
        f"{rate:>14,.0f} {checked['cpu_s'] / unchecked['cpu_s']:>12.2f} {floor['cpu_s']:>8.2f} "
        f"{checked['cpu_s'] / floor['cpu_s']:>9.2f} {checked['peak_mib']:>8.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=150, help="requests of the trace (default: the first 150)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure_here(options.measure)
        return
    if not EXCERPT.is_file():
        print(f"note: {EXCERPT.name} is not beside the project; this is the shipped generated trace instead")
    print(f"Python {platform.python_version()}, {platform.machine()}; first {options.requests} requests of the trace")
    print(" pp  rank-iters   messages    cpu_s   rank-iters/s  check on/off   bare_s  ppsim/bare  peak_MiB")
    for pp_size in PP_SIZES:
        print(row(pp_size, options.requests))
    out = ROOT / "runs" / "bench"
    ppsim = ("-m", "ppsim.cli.entry")
    print(f"start-up: import ppsim {start_up_s('-c', 'import ppsim'):.3f} s")
    print(f"start-up: ppsim --help {start_up_s(*ppsim, '--help'):.3f} s")
    print(f"start-up: ppsim run unit {start_up_s(*ppsim, 'run', 'unit', '--out', str(out)):.3f} s")


if __name__ == "__main__":
    main()
