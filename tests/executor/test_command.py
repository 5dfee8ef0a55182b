"""``ppsim exec`` from outside: processes started the default way, the result on stdout, errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

ROOT = Path(__file__).resolve().parents[2]
PPSIM = "import sys; from ppsim.cli.entry import main; sys.exit(main())"


def ppsim(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PPSIM, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_exec_prints_the_same_object_as_run_with_the_same_decisions(tmp_path: Path) -> None:
    real = ppsim("exec", "tiny", "--json", "--out", str(tmp_path / "real"))
    assert real.returncode == 0, real.stderr
    simulated = ppsim("run", "tiny", "--json", "--out", str(tmp_path / "simulated"))
    ours, theirs = json.loads(real.stdout), json.loads(simulated.stdout)
    assert (ours["world"], theirs["world"]) == ("exec", "sim")
    assert list(ours) == list(theirs)
    assert ours["num_finished"] == ours["num_requests"] == 5
    assert ours["decision_digests"] == theirs["decision_digests"]  # all inputs are scripted by iteration
    assert "Traceback" not in real.stderr


def test_exec_of_a_checkpoint_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = ppsim("exec", "tiny", "--model", str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert [line for line in done.stderr.splitlines() if line] == [
        f"ppsim: checkpoint folder {tmp_path / 'none'} does not exist (expected config.json and *.safetensors in it)"
    ]
