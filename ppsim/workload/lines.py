"""The lines of a trace file and the errors about them: every message names file, line and field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ppsim.errors import TraceError
from ppsim.scenario.tree import MAX_TOKENS

MAX_TIME_NS = 2**63 - 1  # 292 years


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. ``number``: data row, from 0. ``hash_ids`` is None where the format has no ids."""

    number: int
    line: int
    at_ns: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank, and the errors about it."""

    path: str
    number: int
    text: str

    def error(self, field: str, problem: str) -> TraceError:
        return TraceError(self.path, self.number, field, problem)

    def length(self, field: str, value: int) -> int:
        """Check a length in tokens."""
        if value <= 0:
            raise self.error(field, f"expected a positive number of tokens, got {shown(value)}")
        if value > MAX_TOKENS:
            raise self.error(field, f"expected at most {MAX_TOKENS} tokens, got {shown(value)}")
        return value


def lines_of(name: str, content: bytes) -> Iterator[Line]:
    """Lines that are not blank, numbered from 1. Only a line feed ends a line; a carriage return before it is cut."""
    try:
        text = content.decode("utf-8-sig")
        bad = text.find("\0")
        problem = f"a zero byte at character {bad}"
        before = text[: max(bad, 0)].count("\n")
    except UnicodeDecodeError as error:
        bad = error.start
        problem = f"byte 0x{content[bad]:02x} at offset {bad}"
        before = content[:bad].count(b"\n")
    if bad >= 0:
        raise TraceError(name, before + 1, "file", f"not a text file: {problem}; expected UTF-8 (unpack it first?)")
    for number, line in enumerate(text.split("\n"), start=1):
        if stripped := line.strip():
            yield Line(name, number, stripped)


def shown(value: object) -> str:
    """A value as an error message shows it: never longer than a line."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else text[:57] + "..."
