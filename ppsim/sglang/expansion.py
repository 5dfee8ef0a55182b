"""What stands between ``${`` and ``}``: defaults, substrings, cut ends, replacements, lengths, elements of arrays.

A form that the text cannot settle (a name that nothing sets, an operator that this table does not have) raises
ValueError: the caller keeps the whole ``${...}`` as a hole, as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate

from ppsim.sglang.arithmetic import evaluate, number

INNER = re.compile(r"^(?P<hash>\#?)(?P<name>[A-Za-z_]\w*|[0-9@*])(?:\[(?P<index>[^\[\]]*)\])?(?P<rest>.*)$", re.DOTALL)
DEFAULTS = re.compile(r"^(?P<how>:?[-=?+])(?P<word>.*)$", re.DOTALL)
CUTS = ("##", "#", "%%", "%")
CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}


@dataclass(frozen=True, slots=True)
class Scope:
    """How names are looked up. ``value``: text, or None where nothing sets it; ``fill``: a word with its own
    variables filled in; ``keep``: what ``${X:=word}`` sets."""

    value: Callable[[str], str | None]
    elements: Callable[[str], list[str] | None]
    fill: Callable[[str], str]
    keep: Callable[[str, str], None]

    def whole(self, text: str) -> int:
        """The value of an arithmetic expression. Raises ValueError for a name without a number."""
        return evaluate(text, self.named)

    def named(self, name: str) -> int:
        value = self.value(name)
        if value is None:
            raise ValueError(f"{name} is not set")
        return number(value)


def parameter(inner: str, scope: Scope) -> str:
    """``inner`` without its braces, expanded. Raises ValueError where the text does not settle it."""
    found = INNER.match(inner)
    if not found:
        raise ValueError(f"{inner!r} is no form of a variable that is known here")
    name, index, rest = found["name"], found["index"], found["rest"]
    if found["hash"]:
        if rest:
            raise ValueError(f"{inner!r} is no form of a variable that is known here")
        many = scope.elements(name) if index in ("@", "*") else None
        return str(len(many if many is not None else known(name, subject(name, index, scope))))
    value = subject(name, index, scope)
    default = DEFAULTS.match(rest)
    if default:
        return by_default(name, value, default["how"], default["word"], scope)
    return changed(known(name, value), rest, scope)


def subject(name: str, index: str | None, scope: Scope) -> str | None:
    """The variable, or the element or all elements of an array."""
    if index is None:
        elements = scope.elements(name)
        return scope.value(name) if elements is None else elements[0] if elements else None
    elements = scope.elements(name)
    if elements is None:
        return None
    if index in ("@", "*"):
        return " ".join(elements)
    at = scope.whole(scope.fill(index))
    return elements[at] if -len(elements) <= at < len(elements) else None


def known(name: str, value: str | None) -> str:
    if value is None:
        raise ValueError(f"{name} is not set")
    return value


def by_default(name: str, value: str | None, how: str, word: str, scope: Scope) -> str:
    """``:-`` and ``:=`` also replace what is set and empty; ``+`` is the other way round."""
    missing = value is None or (how.startswith(":") and not value)
    if how.endswith("+"):
        return "" if missing else scope.fill(word)
    if not missing:
        return value or ""
    if how.endswith("?"):
        raise ValueError(f"{name} must be set")
    filled = scope.fill(word)
    if how.endswith("="):
        scope.keep(name, filled)
    return filled


def changed(value: str, rest: str, scope: Scope) -> str:
    """What follows the name: nothing, a substring, a cut end, a replacement or another case."""
    if not rest:
        return value
    if rest.startswith(":"):
        return substring(value, rest[1:], scope)
    if rest in CASES:
        return CASES[rest](value)
    for cut in CUTS:
        if rest.startswith(cut):
            return without_end(value, cut, scope.fill(rest[len(cut) :]))
    if rest.startswith("/"):
        return replaced(value, rest[1:], scope)
    raise ValueError(f"{rest!r} is no operator that is known here")


def substring(value: str, text: str, scope: Scope) -> str:
    offset, colon, length = text.partition(":")
    start = scope.whole(scope.fill(offset)) if offset.strip() else 0
    if start < 0:
        start += len(value)
        if start < 0:
            return ""
    if not colon:
        return value[start:]
    count = scope.whole(scope.fill(length)) if length.strip() else 0
    end = start + count if count >= 0 else len(value) + count
    if end < start:
        raise ValueError(f"the substring {text!r} ends before it starts")
    return value[start:end]


def without_end(value: str, cut: str, pattern: str) -> str:
    """The shortest (``#``, ``%``) or longest (``##``, ``%%``) part at the start or the end that the pattern matches."""
    fits = re.compile(translate(pattern)).match
    sizes = range(len(value) + 1) if len(cut) == 1 else range(len(value), -1, -1)
    for size in sizes:
        if cut[0] == "#" and fits(value[:size]):
            return value[size:]
        if cut[0] == "%" and fits(value[len(value) - size :]):
            return value[: len(value) - size]
    return value


def replaced(value: str, text: str, scope: Scope) -> str:
    everywhere = text.startswith("/")
    pattern, _, new = (text[1:] if everywhere else text).partition("/")
    pattern, new = scope.fill(pattern), scope.fill(new)
    anchor = pattern[:1] if pattern[:1] in ("#", "%") and not everywhere else ""
    body = translate(pattern[len(anchor) :]).replace("(?s:", "(?:").removesuffix("\\Z").removesuffix("\\z")
    ends = {"#": rf"\A{body}", "%": rf"{body}\Z", "": body}[anchor]
    if not pattern:
        return value
    return re.sub(ends, lambda _: new, value, count=0 if everywhere else 1, flags=re.DOTALL)
