"""Recordings packed with gzip: ``recording.jsonl.gz``, and the sections of a spool (``stream.py``).

Rule: the same text gives the same bytes. So a header has no file name and no time, and the level is one for all. A
reader looks at the first two bytes and not at the name: unpacked and renamed a recording is still one.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PACKED = ".gz"
MAGIC = b"\x1f\x8b"
LEVEL = 1
"""Of 1 to 9. Measured in docs/recording.md: what more saves in bytes is little beside what it costs in time."""

DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a packed file raises where it was cut off (EOFError), or is not what was written."""


@contextmanager
def opened(path: Path, *, packs: bool) -> Iterator[IO[bytes]]:
    """A file to write bytes into, packed on their way or not. Raises OSError where there is no room."""
    with path.open("wb") as out:
        if not packs:
            yield out
            return
        with gzip.GzipFile("", "wb", LEVEL, out, mtime=0) as packer, io.BufferedWriter(packer, 1 << 16) as rows:
            yield rows


def pack(text: bytes) -> bytes:
    """One member: packed texts that follow each other in a file are the texts that follow each other."""
    return gzip.compress(text, LEVEL, mtime=0)


def is_packed(path: Path) -> bool:
    """By content. Raises OSError."""
    with path.open("rb") as source:
        return source.read(len(MAGIC)) == MAGIC


@contextmanager
def text_lines(path: Path) -> Iterator[IO[str]]:
    """The text of a file, packed or not. Raises OSError; its lines what ``DAMAGED`` has, UnicodeDecodeError."""
    if not is_packed(path):
        with path.open("r", encoding="ascii", newline="\n") as lines:
            yield lines
        return
    with gzip.open(path, "rt", encoding="ascii", newline="\n") as lines:
        yield lines


def problem_of(error: Exception) -> str:
    """What is wrong with a packed file, and what to do."""
    if isinstance(error, EOFError):
        return "the packed file breaks off here: the recording is not complete; copy it again, or run its config.toml"
    return f"as gzip it is damaged ({error}): copy it again, or run its config.toml (gzip -t says more)"
