"""``ranks/rank-N.jsonl``: what one rank records, written while it runs (docs/recording.md).

Rule: what has led to a message is on file before the message leaves. A rank that is killed at any moment has then told
nobody anything that its file does not know, so a file that breaks off can be replayed as far as it goes.

The lines are those of ``recording.jsonl`` (``codec.py``), in the order in which they came about. Every ``SUM_EVERY``
lines a ``sum`` tells how many lines there were and their digest, and ``end`` closes the file of a rank that has ended
by itself. So a file that was edited is told from one that breaks off.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ppsim.core.effects import Decision, Harvest, Reply
from ppsim.core.messages import Input
from ppsim.core.tokens import TokenBytes
from ppsim.errors import UsageError
from ppsim.recording.codec import (
    decision_text,
    harvest_text,
    ingested_fields,
    line_of,
    prompt_line,
    reply_fields,
    text_of,
)
from ppsim.recording.reader import Placer, RecordingError, read_header, read_row
from ppsim.recording.record import Recording
from ppsim.recording.schema import Came, Left
from ppsim.recording.writer import header

RANKS = "ranks"
LAUNCH = "launch.jsonl"  # beside them: what was known before a rank started, opening arrivals and warnings
PEER_RANKS = "prefill"  # two pipelines: below ``ranks/``, a folder like this one for the prefill side
SUM_EVERY = 256


class CannotRecord(UsageError):
    """A rank's file takes no more: the disk is full, or a limit on the size of files is reached."""


class RankFile:
    """The file of one rank. Lines wait in memory until ``flush``; each flush is one write to the end of the file.

    A file that has once refused a line takes none any more, even where there is room again: behind half a line nothing
    can be read.
    """

    def __init__(self, path: Path, recording: Recording, rank: int) -> None:
        self.path, self.waiting, self.num_lines = path, list[str](), 0
        self.digest = blake2b(digest_size=8)
        self.summed = 0
        self.refused: CannotRecord | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
            self.descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise CannotRecord(f"{path}: cannot be written: {error.strerror or error}") from None
        self.add(text_of({**header(recording), "rank": rank}))
        self.flush()

    def add(self, line: str) -> None:
        self.waiting.append(line)

    def flush(self, *, is_batch: bool = False) -> None:
        """Put what waits into the file. Raises CannotRecord; what was written before stays.

        ``is_batch``: a sum closes it, so that a reader knows that all of it is there.
        """
        if not self.waiting and not is_batch:
            return
        self.num_lines += len(self.waiting)
        text = b""
        if self.waiting:
            self.waiting.append("")
            text = "\n".join(self.waiting).encode("ascii")
            self.waiting.clear()
        self.digest.update(text)
        if is_batch or self.num_lines - self.summed >= SUM_EVERY:
            self.summed = self.num_lines
            text += line_of("sum", self.num_lines, self.digest.hexdigest()).encode("ascii") + b"\n"
        self._write(text)

    def _write(self, text: bytes) -> None:
        if self.refused is not None:
            raise self.refused
        try:
            while text:
                text = text[os.write(self.descriptor, text) :]
        except OSError as error:
            self.refused = CannotRecord(f"{self.path}: cannot be written: {error.strerror or error}")
            raise self.refused from None

    def close(self) -> None:
        """The rank has ended by itself."""
        self.flush()
        self._write(line_of("end", self.num_lines, self.digest.hexdigest()).encode("ascii") + b"\n")
        self.release()

    def release(self) -> None:
        """Nothing more is written, although the rank may not have ended."""
        with suppress(OSError):
            os.close(self.descriptor)


