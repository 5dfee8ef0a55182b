"""The flag table: what each engine calls a value, how it is typed, and what it is when nobody gives it.

The table is data (``ppsim/data/launch_flags.tsv``); the rules for reading a spelling are argparse's: an exact name
wins, then a unique prefix. SGLang takes dashes only, vLLM takes underscores too and short flags with one dash. A prefix
that became ambiguous when later versions added flags is read as the flag that existed first, and said so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, Literal

Kind = Literal["flag", "env", "app", "json", "field"]
Engine = Literal["sglang", "vllm"]

HUMAN_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
TRUE_WORDS = ("1", "true", "yes", "on", "y", "t")
FALSE_WORDS = ("0", "false", "no", "off", "n", "f", "")


@dataclass(frozen=True, slots=True)
class Flag:
    """One row. ``dest`` names the value in SGLang's words, the same for both engines where it means the same."""

    kind: Kind
    engine: str
    dest: str
    names: tuple[str, ...]
    type: str
    default: Any
    since: str
    old_names: tuple[str, ...]
    note: str

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def takes_value(self) -> bool:
        return self.type not in ("switch", "bool")


@dataclass(frozen=True, slots=True)
class Match:
    """How a spelling was understood. ``rivals`` are further flags that the same abbreviation could mean."""

    flag: Flag
    how: Literal["exact", "old", "abbreviation"]
    rivals: tuple[Flag, ...] = ()
    negated: bool = False
    underscores: bool = False


@cache
def table() -> tuple[Flag, ...]:
    """All rows, in file order."""
    text = resources.files("ppsim").joinpath("data/launch_flags.tsv").read_text(encoding="utf-8")
    rows = []
    for line in text.splitlines()[1:]:
        kind, engine, dest, names, type_, default, since, old_names, note = line.split("\t")
        empty: dict[str, Any] = {"-": None}
        value = empty[default] if default in empty else read_value(type_, [default])
        olds = () if old_names == "-" else tuple(old_names.split())
        rows.append(
            Flag(
                kind,  # type: ignore[arg-type]
                engine,
                dest,
                tuple(names.split()),
                type_,
                value,
                "" if since == "-" else since,
                olds,
                "" if note == "-" else note,
            )
        )
    return tuple(rows)


@cache
def rows(engine: str, kind: Kind) -> dict[str, Flag]:
    """Every current name of an engine's rows of one kind."""
    return {name: flag for flag in table() if flag.engine == engine and flag.kind == kind for name in flag.names}


@cache
def old_names(engine: str) -> dict[str, Flag]:
    return {name: flag for flag in table() if flag.engine == engine and flag.kind == "flag" for name in flag.old_names}


@cache
def defaults(engine: str) -> dict[str, Any]:
    """Value of every dest that nobody gives; None where the engine decides at start (see the note of the row)."""
    found: dict[str, Any] = {}
    for flag in table():
        if flag.engine == engine and flag.kind in ("flag", "env", "json"):
            found.setdefault(flag.dest, flag.default)
    return found


@cache
def fields(engine: str) -> dict[str, Flag]:
    """Names as a dump of arguments or a config file writes them: dests, and flags without dashes."""
    found: dict[str, Flag] = {}
    for flag in table():
        if flag.engine != engine or flag.kind not in ("flag", "field"):
            continue
        for name in (flag.dest, *flag.names, *flag.old_names):
            if not name.startswith("-") or name.startswith("--"):
                found.setdefault(name.lstrip("-").replace("-", "_"), flag)
    return found


def find(engine: str, spelling: str, extra: Sequence[str] = ()) -> Match | None:
    """Understand a flag as argparse would, or None. ``extra`` names further engines whose flags are known too."""
    for owner in (engine, *extra):
        match = exact(owner, spelling)
        if match is not None:
            return match
    for owner in (engine, *extra):
        match = abbreviation(owner, spelling)
        if match is not None:
            return match
    return None


