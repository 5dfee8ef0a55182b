"""Scenario keys as keywords: ``pp_size=8`` for ``cluster.pp_size``, where only one key ends so.

A keyword is the whole dotted key (``**{"cluster.pp_size": 8}``) or its end, as far as it tells one key from all others
(``pp_size``, ``**{"input_length.kind": "fixed"}``). A section may be given as a dictionary, which replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from os import PathLike, fspath
from typing import Any

from pydantic import BaseModel

from ppsim.errors import ScenarioError
from ppsim.scenario.tree import Scenario


def keys_of(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Dotted names of all keys and sections below a section, in the order of the tree."""
    for name, field in model.model_fields.items():
        yield before + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys_of(field.annotation, f"{before}{name}.")


@cache
def all_keys() -> tuple[str, ...]:
    """Dotted names of all keys and sections of a scenario."""
    return tuple(keys_of(Scenario))


def full_key(given: str) -> str:
    """The dotted key that a keyword means. Raises ScenarioError, with the candidates, for none and for several."""
    if given in all_keys():
        return given
    found = [key for key in all_keys() if key.endswith(f".{given}")]
    if len(found) == 1:
        return found[0]
    if found:
        example = f'**{{"{found[0]}": ...}}'
        raise ScenarioError(given, f"is ambiguous: {', '.join(found)}", f"give the whole key, for example {example}")
    raise ScenarioError(given, "unknown key", hint_for(given))


def hint_for(given: str) -> str:
    """Keys whose name is near, as a question; else where the keys are listed."""
    leaf = given.rpartition(".")[2]
    by_leaf: dict[str, list[str]] = {}
    for key in all_keys():
        by_leaf.setdefault(key.rpartition(".")[2], []).append(key)
    near = [key for name in get_close_matches(leaf, by_leaf, n=3) for key in by_leaf[name]]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"no key has a name like it; the sections are {', '.join(k for k in Scenario.model_fields)}"


def pairs_of(keys: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Dotted keys and plain values of keywords. Raises ScenarioError for one that is given twice, too."""
    found: dict[str, Any] = {}
    for given, value in keys.items():
        key = full_key(given)
        if key in found:
            raise ScenarioError(key, "is given twice", f"{given} is short for it")
        found[key] = plain(key, value)
    return list(found.items())


def plain(key: str, value: Any) -> Any:
    """A value as a TOML file could have it; numbers of numpy become Python's. Raises ScenarioError for other types."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case PathLike():
            return fspath(value)
        case Mapping():
            return {str(name): plain(f"{key}.{name}", inner) for name, inner in value.items()}
        case list() | tuple() | range():
            return [plain(key, inner) for inner in value]
    item = getattr(value, "item", None)  # numpy's scalars; an array of several has no single item
    if callable(item) and getattr(value, "ndim", 0) == 0:
        return plain(key, item())
    if hasattr(value, "tolist"):
        return plain(key, value.tolist())
    raise ScenarioError(key, f"expected a number, text, true or false, a list or a dictionary, got {value!r}")
