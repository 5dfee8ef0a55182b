"""A recording that does not grow: every few thousand iterations its records are counted, perhaps written, and dropped.

Rule: what it writes is what ``writer.write_recording`` writes of the same run, to the byte, and what it counts is what
``summary.summarize`` reads from it (``tally.py``). For a run whose ranks decide alike (``ppsim.world.representative``):
the first rank's decisions and harvests stand for all.

    run.keep      records                              digest of the run
    "file"        in the files of a ``Spool`` (below)  as ever
    "summary"     none                                 none: it is over all replies, behind everything else
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ppsim.core.effects import Reply
from ppsim.errors import UsageError
from ppsim.recording.codec import (
    ROW_LENGTH,
    decision_fields,
    harvest_fields,
    ingested_fields,
    line_of,
    message_lines,
    reply_lines,
    text_of,
    visit_lines,
)
from ppsim.recording.digest import SIZE
from ppsim.recording.packed import pack, text_lines
from ppsim.recording.record import Recording
from ppsim.recording.schema import TimedReply, Verdict
from ppsim.recording.tally import Tally
from ppsim.recording.writer import header_line

BATCH_ITERATIONS = 2048
"""Iterations whose records are held: some megabytes."""


class RecordStream(Recording):
    """``place``: the folder in which a spool may write; ``writes``: whether there is one; ``packs``: with gzip."""

    def __init__(
        self, pp_size: int, *, name: str, seed: int, writes: bool, packs: bool = False, place: Path | None = None
    ) -> None:
        super().__init__(pp_size, name=name, seed=seed)
        self.keep = "file" if writes else "summary"
        self.tally = Tally(pp_size)
        self.spool = Spool(pp_size, place, packs=packs) if writes else None
        self.last_iteration = -1  # that was passed on
        self._summary: dict[str, Any] | None = None

    @property
    def is_due(self) -> bool:
        """Whether so much is held that it should be passed on."""
        return len(self.decisions[0]) >= BATCH_ITERATIONS

    def reply(self, time_ns: int, reply: Reply) -> None:
        mine = self.decisions[0]
        iteration = mine[-1].iteration if mine else self.last_iteration
        self.replies.append(
            TimedReply(
                time_ns, iteration, reply.rid, reply.status, reply.token_ids, reply.num_output_tokens, reply.reason
            )
        )

    def pass_on(self, *, all_of_it: bool = False) -> None:
        """Count, write and drop what is held. Between two iterations of the first rank, all of whose replies have left.

        ``all_of_it``: also rows of times that are not full yet.
        """
        self.tally.take(self)
        if self.spool is not None:
            self.spool.take(self, all_of_it=all_of_it)
        if self.decisions[0]:
            self.last_iteration = self.decisions[0][-1].iteration
        held: tuple[list[Any], ...] = (self.arrivals, self.ingestions, self.replies, self.samples)
        for records in (*held, self.decisions[0], self.harvests[0], *self.spans):
            records.clear()
        rows: tuple[list[Any], ...] = (*self.visits, *self.messages.values())
        for times in rows:
            del times[: len(times) if all_of_it or self.spool is None else whole_rows(times)]

    def refused_requests(self) -> tuple[int, int, str]:
        self.pass_on()
        return self.tally.ended["refused"], self.tally.num_requests, self.tally.first_refused

    def counted(self, verdict: Verdict) -> dict[str, Any]:
        """The run is over: its figures."""
        if self._summary is None:
            self.pass_on(all_of_it=True)
            self.tally.settle()
            self._summary = self.tally.as_json(self, verdict)
            if self.spool is not None:
                self._summary["digest"] = self.spool.digest(self.tally)
        return self._summary

    def written(self) -> Iterator[str]:
        """As ``writer.lines``, of a run that is over. Raises UsageError where no records were kept."""
        if self.spool is None:
            raise UsageError(f"{self.name}: run.keep is 'summary': no records were kept")
        return self.spool.lines(self)


class Counted(Recording):
    """What is left of a run that kept its summary alone."""

    def __init__(self, summary: dict[str, Any]) -> None:
        super().__init__(len(summary["stages"]), name=summary["name"], seed=summary["seed"], world=summary["world"])
        self.keep = "summary"
        self.summary = summary

    def counted(self, verdict: Verdict) -> dict[str, Any]:
        return self.summary


def whole_rows(times: list[Any]) -> int:
    """How many of them fill lines; the rest stays for the next ones."""
    return len(times) // ROW_LENGTH * ROW_LENGTH


class Spool:
    """Lines on their way into a recording: one file for each of its sections, in the folder ``place``.

    A recording is ordered by rank and kind, and a run makes its records by time. The files go when the spool does.
    """

    def __init__(self, num_ranks: int, place: Path | None = None, *, packs: bool = False) -> None:
        self.num_ranks, self.packs = num_ranks, packs
        self.folder = tempfile.TemporaryDirectory(prefix=".records-", dir=place, ignore_cleanup_errors=True)
        self.num_decisions = self.num_harvests = 0
        self.num_visits = [0] * num_ranks

    def take(self, r: Recording, *, all_of_it: bool) -> None:
        """Write what a recording holds. Raises UsageError where there is no room."""
        self._put("arrival", (line_of("arrival", *arrival) for arrival in r.arrivals))
        self._put("ingested", (line_of("ingested", *ingested_fields(ingested)) for ingested in r.ingestions))
        self._put("decision", (line_of("decision", 0, *decision_fields(d)) for d in r.decisions[0]))
        self._put("harvest", (line_of("harvest", 0, *harvest_fields(h)) for h in r.harvests[0]))
        self.num_decisions += len(r.decisions[0])
        self.num_harvests += len(r.harvests[0])
        for k in range(self.num_ranks):
            self._put(f"span-{k}", (line_of("span", k, *span) for span in r.spans[k]))
            visits = r.visits[k]
            num = len(visits) if all_of_it else whole_rows(visits)
            self._put(f"visits-{k}", visit_lines(k, visits[:num], self.num_visits[k]))
            self.num_visits[k] += num
        for key, messages in r.messages.items():
            num = len(messages) if all_of_it else whole_rows(messages)
            self._put("-".join(map(str, ("messages", *key))), message_lines(key, messages[:num]))
        self._put("sampled", (line_of("sampled", *sampled) for sampled in r.samples))
        self._put("replies", reply_lines(r.replies))

    def _put(self, section: str, lines: Iterable[str]) -> None:
        text = "".join([line + "\n" for line in lines]).encode("ascii")
        if not text:
            return
        try:
            with (Path(self.folder.name) / section).open("ab") as out:
                out.write(pack(text) if self.packs else text)
        except OSError as error:
            raise UsageError(f"{self.folder.name}: cannot be written: {error.strerror or error}") from None

    def section(self, name: str) -> Iterator[str]:
        """The lines of a section, in order, without their ends."""
        path = Path(self.folder.name) / name
        if path.exists():
            with text_lines(path) as lines:
                for line in lines:
                    yield line[:-1]

    def lines(self, r: Recording) -> Iterator[str]:
        """All lines but the last, in the order of ``writer.lines``."""
        yield header_line(r)
        for message in r.warnings:
            yield line_of("warning", message)
        yield from self.section("arrival")
        for refused in r.refusals:
            yield line_of("refusal", *refused)
        yield from self.section("ingested")
        for k in range(self.num_ranks):
            for kind, num in (("decision", self.num_decisions), ("harvest", self.num_harvests)):
                if k == 0:
                    yield from self.section(kind)
                elif num:
                    yield line_of("same", k, kind, 0, num)
            for observed in r.observations[k]:
                yield line_of("observed", k, *observed)
            yield from self.section(f"span-{k}")
        for k in range(self.num_ranks):
            yield from self.section(f"visits-{k}")
        for key in sorted(r.messages):
            yield from self.section("-".join(map(str, ("messages", *key))))
        yield from self.section("sampled")
        yield from self.section("replies")
        for stand in r.stands:
            yield line_of("stand", *stand)

    def digest(self, tally: Tally) -> str:
        """The digest of the run (``digest.digests_of``): the chains of all ranks, then all replies."""
        total = blake2b(digest_size=SIZE)
        for chain in (tally.decisions, tally.harvests):
            total.update(chain.link * self.num_ranks)
        for line in self.section("replies"):
            _, iteration, _, replies = json.loads(line)
            for reply in replies:
                total.update(text_of((iteration, *reply)).encode("ascii"))
        return total.hexdigest()

    def close(self) -> None:
        """Remove the files."""
        self.folder.cleanup()
