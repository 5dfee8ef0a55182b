"""The links of a node: its GPUs among each other, and the NICs that leave it.

A node has ``gpus_per_node`` GPUs and ``nics_per_node`` NICs of ``nic_gb_per_s`` each, in one direction; a GPU has its
share of them, n B / G, whichever of them carry its bytes. A collective that leaves the node is hierarchical, on a
tensor of K bytes over M nodes of g ranks each:

    reduce-scatter inside   (g-1)/g K      over the link       g-1 steps
    all-reduce across       2 (M-1)/M K/g  over the NICs       2 (M-1) steps; every GPU with those of its own place
    all-gather inside       (g-1)/g K      over the link       g-1 steps

so a node sends 2 (M-1)/M K over all of its NICs together. A flat ring whose every crossing shares ONE NIC would be G
times as slow; NCCL makes a ring for each NIC, which moves the same bytes as the hierarchy (rings, trees and both
are in its ``src/graph``). A hidden state that goes to the next stage is cut over the tensor-parallel ranks, each sends
its part over its share of the NICs, and the receivers gather it inside their node.

``fixed``: what a call costs whatever the bytes, ``call_us`` to start and a latency a step. The published figures for
decode are those of NCCL's tuning table (tuning.cc, base and hardware latencies of the tree with protocol LL, which is
what it takes for small messages): 6.8 us a call, 0.6 us a step over NVLink, 5.0 us a step over the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from ppsim.cost.collectives import all_gather_s, all_reduce_factor, all_reduce_s
from ppsim.errors import ScenarioError

GPUS_PER_NODE = 8
NCCL_CALL_US = 6.8
NCCL_LINK_STEP_US = 0.6
NCCL_NIC_STEP_US = 5.0


@dataclass(frozen=True, slots=True)
class Network:
    """Bandwidths in GB/s of one direction, latencies of a step in microseconds. ``nics_per_node`` None: one a GPU.
    ``ring_gb_per_s``: every all-reduce is one flat ring of this bandwidth, whatever it passes."""

    link_gb_per_s: float
    nic_gb_per_s: float | None = None
    nics_per_node: int | None = None
    gpus_per_node: int = GPUS_PER_NODE
    link_latency_us: float = 0.0
    nic_latency_us: float = 0.0
    call_us: float = 0.0
    ring_gb_per_s: float | None = None

    @property
    def num_nics(self) -> int:
        """NICs of a node."""
        return self.gpus_per_node if self.nics_per_node is None else self.nics_per_node

    @property
    def share_gb_per_s(self) -> float:
        """A GPU's share of the NICs, at most its link. Raises ScenarioError where no NIC is known."""
        if self.nic_gb_per_s is None:
            raise ScenarioError("gpu.nic_gb_per_s", "is not known", "give gpu.nic_gb_per_s")
        return min(self.link_gb_per_s, self.nic_gb_per_s * self.num_nics / self.gpus_per_node)

    def places(self, num_ranks: int) -> tuple[int, int]:
        """(nodes, ranks on the fullest of them) of a group that fills as few nodes as it can, evenly."""
        num_nodes = -(-num_ranks // self.gpus_per_node)
        return num_nodes, -(-num_ranks // num_nodes)

    def all_reduce_s(self, size_bytes: float, num_ranks: int) -> float:
        """Seconds of an all-reduce, its fixed part included."""
        return self.all_reduce_moving_s(size_bytes, num_ranks) + self.all_reduce_fixed_s(num_ranks)

    def all_reduce_moving_s(self, size_bytes: float, num_ranks: int) -> float:
        """Seconds that its bytes take; proportional to them."""
        if self.ring_gb_per_s is not None:
            return all_reduce_factor(num_ranks) * size_bytes / (self.ring_gb_per_s * 1e9)
        num_nodes, inside = self.places(num_ranks)
        if num_nodes == 1:
            return all_reduce_factor(num_ranks) * size_bytes / (self.link_gb_per_s * 1e9)
        across = all_reduce_s(size_bytes / inside, num_nodes, self.share_gb_per_s)
        return 2.0 * all_gather_s(size_bytes, inside, self.link_gb_per_s) + across

    def all_reduce_fixed_s(self, num_ranks: int) -> float:
        """Seconds that it takes whatever its bytes; none for a rank that is alone."""
        if num_ranks == 1:
            return 0.0
        num_nodes, inside = self.places(num_ranks)
        steps_us = 2 * (inside - 1) * self.link_latency_us + 2 * (num_nodes - 1) * self.nic_latency_us
        return (self.call_us + steps_us) * 1e-6

    def hand_over_s_per_byte(self, tp_size: int) -> float:
        """Seconds for each byte of hidden states that ``tp_size`` ranks of a stage send to those of the next node."""
        ranks = min(tp_size, self.gpus_per_node)
        return 1e-9 / (ranks * self.share_gb_per_s) + all_gather_s(1.0, ranks, self.link_gb_per_s)
