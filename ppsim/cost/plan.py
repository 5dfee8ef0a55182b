"""A chunk plan: an integer table (prefix, size) of one prompt, computed once and replicated with its digest.

Planners use floats; what steers the scheduler is this table and nothing else (design decision 4). No rank refits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.recurrence import free_running, makespan, pad, slot_window, stage_times
from ppsim.cost.sglang_chunks import ALIGN_TOKENS, ChunkPredictor
from ppsim.errors import ScenarioError
from ppsim.later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float64]
else:
    np = later("numpy")


@dataclass(frozen=True, slots=True)
class Plan:
    """Chunks of a prompt in order: ``pieces[i]`` is (tokens before it, tokens in it). ``note`` is for the reader."""

    planner: str
    pieces: tuple[tuple[int, int], ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.pieces:
            raise ScenarioError("chunk plan", f"planner {self.planner!r} made an empty plan")
        at = self.pieces[0][0]
        for i, (prefix, size) in enumerate(self.pieces):
            if prefix != at or size < 1:
                raise ScenarioError(
                    "chunk plan", f"chunk {i} is ({prefix}, {size}), expected prefix {at} and a size > 0"
                )
            at += size

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.pieces)

    @property
    def num_tokens(self) -> int:
        """Tokens that the plan computes; a cached prefix is not among them."""
        return sum(self.sizes)

    @property
    def digest(self) -> str:
        """Hash of the table alone: two planners that agree have the same."""
        text = ";".join(f"{prefix},{size}" for prefix, size in self.pieces)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def arrays(self) -> tuple[Floats, Floats]:
        """Prefixes and sizes."""
        table = np.asarray(self.pieces, dtype=np.float64)
        return table[:, 0], table[:, 1]


def from_sizes(planner: str, sizes: Sequence[int], start: int = 0, note: str = "") -> Plan:
    """Plan from sizes in order, after ``start`` cached tokens."""
    pieces, at = [], start
    for size in sizes:
        pieces.append((at, int(size)))
        at += int(size)
    return Plan(planner, tuple(pieces), note)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a plan is judged by: each stage's part of the model, and what every chunk pays besides, in milliseconds.

    ``host_ms`` is added to a chunk on every stage, ``link_ms`` to each hand-over. ``depth`` is pp_async_batch_depth:
    a chunk starts when the one P + depth before it has come back. None: free running, no chunk waits for a return.
    """

    shares: tuple[float, ...]
    host_ms: float = 0.0
    link_ms: float = 0.0
    depth: int | None = 0

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) <= 0:
            raise ScenarioError("pipeline.shares", f"must be positive, one for each stage, got {self.shares}")
        for name in ("host_ms", "link_ms"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ScenarioError(f"pipeline.{name}", f"must be a finite number >= 0, got {value}")

    @staticmethod
    def of(partition: Sequence[int], host_ms: float = 0.0, link_ms: float = 0.0, depth: int | None = 0) -> Pipeline:
        """Stages in proportion to their layers."""
        return Pipeline(tuple(n / sum(partition) for n in partition), host_ms, link_ms, depth)

    def chunk_ms(self, plan: Plan, cost: Coefficients) -> Floats:
        """Time of each chunk on the slowest stage."""
        prefix, size = plan.arrays()
        return cost.ms(prefix, size) * max(self.shares) + self.host_ms

    def ttft_ms(self, plan: Plan, cost: Coefficients) -> float:
        """Time of one prompt through an empty pipeline."""
        return float(self.ttfts_ms([plan], cost)[0])

    def ttfts_ms(self, plans: Sequence[Plan], cost: Coefficients) -> Floats:
        """The same for many plans at once."""
        times, num_chunks = pad([stage_times(cost.ms(*plan.arrays()), self.shares) for plan in plans])
        if self.depth is None:
            return makespan(free_running(times, self.host_ms, self.link_ms), num_chunks)
        return makespan(slot_window(times, self.depth, self.host_ms, self.link_ms), num_chunks)


def fixed(num_tokens: int, chunk: int, start: int = 0) -> Plan:
    """Equal chunks, the last one takes what is left. ``chunk`` -1: no chunking; 0 is an error (bugs.md B117)."""
    check_length(num_tokens)
    if chunk == -1:
        return from_sizes("fixed", [num_tokens], start)
    if chunk < 1:
        raise ScenarioError("scheduler.chunked_prefill_size", f"must be positive, or -1 for no chunking, got {chunk}")
    sizes = [chunk] * (num_tokens // chunk) + ([num_tokens % chunk] if num_tokens % chunk else [])
    return from_sizes("fixed", sizes, start)


def sglang(num_tokens: int, predictor: ChunkPredictor, start: int = 0) -> Plan:
    """SGLang's rule: the base size first, then the predictor, and the base size again wherever it has no answer."""
    check_length(num_tokens)
    sizes: list[int] = []
    left = num_tokens
    while left:
        size = predictor.base if not sizes else predictor.next_chunk(start + num_tokens - left) or predictor.base
        sizes.append(min(size, left))
        left -= sizes[-1]
    note = f"fixed chunks of {predictor.base}: {predictor.reason}" if predictor.reason else ""
    return from_sizes("sglang", sizes, start, note)


def check_length(num_tokens: int) -> None:
    """Raise ScenarioError for an empty prompt."""
    if num_tokens < 1:
        raise ScenarioError("prompt", f"must have at least one token to compute, got {num_tokens}")


def treat_tail(plan: Plan, min_tail: int, max_chunk: int | None = None, align: int = ALIGN_TOKENS) -> Plan:
    """The plan without a last chunk shorter than ``min_tail`` (bugs.md B97): one pass through all stages less.

    It is merged into the chunk before it; where that would exceed ``max_chunk``, its tokens are dealt over the chunks
    before it, an alignment unit at a time from the first on (early chunks are the cheap ones). A plan that has no room
    for them is returned as it is.
    """
    sizes = list(plan.sizes)
    if len(sizes) < 2 or sizes[-1] >= min_tail:
        return plan
    tail = sizes.pop()
    if max_chunk is None or sizes[-1] + tail <= max_chunk:
        sizes[-1] += tail
        return replace(from_sizes(plan.planner, sizes, plan.pieces[0][0], plan.note), note=_note(plan, "tail merged"))
    odd = tail % align
    room = [(max_chunk - s) // align for s in sizes]
    if odd and room[-1]:
        room[-1] -= 1
        sizes[-1] += odd
    elif odd:
        return plan
    units = tail // align
    if units > sum(room):
        return plan
    while units:
        for i, free in enumerate(room):
            if free and units:
                sizes[i] += align
                room[i] -= 1
                units -= 1
    return replace(from_sizes(plan.planner, sizes, plan.pieces[0][0]), note=_note(plan, "tail spread"))


def _note(plan: Plan, text: str) -> str:
    return f"{plan.note}; {text}" if plan.note else text


def pack(lengths: Sequence[int], budget: int, cut: bool = True) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Passes of a queue of prompts under a token budget: each pass is (prompt, tokens) in order (bugs.md B103).

    ``cut``: a prompt takes what is left of a pass. Otherwise it takes it only if its whole rest fits there, or if it is
    the first of the pass, and half-empty passes follow.
    """
    if budget < 1:
        raise ScenarioError("scheduler.chunked_prefill_size", f"must be positive, got {budget}")
    passes: list[list[tuple[int, int]]] = []
    room = 0
    for prompt, length in enumerate(lengths):
        check_length(length)
        left = length
        while left:
            if room == 0 or (not cut and left > room and passes[-1]):
                passes.append([])
                room = budget
            take = min(left, room)
            passes[-1].append((prompt, take))
            left -= take
            room -= take
    return tuple(tuple(p) for p in passes)
