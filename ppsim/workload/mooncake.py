"""Mooncake's trace format: one JSON object a line (Qin et al., Mooncake, FAST 2025; kvcache-ai/Mooncake).

``timestamp``: arrival from the start of the trace, in milliseconds if nobody says otherwise (``workload.time_unit``).
``input_length``, ``output_length``: tokens.
``hash_ids``: one id for each block of the prompt, the last one cut; prompts with equal leading ids share a prefix.
Other fields are allowed and ignored: newer traces of the family carry some.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

from ppsim.errors import TraceError
from ppsim.workload.lines import MAX_TIME_NS, BadLines, Line, TraceRow, shown
from ppsim.workload.times import UNITS, WEEK_NS, ask_for_unit, from_earliest

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
OTHER_FILES = {
    "conversations": "a ShareGPT conversation has no times and no lengths in tokens",
    "traceEvents": "a Chrome or torch trace is no request trace",
    "input_lens": "the result of a serving benchmark is no request trace",
    "ppsim-recording": "a recorded run is no request trace",
}


def parse_mooncake(
    lines: Sequence[Line], block_tokens: int, unit: str | None, bad: BadLines
) -> tuple[list[TraceRow], tuple[str, ...]]:
    """One row a line, in file order. Raises TraceError for the first line that is not one request, and where it is
    doubtful what the unit of time is."""
    rows: list[TraceRow] = []
    fractions: list[int] = []
    for number, line in enumerate(lines):
        row = bad.attempt(parse_line, number, line, block_tokens, unit or "ms", fractions)
        if row is not None:
            rows.append(row)
    if unit is None:
        ask_for_unit(lines[0].path, rows, fractions)
    return from_earliest(lines[0].path, rows, WEEK_NS)


def parse_line(number: int, line: Line, block_tokens: int, unit: str, fractions: list[int]) -> TraceRow:
    record = json_object(line)
    for field in FIELDS:
        if field not in record:
            other = next((f"; {why}" for key, why in OTHER_FILES.items() if key in record), "")
            has = shown(", ".join(record)) if record else "no fields"
            raise line.error(field, f"is missing; the line has {has}{other}")
    input_length = line.length("input_length", whole(line, "input_length", record["input_length"]))
    output_length = line.length("output_length", whole(line, "output_length", record["output_length"]))
    row = TraceRow(
        number=number,
        line=line.number,
        at_ns=nanoseconds(line, record["timestamp"], unit),
        input_length=input_length,
        output_length=output_length,
        hash_ids=block_ids(line, record["hash_ids"], input_length, block_tokens),
    )
    if record["timestamp"] % 1:
        fractions.append(line.number)
    return row


def json_object(line: Line) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        # Decimal keeps a fraction of a millisecond as it is written.
        record = json.loads(line.text, parse_float=Decimal, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise line.error("json", f"not a JSON object: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise line.error("json", "not a JSON object: nested too deeply") from None
    except (ValueError, ArithmeticError) as error:  # a number that neither int nor Decimal can hold
        raise line.error("json", f"not a JSON object: {error}") from None
    if not isinstance(record, dict):
        raise line.error("json", f"expected a JSON object, got {shown(record)}")
    return record


def whole(line: Line, field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise line.error(field, f"expected an integer, got {as_written(value)}")
    return value


def nanoseconds(line: Line, value: object, unit: str) -> int:
    """A number in the unit, to the nearest nanosecond; whole ones exactly."""
    word = {"ms": "milliseconds", "s": "seconds", "us": "microseconds", "ns": "nanoseconds"}[unit]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise line.error("timestamp", f"expected {word} as a number, got {as_written(value)}")
    if not 0 <= value <= MAX_TIME_NS // UNITS[unit]:
        raise line.error("timestamp", f"expected 0 to {MAX_TIME_NS // UNITS[unit]} {unit}, got {as_written(value)}")
    return round(value * UNITS[unit])


def block_ids(line: Line, value: object, input_length: int, block_tokens: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise line.error("hash_ids", f"expected a list of integers, got {as_written(value)}")
    for i, block in enumerate(value):
        if isinstance(block, bool) or not isinstance(block, int) or not 0 <= block < 2**63:
            raise line.error("hash_ids", f"entry {i}: expected an integer from 0 to 2**63-1, got {as_written(block)}")
    expected = -(-input_length // block_tokens)
    if len(value) != expected:
        raise wrong_count(line, len(value), expected, input_length, block_tokens)
    return tuple(value)


def wrong_count(line: Line, came: int, expected: int, input_length: int, block_tokens: int) -> TraceError:
    return line.error(
        "hash_ids",
        f"has {came} ids, but input_length {input_length} needs {expected} blocks of {block_tokens} tokens "
        f"(workload.block_tokens)",
    )


def as_written(value: object) -> str:
    """A JSON value in an error message."""
    if isinstance(value, Decimal):
        return shown(str(value)).strip("'")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return shown(value)
