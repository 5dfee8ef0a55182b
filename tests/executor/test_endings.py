"""Law: whatever ends a real run leaves what it recorded, says where each rank ended, and can be replayed that far."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.launch import ExecutionResult, execute
from ppsim.check.progress import wait_cycle
from ppsim.cli.entry import app
from ppsim.cli.outcome import keep_what_there_is
from ppsim.core.effects import Effects
from ppsim.core.loop import Loop
from ppsim.core.messages import Check, Lane
from ppsim.core.rank import Plan, Rank
from ppsim.errors import PpsimError, RankDied, UsageError
from ppsim.plugin import load
from ppsim.plugin.plans import behind
from ppsim.recording import PASS, Recording, Verdict
from ppsim.recording.agreement import disagreement
from ppsim.recording.diff import first_difference
from ppsim.recording.folder import (
    CONFIG,
    RECORDING,
    RunFolder,
    incomplete,
    open_run,
    read_verdict,
    write_config,
    write_run,
)
from ppsim.recording.rank_file import (
    LAUNCH,
    CannotRecord,
    RankFile,
    assemble,
    has_ranks,
    rank_path,
    read_rank,
    read_records,
    write_launch,
)
from ppsim.recording.reader import RecordingError
from ppsim.recording.standing import read_standing
from ppsim.recording.summary import summarize
from ppsim.scenario import Scenario
from ppsim.world import simulate
from ppsim.world.replayed import replay
from tests.executor.small import small_scenario
from tests.executor.test_launch import ROOT, endless, is_alive, wait_until


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def shared_memory() -> set[str]:
    place = Path("/dev/shm")
    return {path.name for path in place.iterdir()} if place.is_dir() else set()


def replays(folder: Path, scenario: Scenario, *changes: str) -> tuple[Recording, Any]:
    """What is on file is fed to the simulator: it makes every record that is there."""
    recorded = open_run(str(folder))
    ((_, mine, out),) = replay(recorded, scenario, load(changes).change)
    assert disagreement(mine, out.recording, is_whole=False) is None
    return recorded, out


def num_decisions(folder: Path) -> int:
    """Of the first rank, looked at in the middle of a run, at whatever moment."""
    return len(assemble(folder).decisions[0]) if has_ranks(folder) else 0


class Killer:
    """Kills a rank, seen from the launcher's own tick: as soon as it has decided ``after`` iterations on file."""

    def __init__(self, folder: Path, victim: int, after: int) -> None:
        self.folder, self.victim, self.after = folder, victim, after
        self.pids: dict[str, int] = {}
        self.killed_at = 0.0

    def __call__(self, num_ended: int, num_requests: int) -> None:
        path = rank_path(self.folder, self.victim)
        if self.killed_at or (self.after and not path.is_file()):
            return
        if not self.after or len(read_rank(path).decisions[self.victim]) >= self.after:
            self.pids = {child.name: child.pid or 0 for child in multiprocessing.active_children()}
            self.killed_at = time.monotonic()
            os.kill(self.pids[f"ppsim-rank-{self.victim}"], signal.SIGKILL)


@pytest.mark.parametrize(("victim", "after"), [(0, 0), (1, 1), (0, 12)])
def test_a_killed_rank_leaves_its_records_and_what_it_was_doing(victim: int, after: int, tmp_path: Path) -> None:
    before = shared_memory()
    scenario = endless(2)
    killer = Killer(tmp_path, victim, after)
    with pytest.raises(RankDied) as caught:
        execute(scenario, start_method="forkserver", folder=tmp_path, progress=killer)
    keep_what_there_is(RunFolder(tmp_path), caught.value)
    assert time.monotonic() - killer.killed_at < 10
    assert not [pid for name, pid in killer.pids.items() if name.startswith("ppsim-rank") and is_alive(pid)]
    assert shared_memory() <= before
    verdict = read_verdict(str(tmp_path))
    assert (verdict.kind, verdict.exit_code, verdict.rank) == ("fail", 3, victim)
    assert f"rank {victim} of 2 was killed by signal 9 (SIGKILL) while it was " in verdict.message
    recorded, _ = replays(tmp_path, scenario)
    assert [stand.rank for stand in recorded.stands] == [0, 1]
    shown = ppsim("show", str(tmp_path))
    assert shown.exit_code == 0, shown.output
    assert f"rank {victim} ended " in shown.stdout
    assert ppsim("diff", str(tmp_path), str(tmp_path)).exit_code == 0
    if any(recorded.spans):
        assert ppsim("plot", str(tmp_path)).exit_code == 0


