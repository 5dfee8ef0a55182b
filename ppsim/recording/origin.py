"""With what a run was made, besides its scenario: this version of ppsim, and the plug-in as it was."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path


def digest_of_file(path: str | None) -> str | None:
    """Of a plug-in; None where there is none."""
    return blake2b(Path(path).read_bytes(), digest_size=8).hexdigest() if path and Path(path).is_file() else None


def ppsim_version() -> str:
    """The installed version, for the file."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ppsim")
    except PackageNotFoundError:
        return "unknown"
