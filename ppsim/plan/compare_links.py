"""What joins the groups of ``ppsim compare``: one link of a bandwidth, or the NICs of nodes.

    one link   every all-reduce that leaves a group is a flat ring of it; a hidden state crosses it whole
    nodes      ``ppsim.cost.network``: groups are (parts of) nodes with several NICs. The bandwidth that is swept is
               that of one NIC, and all of a node carry the node's bytes. A hop to a stage of the same node is charged
               as one that leaves it

Overheads (a layer, a call, the steps of an all-reduce) are what is given. What is not given is the published figure
wherever decode or nodes are asked for, and 0 for prefill over one link, where they are lost among the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ppsim.cost.context_parallel import ring_gb_per_s
from ppsim.cost.gpu import Gpu
from ppsim.cost.network import GPUS_PER_NODE, NCCL_CALL_US, NCCL_LINK_STEP_US, NCCL_NIC_STEP_US, Network
from ppsim.cost.roofline import DECODE_LAYER_US, Rates
from ppsim.errors import UsageError

PUBLISHED = {
    "layer_overhead_us": DECODE_LAYER_US,
    "all_reduce_us": NCCL_CALL_US,
    "link_latency_us": NCCL_LINK_STEP_US,
    "nic_latency_us": NCCL_NIC_STEP_US,
}
MAX_US = 1e6


@dataclass(frozen=True, slots=True)
class Overheads:
    """Microseconds; None: the published figure, or 0 where it is lost among the bytes."""

    layer_overhead_us: float | None = None
    all_reduce_us: float | None = None
    link_latency_us: float | None = None
    nic_latency_us: float | None = None

    def check(self) -> None:
        """Raise UsageError for what is no time."""
        for name in PUBLISHED:
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= MAX_US:
                raise UsageError(f"--{name.replace('_', '-')} {value:g}: expected 0 to {MAX_US:g} microseconds")

    def values(self, published: bool) -> Mapping[str, float]:
        """By the names of ``Rates``."""
        given = {name: getattr(self, name) for name in PUBLISHED}
        return {n: (PUBLISHED[n] if published else 0.0) if v is None else v for n, v in given.items()}


PUBLISHED_ALL = Overheads()  # nothing is given


@dataclass(frozen=True, slots=True)
class Joint:
    """The links between ``group`` GPUs and others. ``nics_per_node`` None with ``nodes``: one a GPU."""

    gpu: Gpu
    group: int
    nodes: bool = False
    gpus_per_node: int = GPUS_PER_NODE
    nics_per_node: int | None = None
    overheads: Overheads = PUBLISHED_ALL

    @property
    def num_nics(self) -> int:
        """NICs of a node."""
        return self.gpus_per_node if self.nics_per_node is None else self.nics_per_node

    def gpu_at(self, gb_per_s: float | None) -> Gpu:
        """The GPU with NICs of this bandwidth."""
        return self.gpu if gb_per_s is None or not self.nodes else replace(self.gpu, nic_gb_per_s=gb_per_s)

    def rates(self, efficiency: float, tp_size: int, gb_per_s: float | None, decode: bool) -> Rates:
        """Constants of the roofline of a group of ``tp_size``."""
        ring = gb_per_s if tp_size > self.group and not self.nodes else None
        us = self.overheads.values(decode or self.nodes)
        return Rates(
            efficiency=efficiency,
            tp_gb_per_s=ring,
            node_gpus=self.gpus_per_node,
            nics_per_node=self.nics_per_node,
            link_latency_us=us["link_latency_us"],
            nic_latency_us=us["nic_latency_us"],
            all_reduce_us=us["all_reduce_us"],
            layer_overhead_us=us["layer_overhead_us"],
        )

    def exchange_gb_per_s(self, num_gpus: int, gb_per_s: float) -> float:
        """Bandwidth of each GPU's ring of context parallelism over ``num_gpus``."""
        if not self.nodes:
            return gb_per_s
        return ring_gb_per_s(self.gpu_at(gb_per_s), num_gpus, self.gpus_per_node, self.nics_per_node)

    def hop_s_per_byte(self, tp_size: int, gb_per_s: float | None) -> float:
        """Seconds for each byte of hidden states from a stage to the next; 0 without a link."""
        if gb_per_s is None:
            return 0.0
        if not self.nodes:
            return 1e-9 / gb_per_s
        link = self.gpu.link_gb_per_s
        return Network(link, gb_per_s, self.nics_per_node, self.gpus_per_node).hand_over_s_per_byte(tp_size)

    def describe(self) -> str:
        """One sentence for people."""
        if not self.nodes:
            return "all-reduce and exchange are not hidden behind compute; the ring of TP is flat over all GPUs"
        return (
            f"nodes of {self.gpus_per_node} GPUs with {self.num_nics} NICs each, at the bandwidth of one NIC; an "
            "all-reduce that leaves a node is reduce-scatter inside, all-reduce across over all NICs, all-gather "
            "inside; all-reduce and exchange are not hidden behind compute"
        )
