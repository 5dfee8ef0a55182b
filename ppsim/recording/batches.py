"""``ranks/`` of a simulated run: what its ranks have recorded so far goes into their files, batch by batch.

Rule: all ranks are written at the same moments of the run, counted in iterations of the first one, and a ``sum`` closes
the batch in every file. So the bytes are a function of the run; and since nothing was recorded before that which led
to it, the batches that all files hold can be replayed, whenever the process was killed (``rank_file.assemble``).

Nothing is told record by record: a batch is what the lists of the recording have more than at the last one. What a rank
shares with the first one stands there alone, as in ``recording.jsonl``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ppsim.core.effects import Decision, Harvest
from ppsim.core.outcome import Stand
from ppsim.recording.codec import (
    decision_text,
    harvest_text,
    ingested_fields,
    line_of,
    message_lines,
    prompt_line,
    reply_lines,
)
from ppsim.recording.rank_file import RankFile, rank_path, write_launch
from ppsim.recording.record import Recording

T = TypeVar("T", Decision, Harvest)
ITERATIONS = 512  # of the first rank, from batch to batch


class Batches:
    """The files of one pipeline. ``stand_of`` says where a rank is. Raises CannotRecord wherever it writes."""

    def __init__(self, folder: Path, recording: Recording, stand_of: Callable[[int], Stand]) -> None:
        self.recording, self.stand_of = recording, stand_of
        self.done: dict[tuple[str, int], int] = {}  # records of a list that are written
        write_launch(folder, recording)
        self.skip("arrivals", recording.arrivals)
        self.files = [RankFile(rank_path(folder, rank), recording, rank) for rank in range(recording.num_ranks)]

    def close(self) -> None:
        """Nothing more is written."""
        for file in self.files:
            file.release()

    def skip(self, name: str, records: Sequence[object]) -> None:
        self.done[name, 0] = len(records)

    def new(self, name: str, rank: int, records: Sequence[object]) -> slice:
        """Where the records of this batch stand in a list."""
        start, stop = self.done.get((name, rank), 0), len(records)
        self.done[name, rank] = stop
        return slice(start, stop)

    def write(self) -> None:
        """One batch of all ranks."""
        for rank, file in enumerate(self.files):
            file.waiting += self.lines_of(rank)
            file.waiting.append(line_of("stand", *self.stand_of(rank)))
        for file in self.files:
            file.flush(is_batch=True)

    def lines_of(self, rank: int) -> list[str]:
        """What one rank has recorded since the last batch."""
        recording = self.recording
        found = self.lines_of_all() if rank == 0 else []
        found += self.shared("decision", rank, recording.decisions, decision_text)
        found += self.shared("harvest", rank, recording.harvests, harvest_text)
        seen, spans = recording.observations[rank], recording.spans[rank]
        found += [line_of("observed", rank, *look) for look in seen[self.new("observed", rank, seen)]]
        for stream, slot, iteration, start_ns, end_ns in spans[self.new("span", rank, spans)]:
            found.append(f'["span",{rank},"{stream}",{slot},{iteration},{start_ns},{end_ns}]')
        visits = recording.visits[rank]
        place = self.new("visits", rank, visits)
        if place.start < place.stop:
            times = visits[place]
            steps = [times[0], *(b - a for a, b in zip(times, islice(times, 1, None)))]
            found.append(f'["visits",{rank},{place.start},[{",".join(map(str, steps))}]]')
        for key in sorted(key for key in recording.messages if key[1] == rank):
            messages = recording.messages[key]
            found += message_lines(key, messages[self.new(f"{key[0]} {key[2]}", rank, messages)])
        return found

    def shared(self, kind: str, rank: int, lists: Sequence[Sequence[T]], text_of: Callable[[T], str]) -> list[str]:
        """Records of a kind; runs of those that are the first rank's very own become one line."""
        mine, first = lists[rank], lists[0]
        place, known = self.new(kind, rank, mine), self.done[kind, 0]
        found, at = [], place.start
        while at < place.stop:
            start = at
            while rank and at < min(place.stop, known) and mine[at] is first[at]:
                at += 1
            if at > start:
                found.append(f'["same",{rank},"{kind}",{start},{at - start}]')
            else:
                found.append(f'["{kind}",{rank},{text_of(mine[at])}]')
                at += 1
        return found

    def lines_of_all(self) -> list[str]:
        """What belongs to no single rank."""
        r = self.recording
        found = [line_of("arrival", *a) for a in r.arrivals[self.new("arrivals", 0, r.arrivals)]]
        prompts = list(r.prompts.items())
        found += [prompt_line(*prompt) for prompt in prompts[self.new("prompt", 0, prompts)]]
        for ingested in r.ingestions[self.new("ingested", 0, r.ingestions)]:
            found.append(line_of("ingested", *ingested_fields(ingested)))
        found += [line_of("stored", *stored) for stored in r.stores[self.new("stored", 0, r.stores)]]
        for iteration, slot, token_ids in r.samples[self.new("sampled", 0, r.samples)]:
            found.append(f'["sampled",{iteration},{slot},[{",".join(map(str, token_ids))}]]')
        found += reply_lines(r.replies[self.new("replies", 0, r.replies)])
        return found + [line_of("mark", *mark) for mark in r.marks[self.new("mark", 0, r.marks)]]
