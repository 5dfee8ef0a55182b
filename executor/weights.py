"""Where the weights of a stage come from: drawn at random, or read from a checkpoint folder.

Rule: a rank makes or reads the tensors of its own layers only. Random tensors are drawn from a stream named after the
tensor, so that every way of cutting the model, and the unsplit oracle, get the same numbers without making the rest.

The scale keeps activations, attention scores and logits near one. With the customary 0.02 a tiny model hardly attends
to anything, and would give the same tokens with a broken cache.
"""

from __future__ import annotations

import math
from hashlib import sha256
from typing import Protocol

import torch
from safetensors import safe_open
from torch import nn

from executor.checkpoint import tensor_index


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
    """Tensors of a folder, which the launcher has checked. Only what is asked for is read."""

    def __init__(self, folder: str) -> None:
        self.index = tensor_index(folder)

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        with safe_open(self.index[name].path, framework="pt") as file:
            found: torch.Tensor = file.get_tensor(name)
        return found


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
