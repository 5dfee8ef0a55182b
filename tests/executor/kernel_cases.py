"""Random cases for the paged attention kernel. As a program it runs all of them and prints the largest difference.

TRITON_INTERPRET must be set before triton is imported, so the test runs this file in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random

import torch

from executor.kernels.reference import paged_attention_reference
from executor.packed import PackedBatch, pack
from tests.executor.small import Row, batch_of

SHAPES = [  # heads, kv_heads, head_dim, page_size, [(prefix_len, new_tokens)]
    (4, 4, 16, 1, [(0, 1)]),
    (4, 2, 16, 4, [(0, 7), (13, 1), (5, 20)]),
    (6, 2, 24, 8, [(33, 1), (64, 1), (1, 1)]),
    (8, 1, 64, 16, [(0, 40), (31, 3)]),
    (3, 3, 80, 2, [(2, 17), (0, 1)]),
    (2, 1, 128, 16, [(100, 70)]),
]


def cases(
    device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, PackedBatch]]:
    """Query, keys, values and batch of each shape. Pages lie in random order; unused cells hold NaN."""
    random = Random(0)
    for heads, kv_heads, head_dim, page_size, pieces in SHAPES:
        needs = [-(-(prefix + new) // page_size) for prefix, new in pieces]
        num_pages = sum(needs) + 3
        free = list(range(1, num_pages + 1))
        random.shuffle(free)
        rows = [Row(str(i), [], [free.pop() for _ in range(need)]) for i, need in enumerate(needs)]
        batch = batch_of([(row, *piece) for row, piece in zip(rows, pieces)])
        packed = pack(batch, page_size, num_pages, 0, device)
        generator = torch.Generator().manual_seed(len(pieces) + head_dim)
        shape = (num_pages + 1, page_size, kv_heads, head_dim)
        keys, values = (torch.full(shape, torch.nan) for _ in range(2))
        for row, (prefix, new) in zip(rows, pieces):
            for position in range(prefix + new):
                page, offset = row.pages[position // page_size], position % page_size
                keys[page, offset] = torch.randn(kv_heads, head_dim, generator=generator)
                values[page, offset] = torch.randn(kv_heads, head_dim, generator=generator)
        query = torch.randn(packed.num_tokens, heads, head_dim, generator=generator)
        yield query.to(device, dtype), keys.to(device, dtype), values.to(device, dtype), packed


def largest_difference(device: torch.device, dtype: torch.dtype) -> float:
    """Kernel against reference (in float32 on the CPU side of the cases), over all shapes."""
    from executor.kernels.paged_attention import paged_attention

    worst = 0.0
    for query, keys, values, packed in cases(device, dtype):
        scaling = query.shape[-1] ** -0.5
        got = paged_attention(query, keys, values, packed, scaling)
        want = paged_attention_reference(query.float(), keys.float(), values.float(), packed, scaling)
        difference = (got.float() - want).abs().max()
        worst = max(worst, float(difference) if not difference.isnan() else float("inf"))
    return worst


if __name__ == "__main__":
    sys.stdout.write(f"{largest_difference(torch.device('cpu'), torch.float32)}\n")
