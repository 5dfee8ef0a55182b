"""Which calls must be the same on all ranks, declared where the method is defined (protocol.md section 8).

Rule: a declaration costs nothing. ``agreed_call`` checks the expressions once, at definition, leaves a note on the
function and returns the very same function; ``checker.py`` wraps bound methods of single instances, and only when the
scenario asks for it. Nothing is decided by an environment variable at import.

What is shown must mean the same on every rank: numbers, strings, token bytes, enums and frozen records of these. An
object with an identity of its own (a request, a node) is refused: name its field instead. A repr with an address in it
is the classic false alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from fractions import Fraction
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from ppsim.core.digest import digest

F = TypeVar("F", bound=Callable[..., object])
NOTE = "agreed_call"
PRIMITIVES = (int, str, bool, type(None))


class Shown(NamedTuple):
    """One expression: ``a.b.c`` or ``len(a.b)``; a number in the path is a place in a tuple."""

    text: str
    root: str
    steps: tuple[str, ...]
    is_length: bool

    def value(self, root: Any) -> object:
        for step in self.steps:
            root = root[int(step)] if step.isdecimal() else getattr(root, step)
        return len(root) if self.is_length else root


@dataclass(frozen=True, slots=True)
class AgreedCall:
    """The declaration of one method. ``invariant`` is what a difference breaks (protocol.md section 12)."""

    invariant: str
    params: tuple[Shown, ...]
    result: tuple[Shown, ...]
    state: tuple[Shown, ...]
    names: tuple[str, ...]  # parameters without self, in order
    defaults: tuple[tuple[str, object], ...]

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        """Value of each parameter of a call, defaults included."""
        return {**dict(self.defaults), **dict(zip(self.names, args)), **kwargs}


def agreed_call(
    invariant: str, *params: str, result: tuple[str, ...] = (), state: tuple[str, ...] = ()
) -> Callable[[F], F]:
    """Declare what of a method's calls must be equal on all ranks.

    ``params``: expressions over the parameters. ``result``: over ``result``. ``state``: over the attributes of the
    receiver, shown before and after the call. Raises ValueError for an expression over an unknown parameter.
    """

    def note(function: F) -> F:
        assert isinstance(function, FunctionType)
        code = function.__code__
        names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        positional = code.co_varnames[1 : code.co_argcount]
        given = function.__defaults__ or ()
        defaults = dict(zip(positional[len(positional) - len(given) :], given)) | (function.__kwdefaults__ or {})
        shown = tuple(parse(text) for text in params)
        for expression in shown:
            if expression.root not in names:
                raise ValueError(f"{function.__qualname__}: {expression.text!r} names no parameter of {names}")
        results = tuple(parse(text) for text in result)
        if any(expression.root != "result" for expression in results):
            raise ValueError(f"{function.__qualname__}: expressions of a result start with 'result', got {result}")
        own = tuple(parse_state(text) for text in state)
        function.__dict__[NOTE] = AgreedCall(invariant, shown, results, own, names, tuple(defaults.items()))
        return function

    return note


def declaration(owner: type, name: str) -> AgreedCall | None:
    """The declaration of a method, None if it has none. An override without one inherits it."""
    for base in owner.__mro__:
        found = getattr(base.__dict__.get(name), "__dict__", {}).get(NOTE)
        if isinstance(found, AgreedCall):
            return found
    return None


def parse(text: str) -> Shown:
    """An expression into its parts. Raises ValueError for anything but ``a.b.0`` and ``len(a.b)``."""
    is_length = text.startswith("len(") and text.endswith(")")
    path = (text[4:-1] if is_length else text).split(".")
    if not path[0].isidentifier() or not all(step.isidentifier() or step.isdecimal() for step in path):
        raise ValueError(f"cannot read the expression {text!r}: expected a.b.c or len(a.b.c)")
    return Shown(text, path[0], tuple(path[1:]), is_length)


def parse_state(text: str) -> Shown:
    """The same over the receiver, whose name is left out."""
    inner = parse(text)
    return Shown(text, "self", (inner.root, *inner.steps), inner.is_length)


def render(value: object) -> str:
    """Text that is equal on two ranks exactly where the values are. Raises TypeError for objects with an identity."""
    if type(value) in PRIMITIVES:
        return repr(value)
    match value:
        case bytes():
            return f"<{len(value)} bytes {digest(value)}>"
        case Enum():
            return value.name
        case Fraction():
            return str(value)
        case tuple() if hasattr(value, "_fields"):
            inside = [f"{name}={render(item)}" for name, item in zip(value._fields, value, strict=True)]
            return f"{type(value).__name__}({', '.join(inside)})"
        case tuple() | list():
            return "[" + ", ".join([render(item) for item in value]) + "]"
    params = getattr(type(value), "__dataclass_params__", None)
    if params is not None and params.eq and (params.frozen or params.unsafe_hash):
        inside = [f"{f.name}={render(getattr(value, f.name))}" for f in fields(value) if f.compare]  # type: ignore[arg-type]
        return f"{type(value).__name__}({', '.join(inside)})"
    raise TypeError(
        f"a {type(value).__name__} cannot be compared between ranks: name a field of it in the agreed_call declaration"
    )


def show(expressions: tuple[Shown, ...], values: Callable[[str], object]) -> str:
    """``expression=value`` of each; ``values`` gives the object behind a root name."""
    return ", ".join([f"{e.text}={render(e.value(values(e.root)))}" for e in expressions]) if expressions else ""
