"""Reads ``recording.jsonl`` back (``writer.py`` has the form, ``codec.py`` the records).

Rule: a file that was cut, edited or mixed up is refused with its line, never half read. The end record counts the
lines and carries the run digest; both must agree with what was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ppsim.core.effects import Decision, Harvest
from ppsim.errors import UsageError
from ppsim.parsing import parse_json
from ppsim.recording.codec import BadField, messages_of, parse_row, visits_of
from ppsim.recording.digest import run_digest
from ppsim.recording.packed import DAMAGED, problem_of, text_lines
from ppsim.recording.record import Recording
from ppsim.recording.schema import (
    READABLE,
    SCHEMA,
    Arrival,
    Came,
    Ingested,
    Left,
    Mark,
    Observed,
    Origin,
    Refused,
    Sampled,
    Span,
    Stand,
    Stored,
    TimedReply,
)


class RecordingError(UsageError):
    """A recording cannot be read. ``line`` counts from 1; 0 means the file as a whole."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(path, line, problem)
        self.path, self.line, self.problem = path, line, problem

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}" if self.line else f"{self.path}: {self.problem}"


def read_recording(path: Path) -> Recording:
    """Read a recording back. Raises RecordingError with file and line for anything that is not a whole recording."""
    try:
        with text_lines(path) as source:
            return read_lines(str(path), source)
    except OSError as error:
        raise RecordingError(str(path), 0, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RecordingError(str(path), 0, "is not a recording: it holds bytes that are no ASCII text") from None


def read_lines(path: str, source: Iterator[str]) -> Recording:
    head = next(whole_lines(path, source, first=1), "")
    if not head:
        raise RecordingError(path, 0, "is empty, expected a recording")
    recording = read_header(path, head)
    put = Placer(recording)
    number, text = 1, blake2b(head.encode("ascii"), digest_size=8)
    end: list[Any] | None = None
    for number, line in enumerate(whole_lines(path, source), 2):
        if end is not None:
            raise RecordingError(path, number, "text after the end record; two recordings in one file?")
        kind, fields = read_row(path, number, line)
        if kind == "end":
            end = [*fields, text.hexdigest()]
            continue
        text.update(line.encode("ascii"))
        try:
            put(kind, fields)
        except LookupError as error:
            raise RecordingError(path, number, f"record {kind!r}: {error.args[0]}") from None
    check_end(path, number, end, recording)
    return recording


def whole_lines(path: str, source: Iterator[str], first: int = 2) -> Iterator[str]:
    """The lines of a file, from number ``first`` on, as long as there are any to unpack."""
    number = first
    try:
        for line in source:
            yield line
            number += 1
    except DAMAGED as error:
        raise RecordingError(path, number, problem_of(error)) from None


def read_row(path: str, number: int, line: str) -> tuple[str, list[Any]]:
    if not line.endswith("\n"):
        raise RecordingError(path, number, "the line is cut off: the recording is not complete")
    try:
        return parse_row(parse_json(line))
    except json.JSONDecodeError as error:
        raise RecordingError(path, number, f"is not JSON at column {error.colno}: {error.msg}") from None
    except BadField as error:
        came = repr(error.came)
        came = came if len(came) <= 60 else came[:57] + "..."
        raise RecordingError(path, number, f"field {error.field!r}: expected {error.expected}, got {came}") from None
    except ValueError as error:
        raise RecordingError(path, number, f"cannot be read: {error}") from None


def read_header(path: str, line: str) -> Recording:
    try:
        head = parse_json(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != SCHEMA:
        raise RecordingError(path, 1, f'is not a recording: expected a header with "format":"{SCHEMA}"')
    if head.get("version") not in READABLE or type(head["version"]) is not int:
        known = " and ".join(map(str, READABLE))
        raise RecordingError(path, 1, f"has schema version {head.get('version')!r}, this ppsim reads version {known}")
    for key, kind in (("name", str), ("seed", int), ("world", str), ("pp_size", int), ("tp_replicas", int)):
        if type(head.get(key)) is not kind:
            raise RecordingError(path, 1, f"header field {key!r}: expected {kind.__name__}, got {head.get(key)!r}")
    if not (0 < head["pp_size"] <= 4096 and 0 < head["tp_replicas"] <= 4096):
        raise RecordingError(path, 1, f"impossible sizes: pp_size {head['pp_size']}, tp_replicas {head['tp_replicas']}")
    recording = Recording(
        head["pp_size"], tp_replicas=head["tp_replicas"], name=head["name"], seed=head["seed"], world=head["world"]
    )
    recording.concurrency = head.get("concurrency", 0)
    if type(recording.concurrency) is not int or recording.concurrency < 0:
        raise RecordingError(path, 1, f"header field 'concurrency': expected a number, got {recording.concurrency!r}")
    recording.origin = read_origin(path, head)
    return recording


def read_origin(path: str, head: dict[str, Any]) -> Origin:
    """What the run was made with; older recordings tell nothing."""
    fields = (head.get("ppsim", ""), head.get("changes", []), head.get("plugin"), head.get("plugin_digest"))
    version, changes, plugin, digest = fields
    is_list = isinstance(changes, list) and all(isinstance(name, str) for name in changes)
    if not (isinstance(version, str) and is_list and isinstance(plugin, str | None) and isinstance(digest, str | None)):
        raise RecordingError(path, 1, f"header: ppsim, changes, plugin, plugin_digest cannot be {fields!r}")
    return Origin(version, tuple(changes), plugin, digest)


def check_end(path: str, number: int, end: list[Any] | None, recording: Recording) -> None:
    if end is None:
        raise RecordingError(path, number, "the end record is missing: the recording is not complete")
    num_lines, digest, *texts = end
    if num_lines != number - 1:
        raise RecordingError(path, number, f"the end record counts {num_lines} lines before it, found {number - 1}")
    found = run_digest(recording)
    if digest != found:
        raise RecordingError(path, number, f"the records have digest {found}, the end record says {digest}: edited?")
    if texts[0] != texts[-1]:  # an older file has none of its own
        raise RecordingError(
            path, number, f"the lines have digest {texts[-1]}, the end record says {texts[0]}: edited?"
        )


class Placer:
    """Puts checked fields back where the worlds had put them. Raises LookupError for an impossible place."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.lists: dict[str, list[list[Any]]] = {"decision": recording.decisions, "harvest": recording.harvests}
        self.by_kind: dict[str, Callable[..., None]] = {
            "decision": lambda rank, *f: recording.decisions[self.rank(rank)].append(Decision(*f)),
            "harvest": lambda rank, *f: recording.harvests[self.rank(rank)].append(Harvest(*f)),
            "same": self.same,
            "observed": lambda rank, *f: recording.observations[self.rank(rank)].append(Observed(*f)),
            "span": lambda rank, *f: recording.spans[self.rank(rank)].append(Span(*f)),
            "arrival": lambda *f: recording.arrivals.append(Arrival(*f)),
            "ingested": lambda *f: recording.ingestions.append(Ingested(*f)),
            "stored": lambda *f: recording.stores.append(Stored(*f)),
            "sampled": lambda *f: recording.samples.append(Sampled(*f)),
            "replies": self.replies,
            "visits": self.visits,
            "messages": self.messages,
            "mark": lambda *f: recording.marks.append(Mark(*f)),
            "stand": self.stand,
            "warning": recording.warnings.append,
            "prompt": recording.prompt,
            "refusal": lambda *f: recording.refusals.append(Refused(*f)),
            "left": lambda rank, *f: recording.left[self.rank(rank)].append(Left(*f)),
            "came": lambda rank, *f: recording.came[self.rank(rank)].append(Came(*f)),
        }

    def __call__(self, kind: str, fields: list[Any]) -> None:
        self.by_kind[kind](*fields)

    def rank(self, rank: int) -> int:
        if not 0 <= rank < self.recording.num_ranks:
            raise LookupError(f"rank {rank}, but the run has ranks 0 to {self.recording.num_ranks - 1}")
        return rank

    def same(self, rank: int, kind: str, first: int, count: int) -> None:
        if kind not in self.lists:
            raise LookupError(f"kind {kind!r}, expected decision or harvest")
        lists = self.lists[kind]
        mine = lists[self.rank(rank)]
        if first != len(mine) or count < 1 or first + count > len(lists[0]) or not rank:
            raise LookupError(
                f"rank {rank} takes {kind}s {first} to {first + count - 1} of rank 0, "
                f"but has {len(mine)} so far and rank 0 has {len(lists[0])}"
            )
        mine.extend(lists[0][first : first + count])

    def visits(self, rank: int, first: int, times: tuple[int, ...]) -> None:
        mine = self.recording.visits[self.rank(rank)]
        if first != len(mine):
            raise LookupError(f"rank {rank} goes on with iteration {first}, but has {len(mine)} so far")
        mine.extend(visits_of(times))

    def messages(self, src: int, dst: int, kind: str, times: tuple[int, ...]) -> None:
        key = (self.rank(src), self.rank(dst), kind)
        self.recording.messages.setdefault(key, []).extend(messages_of(times))

    def stand(
        self, rank: int, iteration: int, slot: int | None, doing: str, peer: int | None, since: int | None
    ) -> None:
        waits_for = None if peer is None else self.rank(peer)
        self.recording.stands.append(Stand(self.rank(rank), iteration, slot, doing, waits_for, since))

    def replies(self, iteration: int, time_ns: int, replies: tuple[tuple[Any, ...], ...]) -> None:
        self.recording.replies.extend(TimedReply(time_ns, iteration, *fields) for fields in replies)
