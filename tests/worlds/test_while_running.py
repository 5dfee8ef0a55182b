"""Law: a simulated run that writes its ranks' files while it goes on can be read and replayed however it is ended, at
every batch; the bytes are a function of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.cli.while_running import WhileRunning
from ppsim.plugin import load
from ppsim.recording import batches
from ppsim.recording.agreement import disagreement
from ppsim.recording.folder import open_run, read_verdict
from ppsim.recording.rank_file import RANKS, assemble, has_ranks
from ppsim.recording.reader import RecordingError
from ppsim.recording.schema import Origin
from ppsim.scenario import load_scenario
from ppsim.world import simulate
from ppsim.world.replayed import replay

ROOT = Path(__file__).resolve().parents[2]


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


class Killed(BaseException):
    """The process is gone."""


def killed_after(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, num: int, *, fast: bool = False) -> Any:
    """A run that writes a batch every four iterations, gone behind batch ``num``; its scenario."""
    monkeypatch.setattr(batches, "ITERATIONS", 4)
    scenario, left = load_scenario(name, []), [num]

    def kills(self: WhileRunning, iteration: int) -> int:
        reply = write(self, iteration)
        left[0] -= 1
        if not left[0]:
            raise Killed
        return reply

    write = WhileRunning.write
    monkeypatch.setattr(WhileRunning, "write", kills)
    folder.mkdir()
    with WhileRunning(folder, scenario, Origin(), is_on=True) as files, pytest.raises(Killed):
        simulate(scenario, began=files.began, fast=fast)
    monkeypatch.setattr(WhileRunning, "write", write)
    return scenario


@pytest.mark.parametrize(
    ("name", "num"), [("tiny", 1), ("tiny", 4), ("explore_release", 3), ("hicache", 5), ("pd_released_votes", 6)]
)
def test_the_batches_of_a_run_that_is_gone_replay_record_by_record(
    name: str, num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = killed_after(monkeypatch, tmp_path / "a", name, num)
    whole = simulate(scenario).recording
    recorded = assemble(tmp_path / "a")
    sides = [(recorded, whole)] if whole.peer is None else [(recorded, whole), (recorded.peer, whole.peer)]
    for part, run in sides:
        assert part is not None
        for rank, decisions in enumerate(part.decisions):
            assert decisions == run.decisions[rank][: len(decisions)]
            assert len(decisions) - 2 < len(part.visits[rank]) < len(decisions) + 2
            assert part.visits[rank] == run.visits[rank][: len(part.visits[rank])]
            for kind in ("harvests", "observations", "spans"):
                mine, every = getattr(part, kind)[rank], getattr(run, kind)[rank]
                due = [record for record in every if record.iteration < len(decisions) - 2]
                assert len(mine) >= sum(getattr(record, "stream", "") != "kv" for record in due)  # told at the end
                assert mine == every[: len(mine)] or kind == "spans"
        for kind in ("ingestions", "samples", "replies", "stores"):
            mine, every = getattr(part, kind), getattr(run, kind)
            due = [record for record in every if record.iteration < len(part.decisions[0]) - 4]
            assert [tuple(record)[:3] for record in mine][: len(due)] == [tuple(record)[:3] for record in due]
        assert [stand.rank for stand in part.stands] == list(range(part.num_ranks))
        assert part.messages.keys() <= run.messages.keys()
        assert all(mine == run.messages[key][: len(mine)] for key, mine in part.messages.items())
    assert 4 * num < len(recorded.decisions[0]) < 4 * num + 8
    for _, mine, out in replay(recorded, scenario, load(scenario.bugs).change):
        assert disagreement(mine, out.recording, is_whole=False) is None
        assert out.verdict.kind == "pass", out.verdict.message


def test_one_rank_for_all_writes_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = killed_after(monkeypatch, tmp_path / "a", "tiny", 4, fast=True)
    recorded = assemble(tmp_path / "a")
    assert recorded.decisions[0] == simulate(scenario).recording.decisions[0][: len(recorded.decisions[0])]
    ((_, mine, out),) = replay(recorded, scenario, load().change)
    assert disagreement(mine, out.recording, is_whole=False) is None
    assert len(recorded.decisions[0]) > 16


def test_what_is_in_some_files_only_is_left_out_and_an_edited_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed between two files, or in the middle of a line."""
    killed_after(monkeypatch, tmp_path / "a", "tiny", 4)
    before = assemble(tmp_path / "a")
    path = tmp_path / "a" / RANKS / "rank-1.jsonl"
    text = path.read_bytes()
    sums = [i for i in range(len(text)) if text.startswith(b'["sum"', i)]
    path.write_bytes(text[: sums[3] - 20])
    cut = assemble(tmp_path / "a")
    assert len(cut.decisions[0]) < len(before.decisions[0])
    assert abs(len(cut.decisions[0]) - len(cut.decisions[1])) <= 2
    scenario = load_scenario("tiny", [])
    ((_, mine, out),) = replay(cut, scenario, load().change)
    assert disagreement(mine, out.recording, is_whole=False) is None
    path.write_bytes(text.replace(b'["span",1,"forward",0', b'["span",1,"forward",1', 1))
    done = ppsim("replay", str(tmp_path / "a"))
    assert (done.exit_code, "edited?" in done.stderr) == (2, True), done.output


