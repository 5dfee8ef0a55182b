"""Where each prefill line of a log stands in its prompt: the one place that computes prefixes, for every kind of line.

The prefix of a later chunk is not logged: it is what the chunks of its prompt before it reached, whatever
``#cached-token`` says (what the cache gave when the prompt was taken, or what is computed by now). A rank's own line
("Prefill rank batch") says neither what waits nor how many requests it holds; it takes its place from the batch line
that it belongs to, and follows from its own neighbours only where no batch line was logged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ppsim.sglang.batch_lines import BatchLine
from ppsim.sglang.stamps import Ranks

CHUNK_UNIT = 64  # chunk sizes are whole multiples of it: a size that comes once and is none is a prompt's own end


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prefill line stands in its prompt. ``known``: the prefix counts from the prompt's start."""

    prefix: int
    known: bool
    clear: bool = True  # False: it may belong to another prompt
    first: bool = False  # the first chunk of its prompt
    alone: bool = True  # False: several requests share the batch


def by_rank(lines: Iterable[BatchLine]) -> dict[Ranks, list[BatchLine]]:
    streams: dict[Ranks, list[BatchLine]] = {}
    for line in lines:
        if line.kind != "prefill_rank":
            streams.setdefault(line.ranks, []).append(line)
    return streams


def replicas(ranks: Ranks) -> Ranks:
    """What tells batches apart: TP ranks and stages see the same batch, data-parallel ranks their own."""
    return tuple(tag for tag in ranks if tag[0] in ("DP", "ATTN_DP"))


def usable(line: BatchLine) -> bool:
    return line.kind == "prefill" and line.state == "complete"


def place_chunks(stream: Sequence[BatchLine], replies: Sequence[int] = ()) -> list[Place | None]:
    """The place of each complete prefill line in its prompt; None for other lines.

    Decode lines may stand between two chunks of one prompt (they do in a pipeline); a line that cannot be read ends
    what is known.
    """
    places: list[Place | None] = []
    full = full_chunk(stream)
    before: BatchLine | None = None
    place: Place | None = None
    for i, line in enumerate(stream):
        if not usable(line):
            if line.kind == "prefill" or line.state in ("cut", "damaged"):
                before = place = None
            places.append(None)
            continue
        if before is None or place is None:
            place = first_place(line, stream[i - 1] if i else None)
        else:
            answered = bisect_left(replies, line.line) > bisect_left(replies, before.line)
            place = next_place(before, place, line, 0 if answered else full)
        before = line
        places.append(place)
    return places


def first_place(line: BatchLine, before: BatchLine | None) -> Place:
    """The first prefill line that is known of. A hit in the cache, or a decode line before it that saw nothing waiting,
    shows the first chunk of a prompt; in a pipeline decode lines stand between chunks too and show nothing."""
    pipelined = any(kind == "PP" for kind, _ in line.ranks)
    quiet = before is not None and before.kind == "decode" and before.state == "complete"
    queue = before.count("#queue-req") if before is not None else 1
    known = line.count("#cached-token") > 0 or (quiet and queue == 0 and not pipelined)
    return Place(line.count("#cached-token"), known, first=known)


def next_place(before: BatchLine, place: Place, line: BatchLine, full: int) -> Place:
    cached = line.count("#cached-token")
    if line.count("#new-seq") != 1:
        return Place(cached, False, clear=False)
    reached = place.prefix + before.count("#new-token")
    sure = "#pending-token" in line.fields and "#pending-token" in before.fields
    if before.count("#new-seq") == 1 and continues(before, line, full) and (sure or cached in (0, reached)):
        return Place(reached, place.known and (sure or cached == reached), place.clear)
    if cached > 0:
        return Place(cached, True, first=True)
    if starts(before, line, full):
        return Place(0, True, first=True)
    return Place(0, False, clear=False)


def continues(before: BatchLine, line: BatchLine, full: int) -> bool:
    """``line`` is the next chunk of the prompt that ``before`` left unfinished: what waited fell by it and no request
    left the queue. Without a count of what waited, a full chunk is taken to go on, and its prefix is relative."""
    if line.count("#queue-req") < before.count("#queue-req"):
        return False
    if "#pending-token" in before.fields and "#pending-token" in line.fields:
        fell = before.count("#pending-token") - line.count("#pending-token")
        return fell == line.count("#new-token") and line.count("#queue-req") == before.count("#queue-req")
    return full > 0 and before.count("#new-token") == full


