"""What ``ppsim compare`` is asked, and which numbers mean nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ppsim.cost.config_json import load_model
from ppsim.cost.context_parallel import NODE_GPUS
from ppsim.cost.gpu import Gpu
from ppsim.cost.model import ModelShape
from ppsim.errors import UsageError
from ppsim.plan.compare_links import PUBLISHED_ALL, Joint, Overheads
from ppsim.plan.crossing import REACH_GB_PER_S
from ppsim.plan.trial_load import NUM_REQUESTS
from ppsim.scenario.bounds import MAX_TOKENS

MAX_GPUS = 1024
MAX_NICS = 1024
MAX_CONCURRENCY = 65536
MAX_SERVED = 8192
PAGE_SIZE = 64


@dataclass(frozen=True, slots=True)
class Decode:
    """What is asked of decode. ``num_served`` 0: the steady state alone."""

    concurrency: int
    output: int
    num_served: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """``tp_size`` None: the largest group of a node that divides heads and GPUs. Bandwidths of one direction.

    ``link_gb_per_s``: one link between the groups. ``nic_gb_per_s`` and ``nics_per_node``: several; with neither kind
    given, one NIC a GPU where the table knows it. ``decode`` None: prefill alone.
    """

    model: str
    gpu: str
    num_gpus: int
    prompt: int = 131072
    tp_size: int | None = None
    link_gb_per_s: tuple[float, ...] = ()
    efficiency: float | None = None
    chunk: int | None = None
    num_requests: int = NUM_REQUESTS
    speedup: float | None = None
    nic_gb_per_s: tuple[float, ...] = ()
    nics_per_node: int | None = None
    gpus_per_node: int = NODE_GPUS
    overheads: Overheads = PUBLISHED_ALL
    decode: Decode | None = None
    kv_cache_dtype: str = "auto"

    def shape(self) -> ModelShape:
        """The model, its keys and values in ``kv_cache_dtype``."""
        return load_model(self.model, kv_dtype=self.kv_cache_dtype)

    @property
    def names_nodes(self) -> bool:
        """Whether the question says something of nodes and their NICs."""
        return bool(self.nic_gb_per_s) or self.nics_per_node is not None or self.gpus_per_node != NODE_GPUS


def check_numbers(q: Question) -> None:
    """Raise UsageError for numbers that mean nothing."""
    if not 1 <= q.num_gpus <= MAX_GPUS:
        raise UsageError(f"--gpus {q.num_gpus}: expected 2 to {MAX_GPUS}")
    if not 1 <= q.prompt <= MAX_TOKENS:
        raise UsageError(f"--prompt {q.prompt}: expected 1 to {MAX_TOKENS} tokens")
    if not 1 <= q.num_requests <= 4096:
        raise UsageError(f"--requests {q.num_requests}: expected 1 to 4096 prompts")
    for flag, values in (("--link-gb-per-s", q.link_gb_per_s), ("--nic-gb-per-s", q.nic_gb_per_s)):
        for value in values:
            if not REACH_GB_PER_S[0] <= value <= REACH_GB_PER_S[1]:
                low, high = REACH_GB_PER_S
                raise UsageError(f"{flag} {value:g}: expected {low:g} to {high:g} GB/s in one direction")
    check_nodes(q)
    q.overheads.check()
    if q.decode is not None:
        check_decode(q.decode)
    if q.efficiency is not None and not 0.0 < q.efficiency <= 1.0:
        raise UsageError(f"--efficiency {q.efficiency:g}: expected a share of the peak, more than 0 and at most 1")
    if q.chunk is not None and (q.chunk < PAGE_SIZE or q.chunk % PAGE_SIZE):
        raise UsageError(f"--chunk {q.chunk}: expected a multiple of {PAGE_SIZE} tokens")
    if q.speedup is not None and not 0.0 < q.speedup < 1e6:
        raise UsageError(f"--speedup {q.speedup:g}: expected a positive factor over the base")


def check_nodes(q: Question) -> None:
    """Raise UsageError for nodes that mean nothing, or for nodes and one link at once."""
    if not 1 <= q.gpus_per_node <= MAX_GPUS:
        raise UsageError(f"--gpus-per-node {q.gpus_per_node}: expected 1 to {MAX_GPUS}")
    if q.nics_per_node is not None and not 1 <= q.nics_per_node <= MAX_NICS:
        raise UsageError(f"--nics-per-node {q.nics_per_node}: expected 1 to {MAX_NICS}")
    if not q.names_nodes:
        return
    if q.link_gb_per_s:
        raise UsageError(
            "--link-gb-per-s is one link between the groups; with nodes give --nic-gb-per-s, the bandwidth of one NIC"
        )
    if q.num_gpus <= q.gpus_per_node:
        raise UsageError(
            f"--gpus {q.num_gpus}: expected more than a node of {q.gpus_per_node}, whose NICs are asked for"
        )
    if q.tp_size is not None and q.tp_size > q.gpus_per_node:
        raise UsageError(f"--tp {q.tp_size}: expected a group inside a node of {q.gpus_per_node}")


def joint_of(q: Question, gpu: Gpu, group: int) -> Joint:
    """One link where it is given or there is but one node, or where nobody knows the NICs; else nodes."""
    known = not q.link_gb_per_s and q.num_gpus > NODE_GPUS >= group and gpu.nic_gb_per_s is not None
    return Joint(gpu, group, q.names_nodes or known, q.gpus_per_node, q.nics_per_node, q.overheads)


def group_size(shape: ModelShape, q: Question) -> int:
    """GPUs of a group. Raises UsageError or ScenarioError if there are fewer than two groups."""
    if q.tp_size is not None:
        shape.check_tp(q.tp_size)
        size = q.tp_size
    else:
        node = q.gpus_per_node
        most = min(node, q.num_gpus - 1) if q.num_gpus > node else 1
        heads = shape.num_heads
        size = max(n for n in range(1, max(most, 1) + 1) if heads % n == 0 and q.num_gpus % n == 0)
    if q.num_gpus % size or q.num_gpus == size:
        raise UsageError(
            f"--gpus {q.num_gpus}: expected two or more groups of {size} GPUs each; give a multiple of it, or --tp"
        )
    return size


def check_decode(q: Decode) -> None:
    """Raise UsageError for numbers that mean nothing."""
    if not 1 <= q.concurrency <= MAX_CONCURRENCY:
        raise UsageError(f"--concurrency {q.concurrency}: expected 1 to {MAX_CONCURRENCY} requests")
    if not 1 <= q.output <= MAX_TOKENS:
        raise UsageError(f"--output-tokens {q.output}: expected 1 to {MAX_TOKENS}")
    if not 0 <= q.num_served <= MAX_SERVED:
        raise UsageError(f"--serve {q.num_served}: expected 1 to {MAX_SERVED} requests")
    if q.num_served and q.output < 2:
        raise UsageError(f"--serve: with --output-tokens {q.output} there is no decode to serve")
