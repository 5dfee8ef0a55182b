"""Measured chunks from files: (prefix, new tokens, time), one a line, as CSV with a header or as JSON lines.

Every bad line is an error with file, line and field; nothing is skipped in silence.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ppsim.errors import ScenarioError, TraceError

PREFIX_NAMES = ("prefix", "prefix_len", "prefix_tokens", "history", "cached_tokens")
NEW_NAMES = ("new", "new_tokens", "extend_len", "chunk", "tokens", "x")
TIME_NAMES = {"time_ms": 1.0, "ms": 1.0, "latency_ms": 1.0, "time_s": 1e3, "s": 1e3, "time_us": 1e-3, "time_ns": 1e-6}


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured prefill chunk."""

    prefix_len: int
    new_tokens: int
    time_ms: float


def read_samples(path: Path | str) -> tuple[Sample, ...]:
    """Samples of a .csv, .jsonl or .json file (told apart by its first character). Raises TraceError, ScenarioError."""
    file = Path(path)
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise ScenarioError(str(file), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScenarioError(str(file), "is not text in UTF-8") from None
    return parse_samples(text, str(file))


def parse_samples(text: str, name: str) -> tuple[Sample, ...]:
    """Samples of a text; ``name`` is used in messages. Raises TraceError, ScenarioError."""
    rows = _json_rows(text, name) if text.lstrip()[:1] == "{" else _csv_rows(text, name)
    samples = tuple(_sample(row, name, line) for line, row in rows)
    if not samples:
        raise ScenarioError(name, "holds no sample", "one line a chunk: prefix, new_tokens, time_ms")
    return samples


def _csv_rows(text: str, path: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader((line for line in text.splitlines()), skipinitialspace=True)
    try:
        for row in reader:
            if None in row:
                raise TraceError(path, reader.line_num, "columns", f"{len(row[None])} more than the header has")
            yield reader.line_num, {str(key).strip().lower(): value for key, value in row.items()}
    except csv.Error as error:
        raise TraceError(path, reader.line_num, "line", f"is not CSV: {error}") from None


def _json_rows(text: str, path: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(path, number, "line", f"is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise TraceError(path, number, "line", f"must be a JSON object, got {type(row).__name__}")
        yield number, {str(key).lower(): value for key, value in row.items()}


def _sample(row: Mapping[str, object], path: str, line: int) -> Sample:
    time_name = next((name for name in TIME_NAMES if name in row), None)
    if time_name is None:
        raise TraceError(path, line, "time_ms", f"is missing; known names: {', '.join(TIME_NAMES)}")
    time_ms = _number(row, time_name, path, line) * TIME_NAMES[time_name]
    prefix = _count(row, PREFIX_NAMES, path, line, at_least=0)
    return Sample(prefix, _count(row, NEW_NAMES, path, line, at_least=1), time_ms)


def _number(row: Mapping[str, object], name: str, path: str, line: int) -> float:
    value = row[name]
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except ValueError:
        raise TraceError(path, line, name, f"must be a number, got {value!r}") from None
    if not math.isfinite(number) or number < 0:
        raise TraceError(path, line, name, f"must be a finite number >= 0, got {value!r}")
    return number


def _count(row: Mapping[str, object], names: tuple[str, ...], path: str, line: int, at_least: int) -> int:
    name = next((n for n in names if n in row), None)
    if name is None:
        raise TraceError(path, line, names[0], f"is missing; known names: {', '.join(names)}")
    number = _number(row, name, path, line)
    if number != int(number) or number < at_least:
        raise TraceError(path, line, name, f"must be a whole number >= {at_least}, got {row[name]!r}")
    return int(number)
