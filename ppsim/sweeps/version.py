"""Which ppsim made a result: its version, and a digest of the code that a run depends on.

Rule: a version alone does not tell two states of a checkout apart, so the source text is part of it. Folders that only
read recordings or words of a command line are not: a changed picture is no reason to run a week of points again.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable

from ppsim.recording.origin import ppsim_version

RUNS_WITH = ("check", "core", "cost", "data", "plugin", "recording", "scenario", "sweeps", "workload", "world")


@cache
def code_version() -> str:
    """For example "0.1.0, code 3f0c9a7be1d24c55"."""
    text = blake2b(digest_size=8)
    package = files("ppsim")
    for folder in RUNS_WITH:
        for name, file in sorted(sources(package / folder, folder)):
            content = file.read_bytes()
            text.update(f"{name} {len(content)}\n".encode())
            text.update(content)
    return f"{ppsim_version()}, code {text.hexdigest()}"


def sources(folder: Traversable, before: str) -> list[tuple[str, Traversable]]:
    """Name and file of everything below a folder, without what Python leaves beside it."""
    found: list[tuple[str, Traversable]] = []
    for entry in folder.iterdir():
        name = f"{before}/{entry.name}"
        if entry.is_dir():
            found += sources(entry, name) if entry.name != "__pycache__" else []
        elif entry.name.endswith((".py", ".toml", ".tsv", ".jsonl")):
            found.append((name, entry))
    return found
