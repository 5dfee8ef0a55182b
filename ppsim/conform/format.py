"""The file of recorded decisions: JSON, one run a line, plain or gzipped (docs/conform.md has every field).

Rule: a line is taken as a whole or refused with its number and the field. Nothing is guessed, no key is passed over, no
number is taken that the scheduler could not have made.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ppsim.errors import TraceError
from ppsim.parsing import decoded

VERSION = 1
MODES = ("extend", "decode", "mixed", "empty")
POLICIES = ("fcfs", "lpm")
MAX_SLOTS = 4096
MAX_ROWS = 2**20
MAX_TOKENS = 2**40
MAX_TOKEN_ID = 2**32 - 1
MAX_SHOWN = 60  # characters of a wrong value in a message

Check: TypeAlias = Callable[[str, Any], Any]
"""Takes the name of a field and its value; gives the value, or raises Wrong."""


class Wrong(ValueError):
    """A value that its field does not hold."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field, self.problem = field, problem


class RecordedRunError(TraceError):
    """A file of recorded runs cannot be read. Without a field the line as a whole is wrong."""

    def __str__(self) -> str:
        if self.field or not self.line:
            return super().__str__()
        return f"{self.path}:{self.line}: {self.problem}"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """``samples[n]`` is the token that was sampled as output token n + 1."""

    at_iteration: int
    rid: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    samples: tuple[int, ...]
    ignore_eos: bool = False
    return_logprob: bool = False


