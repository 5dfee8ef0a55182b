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


MINE = """import ppsim
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.rank import Rank
from ppsim.core.agreed import agree
from ppsim.plugin import planted


@planted("own_rows", breaks="INV-26", profile="plain", source="this test")
class OwnRows(ppsim.Policy):
    def retraction_order(self, running):
        return running


@planted("turned", breaks="INV-14", profile="plain", source="this test")
class Turned(ppsim.Policy):
    def admission_order(self, waiting):
        return waiting[::-1] if self.pp_rank else waiting


@planted("forgets", breaks="INV-14", profile="plain", source="this test")
class Forgets(ppsim.Policy):
    def admission_order(self, waiting):
        waiting.sort(key=lambda request: request.rid)
"""


def test_exec_takes_a_plug_in_and_its_bugs_as_run_does(tmp_path: Path) -> None:
    """The same rule, rank, iteration and sentence in both worlds; what cannot be used is told before any process."""
    plugin = tmp_path / "mine.py"
    plugin.write_text(MINE)
    work = ["tiny", "--set", "run.invariants=true", "--plugin", str(plugin), "--bug"]
    ends = []
    for world in ("exec", "run"):
        done = ppsim(world, *work, "turned", "--out", str(tmp_path / world))
        verdict = json.loads((tmp_path / world / "verdict.json").read_text(encoding="utf-8"))
        ends.append((done.returncode, verdict))
        assert "Traceback" not in done.stderr
    assert ends[0] == ends[1]
    assert (ends[0][0], ends[0][1]["kind"], ends[0][1]["rank"]) == (1, "fail", 1)
    for bug, message in (
        ("turnd", "ppsim: unknown planted bug 'turnd' (did you mean 'turned'?)"),
        (
            "store_out_of_order",
            "ppsim: bugs: 'store_out_of_order' changes store_age_ns, which only the simulated world",
        ),
    ):
        refused = ppsim("exec", *work, bug)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(message)
    plugin.write_text("from ppsim.core.hooks import Hooks\n")
    old = ppsim("exec", *work, "turned")
    assert (old.returncode, old.stdout) == (2, "")
    assert "mine.py is written for the earlier interface" in old.stderr


def test_a_bug_that_raises_or_is_never_asked_is_told_of_real_processes_too(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(MINE)
    raised = ppsim("exec", "tiny", "--plugin", str(plugin), "--bug", "forgets", "--out", str(tmp_path / "raised"))
    assert (raised.returncode, raised.stdout) == (1, "")
    assert "Traceback" not in raised.stderr
    assert "crash: TypeError: mine.py, line 22: Forgets.admission_order must return list, it returned nothing" in (
        raised.stderr
    )
    never = ppsim("exec", "tiny", "--plugin", str(plugin), "--bug", "own_rows", "--out", str(tmp_path / "never"))
    assert never.returncode == 0, never.stderr
    assert "own_rows: fired 0 times: nothing in this run came to what it changes" in never.stderr
