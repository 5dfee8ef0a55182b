"""The files of a run folder: what its config names is found again where the folder has moved, and a change is told.

    files.json   of each key that names a file: the name, where it was, the digest of what it held, the copy
    files/       the copies, of files up to ``MAX_COPY`` bytes

Rule: ``config.toml`` keeps the names that the user gave. Whoever runs it again gets what stood in those files then: the
file itself where it is unchanged, else the copy beside the config.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ppsim.errors import UsageError
from ppsim.parsing import parse_json
from ppsim.scenario.files import FOLDERS, file_digest, file_of, named_files
from ppsim.scenario.tree import Scenario

INDEX, COPIES = "files.json", "files"
MAX_COPY = 64 << 20  # bytes; what is larger is found by its place alone
KEYS = ("workload.trace", "workload.tokenizer", "model.key", "model.path", "gpu.key")


def digests_of(s: Scenario) -> dict[str, str]:
    """Dotted key -> digest of the file that it names, of all that a run of the scenario reads. Raises UsageError."""
    found = {}
    for key, path in named_files(s).items():
        try:
            found[key] = file_digest(path)
        except OSError as error:
            raise UsageError(f"{key}: {path} cannot be read: {error.strerror or error}") from None
    return found


def keep_files(folder: Path, s: Scenario, digests: Mapping[str, str]) -> list[str]:
    """Write index and copies into a run folder. ``digests``: of the files before the run.

    Returns sentences about what has no copy. Raises UsageError where the folder cannot be written.
    """
    index: dict[str, dict[str, str]] = {}
    told = []
    try:
        shutil.rmtree(folder / COPIES, ignore_errors=True)  # of an earlier run in this folder
        (folder / INDEX).unlink(missing_ok=True)
        for key, path in named_files(s).items():
            entry = {"name": name_in(s, key), "place": str(path.resolve()), "digest": digests.get(key, "")}
            if path.stat().st_size > MAX_COPY:
                told.append(f"{key}: {path} has more than {MAX_COPY >> 20} MiB: the run folder has no copy of it")
            elif file_digest(path) != entry["digest"]:
                told.append(f"{key}: {path} has changed while the run went on: the run folder has no copy of it")
            else:
                copy = Path(COPIES) / key / path.name
                (folder / copy).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / copy)
                entry["copy"] = copy.as_posix()
            index[key] = entry
        if s.model.path is not None and Path(s.model.path).exists():
            index["model.path"] = {"name": s.model.path, "place": str(Path(s.model.path).resolve()), "digest": ""}
        if index:
            (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return told


def name_in(s: Scenario, key: str) -> str:
    section, _, leaf = key.partition(".")
    return str(getattr(getattr(s, section), leaf))


# --- reading -----------------------------------------------------------------------------------------------------


def relocated(raw: dict[str, Any], config: Path) -> list[str]:
    """Let a scenario's keys name files that are there: as given, beside the scenario's file, or the run folder's copy.

    ``raw`` is changed. Returns sentences about files that have changed since the run.
    """
    index = index_of(config)
    told = []
    for key, section, leaf in places(raw):
        name = section[leaf]
        entry = index.get(key)
        if entry is None or entry.get("name") != name:
            beside = config.parent / name
            if not Path(name).exists() and beside.exists():
                section[leaf] = str(beside)
            continue
        candidates = [name, entry["place"], *([str(config.parent / entry["copy"])] if "copy" in entry else [])]
        there = [place for place in candidates if Path(place).exists()]
        same = [place for place in there if not entry["digest"] or holds(key, place, entry["digest"])]
        section[leaf] = (same or there or [name])[0]
        if there and same[:1] != there[:1]:
            used = f"the run's copy is used: {same[0]}" if same else "there is no copy: this is another run"
            told.append(f"{key}: {there[0]} has changed since the run in {config.parent}; {used}")
    return told


def places(raw: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Dotted key, section and last part of every key that names a file, where it has a text."""
    for key in KEYS:
        section, _, leaf = key.partition(".")
        inner = raw.get(section)
        if isinstance(inner, dict) and isinstance(inner.get(leaf), str):
            yield key, inner, leaf


def holds(key: str, place: str, digest: str) -> bool:
    try:
        path = file_of(key, place) if key in FOLDERS else Path(place)
        return path.is_file() and file_digest(path) == digest
    except OSError:
        return False


def index_of(config: Path) -> dict[str, dict[str, str]]:
    """Of a run folder's config; empty for any other scenario, and where the index is damaged."""
    if config.name != "config.toml":
        return {}
    try:
        found = parse_json((config.parent / INDEX).read_bytes())
        return {
            str(key): entry
            for key, entry in found.items()
            if isinstance(entry, dict) and {"name", "place", "digest"} <= set(entry)
        }
    except (OSError, ValueError, AttributeError):
        return {}
