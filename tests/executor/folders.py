"""Checkpoint folders for the executor's tests, as transformers writes them, and ways to spoil one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.oracle import Oracle
from executor.prepare import prepared
from ppsim.errors import EXIT_USAGE, PpsimError
from ppsim.scenario import Scenario
from tests.executor.small import small_scenario

Tensors = dict[str, torch.Tensor]


def with_path(folder: Path, **sections: Any) -> Scenario:
    sections["model"] = {"path": str(folder), **sections.get("model", {})}
    return small_scenario(**sections)


def refused(scenario: Scenario, **how: Any) -> str:
    """The sentence with which the launcher refuses it, before any process."""
    with pytest.raises(PpsimError) as caught:
        prepared(scenario, how.get("model_dir"), how.get("device", "cpu"))
    assert caught.value.exit_code == EXIT_USAGE
    return str(caught.value)


def edit_config(folder: Path, **changes: Any) -> None:
    """``None`` takes a key out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def write_model(folder: Path, architecture: str = "llama", **shape: Any) -> Path:
    """A small model with random weights in one file."""
    Oracle(small_scenario(architecture, model=shape)).model.save_pretrained(folder)
    return folder


def edit_tensors(folder: Path, edit: Callable[[Tensors], object]) -> None:
    """``edit`` changes the dictionary that it is given."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def e4m3(codes: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The numbers of bytes in the format E4M3 of Micikevicius et al. 2022: sign, 4 bits of exponent with bias 7, 3 of
    mantissa; exponent 0 is subnormal, S.1111.111 is no number, there is no infinity."""
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = ((codes >> 3) & 0xF).astype(int)
    mantissa = (codes & 7) / 8
    number = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7))
    return np.where((codes & 0x7F) == 0x7F, np.nan, sign * number)


def quantise(folder: Path, twin: Path, block: tuple[int, int], scale_dtype: torch.dtype = torch.float32) -> None:
    """Turn the matrices of the layers of ``folder`` into random FP8 blocks, and write to ``twin`` what they mean, in
    float32, by the formula of the format alone. Both folders hold the same model beforehand."""
    rng = np.random.default_rng(5)
    tensors, full = (load_file(place / "model.safetensors") for place in (folder, twin))
    for name in [name for name in tensors if "_proj.weight" in name]:
        rows, columns = tensors[name].shape
        codes = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0x38  # 1.0, instead of what is no number
        grid = -(-rows // block[0]), -(-columns // block[1])
        scales = torch.from_numpy(rng.uniform(0.5, 2.0, grid) / (150 * columns**0.5)).to(scale_dtype)
        values = e4m3(codes)
        for i in range(rows):
            for j in range(columns):
                values[i, j] *= float(scales[i // block[0], j // block[1]])
        tensors[name] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scales
        full[name] = torch.from_numpy(values).float()
    save_file(tensors, folder / "model.safetensors")
    save_file(full, twin / "model.safetensors")
    said = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(block)}
    edit_config(folder, quantization_config=said)
