"""One rank that stands for all, beside all of them: CPU seconds, memory, and multiples of a bare SimPy loop.

    python bench/bench_fast.py [--requests N] [--pp 4 8] [--only-fast]

The workload: N requests of 2,048 prompt and 128 output tokens, Poisson 4/s (default 500), all else as a scenario has it
by default. Each measurement runs in a process of its own: ``simulate`` is the call alone, ``process`` all of it,
start-up and summary included. The bare loop (``bench_world.py``) passes as many messages as the event world does: a
request list for each iteration and pair of neighbours, and each payload. Docs: docs/fast.md.
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
from pathlib import Path

from bench_world import COMPILED, KIB, bare

ROOT = Path(__file__).resolve().parents[1]


def simulated(pp_size: int, num_requests: int, fast: bool) -> dict[str, float]:
    """One run of the workload."""
    from ppsim.recording.summary import summarize
    from ppsim.scenario.load import put, validate
    from ppsim.world import simulate

    raw: dict[str, object] = {"name": "load"}
    put(raw, "cluster.pp_size", pp_size)
    put(raw, "workload.num_requests", num_requests)
    for key, value in (("rate_per_s", 4.0), ("input_length.value", 2048), ("output_length.value", 128)):
        put(raw, f"workload.{key}", value)
    scenario = validate(raw)
    before = time.process_time()
    result = simulate(scenario, fast=fast)
    cpu_s = time.process_time() - before
    assert result.verdict.kind == "pass", result.verdict.message
    recording = result.recording
    summarize(recording, result.verdict)
    iterations = len(recording.decisions[0])
    return {
        "simulate_s": cpu_s,
        "iterations": iterations,
        "launches": sum(d.mode != "empty" for d in recording.decisions[0]),
        "messages": (pp_size - 1) * iterations + sum(len(sent) for sent in recording.messages.values()),
    }


def measure_here(text: str) -> None:
    """The other end of ``in_own_process``."""
    what, *arguments = json.loads(text)
    found = bare(*arguments) if what == "bare" else simulated(*arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({**found, "process_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / KIB}))


def in_own_process(*arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", json.dumps(arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **COMPILED})
    return dict(json.loads(done.stdout))


def row(pp_size: int, num_requests: int, only_fast: bool) -> str:
    fast = in_own_process("run", pp_size, num_requests, True)
    floor = in_own_process("bare", pp_size, int(fast["messages"]))
    events = None if only_fast else in_own_process("run", pp_size, num_requests, False)
    cells = [f"{pp_size:>3} {num_requests:>8,} {fast['iterations']:>10,.0f} {fast['launches']:>9,.0f}"]
    for found in (fast, events):
        if found is None:
            cells.append(f"{'-':>10} {'-':>9} {'-':>6} {'-':>7}")
            continue
        times = found["process_s"] / floor["cpu_s"]
        cells.append(f"{found['simulate_s']:>10.2f} {found['process_s']:>9.2f} {times:>6.2f} {found['peak_mib']:>7.0f}")
    return " ".join([*cells, f"{floor['cpu_s']:>7.2f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=500, help="requests (default: 500)")
    parser.add_argument("--pp", type=int, nargs="+", default=[4, 8], help="numbers of stages (default: 4 8)")
    parser.add_argument("--only-fast", action="store_true", help="leave the event world out")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure_here(options.measure)
        return
    print(f"Python {platform.python_version()}, {platform.machine()}; CPU seconds")
    print(f"{'':33} ------------ one rank ------------- ------------ all ranks ------------")
    head = f"{'simulate':>10} {'process':>9} {'/bare':>6} {'MiB':>7}"
    print(f" pp requests iterations  launches {head} {head} {'bare':>7}")
    for pp_size in options.pp:
        print(row(pp_size, options.requests, options.only_fast), flush=True)


if __name__ == "__main__":
    main()
