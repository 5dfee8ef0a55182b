"""What a ``model_type`` implies without a key: tied embeddings, norms and biases, shared experts, other spellings.

``families.toml`` has a row for each, with its source. Sizes of vectors are written there as formulas over the fields of
the config, because they differ from family to family by nothing else:

    names       fields of the config as integers (absent, null and false are 0), and of the layer at hand: hidden,
                heads, kv_heads, d (head_dim), q (heads x head_dim), kv (kv_heads x head_dim), v and o (the same with
                the width of the values), ff (width of the dense block), experts, expert_ff, state_heads,
                state_elements, conv_channels, kernel, layer (its number), layers, vocab
    operators   + - * // == >, parentheses and integers; a division by 0 is 0
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from operator import add, mul, sub
from typing import Any

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: lambda a, b: a // b if b else 0,
}
Lookup = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Family:
    """A row. Formulas count elements: ``layer`` of every layer, ``attention``, ``state``, ``dense`` and ``moe`` of a
    layer that has such a part, ``model`` once. ``gate``: matrices of an attention's output gate,
    or by how many its query's differ from the usual.
    ``front``: tables beside the embedding. ``refuse``: why it cannot be read.
    ``usual``: kinds of the layers where the config names none: f full, w window, l linear, repeated; ``first`` replaces
    the first of them, ``last`` the last one."""

    known: bool = True
    source: str = "transformers"
    tie: bool = False
    norms: int = 2
    norm_bias: bool | str = False
    final_norm: int = 1
    gated: bool | str = True
    layer: str = "0"
    attention: str = "0"
    state: str = "0"
    dense: str = "0"
    moe: str = "0"
    model: str = "0"
    gate: str = "0"
    front: str = "0"
    extra: str = "0"
    router: str = ""
    shared: int = 0
    beside: str = "0"  # width of a dense block beside the experts
    architectures: list[str] = field(default_factory=list)  # that say it whatever model_type is
    mixer: str = "full"  # of every layer, where no field says it
    has_feed_forward: bool = True
    ff: str = ""  # width of a dense block, where it is not intermediate_size
    expert_in: str = "hidden"  # width of what goes into an expert
    words: dict[str, str] = field(default_factory=dict)  # kinds of layers that are called otherwise here
    window_pattern: int = 0
    usual: str = ""
    first: str = ""
    last: str = ""
    period_ends: bool = True  # the layer of another kind is the last of its period; else the first
    rotary_is_full: bool = False  # only layers without rotary positions have a window
    chunk_interval: int = 0  # one layer in so many is full, the others have chunks, where there are chunks
    window_kv_factor: int = 1  # layers with a window have so many times the heads of keys and values
    state_kind: str = ""
    window_pool: bool = False  # SGLang's is_hybrid_swa_model
    refuse: str = ""
    lifts: list[str] = field(default_factory=list)  # tables of the config whose fields are the model's own
    names: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)


UNKNOWN = Family(known=False, norms=0, final_norm=0)


@cache
def families() -> dict[str, Family]:
    """All rows by model_type, ``like`` resolved."""
    table: dict[str, dict[str, Any]] = tomllib.loads((files("ppsim") / "data" / "families.toml").read_text("utf-8"))
    found: dict[str, Family] = {}
    for key in table:
        found[key] = Family(**resolved(table, key))
    return found


def resolved(table: dict[str, dict[str, Any]], key: str) -> dict[str, Any]:
    """A row laid over the one that it is like."""
    row = dict(table[key])
    like = row.pop("like", None)
    if like is None:
        return row
    base = resolved(table, like)
    for inner in ("defaults", "names"):
        if inner in base or inner in row:
            row[inner] = {**base.get(inner, {}), **row.get(inner, {})}
    return {**base, **row}


@cache
def class_defaults() -> dict[str, dict[str, Any]]:
    """What the config class of a type has where a config says nothing, by type (``bench/model_zoo.py --defaults``).

    A config inside another one is saved without the fields that are the class's own defaults: Gemma 3's names neither
    its heads nor its vocabulary.
    """
    return tomllib.loads((files("ppsim") / "data" / "class_defaults.toml").read_text("utf-8"))


@cache
def parsed(formula: str) -> ast.expr:
    return ast.parse(f"({formula})", mode="eval").body


def evaluate(formula: str, lookup: Lookup) -> int:
    """Value of a formula of the table. Raises ValueError for what the language does not have: a fault of the table."""
    return int(value_of(parsed(formula), lookup))


def value_of(node: ast.expr, lookup: Lookup) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return lookup(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value_of(left, lookup), value_of(right, lookup))
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return int(value_of(left, lookup) == value_of(right, lookup))
        case ast.Compare(left=left, ops=[ast.Gt()], comparators=[right]):
            return int(value_of(left, lookup) > value_of(right, lookup))
    raise ValueError(f"no such term in a formula of families.toml: {ast.dump(node)}")