class KeptRecording(Recording):
    """The recording of one rank, in memory and in its file. Only what is about ``rank`` may be put into it.

    Records of numbers are formatted here, in the form of ``line_of``: a quarter of the time, several an iteration.
    """

    def __init__(self, of: Recording, rank: int, path: Path) -> None:
        super().__init__(of.pp_size, tp_replicas=of.tp_replicas, name=of.name, seed=of.seed, world=of.world)
        self.origin, self.keeps_prompts, self.concurrency = of.origin, True, of.concurrency
        self.file = RankFile(path, of, rank)

    def decision(self, rank: int, decision: Decision) -> None:
        super().decision(rank, decision)
        self.file.add(f'["decision",{rank},{decision_text(decision)}]')

    def harvest(self, rank: int, harvest: Harvest) -> None:
        super().harvest(rank, harvest)
        self.file.add(f'["harvest",{rank},{harvest_text(harvest)}]')

    def observed(self, rank: int, iteration: int, what: str, keys: tuple[str, ...], values: tuple[int, ...]) -> None:
        super().observed(rank, iteration, what, keys, values)
        self.file.add(line_of("observed", rank, *self.observations[rank][-1]))

    def stored(self, iteration: int, rid: str, statuses: Sequence[int | None]) -> None:
        super().stored(iteration, rid, statuses)
        self.file.add(line_of("stored", *self.stores[-1]))

    def span(self, rank: int, stream: str, slot: int, iteration: int, start_ns: int, end_ns: int) -> None:
        super().span(rank, stream, slot, iteration, start_ns, end_ns)
        self.file.add(f'["span",{rank},"{stream}",{slot},{iteration},{start_ns},{end_ns}]')

    def visited(self, rank: int, time_ns: int) -> None:
        super().visited(rank, time_ns)
        self.file.add(f'["visits",{rank},{len(self.visits[rank]) - 1},[{time_ns}]]')

    def has_left(self, rank: int, left: Left) -> None:
        super().has_left(rank, left)
        dst, kind, iteration, leaves_ns, sent_ns = left
        self.file.add(f'["left",{rank},{dst},"{kind}",{iteration},{leaves_ns},{sent_ns}]')

    def has_come(self, rank: int, came: Came) -> None:
        super().has_come(rank, came)
        src, kind, iteration, arrival_ns = came
        self.file.add(f'["came",{rank},{src},"{kind}",{iteration},{arrival_ns}]')

    def arrival(self, rid: str, at_ns: int, num_prompt_tokens: int, num_output_tokens: int) -> None:
        super().arrival(rid, at_ns, num_prompt_tokens, num_output_tokens)
        self.file.add(line_of("arrival", rid, at_ns, num_prompt_tokens, num_output_tokens))

    def prompt(self, digest: str, tokens: TokenBytes) -> None:
        if digest not in self.prompts:
            super().prompt(digest, tokens)
            self.file.add(prompt_line(digest, tokens))

    def ingested(self, iteration: int, inputs: Sequence[Input], time_ns: int) -> None:
        super().ingested(iteration, inputs, time_ns)
        if inputs:
            self.file.add(line_of("ingested", *ingested_fields(self.ingestions[-1])))

    def reply(self, time_ns: int, reply: Reply) -> None:
        super().reply(time_ns, reply)
        last = self.replies[-1]
        self.file.add(line_of("replies", last.iteration, last.time_ns, (reply_fields(last),)))

    def sampled(self, iteration: int, slot: int, token_ids: tuple[int, ...]) -> None:
        super().sampled(iteration, slot, token_ids)
        self.file.add(f'["sampled",{iteration},{slot},[{",".join(map(str, token_ids))}]]')

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.file.add(line_of("warning", message))
        super().warn(message)


# --- reading -----------------------------------------------------------------------------------------------------


def write_launch(folder: Path, recording: Recording) -> None:
    """What is known before a rank starts. Files of an earlier run in this folder are gone then."""
    for _, path in files_of(folder):
        path.unlink(missing_ok=True)
    file = RankFile(folder / RANKS / LAUNCH, recording, -1)
    for message in recording.warnings:
        file.add(line_of("warning", message))
    for arrival in recording.arrivals:
        file.add(line_of("arrival", *arrival))
    for refused in recording.refusals:
        file.add(line_of("refusal", *refused))
    file.close()


def rank_path(folder: Path, rank: int) -> Path:
    """The file of a rank in a run folder."""
    return folder / RANKS / f"rank-{rank}.jsonl"


def read_rank(path: Path, max_sums: int | None = None, first: Recording | None = None) -> Recording:
    """What a rank has recorded, as far as its file goes; ``cuts`` says where it breaks off.

    ``max_sums``: what stands behind so many sums is left out. ``first``: of a simulated run, what the first rank has
    recorded, which others refer to. Raises RecordingError with the line for a file that is
    not of a rank, or was edited.
    """
    records = read_records(path)
    begin = next(records, None)
    if begin is None:
        raise RecordingError(str(path), 0, "has no whole line yet, expected a recording")
    _, head = begin
    recording = read_header(str(path), text_of(head[0]))
    if first is not None:
        recording.decisions[0], recording.harvests[0] = first.decisions[0], first.harvests[0]
    put = Placer(recording)
    number, is_whole, num_sums = 1, False, 0
    for number, (kind, fields) in enumerate(records, 2):
        if num_sums == max_sums:
            break
        if kind == "end":
            is_whole = True
        elif kind == "sum":
            num_sums += 1
        else:
            try:
                put(kind, fields)
            except LookupError as error:
                raise RecordingError(str(path), number, f"record {kind!r}: {error.args[0]}") from None
    if not is_whole:
        recording.cuts.append(f"rank {head[0].get('rank')} was cut short: its file ends with line {number}")
    return recording


