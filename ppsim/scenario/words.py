"""What is wrong with a value, in words of the field and not in those of the library that found it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WHOLE, NUMBER = "must be a whole number", "must be a number"
SENTENCES = {
    "int_type": WHOLE,
    "int_parsing": WHOLE,
    "int_parsing_size": WHOLE + " that fits into 64 bits",
    "int_from_float": WHOLE,
    "float_type": NUMBER,
    "float_parsing": NUMBER,
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text in quotes",
    "tuple_type": "must be a list in brackets",
    "list_type": "must be a list in brackets",
    "dict_type": "must be a section with keys",
    "model_type": "must be a section with keys",
    "model_attributes_type": "must be a section with keys",
    "missing": "is missing, and has no usual value",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
"""Type of an error of pydantic -> the sentence; its context fills the braces."""


def problem_in_words(problem: Mapping[str, Any]) -> str:
    """The sentence for one error of pydantic."""
    kind, context = str(problem["type"]), problem.get("ctx", {})
    if kind == "value_error":  # a check of our own
        return str(context.get("error", problem["msg"])).removeprefix("Value error, ")
    if kind in SENTENCES:
        return SENTENCES[kind].format(**{name: plain(value) for name, value in context.items()})
    return str(problem["msg"]).replace("Input should", "must").replace("Input must", "must")


def plain(value: Any) -> str:
    """A limit without an exponent, as long as that is short."""
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def hint_for(kind: str, came: Any) -> str:
    """What to do about it, where that is known; else empty."""
    is_text = isinstance(came, str)
    if kind.startswith(("int_", "float_")) and is_text and came.strip().lstrip("+-").replace(".", "", 1).isdigit():
        return "write it without quotes"
    if kind.startswith("bool_") and is_text and came.lower() in ("true", "false"):
        return "write it without quotes, in small letters"
    return "write it in quotes" if kind == "string_type" and not isinstance(came, dict | list) else ""
