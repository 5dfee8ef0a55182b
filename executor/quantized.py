"""Quantised checkpoints: FP8 in blocks is read, everything else is refused by name.

Rule: a weight counts as what its numbers mean. FP8 blocks, as DeepSeek and Qwen3 publish them, are the matrix in
F8_E4M3 beside ``<weight>_scale_inv``, one scale for each block of ``weight_block_size``; the weight is their product:

    weight[i, j] = fp8[i, j] * scale_inv[i // rows of a block, j // columns of a block]

A block at the end may be smaller. The product is made in float32 and then rounded to the type in which the executor
computes. A server with FP8 kernels rounds the activations of each group too; the executor does not, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.shards import read_json
from ppsim.errors import UsageError

FP8 = "F8_E4M3"
SCALE = "_scale_inv"
# Files beside config.json in which other tools say how weights are quantised.
OTHER_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
READ = "the executor reads full weights and quant_method 'fp8' with weight_block_size (weight_scale_inv)"


@dataclass(frozen=True, slots=True)
class Quantized:
    """Weights of FP8 blocks of ``block`` rows and columns."""

    block: tuple[int, int]


def quantized_of(folder: str, config: dict[str, Any]) -> Quantized | None:
    """What a checkpoint says of its weights; None: they are there in full. Raises UsageError for what is not read."""
    path = Path(folder) / "config.json"
    for name in OTHER_FILES:
        if (Path(folder) / name).exists():
            found = Path(folder) / name
            raise UsageError(f"{found}: weights quantised by {method_of(read_json(found))}: {READ}")
    for key in ("compression_config", "quantization_config"):
        said = config.get(key)
        if said is None:
            continue
        if not isinstance(said, dict):
            raise UsageError(f"{path}: {key}: expected an object, got {said!r}")
        if key == "compression_config" or said.get("quant_method") != "fp8":
            raise UsageError(f"{path}: {key}: weights quantised by {method_of(said)}: {READ}")
        return fp8_blocks(path, said)
    return None


def fp8_blocks(path: Path, said: dict[str, Any]) -> Quantized:
    """A ``quantization_config`` of method fp8. Raises UsageError for any but dynamic e4m3 in blocks."""
    block = said.get("weight_block_size")
    if block is None:
        raise UsageError(f"{path}: quantization_config: 'fp8' without weight_block_size (a scale a tensor): {READ}")
    sizes = isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    if not sizes:
        raise UsageError(
            f"{path}: quantization_config.weight_block_size: expected two positive integers, got {block!r}"
        )
    for key, usual in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        if said.get(key, usual) != usual:
            raise UsageError(f"{path}: quantization_config.{key}: {said[key]!r} is not read, only {usual!r}")
    return Quantized((block[0], block[1]))


def method_of(said: dict[str, Any]) -> str:
    """The name of a method of quantisation, from whichever place a tool writes it to."""
    inner = said.get("quantization")
    places: tuple[object, ...] = (
        said.get("quant_method"),
        inner.get("quant_algo") if isinstance(inner, dict) else None,
        said.get("format"),
    )
    if said.get("load_in_4bit") or said.get("load_in_8bit"):
        places = ("bitsandbytes", *places)
    name = next((place for place in places if place is not None), None)
    if name is None and "bits" in said:
        return f"a method without a name, {said['bits']} bits"
    return "a method without a name" if name is None else repr(name)


def scale_shape(shape: tuple[int, ...], quantized: Quantized) -> tuple[int, ...]:
    """Of the scales of a matrix: blocks along rows and columns, the last ones perhaps not full."""
    return tuple(-(-size // block) for size, block in zip(shape, quantized.block, strict=True))
