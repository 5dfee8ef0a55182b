"""``ppsim diff`` of a simulation and a run on real processes says what may make them part although nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.recording.reader import read_recording
from ppsim.recording.writer import write_recording

SAYS = "note: two worlds, each with tokens and a clock of its own"


def test_only_runs_of_two_worlds_that_differ_get_the_note(tmp_path: Path) -> None:
    runner, names = CliRunner(), ("one", "other", "real")
    for name in names:
        chunks = "workload.num_chunks=" + ("3" if name == "other" else "2")
        assert runner.invoke(app, ["run", "unit", "--set", chunks, "--out", str(tmp_path / name)]).exit_code == 0
    path = tmp_path / "real" / "recording.jsonl"
    recording = read_recording(path)
    assert recording.world == "sim"
    recording.world = "exec"
    write_recording(recording, path)

    def diff(a: str, b: str, *more: str) -> tuple[int, str]:
        done = runner.invoke(app, ["diff", str(tmp_path / a), str(tmp_path / b), *more])
        return done.exit_code, done.stdout

    assert diff("one", "real")[0] == 0
    assert SAYS not in diff("one", "real")[1]  # equal
    assert diff("one", "other")[0] == 1
    assert SAYS not in diff("one", "other")[1]  # one world
    code, said = diff("other", "real")
    assert (code, SAYS in said) == (1, True)
    assert SAYS in json.loads(diff("other", "real", "--json")[1])["note"]
    assert "note" not in json.loads(diff("one", "other", "--json")[1])
