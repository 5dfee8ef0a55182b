"""What a launch needs to know: the pieces of a batch, as the scheduler decided them.

A piece is one request's share of a batch: ``new_tokens`` tokens at positions [prefix_len, prefix_len + new_tokens).
The KV of positions [0, prefix_len) is already in ``kv.pages``; the launch writes the rest. It is one record from its
admission (``admission.py``) to its harvest.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Generic, Protocol, TypeVar

from ppsim.core.record import record


class Mode(Enum):
    """Forward mode of a batch (SGLang's ForwardMode)."""

    EXTEND = "extend"
    DECODE = "decode"
    MIXED = "mixed"


class KVRow(Protocol):
    """A request's row in the page table. Live: read it while the launch is being answered, keep no reference."""

    pages: list[int]  # page i holds positions [i*page_size, (i+1)*page_size)

    def input_ids(self, start: int, stop: int) -> list[int]:
        """Token ids at positions [start, stop) of prompt + output."""
        ...


Row_co = TypeVar("Row_co", bound=KVRow, covariant=True)


@record
class Piece(Generic[Row_co]):
    """One request's share of a batch. ``kv`` is the request itself; a world reads no more of it than ``KVRow`` says."""

    rid: str
    prefix_len: int
    new_tokens: int
    is_last_chunk: bool  # its sampled token counts; False for a middle chunk, whose row is discarded
    is_decode: bool
    kv: Row_co = field(compare=False, repr=False)


@record
class ForwardBatch:
    """A decided batch. ``pieces`` are in row order; the output has one row per piece."""

    iteration: int
    slot: int
    mode: Mode
    pieces: tuple[Piece[KVRow], ...]
    num_tokens: int
    can_run_cuda_graph: bool  # decode batches run as a graph: their hidden states live in a static buffer
    skip_output_comm: bool  # pure middle chunk under the skip rule (protocol.md 2.4)