def test_killing_the_launcher_and_all_ranks_at_once_leaves_the_files_of_the_ranks(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from executor.launch import execute\n"
        "from tests.executor.test_launch import endless\n"
        f"execute(endless(2), folder=Path({str(tmp_path)!r}))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, start_new_session=True) as launcher:
        try:
            wait_until(lambda: (tmp_path / "ranks").is_dir() and num_decisions(tmp_path) > 9, 100)
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)
    recorded, _ = replays(tmp_path, endless(2))
    assert len(recorded.decisions[0]) > 9
    verdict = read_verdict(str(tmp_path))
    assert (verdict.kind, verdict.exit_code) == ("unknown", 5)
    shown = ppsim("show", str(tmp_path))
    assert shown.exit_code == 0, shown.output
    assert "rank 0 ended in iteration" in shown.stdout
    assert "rank 1 ended in iteration" in shown.stdout
    assert "rank 0 was cut short: its file ends with line" in shown.stdout
    done = ppsim("replay", str(tmp_path))
    assert (done.exit_code, "equal: every record of every rank, as far as it goes" in done.stdout) == (0, True)
    path = rank_path(tmp_path, 1)
    text = path.read_bytes()
    path.write_bytes(text[: len(text) * 2 // 3])  # in the middle of a line
    assert ppsim("replay", str(tmp_path)).exit_code == 0
    path.write_bytes(text.replace(b'"decode"', b'"extend"', 1))
    assert ppsim("replay", str(tmp_path)).exit_code in (2, 4)  # told by the sum, or as a difference


class WaitsForNothing(Loop):
    """The last rank waits for a message that nobody sends."""

    def plan(self) -> Plan:
        return behind(super().plan(), "launch_batch", waits_for_nothing)


def waits_for_nothing(rank: Rank) -> Effects[None]:
    if rank.config.pp_rank == 1 and rank.iteration == 3:
        yield from rank.link.receive(Check, 0, Lane.CHECK, rank.iteration, rank.slot)


def long_request(run: dict[str, Any] | None = None) -> Scenario:
    requests = [{"rid": "R1", "at_iteration": 0, "prompt": 20, "output": 30}]
    return small_scenario(workload={"source": "requests", "requests": requests}, run=run or {})


class WaitsForEachOther(Loop):
    """Every rank waits for a word of the other one before it gives its own."""

    def plan(self) -> Plan:
        return behind(super().plan(), "launch_batch", waits_for_each_other)


def waits_for_each_other(rank: Rank) -> Effects[None]:
    if rank.iteration == 3:
        yield from rank.link.receive(Check, 1 - rank.config.pp_rank, Lane.CHECK, 3, rank.slot)


HANGS = {"WaitsForNothing": ("INV-31", 1), "WaitsForEachOther": ("INV-40", 3)}


def place_of(verdict: Verdict) -> tuple[object, ...]:
    return verdict.kind, verdict.invariant, verdict.exit_code, verdict.rank, verdict.iteration


@pytest.mark.parametrize("watchdog_ms", [0, 1500])
@pytest.mark.parametrize("name", HANGS)
def test_a_hang_ends_alike_on_processes_in_simulation_and_in_the_replay(
    name: str, watchdog_ms: int, tmp_path: Path
) -> None:
    """The same rule, exit code, place and circle of ranks: whether a message is owed, or all are before their sends."""
    mine = f"{__name__}:{name}"
    run = {"watchdog_ms": watchdog_ms}
    scenario = long_request(run)
    folder = tmp_path
    stall_s = 60.0 if watchdog_ms else 1.0
    result = execute(scenario, start_method="forkserver", folder=folder, changes=(mine,), stall_s=stall_s)
    simulated = simulate(scenario, change=load((mine,)).change)
    recorded, out = replays(folder, scenario, mine)
    assert (result.verdict.invariant, result.verdict.exit_code) == HANGS[name]
    assert place_of(result.verdict) == place_of(simulated.verdict) == place_of(out.verdict)
    assert recorded.origin.changes == (mine,)
    runs = (result.recording, simulated.recording, out.recording)
    cycles = [wait_cycle({stand.rank: stand.waits_for for stand in made.stands}) for made in runs]
    assert cycles == [(0, 1)] * 3
    assert [(s.rank, s.iteration) for s in result.recording.stands] == [
        (s.rank, s.iteration) for s in out.recording.stands
    ]
    summary = summarize(result.recording, result.verdict)
    write_run(RunFolder(folder), scenario.model_dump(mode="json"), result.recording, summary, result.verdict)
    done = ppsim("replay", str(folder))
    assert done.exit_code == HANGS[name][1], done.output
    assert "recorded wait-for cycle: 0 -> 1 -> 0; the same in the replay" in done.stdout
    rank, iteration = result.verdict.rank, result.verdict.iteration
    assert f"verdict: {HANGS[name][0]} at rank {rank}, iteration {iteration}, as recorded" in done.stdout


class Raises(Loop):
    """A rank raises in the middle of a run."""

    def plan(self) -> Plan:
        return behind(super().plan(), "launch_batch", raises)


def raises(rank: Rank) -> Iterator[Any]:
    if rank.iteration == 6 and rank.config.pp_rank == 1:
        raise ZeroDivisionError("of this test")
    yield from ()


def test_an_exception_leaves_all_records_before_it(tmp_path: Path) -> None:
    mine = f"{__name__}:Raises"
    with pytest.raises(PpsimError) as caught:
        execute(long_request(), start_method="forkserver", folder=tmp_path, changes=(mine,))
    keep_what_there_is(RunFolder(tmp_path), caught.value)
    recorded, _ = replays(tmp_path, long_request(), mine)
    assert len(recorded.decisions[1]) == 7
    assert "ZeroDivisionError" in read_verdict(str(tmp_path)).message


def test_a_whole_run_is_on_file_as_it_is_in_memory(tmp_path: Path) -> None:
    """Aborted in flight, with its sampled tokens; then nothing but the files is read."""
    requests = [
        {"rid": "R1", "at_iteration": 0, "prompt": 20, "output": 30},
        {"rid": "R2", "at_iteration": 1, "prompt": 9, "output": 5},
    ]
    work = {"source": "requests", "requests": requests, "aborts": [{"rid": "R1", "at_iteration": 7}]}
    scenario = small_scenario(workload=work)
    kept: ExecutionResult = execute(scenario, start_method="forkserver", folder=tmp_path)
    assert kept.verdict.kind == "pass", kept.verdict.message
    recorded = assemble(tmp_path)
    assert recorded.cuts == []
    assert first_difference(recorded, kept.recording, times=True) is None
    for rank in (0, 1):
        for row in rank_path(tmp_path, rank).read_text().splitlines():
            assert json.dumps(json.loads(row), separators=(",", ":")) == row  # one form, whoever has formatted it
    assert [r.status for r in recorded.replies if r.rid == "R1"][-1] == "aborted"
    assert len(recorded.samples) == sum(bool(d.pieces) for d in recorded.decisions[1])
    assert set(recorded.messages) == {(0, 1, "hidden"), (1, 0, "output"), (0, 1, "output")}
    assert all(m.leaves_ns <= m.sent_ns <= m.arrival_ns for mine in recorded.messages.values() for m in mine)
    assert [len(visits) for visits in recorded.visits] == [len(mine) for mine in recorded.decisions]
    ((_, mine, out),) = replay(recorded, scenario, load().change)
    assert disagreement(mine, out.recording, is_whole=True) is None
    assert [stand.doing for stand in read_standing(tmp_path)] == ["done", "done"]


# --- a whole run of the command whose files take no more --------------------------------------------------------------


def limited(place: Path, limit_bytes: int) -> str:
    """``ppsim exec`` into ``place``/run, none of whose processes may write a file of more bytes: what it says."""
    write_config(place, long_request().model_dump(mode="json"))
    done = subprocess.run(
        [sys.executable, "-m", "ppsim", "exec", str(place / CONFIG), "--out", str(place / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    return told(done.returncode, done.stderr)


def told(code: int, stderr: str) -> str:
    """The one message with which it ends."""
    assert code == 2, stderr
    assert "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("ppsim: ")]
    return line


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same command in this process, with ranks from the warm server."""
    import executor.launch

    monkeypatch.setattr(executor.launch, "execute", partial(execute, start_method="forkserver"))
    write_config(tmp_path, long_request().model_dump(mode="json"))
    return ["exec", str(tmp_path / CONFIG), "--out", str(tmp_path / "run")]


def read_and_replayed(folder: Path) -> Recording:
    """The commands read what is left, and so does the simulator."""
    for command in (["show", str(folder)], ["replay", str(folder)], ["diff", str(folder), str(folder)]):
        done = ppsim(*command)
        assert done.exit_code == 0, done.output
    assert incomplete(folder)
    return replays(folder, long_request())[0]


def test_a_limit_in_which_no_file_of_a_run_finds_room_is_told_before_anything_starts(tmp_path: Path) -> None:
    line = limited(tmp_path, 1000)
    assert line == f"ppsim: {tmp_path}/run/{CONFIG}: cannot be written: File too large"


@pytest.mark.slow
def test_a_limit_that_a_rank_reaches_names_its_file_and_leaves_what_was_written(tmp_path: Path) -> None:
    free = tmp_path / "free"
    free.mkdir()
    execute(long_request(), start_method="forkserver", folder=free)
    whole = min(rank_path(free, rank).stat().st_size for rank in (0, 1))
    line = limited(tmp_path, whole // 2)
    assert re.fullmatch(rf"ppsim: {tmp_path}/run/ranks/rank-[01].jsonl: cannot be written: File too large", line)
    recorded = read_and_replayed(tmp_path / "run")
    assert 5 < len(recorded.decisions[0]) < len(assemble(free).decisions[0])
    assert "File too large" in read_verdict(str(tmp_path / "run")).message


def test_a_recording_that_finds_no_room_as_a_whole_stays_in_the_files_of_the_ranks(
    quick: list[str], tmp_path: Path
) -> None:
    """The command may write what is known of a run beforehand, and no recording."""
    execute(long_request(), start_method="forkserver")  # the server of the ranks meets no limit
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
    try:
        done = ppsim(*quick)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    line = told(done.exit_code, done.stderr)
    assert line == f"ppsim: {tmp_path}/run/{RECORDING}: cannot be written: File too large"
    assert read_and_replayed(tmp_path / "run").cuts == []  # all of it is there
    assert read_verdict(str(tmp_path / "run")).kind == "pass"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_by_the_file_of_the_rank_that_found_no_room(
    quick: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import executor.launch

    full = rank_path(tmp_path / "run", 1)

    def written(folder: Path, recording: Recording) -> None:
        write_launch(folder, recording)
        full.symlink_to("/dev/full")

    monkeypatch.setattr(executor.launch, "write_launch", written)
    done = ppsim(*quick)
    assert told(done.exit_code, done.stderr) == f"ppsim: {full}: cannot be written: No space left on device"
    assert read_and_replayed(tmp_path / "run").decisions[1] == []
    assert "rank 1 ended before its first iteration: starting" in read_verdict(str(tmp_path / "run")).message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_is_full_from_the_start_is_told_before_a_process_starts(quick: list[str], tmp_path: Path) -> None:
    full = tmp_path / "run" / "ranks" / LAUNCH
    full.parent.mkdir(parents=True)
    full.symlink_to("/dev/full")
    done = ppsim(*quick)
    assert told(done.exit_code, done.stderr) == f"ppsim: {full}: cannot be written: No space left on device"
    assert not [child for child in multiprocessing.active_children() if "ppsim-rank" in child.name]


def test_an_error_behind_which_nothing_can_be_saved_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank's file took no more, and neither does the recording: the first of the two is what matters."""
    folder = RunFolder(tmp_path)
    write_config(tmp_path, long_request().model_dump(mode="json"))
    write_launch(tmp_path, Recording(2, world="exec"))

    def no_room(*_: Any) -> None:
        raise UsageError("recording.jsonl: cannot be written")

    monkeypatch.setattr("ppsim.recording.folder.write_run", no_room)
    keep_what_there_is(folder, CannotRecord("rank-1.jsonl: cannot be written"))
    told = f"left in {tmp_path}/ranks, marked incomplete (recording.jsonl: cannot be written)\n"
    assert capsys.readouterr().err == told
    assert incomplete(tmp_path) == "rank-1.jsonl: cannot be written"


def test_what_is_behind_half_a_line_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, and then it is not: nobody could read what came after."""
    file = RankFile(tmp_path / "rank-0.jsonl", Recording(1), 0)
    write = os.write

    def half(descriptor: int, text: bytes) -> int:
        if len(text) < 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, text[: len(text) // 2])

    monkeypatch.setattr(os, "write", half)
    file.add('["sampled",0,0,[7]]')
    with pytest.raises(CannotRecord, match="No space left"):
        file.flush()
    monkeypatch.undo()
    file.add('["sampled",1,0,[8]]')
    with pytest.raises(CannotRecord, match="No space left"):
        file.flush()
    with pytest.raises(CannotRecord):
        file.close()
    assert read_rank(file.path).samples == []


def test_a_run_into_the_folder_of_another_one_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Killed, it would be taken for the earlier one."""
    scenario = long_request()
    earlier = execute(scenario, start_method="forkserver").recording
    write_run(RunFolder(tmp_path), {}, earlier, {"digest": None}, PASS)
    with pytest.raises(RankDied):
        execute(endless(2), start_method="forkserver", folder=tmp_path, progress=Killer(tmp_path, 1, 2))
    assert open_run(str(tmp_path)).decisions[0] != earlier.decisions[0]
    assert read_verdict(str(tmp_path)).kind == "unknown"


# --- the file of a rank, without processes -------------------------------------------------------------------------


def test_a_file_that_takes_no_more_is_told_and_keeps_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(CannotRecord, match=r"^/dev/full: cannot be written: No space left on device"):
        RankFile(Path("/dev/full"), Recording(1), 0)
    script = (
        "import resource\nfrom pathlib import Path\n"
        "from ppsim.recording import Recording\nfrom ppsim.recording.rank_file import CannotRecord, KeptRecording\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        f"r = KeptRecording(Recording(1), 0, Path({str(tmp_path / 'rank-0.jsonl')!r}))\n"
        "try:\n    for i in range(1000):\n        r.sampled(i, 0, (i,))\n        r.flush()\n"
        "except CannotRecord as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path / 'rank-0.jsonl'}: cannot be written: File too large\n"
    back = read_rank(tmp_path / "rank-0.jsonl")
    assert [s.iteration for s in back.samples] == list(range(len(back.samples)))
    assert len(back.samples) > 80
    assert back.cuts == [f"rank 0 was cut short: its file ends with line {1 + len(back.samples)}"]


def test_a_file_is_read_while_it_is_written_and_every_edit_before_a_sum_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    file = RankFile(path, Recording(1), 0)
    for n in range(600):
        file.add(json.dumps(["sampled", n, 0, [n]], separators=(",", ":")))
        if n % 7 == 0:
            file.flush()
        if n == 300:
            assert sum(kind == "sampled" for kind, _ in read_records(path)) == 295
    file.close()
    text = path.read_text()
    assert read_rank(path).cuts == []
    path.write_text(text.replace('["sampled",9,0,[9]]', '["sampled",9,0,[8]]'))
    with pytest.raises(RecordingError, match="edited"):
        read_rank(path)
    path.write_text(text.replace('["sampled",9,0,[9]]\n', ""))
    with pytest.raises(RecordingError, match="counts 2"):
        read_rank(path)
    for cut in (0, 40):  # the rank has just made its file
        path.write_text(text[:cut])
        assert list(read_records(path)) == []
        with pytest.raises(RecordingError, match="has no whole line yet"):
            read_rank(path)
    path.write_text(text.replace('"rank":0', '"rank":null'))
    with pytest.raises(RecordingError, match="header field 'rank': expected int"):
        read_rank(path)
