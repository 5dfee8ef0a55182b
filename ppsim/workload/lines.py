"""The lines of a trace file and the errors about them: every message names file, line and field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from ppsim.errors import TraceError
from ppsim.scenario.bounds import MAX_TOKENS

MAX_TIME_NS = 2**63 - 1  # 292 years
MAX_SHOWN = 1000  # bad lines whose fault is told; further ones are named by number
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. ``number``: data row, from 0. ``hash_ids`` is None where the format has no ids."""

    number: int
    line: int
    at_ns: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] | None
    no_output: bool = False  # the trace says that nothing came out; ``output_length`` is 1
    follows: int = -1  # number of the row of the turn before; then ``input_length`` counts what is new in this one
    place: tuple[int, int] | None = None  # of conversations: which one, which turn, both from 0


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


@dataclass(slots=True)
class BadLines:
    """What becomes of a line that is no request: the end of the reading, or (``skip``) a place in the list."""

    skip: bool = False
    errors: list[TraceError] = field(default_factory=list)

    def attempt(self, parse: Callable[..., T], *args: object) -> T | None:
        """What ``parse`` makes of a line; None where it is bad and may be skipped. Raises TraceError otherwise."""
        try:
            return parse(*args)
        except TraceError as error:
            if not self.skip:
                raise
            self.errors.append(error)
            return None

    def told(self, name: str, num_rows: int) -> tuple[str, ...]:
        """Sentences that count the skipped lines and name every one. Raises the first error if nothing is left."""
        if not self.errors:
            return ()
        if not num_rows:
            raise self.errors[0]
        errors = sorted(self.errors, key=lambda error: error.line)
        found = [f"{name}: {len(errors)} bad lines skipped, {num_rows} requests read"]
        found += [f"skipped: {error}" for error in errors[:MAX_SHOWN]]
        if len(errors) > MAX_SHOWN:
            found.append(f"skipped as well: lines {', '.join(str(error.line) for error in errors[MAX_SHOWN:])}")
        return tuple(found)


def lines_one_by_one(name: str, content: bytes, bad: BadLines) -> Iterator[Line]:
    """As ``lines_of``, but a line that is no text is a bad line of its own."""
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        line = bad.attempt(one_line, name, number, raw)
        if line is not None and line.text:
            yield line


def one_line(name: str, number: int, raw: bytes) -> Line:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise TraceError(name, number, "file", f"not text: {problem}; expected UTF-8") from None
    if "\0" in text:
        raise TraceError(name, number, "file", "not text: a zero byte")
    return Line(name, number, text.strip())


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
        raise TraceError(
            name, before + 1, "file", f"not a text file: {problem}; expected UTF-8 (is it packed, or latin-1?)"
        )
    for number, line in enumerate(text.split("\n"), start=1):
        if stripped := line.strip():
            yield Line(name, number, stripped)


def shown(value: object) -> str:
    """A value as an error message shows it: never longer than a line."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else text[:57] + "..."