def test_the_files_have_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for name in ("a", "b"):
        killed_after(monkeypatch, tmp_path / name, "pd_released_votes", 3)
        folder = tmp_path / name / RANKS
        texts.append({str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.jsonl")})
    assert texts[0] == texts[1]
    assert {"launch.jsonl", "rank-0.jsonl", "prefill/ranks/rank-0.jsonl"} <= texts[0].keys()


def test_a_run_that_ends_has_the_folder_of_any_other(tmp_path: Path) -> None:
    for name, options in (("a", []), ("b", ["--while-running"])):
        assert ppsim("run", "tiny", "--out", str(tmp_path / name), *options).exit_code == 0
    there = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert there[0] == there[1]


@pytest.mark.parametrize("keep", ["file", "summary"])
def test_a_run_that_keeps_no_records_has_none_for_these_files(keep: str, tmp_path: Path) -> None:
    there = tmp_path / "run"
    result = ppsim("run", "tiny", "--set", f"run.keep={keep}", "--while-running", "--out", str(there))
    assert result.exit_code == 2
    assert f"--while-running: run.keep is '{keep}', so the files of the ranks would have no records" in result.stderr
    assert not there.exists()


def num_decisions(folder: Path) -> int:
    """On file by now, at whatever moment of the run."""
    with suppress(RecordingError):
        return len(assemble(folder).decisions[0]) if has_ranks(folder) else 0
    return 0


SCENARIO = """
name = "endless"
[cluster]
pp_size = 2
[cost]
source = "unit"
unit_ms = 1.0
[scheduler]
max_total_tokens = 65536
[workload]
source = "generated"
num_requests = 20000
rate_per_s = 20.0
input_length = { kind = "fixed", value = 30 }
output_length = { kind = "fixed", value = 8 }
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_long_run_that_is_killed_is_shown_and_replayed(how: signal.Signals, tmp_path: Path) -> None:
    scenario, folder = tmp_path / "endless.toml", tmp_path / "run"
    assert ppsim("run", "tiny", "--out", str(folder)).exit_code == 0  # what is there before is not taken for it
    scenario.write_text(SCENARIO)
    command = [sys.executable, "-m", "ppsim", "run", str(scenario), "--out", str(folder)]
    command += ["--no-fast", "--while-running"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 120
            while num_decisions(folder) < 500:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
        finally:
            os.kill(process.pid, how)
        process.wait(60)
    assert has_ranks(folder) == (how == signal.SIGKILL)
    recorded, verdict = open_run(str(folder)), read_verdict(str(folder))
    assert verdict.kind == "unknown"
    assert "rank 1 ended in iteration" in verdict.message or how == signal.SIGINT
    assert len(recorded.decisions[1]) > 500
    shown = ppsim("show", str(folder))
    assert shown.exit_code == 0, shown.output
    done = ppsim("replay", str(folder), "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["sides"][0]["equal"]) == (0, True), done.output
