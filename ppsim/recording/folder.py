"""The run folder: ``config.toml``, ``recording.jsonl``, ``summary.json``, ``verdict.json``; ``runs/latest`` is newest.
With ``run.compress`` the recording is ``recording.jsonl.gz``.

Rule: a run never disappears under another one. Without ``--out`` each run gets the next free number; a folder that was
named is refused if it holds somebody's files, and replaced with a word about it if it holds an earlier run.
``config.toml`` is the whole resolved scenario: ``ppsim run <folder>/config.toml`` is the same run again.

From its beginning until it has ended by itself a run's folder holds ``incomplete.txt``, which says what happened. So a
folder whose run was interrupted, stopped or killed is never taken for that of a whole one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ppsim.core.outcome import Stand
from ppsim.errors import EXIT_UNKNOWN, UsageError
from ppsim.parsing import parse_json
from ppsim.recording.packed import PACKED
from ppsim.recording.rank_file import assemble, discard_ranks, has_ranks
from ppsim.recording.reader import RecordingError, read_recording
from ppsim.recording.record import Recording
from ppsim.recording.schema import Verdict
from ppsim.recording.standing import read_standing
from ppsim.recording.stream import Counted
from ppsim.recording.writer import write_recording

RUNS = Path("runs")
LATEST = "latest"
CONFIG, RECORDING, SUMMARY, VERDICT = FILES = ("config.toml", "recording.jsonl", "summary.json", "verdict.json")
INCOMPLETE = "incomplete.txt"
UNDER_WAY = "the run that began here has not ended: it goes on, or it was killed"
PACKED_RECORDING = RECORDING + PACKED  # either of the two, never both
RECORDINGS = (RECORDING, PACKED_RECORDING)
PEER = "recording-prefill.jsonl"  # two pipelines: the prefill side; recording.jsonl is the decode side, the client's


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A place for one run. ``replaces`` is true where an earlier run stands in it."""

    path: Path
    replaces: bool = False


def prepare_folder(out: str | None, name: str, seed: int) -> RunFolder:
    """Make the folder before the run begins, so that a long run cannot end in a place that cannot be written."""
    if out is None:
        return RunFolder(next_free(RUNS, f"{name.replace('/', '-')}-{seed}"))
    if not out.strip():
        raise UsageError("out: is empty; give a folder, or leave it out")
    path = Path(out)
    replaces = False
    if path.is_dir():
        there = [file for file in (*FILES, PACKED_RECORDING) if (path / file).exists()]
        began = (path / INCOMPLETE).is_file()  # a run that was killed before it could leave more
        replaces = (VERDICT in there and not {*RECORDINGS, SUMMARY}.isdisjoint(there)) or has_ranks(path) or began
        if there and not replaces:
            raise UsageError(f"--out {out}: holds a {there[0]} that is not part of a run; choose another folder")
    make(path)
    probe = path / f".{RECORDING}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None
    return RunFolder(path, replaces)


@contextmanager
def run_folder(out: str | None, name: str, seed: int) -> Iterator[RunFolder]:
    """The folder of a run that is about to begin; gone again if the run never left anything in it."""
    folder = prepare_folder(out, name, seed)
    mark_incomplete(folder.path, UNDER_WAY)
    try:
        yield folder
    finally:
        leave(folder)


def clear_earlier(path: Path) -> None:
    """Nothing of an earlier run is left in a folder whose ranks are about to write: it would be taken for theirs."""
    for name in (*RECORDINGS, PEER, PEER + PACKED, SUMMARY, VERDICT):
        (path / name).unlink(missing_ok=True)


def mark_incomplete(path: Path, why: str) -> None:
    """Say in a run's folder that the run has not ended by itself, and why."""
    put_text(path / INCOMPLETE, why + "\n")


def leave(folder: RunFolder) -> None:
    """A run is over. Nothing of it is left where it came to no recording; files of its ranks are no whole run."""
    path = folder.path
    if path.is_dir() and (path / INCOMPLETE).is_file() and incomplete(path) == UNDER_WAY and not has_ranks(path):
        (path / INCOMPLETE).unlink()
    if not folder.replaces and path.is_dir() and not any(path.iterdir()):
        path.rmdir()


