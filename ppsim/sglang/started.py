"""What a server says of itself when it starts: limits, pool, ranks, arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from ppsim.sglang import flags
from ppsim.sglang.dumps import read_calls
from ppsim.sglang.stamps import Ranks, ranks_of

KEY_VALUE = re.compile(r"(?<![\w.])(?P<name>[a-z_][a-z0-9_]*)=(?P<value>-?\d+(?:\.\d+)?)(?P<more>[\w.])?(?: GB)?")
STARTS = (
    "max_total_num_tokens", "chunked_prefill_size", "max_prefill_tokens", "max_running_requests", "context_len",
    "available_gpu_mem", "max_num_batched_tokens", "max_num_seqs", "world_size",
)  # fmt: skip
NON_DEFAULT = re.compile(r"non-default args: (?P<args>\{.*\})")
MODEL_LEN = re.compile(r"Using max model len (\d{1,12})\b")
WORLD = re.compile(r"world_size=(?P<size>\d{1,9}) rank=(?P<rank>\d{1,9})\b")


def read_started(rows: Sequence[str], text: str) -> tuple[dict[str, Any], dict[int, Ranks]]:
    """Values by the name the log gives them (flags by their dest), and global rank -> tags."""
    values: dict[str, Any] = {}
    table: dict[int, Ranks] = {}
    last = len(rows) - 1
    for row, line in enumerate(rows):
        if "=" in line:
            key_values(line, values, row == last)
            world = WORLD.search(line)
            if world:
                table[int(world["rank"])] = ranks_of(line[: world.start()])
        if "non-default args" in line:
            non_default(line, values)
        length = MODEL_LEN.search(line) if "max model len" in line else None
        if length:
            values["max_model_len"] = int(length[1])
    if "ServerArgs(" in text:
        for call in read_calls(text, limit=1):
            values |= {name: given.value for name, given in call.values.items()}
    return values, table


def says_something(line: str) -> bool:
    """A line that ``read_started`` takes something from."""
    named = "=" in line and any(found["name"] in STARTS for found in KEY_VALUE.finditer(line))
    if named or ("non-default args" in line and NON_DEFAULT.search(line)):
        return True
    return bool(WORLD.search(line) or MODEL_LEN.search(line) or "ServerArgs(" in line)


def key_values(line: str, values: dict[str, Any], is_last: bool) -> None:
    for found in KEY_VALUE.finditer(line):
        if found["name"] not in STARTS or found["more"] == "_" or (is_last and may_be_cut(found, line)):
            continue
        digits = found["value"]
        if len(digits) < 20:
            values[found["name"]] = float(digits) if "." in digits else int(digits)


def may_be_cut(found: re.Match[str], line: str) -> bool:
    """A number at the very end of a text may have more digits; one with its unit is whole."""
    return found.end() == len(line.rstrip()) and not found.group().endswith("GB")


def cut_value(rows: Sequence[str]) -> str:
    """A sentence for the value at the end of the text that was not taken; empty if there is none."""
    for found in KEY_VALUE.finditer(rows[-1]) if rows else ():
        if found["name"] in STARTS and found["more"] != "_" and may_be_cut(found, rows[-1]):
            return f"line {len(rows)}: {found.group()} ends the text and may be cut: not taken"
    return ""


def non_default(line: str, values: dict[str, Any]) -> None:
    found = NON_DEFAULT.search(line)
    if found is None or len(found["args"]) > 20_000:
        return
    try:
        given = ast.literal_eval(found["args"])
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return
    known = flags.fields("vllm")
    for name, value in given.items() if isinstance(given, dict) else ():
        flag = known.get(str(name))
        values[flag.dest if flag else str(name)] = value