@dataclass(frozen=True, slots=True)
class RecordedVisit:
    """What iteration i decided in slot i mod L, and what was free after it and after the harvest behind it."""

    mode: str
    pieces: tuple[tuple[str, int, int], ...]
    retracted: tuple[str, ...]
    aborted: tuple[str, ...]
    chunked: str | None
    waiting: tuple[str, ...]
    running: tuple[str, ...]
    full: bool
    ratio: float
    free: int
    ev: int
    free2: int
    ev2: int


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One line of the file; ``line`` counts from 1, ``where`` is the file as the user gave it."""

    where: str
    line: int
    seed: int
    config: Mapping[str, Any]
    requests: tuple[RecordedRequest, ...]
    visits: tuple[RecordedVisit, ...]

    def wrong(self, field: str, problem: str) -> RecordedRunError:
        """The error for a field of this run that turns out not to fit only when the run is driven."""
        return RecordedRunError(self.where, self.line, field, problem)


def read_runs(path: str) -> list[RecordedRun]:
    """All runs of a file. Raises RecordedRunError with line and field for what is not a whole, possible run."""
    runs = []
    for number, text in enumerate(lines_of(path), 1):
        if not text.strip():
            continue
        try:
            runs.append(run_of(path, number, parsed(text)))
        except Wrong as error:
            raise RecordedRunError(path, number, error.field, error.problem) from None
    if not runs:
        raise RecordedRunError(path, 0, "", "holds no run: expected one JSON object a line")
    return runs


def lines_of(path: str) -> list[str]:
    """The lines of a plain or gzipped file."""
    data = Path(path).read_bytes()
    zipped = data[:2] == b"\x1f\x8b"
    if path.endswith(".gz") and not zipped:
        raise RecordedRunError(path, 0, "", "is not a gzip file although its name ends in .gz")
    try:
        text = decoded(gzip.decompress(data) if zipped else data)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordedRunError(path, 0, "", f"cannot be unzipped: {error}") from None
    except ValueError as error:
        raise RecordedRunError(path, 0, "", f"is not text: {error}") from None
    return text.split("\n")


def parsed(text: str) -> Any:
    """The JSON value of a line. Names given twice and the constants NaN and Infinity are refused."""
    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise Wrong("", f"is not JSON at column {error.colno}: {error.msg}; is the line cut off?") from None
    except RecursionError:
        raise Wrong("", "is nested too deeply to be a run") from None
    except Wrong:
        raise
    except ValueError as error:
        raise Wrong("", f"is not JSON: {error}") from None


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise Wrong(next(name for name in names if names.count(name) > 1), "stands twice in one object")
    return found


def refuse_constant(name: str) -> NoReturn:
    raise Wrong("", f"{name} is no number of JSON")


# --- a run -----------------------------------------------------------------------------------------------------


def run_of(where: str, line: int, value: Any) -> RecordedRun:
    """A run from the JSON value of its line. Raises Wrong."""
    raw = record("", RUN, RUN_OPTIONS)("", value)
    if raw["version"] != VERSION:
        raise Wrong("version", f"{raw['version']} is not known, this ppsim reads version {VERSION}")
    requests = tuple(RecordedRequest(**each) for each in raw["requests"])
    visits = tuple(RecordedVisit(**each) for each in raw["visits"])
    run = RecordedRun(where, line, raw["seed"], raw["config"], requests, visits)
    check_config(run.config)
    known: set[str] = set()
    for i, request in enumerate(requests):
        if request.rid in known:
            raise Wrong(f"requests[{i}].rid", f"{shown(request.rid)} is the id of an earlier request")
        known.add(request.rid)
        if request.at_iteration >= len(visits):
            problem = f"{request.at_iteration} is behind the last visit, {len(visits) - 1}: the request never arrives"
            raise Wrong(f"requests[{i}].at_iteration", problem)
    for i, visit in enumerate(visits):
        check_visit(f"visits[{i}]", visit, known, run.config["max_total_tokens"])
    return run


def check_config(config: Mapping[str, Any]) -> None:
    """What the values of a configuration must be to each other."""
    chunk, table = config["chunked_prefill_size"], config["chunk_table"]
    if config["page_size"] > config["max_total_tokens"]:
        raise Wrong("config.page_size", f"{config['page_size']} is more than max_total_tokens")
    if table and chunk is None:
        raise Wrong("config.chunk_table", "is given although chunked_prefill_size is null: no prompt is cut")
    starts = [start for start, _ in table]
    if starts != sorted(set(starts)):
        raise Wrong("config.chunk_table", f"prefix lengths must rise, got {shown(starts)}")


def check_visit(name: str, visit: RecordedVisit, known: set[str], capacity: int) -> None:
    """What a visit must be in itself; whether it is right is what the comparison is for."""
    if (visit.mode == "empty") != (not visit.pieces):
        raise Wrong(f"{name}.pieces", f"{len(visit.pieces)} pieces do not fit mode {visit.mode!r}")
    rids = [rid for rid, _, _ in visit.pieces]
    if len(set(rids)) < len(rids):
        raise Wrong(f"{name}.pieces", "a request stands in the batch twice")
    chunked = () if visit.chunked is None else (visit.chunked,)
    named = {"pieces": rids, "retracted": visit.retracted, "aborted": visit.aborted, "chunked": chunked}
    for field, names in {**named, "waiting": visit.waiting, "running": visit.running}.items():
        for rid in names:
            if rid not in known:
                raise Wrong(f"{name}.{field}", f"{shown(rid)} is no request of this run")
    for free, evictable, field in ((visit.free, visit.ev, "free"), (visit.free2, visit.ev2, "free2")):
        if free + evictable > capacity:
            raise Wrong(f"{name}.{field}", f"{free} free and {evictable} evictable tokens are more than {capacity}")


# --- values ----------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def whole(least: int, most: int) -> Check:
    def checked(name: str, value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise Wrong(name, f"expected a whole number from {least} to {most}, got {shown(value)}")
        return value

    return checked


def truth(name: str, value: Any) -> Any:
    if type(value) is not bool:
        raise Wrong(name, f"expected true or false, got {shown(value)}")
    return value


def text(name: str, value: Any) -> Any:
    if type(value) is not str or not value:
        raise Wrong(name, f"expected a text that is not empty, got {shown(value)}")
    return value


def one_of(*allowed: str) -> Check:
    def checked(name: str, value: Any) -> Any:
        if value not in allowed or type(value) is not str:
            raise Wrong(name, f"expected one of {', '.join(allowed)}, got {shown(value)}")
        return value

    return checked


def part(name: str, value: Any) -> Any:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise Wrong(name, f"expected a number from 0 to 1, got {shown(value)}")
    return float(value)


def or_null(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def many(check: Check, least: int = 0) -> Check:
    def checked(name: str, value: Any) -> Any:
        if type(value) is not list or len(value) < least:
            raise Wrong(name, f"expected a list of {least} or more, got {shown(value)}")
        return tuple([check(f"{name}[{i}]", item) for i, item in enumerate(value)])

    return checked


def row(*checks: Check) -> Check:
    def checked(name: str, value: Any) -> Any:
        if type(value) is not list or len(value) != len(checks):
            raise Wrong(name, f"expected a list of {len(checks)}, got {shown(value)}")
        return tuple([check(f"{name}[{i}]", item) for i, (check, item) in enumerate(zip(checks, value))])

    return checked


def record(prefix: str, fields: dict[str, Check], options: dict[str, tuple[Any, Check]] | None = None) -> Check:
    """An object with exactly these fields; ``options`` may be missing: (value then, check)."""
    extra = options or {}

    def checked(name: str, value: Any) -> Any:
        at = f"{name}." if name else ""
        if type(value) is not dict:
            raise Wrong(name, f"expected an object with {', '.join(fields)}, got {shown(value)}")
        for key in value:
            if key not in fields and key not in extra:
                raise Wrong(f"{at}{key}", f"is not known; there are: {', '.join((*fields, *extra))}")
        for key in fields:
            if key not in value:
                raise Wrong(f"{at}{key}", "is missing")
        found = {key: check(f"{at}{key}", value[key]) for key, check in fields.items()}
        for key, (default, check) in extra.items():
            found[key] = check(f"{at}{key}", value[key]) if key in value else default
        return found

    return checked


TOKENS = whole(0, MAX_TOKENS)
POSITIVE = whole(1, MAX_TOKENS)
TOKEN_IDS = many(whole(0, MAX_TOKEN_ID))
RIDS = many(text)

CONFIG: dict[str, Check] = {
    "pp_size": whole(1, MAX_SLOTS),
    "pp_async_batch_depth": whole(0, MAX_SLOTS),
    "schedule_policy": one_of(*POLICIES),
    "chunked_prefill_size": or_null(POSITIVE),
    "max_prefill_tokens": POSITIVE,
    "prefill_max_requests": or_null(POSITIVE),
    "enable_mixed_chunk": truth,
    "prefill_decode_interval": TOKENS,
    "max_running_requests": whole(1, MAX_ROWS),
    "max_micro_batch_size": POSITIVE,
    "page_size": POSITIVE,
    "radix_cache": truth,
    "max_total_tokens": POSITIVE,
    "chunk_table": many(row(TOKENS, TOKENS)),
}
REQUEST: dict[str, Check] = {
    "at_iteration": TOKENS,
    "rid": text,
    "prompt": many(whole(0, MAX_TOKEN_ID), least=1),
    "max_new_tokens": POSITIVE,
    "stop_token_ids": TOKEN_IDS,
    "samples": TOKEN_IDS,
}
REQUEST_OPTIONS: dict[str, tuple[Any, Check]] = {"ignore_eos": (False, truth), "return_logprob": (False, truth)}
VISIT: dict[str, Check] = {
    "mode": one_of(*MODES),
    "pieces": many(row(text, TOKENS, TOKENS)),
    "retracted": RIDS,
    "aborted": RIDS,
    "chunked": or_null(text),
    "waiting": RIDS,
    "running": RIDS,
    "full": truth,
    "ratio": part,
    "free": TOKENS,
    "ev": TOKENS,
    "free2": TOKENS,
    "ev2": TOKENS,
}
RUN: dict[str, Check] = {
    "seed": whole(-(2**63), 2**63),
    "config": record("config", CONFIG),
    "requests": many(record("request", REQUEST, REQUEST_OPTIONS)),
    "visits": many(record("visit", VISIT), least=1),
}
RUN_OPTIONS: dict[str, tuple[Any, Check]] = {"version": (VERSION, whole(-(2**63), 2**63))}


def fields_of_a_visit() -> Iterator[str]:
    """In the order in which they are compared."""
    yield from VISIT