def starts(before: BatchLine, line: BatchLine, full: int) -> bool:
    """``before`` finished its prompt: nothing waited behind it, a request left the queue, or it was no full chunk."""
    if "#pending-token" in before.fields:
        if before.count("#pending-token") == 0:
            return True
        fell = before.count("#pending-token") - line.count("#pending-token")
        return fell == line.count("#new-token") and line.count("#queue-req") == before.count("#queue-req") - 1
    return full > 0 and before.count("#new-token") < full


def left_over(line: BatchLine) -> int:
    """Tokens or requests that wait behind this batch, as far as the line says."""
    return line.count("#pending-token") + line.count("#queue-req")


def full_chunk(stream: Sequence[BatchLine]) -> int:
    """The chunk size of a log: the largest batch, if it comes more than once and was one request; 0 if none is."""
    sizes = [line.count("#new-token") for line in stream if usable(line) and line.count("#new-seq") == 1]
    largest = max(sizes, default=0)
    return largest if sizes.count(largest) > 1 else 0


# -- rank lines ----------------------------------------------------------------------------------------------


def place_rank_lines(lines: Sequence[BatchLine], placed: dict[Ranks, list[Place | None]]) -> dict[int, Place]:
    """Places of complete rank lines, by line. ``placed``: those of the batch lines of each rank (``place_chunks``)."""
    streams = by_rank(lines)
    found: dict[int, Place] = {}
    for ranks, stream in rank_streams(lines).items():
        owner = ranks if any(usable(line) for line in streams.get(ranks, ())) else leader(ranks, streams)
        if owner is None:
            found |= place_alone(stream)
            continue
        batches = [
            (line, place)
            for line, place in zip(streams[owner], placed[owner], strict=True)
            if line.kind == "prefill" and place is not None
        ]
        found |= matched(stream, batches, own=owner == ranks)
    return found


def rank_streams(lines: Iterable[BatchLine]) -> dict[Ranks, list[BatchLine]]:
    streams: dict[Ranks, list[BatchLine]] = {}
    for line in lines:
        if line.kind == "prefill_rank" and line.state == "complete":
            streams.setdefault(line.ranks, []).append(line)
    return streams


def leader(ranks: Ranks, streams: dict[Ranks, list[BatchLine]]) -> Ranks | None:
    """The first rank that logged batch lines among those that see the same batches."""
    same = [other for other in streams if replicas(other) == replicas(ranks) and any(map(usable, streams[other]))]
    return min(same, default=None)


def matched(stream: Sequence[BatchLine], batches: Sequence[tuple[BatchLine, Place]], *, own: bool) -> dict[int, Place]:
    """Rank lines with the batch lines that they belong to: in order, of as many tokens and, on one rank, before them.

    Where lines are missing on either side, a rank line takes the only batch of its size since the one before it; with
    several of that size nothing tells them apart, and with none it stands alone.
    """
    in_order = len(batches) >= len(stream) and all(
        belongs(line, batch, own) for line, (batch, _) in zip(stream, batches, strict=False)
    )
    found: dict[int, Place] = {}
    lost: list[BatchLine] = []
    after = 0
    for i, line in enumerate(stream):
        fitting = [i] if in_order else [j for j in range(after, len(batches)) if belongs(line, batches[j][0], own)]
        if not fitting:
            lost.append(line)
            continue
        batch, place = batches[fitting[0]]
        found[line.line] = replace(place, clear=place.clear and len(fitting) == 1, alone=batch.count("#new-seq") == 1)
        after = fitting[-1] + 1 if len(fitting) == 1 else after
    return found | place_alone(lost)


def belongs(line: BatchLine, batch: BatchLine, own: bool) -> bool:
    return batch.count("#new-token") == line.count("#new-token") and (batch.line < line.line or not own)


def place_alone(stream: Sequence[BatchLine]) -> dict[int, Place]:
    """Rank lines without batch lines. Behind a full chunk the same prompt may go on or another one begin: unless
    ``#cached-token`` is the sum of what came before, that prefix counts from an unknown place."""
    full = largest_chunk(stream)
    found: dict[int, Place] = {}
    before: BatchLine | None = None
    for line in stream:
        cached, place = line.count("#cached-token"), Place(line.count("#cached-token"), True, first=True)
        if before is not None and before.count("#new-token") == full:
            earlier = found[before.line]
            reached = earlier.prefix + full
            if cached in (0, reached):
                place = Place(reached, earlier.known and cached == reached, earlier.clear)
        found[line.line] = place
        before = line
    return found


def largest_chunk(stream: Sequence[BatchLine]) -> int:
    sizes = [line.count("#new-token") for line in stream]
    largest = max(sizes, default=0)
    return largest if sizes.count(largest) > 1 or largest % CHUNK_UNIT == 0 else 0
