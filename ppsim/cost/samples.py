"""Measured chunks and decode steps from files, one a line, as CSV with a header or as JSON lines.

A chunk has a prefix, new tokens and a time; a decode step a batch size, tokens of KV and a time.

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
from ppsim.parsing import decoded

PREFIX_NAMES = ("prefix", "prefix_len", "prefix_tokens", "history", "cached_tokens")
NEW_NAMES = ("new", "new_tokens", "extend_len", "chunk", "tokens", "x")
TIME_NAMES = {
    "time_ms": 1.0, "ms": 1.0, "latency_ms": 1.0, "step_ms": 1.0, "tpot_ms": 1.0, "itl_ms": 1.0, "time_s": 1e3,
    "step_s": 1e3, "latency_s": 1e3, "s": 1e3, "time_us": 1e-3, "time_ns": 1e-6,
}  # fmt: skip


ROW_NAMES = ("num_rows", "rows", "batch_size", "batch", "bs", "num_reqs", "num_running_reqs")
KV_NAMES = ("kv_tokens", "num_tokens", "total_tokens")  # of all rows together
CONTEXT_NAMES = ("context_len", "context", "seq_len", "mean_context")  # of each row
KNOWN_NAMES = (*PREFIX_NAMES, *NEW_NAMES, *TIME_NAMES, *ROW_NAMES, *KV_NAMES, *CONTEXT_NAMES)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured prefill chunk."""

    prefix_len: int
    new_tokens: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One measured decode step: ``num_rows`` requests, ``kv_tokens`` of all of them together."""

    num_rows: int
    kv_tokens: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class Rows:
    """What a table holds. ``unused``: names of columns that mean nothing here."""

    samples: tuple[Sample, ...]
    steps: tuple[DecodeStep, ...]
    unused: tuple[str, ...]


def read_samples(path: Path | str) -> tuple[Sample, ...]:
    """Samples of a .csv, .jsonl or .json file (told apart by its first character). Raises TraceError, ScenarioError."""
    file = Path(path)
    try:
        text = decoded(file.read_bytes())
    except OSError as error:
        raise ScenarioError(str(file), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ScenarioError(str(file), f"is no text: {error}") from None
    return parse_samples(text, str(file))


def parse_samples(text: str, name: str) -> tuple[Sample, ...]:
    """Prefill samples of a text; ``name`` is used in messages. Raises TraceError, ScenarioError."""
    samples = parse_rows(text, name).samples
    if not samples:
        raise ScenarioError(name, "holds no sample", "one line a chunk: prefix, new_tokens, time_ms")
    return samples


def parse_rows(text: str, name: str) -> Rows:
    """Prefill chunks and decode steps of a text. A row with a batch size and no new tokens is a decode step."""
    rows = _json_rows(text, name) if text.lstrip()[:1] == "{" else _csv_rows(text, name)
    samples: list[Sample] = []
    steps: list[DecodeStep] = []
    unused: dict[str, None] = {}
    for line, row in rows:
        named = {key: value for key, value in row.items() if value is not None}
        unused.update((key, None) for key in named if key not in KNOWN_NAMES)
        if any(key in named for key in ROW_NAMES) and not any(key in named for key in NEW_NAMES):
            steps.append(_step(row, name, line))
        else:
            samples.append(_sample(row, name, line))
    return Rows(tuple(samples), tuple(steps), tuple(unused))


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
    time_ms = _time_ms(row, path, line)
    prefix = _count(row, PREFIX_NAMES, path, line, at_least=0)
    new = _count(row, NEW_NAMES, path, line, at_least=1)
    if any(name in row for name in ROW_NAMES):
        num_rows = _count(row, ROW_NAMES, path, line, at_least=1)
        if num_rows != 1:
            name = next(name for name in ROW_NAMES if name in row)
            raise TraceError(path, line, name, f"is {num_rows}: a sample is one chunk of one request")
    return Sample(prefix, new, time_ms)


def _step(row: Mapping[str, object], path: str, line: int) -> DecodeStep:
    num_rows = _count(row, ROW_NAMES, path, line, at_least=1)
    if any(name in row for name in CONTEXT_NAMES) and not any(name in row for name in KV_NAMES):
        context = next(name for name in CONTEXT_NAMES if name in row)
        kv_tokens = round(_number(row, context, path, line) * num_rows)
    else:
        kv_tokens = _count(row, KV_NAMES, path, line, at_least=0)
    return DecodeStep(num_rows, kv_tokens, _time_ms(row, path, line))


def _time_ms(row: Mapping[str, object], path: str, line: int) -> float:
    time_name = next((name for name in TIME_NAMES if name in row), None)
    if time_name is None:
        raise TraceError(path, line, "time_ms", f"is missing; known names: {', '.join(TIME_NAMES)}")
    return _number(row, time_name, path, line) * TIME_NAMES[time_name]


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