def incomplete(path: Path) -> str:
    """Why the run in a folder is not a whole one; empty if it is."""
    try:
        text = (path / INCOMPLETE).read_text(encoding="utf-8", errors="replace")
        return text.strip() or UNDER_WAY  # empty: there was no room for a word
    except OSError:
        return ""


def next_free(parent: Path, stem: str) -> Path:
    """Make and return parent/stem-n with the smallest n from 1 that is free, also against a run beside this one."""
    make(parent)
    for n in count(1):
        path = parent / f"{stem}-{n}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"run folder {path}: cannot be made: {error.strerror}; choose one with --out") from None
        return path
    raise AssertionError("count() does not end")


def make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"run folder {path}: a file is in the way; choose another place with --out") from None
    except OSError as error:
        raise UsageError(f"run folder {path}: cannot be made: {error.strerror}; choose one with --out") from None


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """The resolved scenario of a run. Raises UsageError if it cannot be written."""
    import tomli_w

    put_text(path / CONFIG, tomli_w.dumps(without_none(config)))


def write_run(
    folder: RunFolder, config: Mapping[str, Any], recording: Recording, summary: Mapping[str, Any], verdict: Verdict
) -> None:
    """Fill the folder. Raises UsageError if it cannot be written."""
    path = folder.path
    put_text(path / VERDICT, json_text(verdict._asdict()))  # short, and worth most where the rest finds no room
    packs = config.get("run", {}).get("compress") == "gzip"
    put_recording(path, RECORDING, None if recording.keep == "summary" else recording, summary, packs=packs)
    put_recording(path, PEER, recording.peer, summary.get("prefill", {}), packs=packs)
    write_config(path, config)
    put_text(path / SUMMARY, json_text(summary))
    discard_ranks(path)  # all of it is in the recording now
    if path.parent == RUNS:
        point_latest(path)


def put_recording(
    path: Path, name: str, recording: Recording | None, summary: Mapping[str, Any], *, packs: bool
) -> None:
    """Write a recording of a folder, or none. One of an earlier run goes when the new one is there."""
    mine = name + PACKED if packs else name
    if recording is not None:
        write_recording(recording, path / mine, summary["digest"])
    for other in {name, name + PACKED} - ({mine} if recording is not None else set()):
        (path / other).unlink(missing_ok=True)


def recording_in(folder: Path) -> Path:
    """The recording's file in a run's folder, packed or not; whether it is there is the caller's question."""
    packed = folder / PACKED_RECORDING
    return packed if packed.is_file() and not (folder / RECORDING).is_file() else folder / RECORDING


