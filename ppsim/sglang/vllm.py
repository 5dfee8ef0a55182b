"""What a vLLM line means in the words and keys of the one scheduler; what of its rules has no key is told by name.

    page size         16 tokens unless --block-size says otherwise
    a step            prefill and decode mixed, decodes first, under max_num_batched_tokens: enable_mixed_chunk, with
                      that number as chunk size and as prefill limit
    rows of a step    up to max_num_seqs: pp_max_micro_batch_size is max_running_requests, not its share of a stage
    chunks off        a prompt is taken whole: chunked_prefill_size -1
    layers            a remainder goes one each to the stages before the last (vllm/distributed/utils.py,
                      get_pp_indices), where SGLang gives it to the last

The remaining differences are in ``ppsim.scenario.warn.VLLM_DIFFERENCES``: ``import`` and ``run`` print them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppsim.scenario.tree import Scheduler
from ppsim.sglang.flags import defaults

BLOCK_TOKENS = 16
NAMES: dict[str, str] = {  # vLLM's value that plays the part of SGLang's
    "max_num_batched_tokens": "chunked_prefill_size",
    "max_num_seqs": "max_running_requests",
    "max_model_len": "context_length",
    "gpu_memory_utilization": "mem_fraction_static",
    "enforce_eager": "disable_cuda_graph",
    "enable_prefix_caching": "disable_radix_cache",
    "scheduling_policy": "schedule_policy",
}
NEGATED = ("enable_prefix_caching",)


def in_sglang_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Given values under SGLang's names; --no-enable-chunked-prefill and --num-gpu-blocks-override become numbers."""
    found = {}
    for name, value in values.items():
        known = NAMES.get(name, name)
        found[known] = (not value) if name in NEGATED and isinstance(value, bool) else value
    blocks = found.get("num_gpu_blocks_override")
    if isinstance(blocks, int) and blocks > 0:
        page = found.get("page_size") or BLOCK_TOKENS
        found["max_total_tokens"] = found.pop("num_gpu_blocks_override") * page
    if found.get("enable_chunked_prefill") is False:
        del found["enable_chunked_prefill"]
        found["max_prefill_tokens"] = found.get("chunked_prefill_size") or Scheduler().chunked_prefill_size
        found["chunked_prefill_size"] = -1
    elif found.get("enable_chunked_prefill") is True:
        del found["enable_chunked_prefill"]
    return found


def fallback(given: Mapping[str, Any]) -> dict[str, Any]:
    """What holds where the line says nothing: vLLM's fixed defaults, and what follows from the given values."""
    chunk = given.get("chunked_prefill_size") or Scheduler().chunked_prefill_size
    return {
        "page_size": BLOCK_TOKENS,
        "enable_mixed_chunk": True,
        "max_prefill_tokens": chunk,
        "pp_max_micro_batch_size": given.get("max_running_requests") or Scheduler().max_running_requests,
        "mem_fraction_static": defaults("vllm")["gpu_memory_utilization"],
    }


def layer_split(num_layers: int, pp_size: int) -> list[int]:
    """Layers of each stage where nobody gives them: the last stage gets nothing of a remainder."""
    base, left = divmod(num_layers, pp_size)
    return [base + (1 <= pp_size - 1 - stage <= left) for stage in range(pp_size)]
