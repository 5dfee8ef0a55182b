"""Time of one forward pass on one stage, in integer nanoseconds.

    prefill piece of x tokens after a prefix of L:  max(floor, c + first [L = 0] + gamma L + b x + a (2 L x + x^2))
    decode batch of n rows over K tokens of KV:     c + r n + k K

``a`` is the cumulative coefficient: a (2 L x + x^2) = a ((L + x)^2 - L^2). A per-query coefficient alpha, which charges
alpha (L + q) for the query at offset q, is twice as large: alpha = 2 a. Keep the two apart by name.
Coefficients are for the whole model; a stage takes its share of the layers (published.md E4, protocol.md 13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

NS_PER_MS = 1_000_000

Work: TypeAlias = tuple[int, int, bool]
"""(prefix_len, new_tokens, is_decode) of one piece."""


class StageCost(Protocol):
    """Anything that can say how long a batch takes on a stage."""

    def batch_ns(self, stage: int, slot: int, work: Sequence[Work]) -> int:
        """Nanoseconds of one forward pass. ``work`` is never empty."""
        ...


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Every stage needs one unit for any non-empty batch; ``slot_ns`` gives each slot its own unit."""

    unit_ns: int
    slot_ns: tuple[int, ...] = ()

    def batch_ns(self, stage: int, slot: int, work: Sequence[Work]) -> int:
        return self.slot_ns[slot % len(self.slot_ns)] if self.slot_ns else self.unit_ns


@dataclass(frozen=True, slots=True)
class QuadraticCost:
    """The quadratic model. ``shares`` is each stage's part of the layers; tensor parallelism divides compute by tp."""

    shares: tuple[float, ...]
    floor_ms: float = 0.0
    c_ms: float = 0.0
    gamma_ms: float = 0.0
    b_ms: float = 0.0
    a_ms: float = 0.0
    c_once: str = "piece"
    decode_c_ms: float = 0.0
    decode_row_ms: float = 0.0
    decode_kv_ms: float = 0.0
    decode_reads_own_token: bool = True
    tp_size: int = 1
    tp_comm_ms: float = 0.0
    first_ms: float = 0.0

    def batch_ns(self, stage: int, slot: int, work: Sequence[Work]) -> int:
        return self.pieces_ns(stage, work)

    def pieces_ns(self, stage: int, work: Sequence[Work], opens: Sequence[bool] | None = None) -> int:
        """As ``batch_ns``. ``opens``: of each piece, whether its prompt has nothing before it, where that is not plain
        from its prefix (of a rank's share of a piece, which a context-parallel stage moves away from the start)."""
        compute = 0.0
        num_tokens = 0
        rows = 0
        kv_tokens = 0
        pieces = 0
        reads_own = self.decode_reads_own_token
        for place, (prefix_len, new_tokens, is_decode) in enumerate(work):
            num_tokens += new_tokens
            if is_decode:
                rows += 1
                kv_tokens += prefix_len + new_tokens if reads_own else prefix_len
                continue
            is_open = prefix_len == 0 if opens is None else opens[place]
            c = self.c_ms if self.c_once == "piece" or pieces == 0 else 0.0
            pieces += 1
            first = self.first_ms if is_open else 0.0
            compute += max(self.floor_ms, c + first + self.prefill_ms(prefix_len, new_tokens))
        if rows:
            compute += self.decode_c_ms + self.decode_row_ms * rows + self.decode_kv_ms * kv_tokens
        ring = 2 * (self.tp_size - 1) / self.tp_size * self.tp_comm_ms * num_tokens
        return max(1, round((compute / self.tp_size + ring) * self.shares[stage] * NS_PER_MS))

    def prefill_ms(self, prefix_len: int, new_tokens: int) -> float:
        """gamma L + b x + a (2 L x + x^2), without the constant."""
        attention = 2 * prefix_len * new_tokens + new_tokens * new_tokens
        return self.gamma_ms * prefix_len + self.b_ms * new_tokens + self.a_ms * attention
