"""The GPU table: rates, memory, links, each row with its source (numbers.md C)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from ppsim.errors import ScenarioError


@dataclass(frozen=True, slots=True)
class Gpu:
    """Dense rates in TFLOPS, GB of 10^9 bytes, GB/s in one direction. None: no published figure."""

    key: str
    name: str
    bf16_tflops: float
    memory_gb: float
    hbm_gb_per_s: float
    link_gb_per_s: float
    source: str
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    nic_gb_per_s: float | None = None
    num_sms: int | None = None
    efficiency: float | None = None

    def flops(self, element_bytes: float) -> float:
        """Peak FLOP/s for operands of a width; one the GPU has no rate for runs at the next wider one."""
        rates = ((0.5, self.fp4_tflops), (1.0, self.fp8_tflops), (2.0, self.bf16_tflops))
        for width, tflops in rates:
            if tflops is not None and width >= element_bytes:
                return tflops * 1e12
        return self.bf16_tflops * 1e12 / 2  # float32 through two BF16 passes at best


@cache
def known_gpus() -> dict[str, Gpu]:
    """All rows of the table by key."""
    table = tomllib.loads((files("ppsim") / "data" / "gpus.toml").read_text("utf-8"))
    return {key: Gpu(key=key, **row) for key, row in table.items()}


def load_gpu(key: str) -> Gpu:
    """A row of the table. Raises ScenarioError with the nearest key."""
    table = known_gpus()
    gpu = table.get(key.lower())
    if gpu is None:
        near = get_close_matches(key.lower(), table, n=1, cutoff=0.0)
        raise ScenarioError("gpu", f"unknown GPU {key!r}", f"nearest: {near[0]}; known: {', '.join(sorted(table))}")
    return gpu