def exact(engine: str, spelling: str) -> Match | None:
    known = rows(engine, "flag")
    if spelling in known:
        return Match(known[spelling], "exact")
    if spelling in old_names(engine):
        return Match(old_names(engine)[spelling], "old")
    if not spelling.startswith("--"):
        return None
    dashed = "--" + spelling[2:].replace("_", "-")
    underscores = dashed != spelling
    if underscores and (dashed in known or dashed in old_names(engine)):
        how: Literal["exact", "old"] = "exact" if dashed in known else "old"
        return Match(known[dashed] if dashed in known else old_names(engine)[dashed], how, underscores=True)
    if dashed.startswith("--no-") and "--" + dashed[5:] in known:
        flag = known["--" + dashed[5:]]
        if flag.type == "bool":
            return Match(flag, "exact", negated=True, underscores=underscores)
    return None


def abbreviation(engine: str, spelling: str) -> Match | None:
    """A prefix of a long name. Of several flags the one that existed first; never a guess between equals."""
    if not spelling.startswith("--") or len(spelling) < 4:
        return None
    dashed = spelling.replace("_", "-") if engine == "vllm" else spelling
    found: dict[str, Flag] = {}
    for name, flag in rows(engine, "flag").items():
        if name.startswith(dashed):
            found.setdefault(flag.dest, flag)
    if not found:
        return None
    ranked = sorted(found.values(), key=lambda flag: (version_key(flag.since), shortest(flag, dashed)))
    best, rivals = ranked[0], tuple(ranked[1:])
    if rivals and version_key(rivals[0].since) == version_key(best.since):
        return None
    return Match(best, "abbreviation", rivals, underscores=dashed != spelling)


def shortest(flag: Flag, prefix: str) -> int:
    return min(len(name) for name in flag.names if name.startswith(prefix))


def version_key(since: str) -> tuple[int, ...]:
    return tuple(int(part) for part in since.split(".") if part.isdigit()) if since else (0,)


def nearest(engine: str, spelling: str) -> str | None:
    """Closest known name, for a message."""
    close = get_close_matches(spelling.replace("_", "-"), rows(engine, "flag"), n=1, cutoff=0.8)
    return close[0] if close else None


def read_value(type_: str, words: Sequence[str]) -> Any:
    """Convert the words of a flag. Raises ValueError with what was expected."""
    if type_ in ("switch", "bool", "envbool"):
        return read_bool(words[0])
    if type_ == "list":
        return tuple(words)
    text = words[0].strip()
    if type_ == "int":
        return read_int(text)
    if type_ == "human":
        return read_human(text)
    if type_ == "float":
        return read_float(text)
    if type_ == "layers":
        return read_layers(text)
    if type_ == "json":
        return read_json(text)
    return words[0]


def read_bool(text: str) -> bool:
    low = text.strip().lower()
    if low in TRUE_WORDS or low in FALSE_WORDS:
        return low in TRUE_WORDS
    raise ValueError(f"expected true or false, got {text!r}")


def read_int(text: str) -> int:
    digits = text[1:] if text[:1] in "+-" else text
    if not digits.isascii() or not digits.replace("_", "").isdigit() or len(digits) > 20:
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(text)


def read_human(text: str) -> int:
    """vLLM's sizes: k, m, g are decimal and may carry a fraction; K, M, G are binary and whole."""
    unit = HUMAN_UNITS.get(text[-1:])
    if unit is None:
        return read_int(text)
    number = text[:-1]
    if unit % 10:
        return read_int(number) * unit
    return round(read_float(number) * unit)


def read_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text!r}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"expected a finite number, got {text!r}")
    return value


def read_layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(read_int(part.strip()) for part in text.strip("[]() ").split(","))
    except ValueError:
        raise ValueError(f"expected layers of each stage, as in 20,20,21, got {text!r}") from None
    if any(count <= 0 for count in layers):
        raise ValueError(f"expected a positive number of layers in each stage, got {text!r}")
    return layers


def read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"expected JSON, got {text[:60]!r}") from None
