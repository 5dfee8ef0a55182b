"""Text, JSON and TOML that somebody else wrote: a ValueError with a sentence for whatever is wrong, and nothing else.

The parsers of the standard library have failures of their own beside bad syntax: a number of thousands of digits, and
brackets in brackets until the stack is full. To whoever gave the file these are bad input like any other.
"""

from __future__ import annotations

import codecs
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

TOO_DEEP = "it is nested too deeply"
MAX_BITS = 8192
TOO_LONG = "it holds a number of thousands of digits"
LONG_KEY = re.compile(
    r"""^[ \t]*+\[*+[ \t]*+(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""", re.MULTILINE
)
"""A key of so many parts, a.b.c: tomllib would take minutes for some ten thousand of them."""

MARKS = (  # the longer mark first: that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decoded(content: bytes) -> str:
    """The text of a file: UTF-8, or what its byte-order mark says; the mark is left out.

    Raises ValueError with line, byte and what to do for anything else. Without a mark latin-1 and its relatives cannot
    be told apart, so none of them is guessed.
    """
    mark, encoding = next((m for m in MARKS if content.startswith(m[0])), (b"", "utf-8"))
    body = content.removeprefix(mark)
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        if mark and encoding != "utf-8":
            raise ValueError(f"begins with the mark of {encoding.upper()} and is not: line {line}") from None
        byte = f"line {line}: byte 0x{body[error.start]:02x} is not UTF-8"
        raise ValueError(f"{byte}; is it latin-1 or windows-1252? save it as UTF-8") from None
    zero = text.find("\0")
    if zero >= 0:
        line = text[:zero].count("\n") + 1
        hint = "UTF-16 without a byte-order mark? save it as UTF-8" if "\0" in text[:4] else "is it a binary file?"
        raise ValueError(f"line {line}: a zero byte is no text; {hint}")
    return text


def as_utf8(content: bytes) -> bytes:
    """The same text in UTF-8 and without a mark, where a byte-order mark says which text it is; else as it is."""
    if not any(content.startswith(mark) for mark, _ in MARKS):
        return content
    try:
        return decoded(content).encode()
    except ValueError:  # whoever reads it tells what is wrong, and in which line
        return content


def readable(content: bytes) -> tuple[str, str]:
    """The text of a log, whatever is in it, and a sentence about bytes that are none; empty where all are."""
    body = as_utf8(content)
    text = body.decode("utf-8", errors="replace").removeprefix("\ufeff")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        lines = sum("\ufffd" in line for line in text.split("\n"))
        first = body[: error.start].count(b"\n") + 1
        where = f"line {first}" if lines == 1 else f"{lines} lines, the first of them {first},"
        return text, f"{where} has bytes that are not UTF-8 (latin-1?): a \ufffd stands for each"
    return text, ""


def parse_json(text: str | bytes) -> Any:
    """What ``json.loads`` returns. Raises ValueError (JSONDecodeError where the syntax is wrong)."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte 0x{error.object[error.start]:02x} at offset {error.start} is not UTF-8") from None
    except ValueError:  # int() refuses more than sys.get_int_max_str_digits()
        raise ValueError(TOO_LONG) from None


def parse_toml(text: str) -> dict[str, Any]:
    """What ``tomllib.loads`` returns. Raises ValueError (TOMLDecodeError where the syntax is wrong)."""
    if '"""' not in text and "'''" not in text and LONG_KEY.search(text):
        raise ValueError(TOO_DEEP)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError:
        raise ValueError(TOO_LONG) from None
    if any(isinstance(value, int) and value.bit_length() > MAX_BITS for value in leaves(found)):
        raise ValueError(TOO_LONG)  # in hexadecimal digits any number can be read, but never written
    return found


def leaves(value: Any) -> Iterator[Any]:
    """What is no table and no array, however deep it lies."""
    left = [value]
    while left:
        inner = left.pop()
        if isinstance(inner, dict):
            left += inner.values()
        elif isinstance(inner, list):
            left += inner
        else:
            yield inner
