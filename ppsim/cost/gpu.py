"""The GPU table: rates, memory, links, each row with its source (published.md C)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path

from ppsim.errors import ScenarioError
from ppsim.parsing import decoded, parse_toml

NEEDED = ("bf16_tflops", "memory_gb", "hbm_gb_per_s", "link_gb_per_s")


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
    """A row of the table, or a TOML file of one's own (``--gpu FILE``). Raises ScenarioError with the nearest key."""
    path = Path(key)
    if path.suffix == ".toml" or path.is_file():
        return gpu_of_file(path)
    table = known_gpus()
    gpu = table.get(key.lower())
    if gpu is None:
        near = get_close_matches(key.lower(), table, n=1, cutoff=0.0)
        known = f"known: {', '.join(sorted(table))}"
        hint = f"nearest: {near[0]}; {known}" if near else known
        raise ScenarioError("gpu", f"unknown GPU {key!r}", f"{hint}; or a TOML file of your own")
    return gpu


def gpu_of_file(path: Path) -> Gpu:
    """The ``[gpu]`` of a file, or the file's own top level: the fields of ``Gpu``, figures in their units.

    Raises ScenarioError for a file that cannot be read, an unknown or a missing field, and a figure that cannot be.
    """
    try:
        table = parse_toml(decoded(path.read_bytes()))
    except OSError as error:
        raise ScenarioError("gpu", f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ScenarioError("gpu", f"{path} is not TOML: {error}") from None
    row = table.get("gpu", table)
    if not isinstance(row, dict):
        raise ScenarioError("gpu", f"{path}: gpu must be a table, got {row!r}")
    known = {field.name: field for field in fields(Gpu)}
    for name, value in row.items():
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.4)
            raise ScenarioError("gpu", f"{path}: unknown field {name!r}", f"nearest: {near[0]}" if near else "")
        is_figure = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        if name not in ("key", "name", "source") and not is_figure:
            raise ScenarioError("gpu", f"{path}: {name} must be a positive number, got {value!r}")
    missing = [name for name in NEEDED if name not in row]
    if missing:
        raise ScenarioError("gpu", f"{path}: {', '.join(missing)} is missing", f"needed: {', '.join(NEEDED)}")
    return Gpu(**{"key": path.stem, "name": path.stem, "source": str(path), **row})
