"""Paged KV of the layers of one stage.

    page 0                 padding of block tables, never read and never written
    pages 1 .. num_pages   given out by the scheduler's pool (``ppsim.core.memory.pool``), which owns all bookkeeping

Rule: nothing is ever cleared. Fresh pages hold NaN, so reading a position that nobody wrote poisons the logits, and the
last rank notices (``stage.py``), instead of passing for a zero.
"""

from __future__ import annotations

import torch


class PagedKV:
    """Keys and values, each a list over the layers of tensors [num_pages + 1, page_size, num_kv_heads, head_dim]."""

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        shape = (num_pages + 1, page_size, num_kv_heads, head_dim)
        self.keys = [torch.full(shape, torch.nan, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.full(shape, torch.nan, dtype=dtype, device=device) for _ in range(num_layers)]

    def write(self, layer: int, kv_slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store keys and values [num_tokens, num_kv_heads, head_dim] of the ``layer``-th layer of this stage."""
        self.keys[layer].flatten(0, 1).index_copy_(0, kv_slots, key)
        self.values[layer].flatten(0, 1).index_copy_(0, kv_slots, value)


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """KV bytes of one token in ``num_layers`` layers: keys and values."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize
