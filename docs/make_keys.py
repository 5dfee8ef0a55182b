"""Write docs/reference/scenario.md: every key of a scenario. ``python docs/make_keys.py``; a test holds the page.

Unit, default and range are read from the types of the tree; what a key does is the comment at its field, so that the
page and the code cannot say different things. What has no comment of its own stands in ``docs/keys.toml``.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
import tomllib
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ppsim.scenario import effects
from ppsim.scenario.tree import Scenario

HERE = Path(__file__).resolve().parent
KEYS = HERE / "keys.toml"
UNITS = {
    "_ms_per_token2": "ms per token squared",
    "_ms_per_token": "ms per token",
    "_gb_per_s": "GB/s",
    "_per_s": "per second",
    "_tflops": "TFLOP/s",
    "_percent": "%",
    "_ms": "ms",
    "_us": "us",
    "_gb": "GB",
    "_bytes": "bytes",
    "_tokens": "tokens",
}
HEAD = """# Scenario keys

A scenario is a TOML file; a key of section `[cluster]` is `cluster.pp_size` in `--set cluster.pp_size=8`, and
`pp_size=8` in [the library](../library.md) where only one key ends so. Unknown keys and values out of range are refused
with the key's name. A run folder's `config.toml` has all of them.

*Range* is what is accepted. *Unit* is empty where the value is a number of things, a name or a switch. `none` as a
default means that the key is not set, and the effect says what happens then. Which keys do nothing in which mode
stands [at the end](#keys-that-do-nothing); a run that sets one says so.

This page is made by `python docs/make_keys.py`.
"""
IDLE = """
## Keys that do nothing

A key on the left that is written, and a scenario of which the right side is true: the run says that the key does
nothing. (`ppsim/scenario/effects.py`.)

| keys | where |
| --- | --- |
"""


def page() -> str:
    """The whole page: a table a section, nested sections behind the one that holds them."""
    text = HEAD
    for place, model, how, usual in sections(Scenario, "", "", Scenario()):
        title = f"`[{place}]`" if how == "one" else f"`[[{place}]]`" if how == "list" else "The scenario itself"
        text += f"\n## {title}\n\n{told(model)}\n"
        text += "\n| key | default | range | unit | effect |\n| --- | --- | --- | --- | --- |\n"
        for name, field in model.model_fields.items():
            if section_of(field.annotation) is None:
                text += row(model, f"{place}.{name}" if place else name, name, field, usual)
    return text + IDLE + "".join(idle_rows())


Found = tuple[str, type[BaseModel], str, BaseModel | None]


def sections(model: type[BaseModel], place: str, how: str, usual: BaseModel | None) -> Iterator[Found]:
    """Every section with its place and its defaults, in the order of the tree; ``how``: "one" or "list" of them."""
    yield place, model, how, usual
    for name, field in model.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None:
            inside = f"{place}.{name}" if place else name
            kind = get_origin(field.annotation)
            inside += ".NAME" if kind is dict else ""
            there = getattr(usual, name, None)
            there = there if isinstance(there, BaseModel) else None
            yield from sections(inner, inside, "list" if kind is tuple else "one", there)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, alone, in a list, in a table, or perhaps."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    found = [inner for part in get_args(annotation) if (inner := section_of(part)) is not None]
    return found[0] if found else None


def row(model: type[BaseModel], key: str, name: str, field: FieldInfo, usual: BaseModel | None) -> str:
    cells = (
        f"`{key}`",
        default_of(name, field, usual),
        range_of(field),
        unit_of(model, name),
        effect_of(model, name, key),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def default_of(name: str, field: FieldInfo, usual: BaseModel | None) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True) if usual is None else getattr(usual, name)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value in ((), {}, ""):
        return "empty"
    return f"`{value}`"


def range_of(field: FieldInfo) -> str:
    return " or ".join(dict.fromkeys(ranges(field.annotation, field.metadata))) or "any"


def ranges(annotation: Any, metadata: typing.Sequence[Any] = ()) -> Iterator[str]:
    """In words, for each form that a value may have."""
    if get_origin(annotation) is typing.Annotated:
        inner, *more = get_args(annotation)
        yield from ranges(inner, [*metadata, *more])
    elif get_origin(annotation) is Literal:
        yield ", ".join(f"`{value}`" for value in get_args(annotation))
    elif get_origin(annotation) is tuple:
        yield f"a list: each {next(ranges(get_args(annotation)[0]))}"
    elif get_origin(annotation) is dict:
        yield "a table"
    elif annotation is type(None):
        return
    elif get_args(annotation):
        for part in get_args(annotation):
            yield from ranges(part, metadata)
    elif annotation is bool:
        yield "true, false"
    elif annotation is str:
        yield "text"
    else:
        yield number_range(annotation, metadata)


def number_range(kind: Any, metadata: typing.Sequence[Any]) -> str:
    """Of an integer or a number: its ends, and what 0 is apart from them."""
    flat = [part for item in metadata for part in getattr(item, "metadata", [item])]
    low, high, apart = "", "", ""
    for item in flat:
        if getattr(item, "ge", None) is not None:
            low = short(item.ge)
        if getattr(item, "gt", None) is not None:
            low = short(item.gt + 1) if kind is int else f"above {short(item.gt)}"
        for attribute, sign in (("le", ""), ("lt", "below ")):
            if getattr(item, attribute, None) is not None:
                high = sign + short(getattr(item, attribute))
        if callable(getattr(item, "func", None)):
            apart = f"0, or from {short(inspect.getclosurevars(item.func).nonlocals['least'])}"
    word = "integer" if kind is int else "number"
    if apart:
        return f"{word}, {apart} to {high}"
    if not low and not high:
        return word
    return f"{word}, " + (f"{low} to {high}" if low and high else low + " or more" if low else f"up to {high}")


def short(value: float) -> str:
    power = {2**n: f"2^{n}" for n in (24, 31, 32, 63, 64)} | {2**31 - 1: "2^31 - 1", -(2**31): "-2^31"}
    if value in power:
        return power[int(value)]
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def unit_of(model: type[BaseModel], name: str) -> str:
    for ending, unit in UNITS.items():
        if name.endswith(ending):
            return unit
    if "iteration" in name:
        return "iterations"
    if name == "ms":
        return "ms"
    return "tokens" if f"{model.__name__}.{name}" in by_hand()["units"]["tokens"] else ""


@cache
def by_hand() -> dict[str, Any]:
    return tomllib.loads(KEYS.read_text(encoding="utf-8"))


def effect_of(model: type[BaseModel], name: str, key: str) -> str:
    """What ``keys.toml`` says of the key, or else the comment at its field. KeyError where neither says anything."""
    words = by_hand()["effects"].get(f"{model.__name__}.{name}") or comments(model).get(name)
    if not words:
        place = f"{model.__name__}.{name}"
        raise KeyError(f"{key}: nothing says what it does; write a comment at {place}, or a line in docs/keys.toml")
    return words


@cache
def comments(model: type[BaseModel]) -> dict[str, str]:
    """The comment of each field: on its own lines, or the lines right above it."""
    source = inspect.getsource(model)
    on_line: dict[int, str] = {}
    alone: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            on_line[token.start[0]] = token.string.lstrip("# ")
            if token.line.strip().startswith("#"):
                alone.add(token.start[0])
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            assert node.end_lineno is not None
            own = [on_line[n] for n in range(node.lineno, node.end_lineno + 1) if n in on_line]
            if not own:
                above = node.lineno - 1
                while above in alone:
                    own.insert(0, on_line[above])
                    above -= 1
            if own:
                found[node.target.id] = " ".join(own)
    return found


def told(model: type[BaseModel]) -> str:
    return re.sub(r"``", "`", inspect.cleandoc(model.__doc__ or ""))


def idle_rows() -> Iterator[str]:
    for rule in effects.RULES:
        keys = ", ".join(f"`{key}`" for key in rule.keys)
        why = re.sub(r"([\w.]+) is \{s\.\1!r\}", r"\1 is not the one that reads it", rule.why)
        why = re.sub(r" \{s\.[\w.]+(!r)?\}", "", why)
        yield f"| {keys} | {why} |\n"


PAGES = {"reference/scenario.md": page}


def main() -> None:
    for name, made in PAGES.items():
        (HERE / name).write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
