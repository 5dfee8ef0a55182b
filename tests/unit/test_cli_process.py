"""Law: as a process ppsim is light to start, quiet in a pipe, and gives the same bytes under any hash seed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ppsim.cli.progress as progress_module
from ppsim.cli.progress import PATIENCE_S, ProgressBar
from ppsim.recording.writer import write_recording
from tests.unit.handmade import pipeline

HEAVY = ("torch", "transformers", "triton", "pandas", "matplotlib", "hypothesis", "scipy")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ppsim.cli.entry", *arguments]


def finish(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(command(*arguments), cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def imported(code: str, cwd: Path) -> set[str]:
    """Top-level names of all modules that a piece of code loads."""
    probe = f"{code}\nimport sys\nprint(*sorted({{n.partition('.')[0] for n in sys.modules}}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_the_entry_point_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = imported("import ppsim.cli.entry", tmp_path)
    assert not loaded & {*HEAVY, "numpy", "simpy", "pydantic", "rich"}


def test_a_short_run_starts_without_numpy_and_without_the_other_commands(tmp_path: Path) -> None:
    """Each of them costs a good part of what ``ppsim run unit`` takes."""
    call = "import sys; sys.argv = ['ppsim', 'run', '{}']\nfrom ppsim.cli.entry import main\ntry: main()\n"
    probe = call + "except SystemExit: pass\nprint(*sorted(sys.modules), file=sys.stderr)"
    loaded = {}
    for scenario in ("unit", "tiny"):
        done = subprocess.run(
            [sys.executable, "-c", probe.format(scenario)], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        loaded[scenario] = set(done.stderr.splitlines()[-1].split())
    commands = {name for name in loaded["unit"] if name.startswith("ppsim.cli.")}
    assert "ppsim.cli.run" in commands
    assert not commands & {f"ppsim.cli.{name}" for name in ("tune", "fuzz", "plot", "sweep", "listing", "replay")}
    assert "ppsim.world.simulate" in loaded["unit"]
    assert not loaded["unit"] & {"numpy", "ppsim.fuzz.experiment", "ppsim.report.charts"}


def test_a_whole_run_never_loads_torch(tmp_path: Path) -> None:
    run = "import sys\nfrom ppsim.cli.entry import app\napp(['run', 'tiny', '--json'], standalone_mode=False)"
    loaded = imported(run, tmp_path)
    assert "simpy" in loaded
    assert not loaded & set(HEAVY)


def test_the_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    outputs = []
    for seed in ("1", "2"):
        done = finish("run", "tiny", "--json", "--out", seed, cwd=tmp_path, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        outputs.append([done.stdout, *[(p.name, p.read_bytes()) for p in sorted((tmp_path / seed).iterdir())]])
    assert outputs[0] == outputs[1]
    json.loads(str(outputs[0][0]))


def test_a_reader_that_closes_the_pipe_is_no_error(tmp_path: Path) -> None:
    write_recording(pipeline(1, 3000), tmp_path / "long.jsonl")  # its schedule does not fit into a pipe's buffer
    with subprocess.Popen(
        command("show", "long.jsonl", "--schedule", "--json"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        assert json.loads(shown.stdout.readline())["iteration"] == 0
        shown.stdout.close()
        assert shown.wait(timeout=60) == 0
        assert shown.stderr.read() == b""


def run_in_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, terminal: bool, patience_s: float = 0.05
) -> str:
    monkeypatch.setattr(progress_module, "PATIENCE_S", patience_s)
    monkeypatch.setattr(progress_module, "EVERY_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with ProgressBar("simulating unit") as bar:
        bar(1, 100)
        time.sleep(0.06)
        bar(42, 100)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_progress_is_shown_on_a_terminal_after_a_while_and_never_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run_in_terminal(monkeypatch, capsys, terminal=True)
    assert "simulating unit" in shown
    assert "42/100" in shown
    assert run_in_terminal(monkeypatch, capsys, terminal=False) == ""
    assert run_in_terminal(monkeypatch, capsys, terminal=True, patience_s=3600) == ""
    assert PATIENCE_S == 2.0


def test_without_a_terminal_there_is_a_line_every_ten_seconds_also_while_nothing_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress_module.LINE_S == 10.0
    monkeypatch.setattr(progress_module, "LINE_S", 0.2)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with ProgressBar("simulating unit", "requests") as bar:
        bar(1, 100)
        time.sleep(0.3)
        bar(42, 0)
        time.sleep(0.3)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[:1] == ["simulating unit: 1 of 100 requests, 0 s"]
    assert lines[-1].startswith("simulating unit: 42 requests, ")
    time.sleep(0.3)
    assert capsys.readouterr().err == ""  # it has ended


def test_a_short_run_shows_no_bar_even_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(command("run", "unit"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, timeout=60)
    os.close(theirs)
    assert done.returncode == 0
    assert os.read(ours, 4096) == b"saved runs/unit-0-1\r\nas expected: verdict pass, 7 figures\r\n"
    os.close(ours)


def test_python_m_ppsim_version_and_short_help(tmp_path: Path) -> None:
    import ppsim

    def called(*words: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "ppsim", *words]
        return subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    told = called("--version")
    assert (told.returncode, told.stdout, told.stderr) == (0, f"ppsim {ppsim.__version__}\n", "")
    assert called("run", "-h").stdout == called("run", "--help").stdout != ""
    assert called("-h").stdout.startswith("Usage: ")
    # A launch line, word by word, may have a -h of its own: it is no help for ppsim import.
    line = "python -m sglang.launch_server --model-path x --pp-size 2 -h"
    assert "unknown: line 1, -h" in called("import", *line.split()).stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ppsim exp", {"explore", "export"}),
        ("ppsim run moon", {"mooncake"}),
        ("ppsim run tiny --bug free_at", {"free_at_abort"}),
        ("ppsim fuzz --profile pla", {"plain"}),
        ("ppsim show mi", {"mine"}),
        ("ppsim diff mine la", {"latest"}),
        ("ppsim show nothing_like_it", set()),
    ],
)
def test_a_shell_is_offered_names(words: str, offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "recording.jsonl").touch()
    code = "import sys; sys.argv = ['ppsim']; from ppsim.cli.entry import app; app(prog_name='ppsim')"
    shell = {"_PPSIM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    env = {**os.environ, **shell}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert (set(done.stdout.split()), done.stderr) == (offered, "")
