"""A decided batch as tensors. The scheduler's pieces are laid end to end on one token axis, without padding.

Rule: whatever a piece says about pages is checked here, before a kernel trusts it. A position outside the pages of its
request, a page that does not exist and a KV slot that two tokens would write are errors that name the request; in a
kernel they would be silent corruption (invariant 64 of protocol.md section 12).

Everything is on the device except ``prefix_lens`` and ``new_lens``. With T tokens and R pieces:

    positions     [T]     int64  position of a token in its request
    kv_slots      [T]     int64  where its key and value go: page * page_size + offset
    last_rows     [R]     int64  row of the last token of each piece
    counts        [R]     bool   the sampled token of the piece counts: it is no middle chunk
    starts        [R + 1] int32  piece r has the rows [starts[r], starts[r + 1])
    prefixes      [R]     int32  tokens of the request that are in the KV already
    block_table   [R, max pages of a piece] int32, padded with page 0
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ppsim.core.errors import InvariantViolation
from ppsim.core.schedule.batch import ForwardBatch, KVRow, Piece


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """See the head of this file."""

    positions: torch.Tensor
    kv_slots: torch.Tensor
    last_rows: torch.Tensor
    counts: torch.Tensor
    starts: torch.Tensor
    prefixes: torch.Tensor
    block_table: torch.Tensor
    prefix_lens: tuple[int, ...]
    new_lens: tuple[int, ...]
    page_size: int

    @property
    def num_tokens(self) -> int:
        return int(self.positions.shape[0])

    @property
    def num_pieces(self) -> int:
        return len(self.new_lens)


def pack(batch: ForwardBatch, page_size: int, num_pages: int, rank: int, device: torch.device) -> PackedBatch:
    """Read the page rows of a batch while it is being launched. Raises InvariantViolation for pages that cannot be."""
    rows = [pages_of(piece, page_size, num_pages, batch, rank) for piece in batch.pieces]
    table = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for place, row in zip(table, rows):
        place[: len(row)] = torch.tensor(row)
    prefix_lens = tuple(piece.prefix_len for piece in batch.pieces)
    new_lens = tuple(piece.new_tokens for piece in batch.pieces)
    positions = torch.cat([torch.arange(p, p + n) for p, n in zip(prefix_lens, new_lens)])
    piece_of = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(new_lens))
    kv_slots = table[piece_of, positions // page_size] * page_size + positions % page_size
    check_distinct(kv_slots, piece_of, batch, rank)
    ends = torch.tensor(new_lens).cumsum(0)
    return PackedBatch(
        positions=positions.to(device),
        kv_slots=kv_slots.to(device),
        last_rows=(ends - 1).to(device),
        counts=torch.tensor([piece.is_last_chunk for piece in batch.pieces], device=device),
        starts=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(device, torch.int32),
        prefixes=torch.tensor(prefix_lens, dtype=torch.int32, device=device),
        block_table=table.to(device, torch.int32),
        prefix_lens=prefix_lens,
        new_lens=new_lens,
        page_size=page_size,
    )


def pages_of(piece: Piece[KVRow], page_size: int, num_pages: int, batch: ForwardBatch, rank: int) -> list[int]:
    """The pages that the attention of a piece may touch: those of positions [0, prefix_len + new_tokens)."""
    num_tokens = piece.prefix_len + piece.new_tokens
    row = piece.kv.pages[: -(-num_tokens // page_size)]
    if len(row) * page_size < num_tokens:
        have = f"{len(row)} pages of {page_size} tokens"
        raise broken(batch, rank, piece.rid, f"expected pages for {num_tokens} tokens, got {have}")
    for page in row:
        if not 0 < page <= num_pages:
            raise broken(batch, rank, piece.rid, f"expected a page in 1..{num_pages}, got page {page}")
    return row


def check_distinct(kv_slots: torch.Tensor, piece_of: torch.Tensor, batch: ForwardBatch, rank: int) -> None:
    """No two tokens of a batch may write one KV slot."""
    ordered, order = kv_slots.sort(stable=True)
    twice = (ordered[1:] == ordered[:-1]).nonzero()
    if len(twice):
        at = int(twice[0])
        first, second = (batch.pieces[int(piece_of[order[i]])].rid for i in (at, at + 1))
        raise broken(batch, rank, second, f"KV slot {int(ordered[at])} is also written by {first}")


def broken(batch: ForwardBatch, rank: int, rid: str, detail: str) -> InvariantViolation:
    return InvariantViolation("INV-64", rank, batch.iteration, batch.slot, rid, detail)
