"""Paged attention as one Triton kernel for prefill chunks and decode rows alike.

A program owns one piece, one KV head and BLOCK_Q of the piece's queries. The GROUP query heads that share the KV head
are rows of the same tile, so a decode step (one query) still fills GROUP rows and reads each key once:

    tile row r         query r // GROUP, query head kv_head * GROUP + r % GROUP
    tile column c      position begin + c of the request, in page block_table[piece, (begin + c) // PAGE_SIZE]

Softmax is computed online in float32 (Dao et al., FlashAttention, arXiv 2205.14135); dot products are IEEE float32 for
float32 inputs, since tokens are compared with another implementation. The launcher asserts what the kernel assumes.
The plain torch version with the same signature is ``reference.paged_attention_reference``.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from executor.packed import PackedBatch

MIN_TILE = 16  # tl.dot wants no smaller dimension
MAX_ROWS = 64  # rows of a tile, over queries and grouped heads


@triton.jit  # type: ignore[untyped-decorator]
def paged_attention_kernel(  # type: ignore[no-untyped-def]
    query,  # [T, heads, head_dim]
    keys,  # [pages, page_size, kv_heads, head_dim], as values
    values,
    out,  # as query
    starts,  # [pieces + 1]
    prefixes,  # [pieces]
    block_table,  # [pieces, max_pages]
    scale_log2,  # scaling * log2(e): the softmax works in powers of two
    max_pages,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    first_query = tl.program_id(0) * BLOCK_Q
    kv_head = tl.program_id(1)
    piece = tl.program_id(2)
    start = tl.load(starts + piece)
    num_new = tl.load(starts + piece + 1) - start
    if first_query >= num_new:
        return
    prefix = tl.load(prefixes + piece)

    row = tl.arange(0, BLOCK_ROWS)
    offset = first_query + row // group
    in_tile = (row < BLOCK_Q * group) & (offset < num_new)
    dim = tl.arange(0, BLOCK_D)
    in_head = dim < HEAD_DIM
    head = kv_head * group + row % group
    place = ((start + offset).to(tl.int64) * NUM_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    mask = in_tile[:, None] & in_head[None, :]
    q = tl.load(query + place, mask=mask, other=0.0)

    position = prefix + offset
    end = prefix + tl.minimum(first_query + BLOCK_Q, num_new)  # no query of this tile sees a position from here on
    best = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    for begin in range(0, end, BLOCK_KV):
        at = begin + tl.arange(0, BLOCK_KV)
        in_request = at < end
        page = tl.load(block_table + piece * max_pages + at // PAGE_SIZE, mask=in_request, other=0).to(tl.int64)
        cell = ((page * PAGE_SIZE + at % PAGE_SIZE) * NUM_KV_HEADS + kv_head) * HEAD_DIM
        cells = cell[:, None] + dim[None, :]
        kv_mask = in_request[:, None] & in_head[None, :]
        k = tl.load(keys + cells, mask=kv_mask, other=0.0)
        v = tl.load(values + cells, mask=kv_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        # Position 0 is seen by every row, so ``best`` is finite after the first tile and no row divides by zero.
        scores = tl.where((at[None, :] <= position[:, None]) & in_request[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        fade = tl.exp2(best - new_best)
        weight = tl.exp2(scores - new_best[:, None])
        total = total * fade + tl.sum(weight, 1)
        acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        best = new_best
    tl.store(out + place, (acc / total[:, None]).to(out.dtype.element_ty), mask=mask)


def paged_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, packed: PackedBatch, scaling: float
) -> torch.Tensor:
    """query [T, heads, head_dim], keys and values [pages, page_size, kv_heads, head_dim] -> [T, heads, head_dim].

    Raises AssertionError where a precondition of the kernel does not hold.
    """
    num_tokens, num_heads, head_dim = query.shape
    _, page_size, num_kv_heads, kv_dim = keys.shape
    assert keys.shape == values.shape, (keys.shape, values.shape)
    assert kv_dim == head_dim, f"KV has heads of {kv_dim}, the query of {head_dim}"
    assert num_heads % num_kv_heads == 0, f"{num_kv_heads} KV heads do not divide {num_heads} heads"
    assert page_size == packed.page_size, f"KV has pages of {page_size} tokens, the batch of {packed.page_size}"
    assert num_tokens == packed.num_tokens, f"{num_tokens} query rows for {packed.num_tokens} tokens"
    assert query.dtype == keys.dtype == values.dtype, (query.dtype, keys.dtype, values.dtype)
    assert keys.is_contiguous(), "pages are read with computed offsets"
    assert values.is_contiguous(), "pages are read with computed offsets"
    assert packed.starts.dtype == packed.prefixes.dtype == packed.block_table.dtype == torch.int32

    query = query.contiguous()  # transformers hands a transposed view
    out = torch.empty_like(query)
    group = num_heads // num_kv_heads
    longest = max(packed.new_lens)
    block_q = min(triton.next_power_of_2(longest), max(1, MAX_ROWS // triton.next_power_of_2(group)))
    grid = (triton.cdiv(longest, block_q), num_kv_heads, packed.num_pieces)
    paged_attention_kernel[grid](
        query,
        keys,
        values,
        out,
        packed.starts,
        packed.prefixes,
        packed.block_table,
        scaling * 1.4426950408889634,
        packed.block_table.shape[1],
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        BLOCK_Q=block_q,
        BLOCK_ROWS=max(MIN_TILE, triton.next_power_of_2(block_q * group)),
        BLOCK_KV=32,
        BLOCK_D=max(MIN_TILE, triton.next_power_of_2(head_dim)),
    )
    return out