def read_records(path: Path) -> Iterator[tuple[str, list[Any]]]:
    """(kind, checked fields) of each record of a rank's file, in order, at any moment of its run; first its header.

    Nothing is kept, so a file of any length can be read. A last line that is not whole yet is left out.
    """
    try:
        with path.open("rb") as source:
            yield from checked(str(path), source)
    except OSError as error:
        raise RecordingError(str(path), 0, f"cannot be read: {error.strerror or error}") from None


def checked(path: str, source: Iterator[bytes]) -> Iterator[tuple[str, list[Any]]]:
    digest, num_lines, is_over = blake2b(digest_size=8), 0, False
    for number, row in enumerate(source, 1):
        if not row.endswith(b"\n"):
            return
        if is_over:
            raise RecordingError(path, number, "text after the end record; two recordings in one file?")
        try:
            line = row.decode("ascii")
        except UnicodeDecodeError:
            raise RecordingError(path, number, "holds bytes that are no ASCII text") from None
        if number == 1:
            yield "header", [read_head(path, line)]
        else:
            kind, fields = read_row(path, number, line)
            if kind in ("sum", "end"):
                check_sum(path, number, fields, num_lines, digest.hexdigest())
                is_over = kind == "end"
                yield kind, fields
                continue
            yield kind, fields
        digest.update(row)
        num_lines += 1


def read_head(path: str, line: str) -> dict[str, Any]:
    from ppsim.parsing import parse_json

    read_header(path, line)
    head: dict[str, Any] = parse_json(line)
    if type(head.get("rank")) is not int:
        raise RecordingError(path, 1, f"header field 'rank': expected int, got {head.get('rank')!r}")
    return head


def check_sum(path: str, number: int, fields: Sequence[Any], num_lines: int, digest: str) -> None:
    if fields[0] != num_lines:
        raise RecordingError(path, number, f"counts {fields[0]} records before it, found {num_lines}")
    if fields[1] != digest:
        raise RecordingError(path, number, f"the lines have digest {digest}, this one says {fields[1]}: edited?")


def has_ranks(folder: Path) -> bool:
    """Whether there is a file of a rank in a run folder."""
    return (folder / RANKS / LAUNCH).is_file()


def discard_ranks(folder: Path) -> None:
    """The files of the ranks are of no use any more: the recording is written as a whole."""
    shutil.rmtree(folder / RANKS, ignore_errors=True)


def assemble(folder: Path) -> Recording:
    """The recording of a run from the files of its ranks, however far they go. Raises RecordingError."""
    whole = read_rank(folder / RANKS / LAUNCH)
    started = [(rank, path) for rank, path in files_of(folder) if next(read_records(path), None) is not None]
    limit = None  # ranks of a simulation are written batch by batch, all at one moment of the run
    if whole.world != "exec":
        limit = min((num_sums(path) for _, path in started), default=0) if len(started) == whole.num_ranks else 0
    parts: dict[int, Recording] = {}
    for rank, path in started:
        parts[rank] = read_rank(path, limit, parts.get(0) if limit is not None else None)
    for rank, part in parts.items():
        if header(part) != header(whole):
            raise RecordingError(str(rank_path(folder, rank)), 1, f"is of another run than {LAUNCH} beside it")
    for rank in range(whole.num_ranks):
        if rank in parts:
            whole.absorb(rank, parts[rank])
            whole.stands += parts[rank].stands[-1:]  # where it was at the end of the last batch
        else:
            whole.cuts.append(f"rank {rank} has left no record: it had not started")
    whole.join_messages()
    if has_ranks(folder / RANKS / PEER_RANKS):
        whole.peer = assemble(folder / RANKS / PEER_RANKS)
    return whole


def num_sums(path: Path) -> int:
    """Batches that a file holds to their end."""
    return sum(kind == "sum" for kind, _ in read_records(path))


def files_of(folder: Path) -> list[tuple[int, Path]]:
    """The files of the ranks in a run folder, by rank. Whatever else has such a name (a device has no end) is none."""
    paths = (path for path in (folder / RANKS).glob("rank-*.jsonl") if path.is_file())
    found = [(path.stem.removeprefix("rank-"), path) for path in paths]
    return sorted((int(number), path) for number, path in found if number.isdecimal())
