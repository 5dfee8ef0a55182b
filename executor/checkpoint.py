"""A checkpoint folder (config.json and safetensors), read with the standard library alone.

Rule: whatever is wrong with a folder is found by the launcher, before a process starts, and named: the file, the
tensor, what was expected, what came. The shape of the model comes from config.json and replaces the scenario's.

A safetensors file is: 8 bytes little-endian length n, n bytes JSON {name: {dtype, shape, data_offsets}}, the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.parsing import parse_json
from ppsim.scenario.tree import Model

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
SHAPE_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies."""

    path: Path
    shape: tuple[int, ...]


def checkpoint_model(folder: str, model: Model, known: tuple[str, ...]) -> Model:
    """``model`` with the shape of the checkpoint in ``folder``. Raises UsageError."""
    place = Path(folder)
    if not place.is_dir():
        raise UsageError(f"checkpoint folder {folder} does not exist (expected config.json and *.safetensors in it)")
    config = read_json(place / "config.json")
    architecture = config.get("model_type")
    if architecture not in known:
        raise UsageError(
            f"{place / 'config.json'}: unknown architecture {architecture!r}; the executor runs {', '.join(known)}"
        )
    shape: dict[str, Any] = {}
    for key in SHAPE_KEYS:
        value = config.get(key, config.get("num_attention_heads") if key == "num_key_value_heads" else None)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise UsageError(f"{place / 'config.json'}: {key}: expected a positive integer, got {value!r}")
        shape[key] = value
    heads = shape["hidden_size"] // shape["num_attention_heads"]
    shape["head_dim"] = config.get("head_dim") or (128 if architecture == "qwen3" else heads)
    tied = bool(config.get("tie_word_embeddings", False))
    return model.model_copy(
        update={**shape, "architecture": architecture, "tie_word_embeddings": tied, "path": str(place)}
    )


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def tensor_index(folder: str) -> dict[str, Entry]:
    """All tensors of a folder by name. Raises UsageError if there are none or a file is damaged."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder}: no *.safetensors file (other weight formats are not read)")
    index: dict[str, Entry] = {}
    for path in files:
        for name, entry in read_header(path).items():
            if name != "__metadata__":
                index[name] = Entry(path, tuple(entry["shape"]))
    return index


def read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file; the file must be as long as its header says."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= MAX_HEADER_BYTES:
                raise ValueError(f"header length {size} is impossible")
            header = parse_json(file.read(size))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
            found = path.stat().st_size
            if found < 8 + size + end:
                raise ValueError(f"expected {8 + size + end} bytes, got {found}: the file is cut off")
            return dict(header)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a readable safetensors file: {error}") from None


def check_tensors(index: dict[str, Entry], expected: dict[str, tuple[int, ...]], folder: str) -> None:
    """Every tensor that the model needs is there with its shape. Raises UsageError for the first that is not."""
    for name, shape in expected.items():
        entry = index.get(name)
        if entry is None:
            raise UsageError(f"{folder}: tensor {name} is missing; config.json asks for it")
        if entry.shape != shape:
            raise UsageError(f"{entry.path}: tensor {name} has shape {list(entry.shape)}, expected {list(shape)}")
