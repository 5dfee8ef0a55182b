"""Paged attention in plain torch: what the Triton kernel is held against, and what runs on the CPU.

One piece at a time: gather the pages of the request, cut them to its length, attend causally. The query at offset i of
a piece sits at position prefix + i and sees the keys of positions [0, prefix + i].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.packed import PackedBatch


def paged_attention_reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, packed: PackedBatch, scaling: float
) -> torch.Tensor:
    """query [T, heads, head_dim], keys and values [pages, page_size, kv_heads, head_dim] -> [T, heads, head_dim]."""
    out = torch.empty_like(query)
    start = 0
    for row, prefix, new in zip(packed.block_table, packed.prefix_lens, packed.new_lens):
        length = prefix + new
        pages = row[: -(-length // packed.page_size)].long()
        key = keys[pages].flatten(0, 1)[:length].transpose(0, 1)  # [kv_heads, length, head_dim]
        value = values[pages].flatten(0, 1)[:length].transpose(0, 1)
        rows = slice(start, start + new)
        seen = torch.arange(length, device=query.device) <= packed.positions[rows, None]
        attended = F.scaled_dot_product_attention(
            query[rows].transpose(0, 1)[None], key[None], value[None], seen, scale=scaling, enable_gqa=True
        )
        out[rows] = attended[0].transpose(0, 1)
        start += new
    return out
