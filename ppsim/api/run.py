"""``Run``: a recording with its verdict, as tables, pictures, differences and a folder. Both worlds' runs are alike."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from ppsim.api import frames
from ppsim.errors import UsageError
from ppsim.recording import Recording, Verdict
from ppsim.recording.diff import Difference, first_difference
from ppsim.recording.folder import (
    CONFIG,
    find_recording,
    folder_of,
    incomplete,
    leave,
    mark_incomplete,
    open_run,
    open_summary,
    read_verdict,
    run_folder,
    write_run,
)
from ppsim.recording.summary import summarize
from ppsim.scenario.kept import digests_of, keep_files

if TYPE_CHECKING:
    import pandas as pd

    from ppsim.scenario.expect_judged import Expectations
    from ppsim.scenario.tree import Scenario

SIDES = ("prefill", "decode")
DRAWING = Lock()  # matplotlib's settings are the process's: a picture sets them, draws, and puts them back


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture that is not in a file yet; a notebook shows it. ``format``: png, svg or pdf."""

    content: bytes = field(repr=False)
    format: str = "png"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it. Raises UsageError where the place cannot be written, or its name promises another format."""
        from ppsim.report.canvas import write

        target = Path(path)
        if target.suffix.lower() != f".{self.format}":
            raise UsageError(
                f"{target}: this picture is {self.format}; draw it again with format={target.suffix[1:]!r}"
            )
        write(target, self.content)
        return target

    def _repr_png_(self) -> bytes | None:
        return self.content if self.format == "png" else None

    def _repr_svg_(self) -> str | None:
        return self.content.decode("utf-8") if self.format == "svg" else None


class Run:
    """One run, simulated or read back.

    ``verdict``: how it ended (``kind`` pass, fail or unknown; ``message``, ``invariant``, ``rank``, ``iteration``,
    ``slot``, ``rid``). ``recording``: every record (``ppsim.recording``). ``incomplete``: why it is not a whole run, or
    empty. ``unfired``: bugs and policies that were on and that nothing asked: its passing says nothing of them. Two
    pipelines (``disaggregation.role`` "pd"): a ``side`` is "prefill" or "decode"; without one, methods
    speak of the decode side, which answers the client.
    """

    def __init__(
        self,
        recording: Recording,
        verdict: Verdict,
        scenario: Scenario | Mapping[str, Any] | None = None,
        incomplete: str = "",
        unfired: Sequence[str] = (),
    ) -> None:
        self.recording = recording
        self.verdict = verdict
        self.incomplete = incomplete
        self.unfired = tuple(unfired)
        self._scenario = scenario

    def __repr__(self) -> str:
        s = self.summary
        requests = f"{s['num_finished']} of {s['num_requests']} requests finished"
        unfired = "".join(f", {name} fired 0 times" for name in self.unfired)
        return f"<Run {s['name']}, seed {s['seed']}: {self.verdict.kind}, {requests}, {s['makespan_s']:.6g} s{unfired}>"

    @property
    def passed(self) -> bool:
        """Whether the verdict is pass."""
        return self.verdict.kind == "pass"

    @cached_property
    def scenario(self) -> Scenario:
        """The whole scenario. Raises UsageError for a recording that lies in no run folder."""
        from ppsim.scenario.load import validate

        config = self._config()
        return validate(config) if isinstance(self._scenario, Mapping | None) else self._scenario

    def _config(self) -> Mapping[str, Any]:
        if self._scenario is None:
            raise UsageError(
                f"{self.recording.name}: the scenario is not known: there is no {CONFIG} beside the recording"
            )
        return self._scenario if isinstance(self._scenario, Mapping) else self._scenario.model_dump(mode="json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of ``ppsim run --json``; ``ppsim.recording.summary`` defines each."""
        return summarize(self.recording, self.verdict)

    @cached_property
    def expectations(self) -> Expectations | None:
        """What the scenario expects (``[expect]``) beside what came; None where it expects nothing. ``met`` sums it up,
        ``unmet`` has what is not, ``lines()`` says it as ``ppsim run`` does.

        Nothing is judged where keys or the policy have been changed: ``not_judged`` says which.
        """
        from ppsim.plugin import all_bugs
        from ppsim.scenario.expect_judged import expectations

        if self._scenario is None or (isinstance(self._scenario, Mapping) and "expect" not in self._scenario):
            return None
        stopped = self.incomplete.partition("\n")[0]
        return expectations(self.scenario, self.summary, self.verdict, stopped=stopped, known_bugs=[*all_bugs()])

    @property
    def digest(self) -> str:
        """Of decisions, tokens and replies, without times: equal runs have equal digests. Raises UsageError where
        ``run.keep`` is "summary": it is over all replies."""
        if self.summary["digest"] is None:
            raise UsageError(f"{self.recording.name}: run.keep is 'summary': there is no digest of all replies")
        return str(self.summary["digest"])

    @property
    def warnings(self) -> list[str]:
        """What one should know although the run went on."""
        return list(self.recording.warnings)

    @property
    def records(self) -> Recording:
        """The recording, all of it. Raises UsageError where ``run.keep`` has left none, or left it in a file."""
        keep = self.recording.keep
        if keep == "all":
            return self.recording
        how = "read it back (ppsim.read_run(run.save()))" if keep == "file" else "run it again with run.keep 'all'"
        raise UsageError(f"{self.recording.name}: run.keep is {keep!r}: its records are not in memory; {how}")

    def side(self, side: str | None) -> Recording:
        """The recording of a side. Raises UsageError for an unknown one, and where there is only one pipeline."""
        if side is None:
            return self.records
        if side not in SIDES:
            raise UsageError(f"side {side!r}: expected {' or '.join(SIDES)}")
        if self.recording.peer is None:
            raise UsageError(f"side {side!r}: this run has one pipeline, two have disaggregation.role 'pd'")
        return self.recording.peer if side == "prefill" else self.recording

    # --- tables -----------------------------------------------------------------------------------------------

    def requests(self) -> pd.DataFrame:
        """A row a request, in order of arrival (``frames.REQUESTS`` explains the columns)."""
        return frames.requests(self.records)

    def batches(self, rank: int = 0, side: str | None = None) -> pd.DataFrame:
        """A row a batch that a rank launched (``frames.BATCHES``). All ranks of a run that passes decide alike."""
        return frames.batches(self.side(side), rank)

    def spans(self, side: str | None = None) -> pd.DataFrame:
        """A row a time in which a stream of a rank was busy (``frames.SPANS``)."""
        return frames.spans(self.side(side))

    # --- pictures, differences, files -------------------------------------------------------------------------

    def plot(
        self,
        kind: str = "gantt",
        *,
        side: str | None = None,
        from_s: float | None = None,
        to_s: float | None = None,
        against: Run | None = None,
        format: str = "png",
    ) -> Drawing:
        """A picture of the run, as ``ppsim plot --kind`` draws it: gantt, channels, chunks, requests, kv
        or measured.

        ``from_s`` and ``to_s`` cut out a part, in seconds; ``against``: a second run, of chunks and measured.
        Raises UsageError for what cannot be drawn.
        """
        from ppsim.report.kinds import KINDS, Wish, picture

        if kind not in KINDS:
            raise UsageError(f"plot: unknown kind {kind!r}; there are: {', '.join(KINDS)}")
        self.side(side)
        wish = Wish(kind, side, from_s, to_s, None if against is None else against.records)
        with DRAWING:
            drawn = picture(self.records, Path(f"{kind}.{format}"), wish, self.verdict)
        return Drawing(drawn.content, format.lower())

    def diff(
        self, other: Run | str | os.PathLike[str], *, times: bool = False, decisions: bool = False
    ) -> Difference | None:
        """The first record in logical time in which two runs differ; None if they agree.

        ``times``: compare times too, once all else is equal. ``decisions``: compare the decisions only, for two worlds
        that sample their own tokens. Raises UsageError for both at once.
        """
        if times and decisions:
            raise UsageError("diff: times and decisions exclude each other")
        right = other if isinstance(other, Run) else read_run(other)
        return first_difference(self.records, right.records, times=times, decisions_only=decisions)

    def save(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Write a run folder, as ``ppsim run`` does, and return it. Default: runs/NAME-SEED-N, N the next free.

        An earlier run in ``out`` is replaced. Raises UsageError where ``out`` holds something else, or cannot be
        written.
        """
        config = self._config()
        where = None if out is None else os.fspath(out)
        with run_folder(where, self.recording.name, self.recording.seed) as folder:
            write_run(folder, config, self.recording, self.summary, self.verdict)
            keep_files(folder.path, self.scenario, digests_of(self.scenario))
            leave(folder)
            if self.incomplete:
                mark_incomplete(folder.path, self.incomplete)
        return folder.path


def read_run(run: str | os.PathLike[str]) -> Run:
    """A saved run: a folder, a recording file, a name below runs/, or "latest".

    Raises UsageError (RecordingError with the line) for what is missing, damaged or cut off.
    """
    from ppsim.scenario.load import read_scenario

    name = os.fspath(run)
    folder, counted = folder_of(name), open_summary(name)
    content = read_scenario(str(folder / CONFIG)) if (folder / CONFIG).is_file() else None
    recording = open_run(str(find_recording(name))) if counted is None else counted
    return Run(recording, read_verdict(name), content, incomplete(folder))


def diff(
    a: Run | str | os.PathLike[str],
    b: Run | str | os.PathLike[str],
    *,
    times: bool = False,
    decisions: bool = False,
) -> Difference | None:
    """``Run.diff`` of two runs or run folders."""
    return (a if isinstance(a, Run) else read_run(a)).diff(b, times=times, decisions=decisions)
