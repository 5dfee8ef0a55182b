"""``recording.jsonl``: a header, one record a line, and a last line that says how many and with which digest. With the
ending ``.gz`` the same text, packed.

Rule: the same recording gives the same bytes, whichever world made it and in whatever order it served its ranks.

Ranks that decided alike are written once: ``["same", rank, kind, first, count]`` says that a rank's records
[first, first + count) of a kind are those of rank 0. Where a line of a rank stands out in full, it differed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from ppsim.core.effects import Decision, Harvest
from ppsim.errors import UsageError
from ppsim.recording.codec import (
    decision_text,
    harvest_text,
    ingested_fields,
    line_of,
    message_lines,
    prompt_line,
    reply_lines,
    text_of,
    visit_lines,
)
from ppsim.recording.digest import run_digest
from ppsim.recording.packed import PACKED, opened
from ppsim.recording.record import Recording
from ppsim.recording.schema import SCHEMA, SCHEMA_VERSION

T = TypeVar("T", Decision, Harvest)


def write_recording(recording: Recording, path: Path, digest: str | None = None) -> None:
    """Write the file. ``digest`` is the run's where it is known. Raises UsageError if the place cannot be written."""
    digest = digest or run_digest(recording)
    num_lines, text = 0, blake2b(digest_size=8)
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with opened(fresh, packs=path.suffix == PACKED) as out:
            for line in lines(recording):
                row = line.encode("ascii") + b"\n"
                text.update(row)
                out.write(row)
                num_lines += 1
            out.write(line_of("end", num_lines, digest, text.hexdigest()).encode("ascii") + b"\n")
        os.replace(fresh, path)  # whole, or not there: half a file takes nobody's place
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def lines(recording: Recording) -> Iterator[str]:
    """All lines but the last: header, inputs, then the ranks in order, then what the clients got."""
    written = recording.written()
    if written is not None:
        yield from written
        return
    yield header_line(recording)
    for message in recording.warnings:
        yield line_of("warning", message)
    for arrival in recording.arrivals:
        yield line_of("arrival", *arrival)
    for refused in recording.refusals:
        yield line_of("refusal", *refused)
    for known, tokens in recording.prompts.items():
        yield prompt_line(known, tokens)
    for ingested in recording.ingestions:
        yield line_of("ingested", *ingested_fields(ingested))
    for rank in range(recording.num_ranks):
        yield from rank_lines("decision", rank, recording.decisions, decision_text)
        yield from rank_lines("harvest", rank, recording.harvests, harvest_text)
        for observed in recording.observations[rank]:
            yield line_of("observed", rank, *observed)
        for stored in recording.stores if rank == 0 else ():
            yield line_of("stored", *stored)
        for span in recording.spans[rank]:
            yield line_of("span", rank, *span)
    for rank in range(recording.num_ranks):
        yield from visit_lines(rank, recording.visits[rank])
    for key in sorted(recording.messages):
        yield from message_lines(key, recording.messages[key])
    for sampled in recording.samples:
        yield line_of("sampled", *sampled)
    yield from reply_lines(recording.replies)
    for mark in recording.marks:
        yield line_of("mark", *mark)
    for stand in recording.stands:
        yield line_of("stand", *stand)


def header_line(recording: Recording) -> str:
    return text_of(header(recording))


def header(recording: Recording) -> dict[str, object]:
    """What stands in the first line. What a run was made with stands there where there is something to tell."""
    origin = recording.origin
    return (
        {
            "format": SCHEMA,
            "version": SCHEMA_VERSION,
            "name": recording.name,
            "seed": recording.seed,
            "world": recording.world,
            "pp_size": recording.pp_size,
            "tp_replicas": recording.tp_replicas,
            **({"concurrency": recording.concurrency} if recording.concurrency else {}),
        }
        | ({"ppsim": origin.version} if origin.version else {})
        | ({"changes": origin.changes} if origin.changes else {})
        | ({"plugin": origin.plugin, "plugin_digest": origin.plugin_digest} if origin.plugin is not None else {})
    )


def rank_lines(kind: str, rank: int, lists: Sequence[Sequence[T]], text: Callable[[T], str]) -> Iterator[str]:
    """A rank's records of a kind; runs of records that it shares with rank 0 become one line."""
    first = lists[0]
    run_start = run_length = 0
    for place, record in enumerate(lists[rank]):
        if rank and place < len(first) and (record is first[place] or record == first[place]):
            run_start = run_start if run_length else place
            run_length += 1
            continue
        if run_length:
            yield line_of("same", rank, kind, run_start, run_length)
            run_length = 0
        yield f'["{kind}",{rank},{text(record)}]'
    if run_length:
        yield line_of("same", rank, kind, run_start, run_length)
