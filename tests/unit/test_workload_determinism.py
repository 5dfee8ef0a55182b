"""Law: same scenario and seed, same workload: in any process, under any PYTHONHASHSEED."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
from hashlib import sha256
from ppsim.scenario.load import validate
from ppsim.workload import build_workload

lognormal = {"kind": "lognormal", "mean": 500.0, "sigma": 1.2}
for workload in (
    {"source": "generated", "num_requests": 50, "num_prefixes": 3, "prefix_tokens": 64, "input_length": lognormal,
     "output_length": lognormal, "ignore_eos": False, "eos_probability": 0.01},
    {"source": "trace", "ignore_eos": False, "eos_probability": 0.01},
    {"source": "requests", "requests": [{"rid": rid, "prompt": 9, "prefix_blocks": [4]} for rid in "CBA"]},
    {"source": "chunks", "num_chunks": 3},
):
    built = build_workload(validate({"seed": 11, "workload": workload}))
    print(workload["source"], sha256(repr(built).encode()).hexdigest())
"""


def output_of(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def test_two_processes_with_different_hash_seeds_build_the_same_workloads() -> None:
    first, second = output_of("1"), output_of("2")
    assert first == second
    assert [line.split()[0] for line in first.splitlines()] == ["generated", "trace", "requests", "chunks"]
