"""Where the weights of a stage come from: drawn at random, or read from a checkpoint folder.

Rule: a rank makes or reads the tensors of its own layers only. Random tensors are drawn from a stream named after the
tensor, so that every way of cutting the model, and the unsplit oracle, get the same numbers without making the rest.

The scale keeps activations, attention scores and logits near one. With the customary 0.02 a tiny model hardly attends
to anything, and would give the same tokens with a broken cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import nn

from executor.quantized import FP8, SCALE, Quantized, quantized_of
from executor.shards import read_json, tensor_index
from ppsim.errors import UsageError


class Weights(Protocol):
    """A source of named tensors, in float32 or whatever the file has, on the CPU."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor: ...


class RandomWeights:
    """Matrices and embeddings: normal with variance 1 / last dimension. Vectors, which are norms: 1 + normal / 10."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        stream = sha256(f"weights/{self.seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(stream[:8], "little", signed=True))
        drawn = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            return 1 + drawn / 10
        return drawn / math.sqrt(shape[-1])


class CheckpointWeights:
    """Tensors of a folder, which the launcher has checked. Only what is asked for is read, FP8 blocks as float32."""

    def __init__(self, folder: str) -> None:
        self.index = tensor_index(folder)
        self.quantized = quantized_of(folder, read_json(Path(folder) / "config.json"))

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if self.quantized is not None and self.index[name].dtype == FP8:
            return dequantized(self.read(name), self.read(name + SCALE), self.quantized)
        return self.read(name)

    def read(self, name: str) -> torch.Tensor:
        with safe_open(self.index[name].path, framework="pt") as file:
            found: torch.Tensor = file.get_tensor(name)
        return found


def dequantized(weight: torch.Tensor, scale: torch.Tensor, quantized: Quantized) -> torch.Tensor:
    """[rows, columns] in float32 of FP8 numbers and the scale of each block (``quantized.py``)."""
    rows, columns = weight.shape
    down, right = quantized.block
    each = scale.float().repeat_interleave(down, 0)[:rows].repeat_interleave(right, 1)[:, :columns]
    return weight.float() * each


def check_values(weights: CheckpointWeights, expected: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
    """Every weight is a number, in the type that is computed in. Raises UsageError for the first tensor with another.

    A weight that is none poisons the logits like KV that nobody wrote, which would be blamed for it (``kv.py``).
    """
    for name, shape in expected.items():
        found = weights.tensor(name, shape)
        bad = ~torch.isfinite(found.to(dtype))
        if bad.any():
            at = [int(i) for i in bad.nonzero()[0]]
            value = float(found[tuple(at)])
            largest = "" if not math.isfinite(value) else f", too large for {str(dtype)[6:]}"
            raise UsageError(
                f"{weights.index[name].path}: tensor {name} has {int(bad.sum())} elements that are no numbers: "
                f"{value:g} at {at}{largest}"
            )
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    if head in weights.index and head not in expected:
        entry = weights.index[head]
        if entry.shape != expected[embedding] or not torch.equal(weights.read(head), weights.read(embedding)):
            raise UsageError(
                f"{entry.path}: tensor {head} is not {embedding}, although config.json has tie_word_embeddings true"
            )


def source_name(name: str, tied: bool) -> str:
    """The tensor that a parameter is filled from: a tied head shares the embedding's."""
    return "model.embed_tokens.weight" if tied and name == "lm_head.weight" else name


def expected_tensors(module: nn.Module, tied: bool) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor that fills ``module``."""
    return {source_name(name, tied): tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def fill(module: nn.Module, weights: Weights, *, tied: bool, dtype: torch.dtype, device: torch.device) -> None:
    """Give every parameter of ``module`` (which may be on the meta device) its tensor; names are the checkpoint's."""
    state = {
        name: weights.tensor(source_name(name, tied), tuple(tensor.shape)).to(device, dtype)
        for name, tensor in module.state_dict().items()
    }
    module.load_state_dict(state, assign=True)
    module.requires_grad_(False)
