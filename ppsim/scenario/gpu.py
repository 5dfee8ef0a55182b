"""The GPU of a scenario: a row of the table or of a file, with the scenario's own figures laid over it."""

from __future__ import annotations

from dataclasses import replace

from ppsim.cost.gpu import Gpu, load_gpu
from ppsim.errors import ScenarioError
from ppsim.scenario.tree import Scenario

DEFAULT_MEMORY_GB = 80.0
FIGURES = (
    "bf16_tflops",
    "fp8_tflops",
    "fp4_tflops",
    "memory_gb",
    "hbm_gb_per_s",
    "link_gb_per_s",
    "nic_gb_per_s",
)
NEEDED = ("bf16_tflops", "hbm_gb_per_s", "link_gb_per_s")


def scenario_gpu(s: Scenario) -> Gpu:
    """The GPU. Raises ScenarioError for an unknown key, and where neither a key nor the figures that are needed are
    there."""
    own = {name: getattr(s.gpu, name) for name in FIGURES if getattr(s.gpu, name) is not None}
    if s.gpu.key is not None:
        return replace(load_gpu(s.gpu.key), **own)
    missing = [name for name in NEEDED if name not in own]
    if missing:
        given = "" if len(missing) == len(NEEDED) else f", or gpu.{' and gpu.'.join(missing)} for one of your own"
        raise ScenarioError("gpu.key", "is not set", f"cost.source 'roofline' needs model.key and gpu.key{given}")
    own.setdefault("memory_gb", DEFAULT_MEMORY_GB)
    return Gpu(key="[gpu]", name="a GPU of one's own", source="the scenario", **own)


def memory_gb(s: Scenario) -> float:
    """Memory of a GPU: given, that of the key, or 80."""
    if s.gpu.memory_gb is not None:
        return s.gpu.memory_gb
    return DEFAULT_MEMORY_GB if s.gpu.key is None else load_gpu(s.gpu.key).memory_gb
