"""One point of the search, and the scenario that it stands for.

What is searched: how the GPUs are split (pp x tp x cp), the depth, the chunk, its smooth factor (0: fixed chunks) and
the layers of each stage. Everything else is the scenario's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ppsim.cost.partition import even_partition
from ppsim.plan.trial_load import Probe
from ppsim.scenario.layers import partition_of
from ppsim.scenario.tree import Chance, Disaggregation, Faults, Observations, Run, Scenario, Timeouts

DEFAULT_FACTOR = 0.75  # SGLang's smooth factor where none is given


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """How the GPUs are used; ``pp_size * tp_size * cp_size`` of them."""

    pp_size: int
    tp_size: int
    cp_size: int = 1

    @property
    def num_gpus(self) -> int:
        return self.pp_size * self.tp_size * self.cp_size

    def __str__(self) -> str:
        return f"pp {self.pp_size} x tp {self.tp_size}" + (f" x cp {self.cp_size}" if self.cp_size > 1 else "")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration. Of two that are equally good the simpler one is better: that is ``simplicity``."""

    split: Split
    pp_async_batch_depth: int
    chunked_prefill_size: int
    smooth_factor: float  # 0: fixed chunks
    layer_partition: tuple[int, ...]

    @property
    def is_dynamic(self) -> bool:
        return self.smooth_factor > 0.0

    @property
    def simplicity(self) -> tuple[object, ...]:
        """Smaller is simpler."""
        s = self.split
        uneven = max(self.layer_partition) - min(self.layer_partition)
        return (
            s.cp_size,
            self.is_dynamic,
            self.pp_async_batch_depth,
            uneven,
            s.pp_size,
            self.chunked_prefill_size,
            abs(self.smooth_factor - DEFAULT_FACTOR),
            self.layer_partition,
        )

    def config(self) -> dict[str, Any]:
        """JSON of ``ppsim tune``, in SGLang's words."""
        return {
            "pp_size": self.split.pp_size,
            "tp_size": self.split.tp_size,
            "cp_size": self.split.cp_size,
            "pp_async_batch_depth": self.pp_async_batch_depth,
            "chunked_prefill_size": self.chunked_prefill_size,
            "enable_dynamic_chunking": self.is_dynamic,
            "dynamic_chunking_smooth_factor": self.smooth_factor if self.is_dynamic else None,
            "layer_partition": list(self.layer_partition),
        }

    def but(self, **changes: Any) -> Candidate:
        """The same with some fields changed."""
        return replace(self, **changes)


def given_candidate(s: Scenario) -> Candidate:
    """What the scenario itself says."""
    k, c = s.cluster, s.scheduler
    return Candidate(
        Split(k.pp_size, k.tp_size, k.cp_size),
        k.pp_async_batch_depth,
        c.chunked_prefill_size,
        c.dynamic_chunking_smooth_factor if c.enable_dynamic_chunking else 0.0,
        partition_of(s),
    )


def with_candidate(s: Scenario, candidate: Candidate, pool_tokens: int | None) -> Scenario:
    """The scenario in this configuration. ``pool_tokens`` None: the pool is what the memory leaves."""
    split = candidate.split
    cluster = s.cluster.model_copy(
        update={
            "pp_size": split.pp_size,
            "tp_size": split.tp_size,
            "cp_size": split.cp_size,
            "tp_replicas": 1,
            "pp_async_batch_depth": candidate.pp_async_batch_depth,
        }
    )
    scheduler = s.scheduler.model_copy(
        update={
            "chunked_prefill_size": candidate.chunked_prefill_size,
            "enable_dynamic_chunking": candidate.is_dynamic,
            "dynamic_chunking_smooth_factor": candidate.smooth_factor or s.scheduler.dynamic_chunking_smooth_factor,
            "chunk_planner": "sglang",
            "max_total_tokens": pool_tokens,
        }
    )
    even = even_partition(sum(candidate.layer_partition), split.pp_size)
    layers = None if candidate.layer_partition == even else candidate.layer_partition
    model = s.model.model_copy(update={"layer_partition": layers})
    return s.model_copy(update={"cluster": cluster, "scheduler": scheduler, "model": model})


def with_probe(s: Scenario, probe: Probe) -> Scenario:
    """The scenario with the probe for its workload, one plain pipeline and nothing that goes wrong."""
    return s.model_copy(
        update={
            "workload": probe.workload(),
            "disaggregation": Disaggregation(),
            "observations": Observations(),
            "timeouts": Timeouts(),
            "faults": Faults(),
            "chance": Chance(),
            "run": Run(),
            "bugs": (),
        }
    )
