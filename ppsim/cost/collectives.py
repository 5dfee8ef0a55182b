"""What crosses the links: ring collectives, point to point, and the volumes of the three ways to cut a model.

For a tensor of K bytes over a ring of N ranks each rank sends
    all-reduce      2 (N-1)/N K     reduce-scatter, then all-gather
    all-gather        (N-1)/N K
    point to point            K
The factors saturate at 2 and 1; what keeps growing with N is the number of steps, each with its latency.

A forward pass over B sequences of S tokens therefore moves, per rank, in elements (LMSYS, "Pipeline Parallelism in
SGLang"; the post counts FP8, one byte an element, and saturated factors):
    TP   2 all-reduces a layer of B S H                      4 B S H L
    CP   1 all-gather a layer of keys and values             2 B S H_kv L
    PP   one hand-over a seam                                B S H (P-1)
TP over PP is 4 L / (P-1): not smaller messages, fewer of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ppsim.cost.model import ModelShape
from ppsim.errors import ScenarioError

MAX_ELEMENT_BYTES = 8.0


def all_reduce_factor(num_ranks: int) -> float:
    """Bytes a rank sends for each byte of the tensor in a ring all-reduce."""
    return 2.0 * (num_ranks - 1) / num_ranks


def all_gather_factor(num_ranks: int) -> float:
    """Bytes a rank sends for each byte of the gathered tensor in a ring all-gather."""
    return (num_ranks - 1) / num_ranks


def all_reduce_s(size_bytes: float, num_ranks: int, gb_per_s: float, latency_us: float = 0.0) -> float:
    """Seconds of a ring all-reduce: 2 (N-1) steps."""
    return _ring_s(all_reduce_factor(num_ranks) * size_bytes, 2 * (num_ranks - 1), gb_per_s, latency_us)


def all_gather_s(size_bytes: float, num_ranks: int, gb_per_s: float, latency_us: float = 0.0) -> float:
    """Seconds of a ring all-gather of ``size_bytes`` in all: N-1 steps."""
    return _ring_s(all_gather_factor(num_ranks) * size_bytes, num_ranks - 1, gb_per_s, latency_us)


def p2p_s(size_bytes: float, gb_per_s: float, latency_us: float = 0.0) -> float:
    """Seconds of one message."""
    return _ring_s(size_bytes, 1, gb_per_s, latency_us)


def _ring_s(sent_bytes: float, num_steps: int, gb_per_s: float, latency_us: float) -> float:
    if gb_per_s < 0:
        raise ScenarioError("link bandwidth", f"must not be negative, got {gb_per_s} GB/s", "0 is infinite")
    return num_steps * latency_us * 1e-6 + (sent_bytes / (gb_per_s * 1e9) if gb_per_s else 0.0)


@dataclass(frozen=True, slots=True)
class Volumes:
    """Bytes that a rank sends in one forward pass, for each way to cut. ``saturated``: the ring factor at infinity."""

    model: str
    num_layers: int
    batch: int
    seq_len: int
    element_bytes: float
    tp_size: int
    cp_size: int
    pp_size: int
    tp_saturated_bytes: float
    tp_exact_bytes: float
    cp_saturated_bytes: float
    cp_exact_bytes: float
    pp_bytes: float

    @property
    def tp_over_pp(self) -> float:
        """4 L / (P-1) with saturated factors; infinite for a single stage."""
        return self.tp_saturated_bytes / self.pp_bytes if self.pp_bytes else float("inf")

    @property
    def cp_over_pp(self) -> float:
        return self.cp_saturated_bytes / self.pp_bytes if self.pp_bytes else float("inf")

    def rows(self) -> tuple[tuple[str, str, float, float], ...]:
        """(way, formula, saturated bytes, exact bytes) for a table."""
        return (
            ("TP", "4 B S H L", self.tp_saturated_bytes, self.tp_exact_bytes),
            ("CP", "2 B S H_kv L", self.cp_saturated_bytes, self.cp_exact_bytes),
            ("PP", "B S H (P-1)", self.pp_bytes, self.pp_bytes),
        )


def volumes(
    shape: ModelShape,
    seq_len: int,
    *,
    batch: int = 1,
    tp_size: int = 8,
    cp_size: int = 8,
    pp_size: int = 4,
    element_bytes: float = 1.0,
    tensors_per_seam: int = 1,
) -> Volumes:
    """Volumes of a forward pass. Units: tokens in, bytes out.

    ``element_bytes`` 1 is the post's FP8; what SGLang really hands over at a seam is BF16 and two tensors
    (hidden states and residual): ``element_bytes=2, tensors_per_seam=2``. Raises ScenarioError for sizes below one.
    """
    named = {"seq_len": seq_len, "batch": batch, "tp_size": tp_size, "cp_size": cp_size, "pp_size": pp_size}
    for name, value in named.items():
        if value < 1:
            raise ScenarioError(name, f"must be at least 1, got {value}")
    if not 0.0 < element_bytes <= MAX_ELEMENT_BYTES:
        raise ScenarioError("bytes", f"of an element must be more than 0 and at most 8, got {element_bytes:g}")
    hidden = batch * seq_len * shape.hidden_size * element_bytes
    kv = batch * seq_len * sum(layer.kv_elements_per_token for layer in shape.layers) * element_bytes
    num_blocks = sum(layer.num_blocks for layer in shape.layers)  # two a layer in most models, each with an all-reduce
    return Volumes(
        model=shape.name,
        num_layers=shape.num_layers,
        batch=batch,
        seq_len=seq_len,
        element_bytes=element_bytes,
        tp_size=tp_size,
        cp_size=cp_size,
        pp_size=pp_size,
        tp_saturated_bytes=2.0 * hidden * num_blocks,
        tp_exact_bytes=all_reduce_factor(tp_size) * hidden * num_blocks,
        cp_saturated_bytes=kv,
        cp_exact_bytes=all_gather_factor(cp_size) * kv,
        pp_bytes=hidden * tensors_per_seam * (pp_size - 1),
    )
