"""The files that a scenario names: where they are, and a digest of what they hold.

A run depends on what is in its trace, its model's config, its GPU's table and its tokenizer. So whoever wants to know
whether a run would come out the same again needs their content, and a name alone says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from ppsim.scenario.tree import Scenario

BLOCK = 1 << 20  # bytes that are read at once
FOLDERS = {"model.key": "config.json", "workload.tokenizer": "tokenizer.json"}  # where a folder stands for its file


def named_files(s: Scenario) -> dict[str, Path]:
    """Dotted key -> the file that it names, of those that a simulation reads and that are there. A known name of a
    model or a GPU is no file, and a trace that the mode of the workload ignores is not read."""
    return {key: path for key, name in names_of(s) if name and (path := file_of(key, name)).is_file()}


def names_of(s: Scenario) -> Iterator[tuple[str, str | None]]:
    if s.workload.source == "trace":
        yield "workload.trace", s.workload.trace
        yield "workload.tokenizer", s.workload.tokenizer
    yield "model.key", s.model.key
    yield "gpu.key", s.gpu.key


def file_of(key: str, name: str) -> Path:
    path = Path(name)
    return path / FOLDERS[key] if key in FOLDERS and path.is_dir() else path


def file_digest(path: Path) -> str:
    """Of the content. Raises OSError."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