def without_none(config: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null; every key that may be None has None as its default, so it is left out."""
    clean: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            clean[key] = without_none(value)
        elif isinstance(value, list | tuple):
            clean[key] = [without_none(item) if isinstance(item, Mapping) else item for item in value]
        elif value is not None:
            clean[key] = value
    return clean


def json_text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def put_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def point_latest(path: Path) -> None:
    """Let runs/latest name this run: a link, or a text file with the name where links are impossible."""
    latest = path.parent / LATEST
    fresh = path.parent / f".{LATEST}-{path.name}"
    try:
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(path.name, target_is_directory=True)
    except (OSError, NotImplementedError):
        put_text(fresh, path.name + "\n")
    try:
        os.replace(fresh, latest)
    except OSError as error:
        raise UsageError(f"{latest}: cannot be replaced: {error.strerror}") from None


# --- finding and reading ---------------------------------------------------------------------------------------


def find_run(run: str) -> Path:
    """The folder or file of a run: a path, a name below runs/, or "latest"."""
    if not run.strip():  # as of an unset variable; Path("") would be the folder we stand in
        raise UsageError(f"the name of a run is empty: give a run folder, a recording file, or a name below {RUNS}/")
    for path in (Path(run), RUNS / run):
        if path.is_file() and path.name == LATEST:
            path = path.parent / path.read_text(encoding="utf-8").strip()
        if path.is_dir() or path.is_file():
            return path
        if path.name in RECORDINGS and has_ranks(path.parent):
            return path
    raise UsageError(f"run {run!r} does not exist: give a run folder, a recording file, or a name below {RUNS}/")


def find_recording(run: str) -> Path:
    """The recording file of a run."""
    path = find_run(run)
    if path.is_dir():
        path = recording_in(path)
        if not path.is_file() and not has_ranks(path.parent):
            why = incomplete(path.parent)
            if why:
                raise UsageError(f"{path.parent} has no {RECORDING}: {why}")
            if (path.parent / SUMMARY).is_file():
                raise UsageError(
                    f"{path.parent} has no {RECORDING}: the run kept its summary alone (run.keep 'summary'); run its "
                    f"{CONFIG} again with run.keep 'file'"
                )
            raise UsageError(f"{path.parent} is not a run folder: it has no {RECORDING}{other_folder(path.parent)}")
    return path


def other_folder(folder: Path) -> str:
    """What a folder without a recording is, in words, where its files say so."""
    if (folder / "points.jsonl").is_file():
        return "; it is that of a sweep, and its figures are in table.csv"
    return ""


def open_run(run: str) -> Recording:
    """The recording of a run folder or recording file. Raises UsageError for anything unreadable.

    Of a run that goes on, or whose every process was killed, what its ranks' files hold (``rank_file.py``).
    """
    path = find_recording(run)
    if path.name in RECORDINGS and has_ranks(path.parent):  # what else is there is of an earlier run
        recording = assemble(path.parent)
        recording.stands = read_standing(path.parent) or recording.stands
        return recording
    recording = read_recording(path)
    peer = path.with_name(PEER if path.name == RECORDING else PEER + PACKED)
    if path.name in RECORDINGS and peer.is_file():
        recording.peer = read_recording(peer)
    return recording


def open_summary(run: str) -> Counted | None:
    """A run that kept its summary alone (``run.keep``); None of any other."""
    try:
        path = find_run(run)
        if not path.is_dir() or recording_in(path).exists() or has_ranks(path):
            return None
        summary = parse_json((path / SUMMARY).read_text(encoding="utf-8"))
        return Counted(summary)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def folder_of(run: str) -> Path:
    """The folder of a run, or of the recording file that is named. Raises UsageError where there is none."""
    return find_run(run) if open_summary(run) is not None else find_recording(run).parent


def not_ended(folder: Path) -> Verdict:
    """Of a run without an end: what each rank was doing when it was last heard of."""
    lines = [incomplete(folder) or UNDER_WAY, *stand_lines(read_standing(folder) or assemble(folder).stands)]
    return Verdict("unknown", EXIT_UNKNOWN, "\n".join(lines))


def stand_lines(stands: Sequence[Stand]) -> list[str]:
    """Where each rank ended, a line each."""
    found = []
    for stand in stands:
        place = "before its first iteration" if stand.iteration < 0 else f"in iteration {stand.iteration}"
        slot = "" if stand.slot is None else f", slot {stand.slot}"
        peer = "" if stand.waits_for is None else f", for rank {stand.waits_for}"
        found.append(f"  rank {stand.rank} ended {place}{slot}: {stand.doing}{peer}")
    return found


def read_verdict(run: str) -> Verdict:
    """The verdict beside a recording, or a summary; unknown where there is only the recording."""
    path = folder_of(run) / VERDICT
    try:
        fields = parse_json(path.read_text(encoding="utf-8"))
        return Verdict(**fields)
    except FileNotFoundError:
        return not_ended(path.parent) if has_ranks(path.parent) else Verdict("unknown", 5, f"{path} is missing")
    except (OSError, ValueError, TypeError) as error:
        raise RecordingError(str(path), 0, f"is not a verdict: {error}") from None
