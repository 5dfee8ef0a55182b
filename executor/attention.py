"""Our paged attention, plugged into transformers' decoder layers through its attention interface.

Rule: no global context. The layers hand unknown keyword arguments down to the attention function, so the batch and the
KV travel as the argument ``paged``. Importing this module registers the function under ``NAME``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import AttentionInterface

from executor.kernels.reference import paged_attention_reference
from executor.kv import PagedKV
from executor.packed import PackedBatch

NAME = "ppsim_paged"


@dataclass(frozen=True, slots=True)
class Paged:
    """What attention needs beside the projections: the batch and the KV of a stage that begins at ``first_layer``."""

    packed: PackedBatch
    kv: PagedKV
    first_layer: int


def paged_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    paged: Paged,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, T, head_dim], key and value [1, kv_heads, T, head_dim] -> ([1, T, heads, head_dim], None)."""
    layer = int(module.layer_idx) - paged.first_layer  # type: ignore[arg-type]
    paged.kv.write(layer, paged.packed.kv_slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    rows = query[0].transpose(0, 1)
    attend = paged_attention_reference
    if rows.is_cuda:
        from executor.kernels.paged_attention import paged_attention as attend
    return attend(rows, paged.kv.keys[layer], paged.kv.values[layer], paged.packed, scaling)[None], None


AttentionInterface.register(NAME, paged_attention_forward)
