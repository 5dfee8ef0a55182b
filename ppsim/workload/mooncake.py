"""Mooncake's trace format: one JSON object a line (Qin et al., Mooncake, FAST 2025; kvcache-ai/Mooncake).

``timestamp``: arrival from the start of the trace, in milliseconds if nobody says otherwise (``workload.time_unit``).
``input_length``, ``output_length``: tokens.
``hash_ids``: one id for each block of the prompt, the last one cut; prompts with equal leading ids share a prefix.
Other fields are allowed and ignored. Other traces of the family: Bailian's (alibaba-edu/qwen-bailian-usagetraces-anon)
has seconds and blocks of 16 tokens, others have no outputs or no ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

from ppsim.errors import TraceError
from ppsim.scenario.bounds import MAX_TOKENS
from ppsim.workload.lines import MAX_TIME_NS, BadLines, Line, TraceRow, shown
from ppsim.workload.times import UNITS, WEEK_NS, ask_for_unit, from_earliest

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
OPTIONAL = ("output_length", "hash_ids")
SIZES = tuple(2**n for n in range(17))
OTHER_FILES = {
    "traceEvents": "a Chrome or torch trace is no request trace",
    "ppsim-recording": "a recorded run is no request trace",
}


def parse_mooncake(
    lines: Sequence[Line], block_tokens: int, unit: str | None, bad: BadLines
) -> tuple[list[TraceRow], tuple[str, ...], int]:
    """One row a line in file order, what is told, and the tokens of a block. Raises TraceError for the first line that
    is not one request, and where it is doubtful what the unit of time is.

    What the first line lacks of the optional fields, all lines may lack; that it does is told.
    """
    first = head_of(lines)
    lacking = [field for field in OPTIONAL if field not in first]
    told: list[str] = []
    name = lines[0].path
    if "hash_ids" in lacking:
        told.append(f"{name}: it has no hash_ids: no prompt shares a prefix with another")
    if unit is None and "chat_id" in first and "parent_chat_id" in first:
        unit = "s"
        told.append(f"{name}: chat_id and parent_chat_id make it a Bailian trace: its times are seconds")
    rows: list[TraceRow] = []
    fractions: list[int] = []
    kept: list[Line] = []
    for number, line in enumerate(lines):
        row = bad.attempt(parse_line, number, line, unit or "ms", fractions, lacking)
        if row is not None:
            rows.append(row)
            kept.append(line)
    found = block_size(name, rows, block_tokens, bad.skip)
    if found != block_tokens:
        told.append(
            f"{name}: its prompts have one hash id for {found} tokens, not {block_tokens} (workload.block_tokens)"
        )
    whole = [row for row, line in zip(rows, kept) if bad.attempt(check_count, line, row, found) is not None]
    if unit is None:
        ask_for_unit(name, whole, fractions)
    moved, also = from_earliest(name, whole, WEEK_NS)
    return moved, (*told, *also), found


def head_of(lines: Sequence[Line]) -> dict[str, Any]:
    """The fields of the first line that is a request."""
    for line in lines:
        try:
            record = json_object(line)
        except TraceError:
            continue
        if "timestamp" in record and "input_length" in record:
            return record
    return dict.fromkeys(FIELDS)


def block_size(name: str, rows: Sequence[TraceRow], expected: int, most_will_do: bool) -> int:
    """Tokens of a hash id: as expected where half of the rows of several blocks have it so, else the size that fits all
    rows, of several the one power of two.

    A prompt of L tokens has n ids where a block has from L / n to less than L / (n - 1) tokens. ``most_will_do``: bad
    lines are skipped, and where nothing fits all, a power of two that fits nine rows of ten is taken. Raises TraceError
    where the rows fit several sizes and no one power of two.
    """
    counted = [(row.input_length, len(row.hash_ids)) for row in rows if row.hash_ids]
    telling = [-(-length // expected) == n for length, n in counted if n > 1 or length > expected]
    if len(counted) < 2 or 2 * sum(telling) >= len(telling):
        return expected
    least = max(-(-length // n) for length, n in counted)
    greatest = min(-(-length // (n - 1)) - 1 if n > 1 else MAX_TOKENS for length, n in counted)
    if least > greatest:
        fitting = {size: sum(-(-length // size) == n for length, n in counted) for size in SIZES}
        best = max(fitting, key=lambda size: fitting[size])
        return best if most_will_do and fitting[best] >= 0.9 * len(counted) else expected
    sure = [size for size in SIZES if least <= size <= greatest]
    if len(sure) == 1 or least == greatest:
        return sure[0] if len(sure) == 1 else least
    line = next(row.line for row in rows if row.hash_ids and -(-row.input_length // expected) != len(row.hash_ids))
    problem = f"one id stands for {least} to {greatest} tokens and not for {expected}: say workload.block_tokens"
    raise TraceError(name, line, "hash_ids", problem)


def check_count(line: Line, row: TraceRow, block_tokens: int) -> TraceRow:
    needed = -(-row.input_length // block_tokens)
    if row.hash_ids is not None and len(row.hash_ids) != needed:
        raise wrong_count(line, len(row.hash_ids), needed, row.input_length, block_tokens)
    return row


def parse_line(number: int, line: Line, unit: str, fractions: list[int], lacking: Sequence[str] = ()) -> TraceRow:
    record = json_object(line)
    for field in FIELDS:
        if field not in record and field not in lacking:
            other = next((f"; {why}" for key, why in OTHER_FILES.items() if key in record), "")
            has = shown(", ".join(record)) if record else "no fields"
            raise line.error(field, f"is missing; the line has {has}{other}")
    input_length = line.length("input_length", whole(line, "input_length", record["input_length"]))
    output = record.get("output_length")
    no_output = output is None or (output == 0 and not isinstance(output, bool))
    output_length = 1 if no_output else line.length("output_length", whole(line, "output_length", output))
    row = TraceRow(
        number=number,
        line=line.number,
        at_ns=nanoseconds(line, record["timestamp"], unit),
        input_length=input_length,
        output_length=output_length,
        hash_ids=block_ids(line, record["hash_ids"]) if "hash_ids" in record else None,
        no_output=no_output,
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


def block_ids(line: Line, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise line.error("hash_ids", f"expected a list of integers, got {as_written(value)}")
    for i, block in enumerate(value):
        if isinstance(block, bool) or not isinstance(block, int) or not 0 <= block < 2**63:
            raise line.error("hash_ids", f"entry {i}: expected an integer from 0 to 2**63-1, got {as_written(block)}")
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
