"""``ranks/standing``: what every rank of a real run is doing, in a file that all of its processes map into memory.

Rule: whoever is killed, the launcher and all ranks at once included, leaves behind what he was doing. Writing it costs
a rank a few stores into memory; the system keeps the page.

    bytes [0, PAGE)   one line of JSON: sizes, and what each code means
    then              int64 cells, ``num_cells`` a rank: code, iteration, peer, and more that only the executor reads
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.core.outcome import Stand
from ppsim.errors import UsageError
from ppsim.parsing import parse_json

STANDING = Path("ranks") / "standing"
FORMAT, VERSION = "ppsim-standing", 1
PAGE, WIDTH = 4096, 8
MAX_RANKS = 4096


def make_standing(
    folder: Path, pp_size: int, num_cells: int, num_slots: int, words: Mapping[int, tuple[str, bool]]
) -> None:
    """Make the file. ``words``: by code, what a rank does, and whether it waits for its peer. Raises UsageError."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "pp_size": pp_size,
        "num_cells": num_cells,
        "num_slots": num_slots,
        "words": [[code, text, waits] for code, (text, waits) in words.items()],
    }
    line = json.dumps(head, separators=(",", ":")).encode("ascii") + b"\n"
    path = folder / STANDING
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written out in full: memory behind a file without space on the disk would end a process without a word.
        path.write_bytes(line.ljust(PAGE, b" ") + bytes(pp_size * num_cells * WIDTH))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def map_standing(folder: Path) -> Any:
    """The cells of all ranks as one array of integers, shared by all who map them."""
    descriptor = os.open(folder / STANDING, os.O_RDWR)
    try:
        shared = mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)
    return (ctypes.c_longlong * ((len(shared) - PAGE) // WIDTH)).from_buffer(shared, PAGE)


def read_standing(folder: Path) -> list[Stand]:
    """Where each rank stands or has ended; empty where the file is missing. Raises UsageError for what is none."""
    path = folder / STANDING
    try:
        content = path.read_bytes()
    except OSError:
        return []
    try:
        head = parse_json(content[:PAGE].decode("ascii"))
        if head["format"] != FORMAT or head["version"] != VERSION:
            raise ValueError(f"format {head['format']!r}, version {head['version']!r}")
        words = {code: (str(text), bool(waits)) for code, text, waits in head["words"]}
        pp_size, num_cells, num_slots = (int(head[key]) for key in ("pp_size", "num_cells", "num_slots"))
        if not (0 < pp_size <= MAX_RANKS and num_cells >= 3 and num_slots > 0):
            raise ValueError("impossible sizes")
        cells = memoryview(content[PAGE:]).cast("q")
        rows = [cells[rank * num_cells : rank * num_cells + 3].tolist() for rank in range(pp_size)]
        return [stand(rank, row, words, num_slots) for rank, row in enumerate(rows)]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: does not say where the ranks stand: {error}") from None


def stand(rank: int, row: list[int], words: Mapping[int, tuple[str, bool]], num_slots: int) -> Stand:
    code, iteration, peer = row
    text, waits = words.get(code, (f"in a state {code} that nobody has named", False))
    slot = iteration % num_slots if iteration >= 0 else None
    return Stand(rank, iteration, slot, text.format(peer=peer), peer if waits and peer >= 0 else None, None)
