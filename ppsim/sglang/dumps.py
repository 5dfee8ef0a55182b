"""Launches that are no command: a logged ``ServerArgs(...)``, a call of the Python interface, a description in JSON.

A dump may be wrapped in the middle of words and cut at its end; a value that is cut is named and never half used.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from ppsim.sglang import flags
from ppsim.sglang.commands import Draft, Reader
from ppsim.sglang.result import Given, LaunchLine
from ppsim.sglang.variables import Resolved

CALL = re.compile(r"\b(?P<name>ServerArgs|EngineArgs|AsyncEngineArgs|Engine|LLM)\(\s*(?=[A-Za-z_]\w*\s*=)")
ENGINES = {"ServerArgs": "sglang", "Engine": "sglang", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm", "LLM": "vllm"}
ARGUMENT = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=\s*")
VALUE = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,()\[\]{}'\"]+")
ROLES = {"prefill": "prefill", "decode": "decode"}
SIZES = ("pp_size", "tp_size")
MAX_NESTING = 4


def read_calls(text: str, limit: int = 100) -> list[LaunchLine]:
    """The first calls in the text. Lines inside a call are joined without a blank, as a terminal wraps them."""
    found: list[LaunchLine] = []
    at = 0
    while True:
        call = CALL.search(text, at)
        if call is None or len(found) >= limit:
            return found
        line = LaunchLine(ENGINES[call["name"]], call["name"], "", text.count("\n", 0, call.start()) + 1)
        at = Call(text, call.end(), line).read()
        found.append(line)


class Call:
    """The keyword arguments of one call, read from ``at`` on; what a line break wraps is joined."""

    def __init__(self, text: str, at: int, line: LaunchLine) -> None:
        self.text, self.at, self.line = text, at, line

    def read(self) -> int:
        body, self.end, closed = body_of(self.text, self.at)
        pieces = split_arguments(body)
        if not closed:
            last = pieces.pop() if pieces else ""
            cut = f"; {last.strip()!r} is cut off" if last.strip() else ""
            self.line.warn(f"the dump ends before its closing bracket{cut}: what follows is not known", self.line.line)
        for piece in pieces:
            found = ARGUMENT.match(piece)
            if found:
                self.store(found["name"], piece[found.end() :].strip())
            elif piece.strip():
                self.line.warn(f"{piece.strip()[:60]!r} is no argument of a call", self.line.line)
        return self.end

    def store(self, name: str, text: str) -> None:
        store_field(self.line, name, literal_value(text), self.line.line)


def body_of(text: str, at: int) -> tuple[str, int, bool]:
    """Text up to the bracket that closes the call, line breaks removed; False where the text ends first."""
    depth, quote, kept = 1, "", []
    i = at
    while i < len(text):
        char = text[i]
        if quote:
            if char == "\\" and i + 1 < len(text):
                kept.append(text[i : i + 2])
                i += 2
                continue
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return "".join(kept), i + 1, True
        if char not in "\r\n":
            kept.append(char)
        i += 1
    return "".join(kept), len(text), False


def split_arguments(body: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    pieces, start, depth, quote, i = [], 0, 0, "", 0
    while i < len(body):
        char = body[i]
        if quote:
            i += char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            pieces.append(body[start:i])
            start = i + 1
        i += 1
    pieces.append(body[start:])
    return pieces


def literal_value(text: str) -> Any:
    """A Python literal, or the text itself where it is none (an object's repr)."""
    if len(text) > 10_000:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text


def store_field(line: LaunchLine, name: str, value: Any, row: int) -> None:
    """Put a named value, under SGLang's word for it; unknown names are kept under their own."""
    known = flags.fields(line.engine)
    flag = known.get(name)
    dest = flag.dest if flag else name
    if flag is None and name in flags.defaults(line.engine):
        dest = name
    if flag is not None and any(old.lstrip("-").replace("-", "_") == name for old in flag.old_names):
        line.warn(f"is the old name of {flag.dest}", row, name)
    if flag is not None and flag.type == "layers" and isinstance(value, str):
        try:
            value = flags.read_layers(value)
        except ValueError as error:
            line.fail(str(error), row, name)
            return
    if flag is not None and flag.type in ("int", "human", "float") and value is not None:
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not numeric:
            line.fail(f"expected a number, got {value!r}", row, name)
            return
    line.values[dest] = Given(tuple(value) if isinstance(value, list) else value, name, row)


def load_json(text: str) -> Any:
    """The JSON that the text is, or None."""
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        return None
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        return None


def read_json(data: Any) -> list[LaunchLine]:
    """A node description: named values, a list of arguments, or one of these for each role."""
    lines: list[LaunchLine] = []
    collect(data, None, lines, 0)
    return lines


def collect(data: Any, role: str | None, lines: list[LaunchLine], depth: int) -> None:
    if depth > MAX_NESTING or not isinstance(data, (dict, list)):
        return
    if isinstance(data, list):
        for element in data:
            collect(element, role, lines, depth + 1)
        return
    engine = json_engine(data)
    if engine is not None:
        line = LaunchLine(engine, "", "", 1)
        line.warn("a description in JSON, no command: its named values are read", 1)
        for name, value in data.items():
            if not isinstance(value, dict) or name in flags.fields(engine):
                store_field(line, str(name), value, 1)
        if role:
            line.values.setdefault("disaggregation_mode", Given(role, role, 1))
        lines.append(line)
    for name, value in data.items():
        collect(value, ROLES.get(str(name), role), lines, depth + 1)


def json_engine(data: dict[str, Any]) -> str | None:
    """The engine whose argument names a mapping has; None if it has no size of parallelism."""
    sizes = [name for engine in ("sglang", "vllm") for name, flag in flags.fields(engine).items() if flag.dest in SIZES]
    if not any(name in data for name in sizes):
        return None
    counts = {engine: sum(name in flags.fields(engine) for name in data) for engine in ("sglang", "vllm")}
    return "vllm" if counts["vllm"] > counts["sglang"] else "sglang"


def json_words(data: Any, depth: int = 0) -> list[str]:
    """Arguments of a command inside JSON: the values of ``command`` and ``args``, in that order."""
    if isinstance(data, list) and depth == 0 and all(isinstance(element, str) for element in data):
        return list(data)
    if depth > MAX_NESTING:
        return []
    if isinstance(data, list):
        return next((inner for element in data if (inner := json_words(element, depth + 1))), [])
    if not isinstance(data, dict):
        return []
    words: list[str] = []
    for key in ("entrypoint", "command", "cmd", "args"):
        value = data.get(key)
        if isinstance(value, str):
            words += value.split()
        elif isinstance(value, list):
            words += [str(element) for element in value]
    if any(word.startswith("--") for word in words):
        return words
    return next((inner for value in data.values() if (inner := json_words(value, depth + 1))), [])


def drafts_of_words(words: list[str]) -> list[Draft]:
    """Drafts of a ready list of arguments."""
    reader = Reader([""])
    reader.server([Resolved(word, 1) for word in words], listed=True)
    return reader.drafts
