"""Which files hold the tensors of a checkpoint folder, and where in them each lies.

    model.safetensors                  all of it, whatever else is in the folder
    model.safetensors.index.json       else: the shards that it names, each with the tensors that it says
    *.safetensors                      else: all of them; "-00002-of-00003" tells of its sisters

A safetensors file is: 8 bytes little-endian length n, n bytes JSON {name: {dtype, shape, data_offsets}}, the data,
without gaps. A file with a gap, an overlap or a byte too many is not the one that was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.parsing import parse_json

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NUMBERED = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors")
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
}  # of one number; a type that is not here is named when somebody wants it


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies."""

    path: Path
    shape: tuple[int, ...]
    dtype: str  # as the format calls it: F32, BF16, F8_E4M3, ...


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def tensor_index(folder: str) -> dict[str, Entry]:
    """All tensors of a folder by name. Raises UsageError if there are none, a file lacks or is damaged."""
    place = Path(folder)
    if (place / "adapter_config.json").exists():
        raise UsageError(f"{place / 'adapter_config.json'}: adapters are not applied: merge it into the checkpoint")
    if not (place / WHOLE).exists() and (place / INDEX).exists():
        return indexed(place)
    files = [place / WHOLE] if (place / WHOLE).exists() else sorted(place.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder}: no *.safetensors file (other weight formats are not read)")
    check_sisters(files)
    index: dict[str, Entry] = {}
    for path in files:
        for name, entry in read_header(path).items():
            if name in index:
                raise UsageError(f"{path}: tensor {name} is also in {index[name].path.name}; which one is meant?")
            index[name] = entry
    return index


def check_sisters(files: list[Path]) -> None:
    """A name like model-00002-of-00003.safetensors tells of the others. Raises UsageError for the first that lacks."""
    names = {path.name for path in files}
    for path in files:
        match = NUMBERED.fullmatch(path.name)
        if match is None:
            continue
        stem, number, total = match.groups()
        for sister in range(1, int(total) + 1):
            name = f"{stem}-{sister:0{len(number)}d}-of-{total}.safetensors"
            if name not in names:
                raise UsageError(f"{path.parent / name} is missing; {path.name} is one of {int(total)} shards")


def indexed(place: Path) -> dict[str, Entry]:
    """The tensors of the shards that the index names, which must agree with it."""
    path = place / INDEX
    named = read_json(path).get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(file, str) for file in named.values()):
        raise UsageError(f"{path}: weight_map: expected an object that names a file for each tensor")
    files = sorted(dict.fromkeys(named.values()))
    index: dict[str, Entry] = {}
    for file in files:
        own = [name for name, where in named.items() if where == file]
        if file != Path(file).name:
            raise UsageError(f"{path}: weight_map: {file!r} is no name of a file in this folder")
        if not (place / file).is_file():
            raise UsageError(f"{place / file} is missing; {INDEX} has {len(own)} tensors in it, {own[0]} for one")
        found = read_header(place / file)
        for name in own:
            if name not in found:
                raise UsageError(f"{place / file}: tensor {name} is missing; {INDEX} says that it is here")
        for name in found:
            if name not in own:
                where = f"says {named[name]}" if name in named else "does not name it"
                raise UsageError(f"{place / file}: tensor {name} is here, and {INDEX} {where}")
        index.update(found)
    return index


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file, which must be as long as its header says. Raises UsageError."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if start == b"version ":
                raise ValueError("it is a Git LFS pointer, not the file itself (git lfs pull)")
            size = int.from_bytes(start, "little")
            found = path.stat().st_size
            if len(start) < 8:
                raise ValueError(f"expected at least 8 bytes, got {found}: the file is cut off")
            if not 2 <= size <= MAX_HEADER_BYTES:
                raise ValueError(f"header length {size} is impossible")
            if found < 8 + size:
                raise ValueError(f"expected a header of {size} bytes, got {found - 8}: the file is cut off")
            header = parse_json(file.read(size))
        if not isinstance(header, dict):
            raise ValueError(f"the header is no object but {type(header).__name__}")
        header.pop("__metadata__", None)
        end = check_places({name: place_of(name, told) for name, told in header.items()})
        if found != 8 + size + end:
            what = "the file is cut off" if found < 8 + size + end else "there is more than the header says"
            raise ValueError(f"expected {8 + size + end} bytes, got {found}: {what}")
        return {name: Entry(path, tuple(told["shape"]), told["dtype"]) for name, told in header.items()}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a readable safetensors file: {error}") from None


def place_of(name: str, told: Any) -> tuple[int, int]:
    """First byte and the one behind the last of a tensor, as its header entry says. Raises ValueError."""
    if not isinstance(told, dict):
        raise ValueError(f"tensor {name}: expected an object, got {told!r}")
    dtype, shape, offsets = (told.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str):
        raise ValueError(f"tensor {name}: dtype: expected a name, got {dtype!r}")
    for key, numbers in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"tensor {name}: {key}: expected integers from 0 on, got {numbers!r}")
    assert isinstance(shape, list)
    assert isinstance(offsets, list)
    if len(offsets) != 2:
        raise ValueError(f"tensor {name}: data_offsets: expected two integers, got {offsets!r}")
    bits = BITS.get(dtype)
    if bits is not None and 8 * (offsets[1] - offsets[0]) != bits * prod(shape):
        came = f"{offsets[1] - offsets[0]} bytes"
        raise ValueError(f"tensor {name}: {came} for the shape {shape} of {dtype}, expected {bits * prod(shape) // 8}")
    return offsets[0], offsets[1]


def check_places(places: dict[str, tuple[int, int]]) -> int:
    """The end of the data: tensors lie one behind the other from 0 on. Raises ValueError for a gap or an overlap."""
    order = sorted(places.items(), key=lambda item: item[1])
    if order and order[0][1][0]:
        raise ValueError(f"the first tensor, {order[0][0]}, begins at byte {order[0][1][0]} of the data, not at 0")
    for (before, (_, end)), (name, (begin, _)) in pairwise(order):
        if begin != end:
            raise ValueError(f"tensor {name} begins at byte {begin} of the data, {before} ends at {end}")
    return order[-1][1][1] if order else 0
