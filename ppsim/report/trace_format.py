"""Trace events as Chrome's tracing and Perfetto read them: one event, one line of JSON.

Rule: times are microseconds with three decimals, written from integers, so that no nanosecond is lost. A slice is a
complete event (phase X) on a thread, and slices of a thread lie beside each other or inside each other: what overlaps
otherwise gets a thread of its own. The numbers of threads are unique in the whole file, as Perfetto wants them.

    X  slice        ts, dur
    s  flow starts, t goes on, f ends: same cat, name and id; bound to the slice around their time (bp "e")
    C  counter      args: name -> number
    i  instant      s: g everywhere, p of a process, t of a thread
    M  metadata     names and order of processes and threads
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ppsim.errors import UsageError

ENDINGS = (".json", ".json.gz")
THREADS_OF_A_PROCESS = 1000  # numbers kept for each


class Slice(NamedTuple):
    """[start_ns, end_ns) on a thread."""

    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any]


def microseconds(time_ns: int) -> str:
    """As JSON writes it: no exponent, and no digits that say nothing."""
    whole, rest = divmod(abs(time_ns), 1000)
    text = f"{whole}.{rest:03d}".rstrip("0").rstrip(".")
    return f"-{text}" if time_ns < 0 else text


def event(phase: str, name: str, pid: int, tid: int, ts_ns: int | None, **more: Any) -> str:
    """One event. Values that end in ``_ns`` become microseconds under the name without the ending."""
    fields = [f'"ph":{text(phase)}', f'"name":{text(name)}', f'"pid":{pid}', f'"tid":{tid}']
    if ts_ns is not None:
        fields.append(f'"ts":{microseconds(ts_ns)}')
    for key, value in more.items():
        if key.endswith("_ns"):
            fields.append(f"{text(key[:-3])}:{microseconds(value)}")
        else:
            fields.append(f"{text(key)}:{text(value)}")
    return "{" + ",".join(fields) + "}"


text = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


def slice_event(cat: str, pid: int, tid: int, s: Slice) -> str:
    return event("X", s.name, pid, tid, s.start_ns, dur_ns=s.end_ns - s.start_ns, cat=cat, args=s.args)


def flow(name: str, number: int, ends: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    """An arrow through slices: (pid, tid, ns) of two or more of them, in order of time."""
    last = len(ends) - 1
    for i, (pid, tid, at_ns) in enumerate(ends):
        phase = "s" if i == 0 else "f" if i == last else "t"
        bound = {} if phase == "s" else {"bp": "e"}
        yield event(phase, name, pid, tid, at_ns, cat="message", id=number, **bound)


def names(pid: int, process: str, threads: Mapping[int, str]) -> Iterator[str]:
    """Names of a process and its threads, in the order in which they are to be shown."""
    yield event("M", "process_name", pid, 0, None, args={"name": process})
    yield event("M", "process_sort_index", pid, 0, None, args={"sort_index": pid})
    for tid, name in threads.items():
        yield event("M", "thread_name", pid, tid, None, args={"name": name})
        yield event("M", "thread_sort_index", pid, tid, None, args={"sort_index": tid})


def side_by_side(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices on as few threads as they need so that none overlaps another; each goes on the first that is free."""
    threads: list[list[Slice]] = []
    for s in sorted(slices, key=lambda s: (s.start_ns, s.end_ns)):
        free = next((thread for thread in threads if thread[-1].end_ns <= s.start_ns), None)
        if free is None:
            threads.append([s])
        else:
            free.append(s)
    return threads


def inside(s: Slice) -> int:
    """An instant at which only this slice of its thread is open: its middle, but not far from its begin."""
    return s.start_ns + min((s.end_ns - s.start_ns) // 2, 1000)


def write_trace(events: Iterable[str], other: Mapping[str, Any], path: Path) -> None:
    """The whole file; an ending .gz packs it. Same events, same bytes. Raises UsageError; leaves no half file."""
    if not path.name.endswith(ENDINGS):
        raise UsageError(f"-o {path}: a trace is a {' or '.join(ENDINGS)} file")
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as raw:
            if path.name.endswith(".gz"):
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                    put_lines(events, other, packed)
            else:
                put_lines(events, other, raw)
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror or error}") from None
    finally:
        if part.is_file():
            part.unlink()


def put_lines(events: Iterable[str], other: Mapping[str, Any], out: Any) -> None:
    out.write(f'{{"displayTimeUnit":"ns","otherData":{text(other)},"traceEvents":[\n'.encode("ascii"))
    comma = ""
    for line in events:
        out.write(f"{comma}{line}".encode("ascii"))
        comma = ",\n"
    out.write(b"\n]}\n")
