"""Law: what loops for ever without asking anything of the world is ended by the user's clock, in any process.

The exit code is 5, the folder can be read and says that it is incomplete, and a campaign reports a finding.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.fuzz import limit
from ppsim.fuzz.limit import Limit, OutOfTime
from ppsim.plan.search import Search

HEAD = "import time\nimport ppsim\n\n\nclass Policy(ppsim.Policy):\n"
ORDER = HEAD + "    def admission_order(self, waiting):\n"
LOOPS = (
    ORDER
    + """        while waiting:
            pass
        return waiting
"""
)
SLEEPS = (
    ORDER
    + """        time.sleep(3600 * bool(waiting))
        return waiting
"""
)
GREEDY = (
    ORDER
    + """        try:
            while waiting:
                pass
        except Exception:
            pass
        return waiting
"""
)
STUBBORN = (
    ORDER
    + """        while True:
            try:
                while True:
                    try:
                        while True:
                            pass
                    except BaseException:
                        pass
            except BaseException:
                pass
"""
)
TELLS = (
    ORDER
    + """        open('began', 'w').close()
        return waiting
"""
)
BUILDS = (
    HEAD
    + """    pass


from ppsim.core.rank import Rank


class Sleeps(Rank):
    def __init__(self, *parts):
        time.sleep(3600)


CHANGES = [Sleeps]
"""
)
HARMLESS = """from ppsim.core.policy import Policy
from ppsim.plugin import planted


@planted("harmless", breaks="INV-01", profile="plain", source="here")
class Harmless(Policy):
    pass
"""
LOOPING = {"loops": LOOPS, "sleeps": SLEEPS, "greedy": GREEDY}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ppsim(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line))


def command(line: str) -> list[str]:
    return [sys.executable, "-m", "ppsim.cli.entry", *shlex.split(line)]


def loop_for_ever() -> None:
    while True:
        pass


# --- the clock ---------------------------------------------------------------------------------------------------


def test_a_limit_ends_what_it_surrounds_and_leaves_no_alarm_behind() -> None:
    before = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()
    with pytest.raises(OutOfTime) as caught, Limit(0.2):
        loop_for_ever()
    assert str(caught.value).startswith("it was stopped after 0.2 s (--max-seconds); it was in test_limit.py, line ")
    assert str(caught.value).endswith(", in loop_for_ever")
    assert time.monotonic() - started < 5
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with Limit(0.05):
        pass
    time.sleep(0.1)  # an alarm now would end the test run


def test_no_exception_handler_of_a_plug_in_takes_it_for_an_error() -> None:
    assert not issubclass(OutOfTime, Exception)
    again = OutOfTime("a", "b: ", "c", 1, 2)
    assert str(type(again)(*again.args)) == "b: a; it was in c"  # SimPy builds it again from its arguments


# --- ppsim run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOPING)
@pytest.mark.parametrize("scenario", ["unit", "pd_busy_votes"])
def test_a_run_is_stopped_with_exit_code_5_and_a_folder_that_says_so(name: str, scenario: str) -> None:
    Path("p.py").write_text(LOOPING[name])
    result = ppsim(f"run {scenario} --plugin p.py --max-seconds 0.5 --out here")
    assert result.exit_code == 5, result.stderr
    first = result.stderr.splitlines()[0]
    assert first.startswith("no end: rank 0, iteration ")
    assert ", phase schedule: it was stopped after 0.5 s (--max-seconds); it was in p.py, line " in first
    assert "saved here, marked incomplete" in result.stderr
    verdict = json.loads(Path("here/verdict.json").read_text())
    assert (verdict["kind"], verdict["exit_code"], verdict["rank"]) == ("unknown", 5, 0)
    assert Path("here/incomplete.txt").read_text().startswith(first)
    shown = ppsim("show here")
    assert shown.exit_code == 0
    assert "verdict unknown" in shown.stdout
    assert shown.stderr.startswith("here is incomplete: no end: rank 0")
    assert ppsim("diff here here").exit_code == 0
    assert ppsim(f"run {scenario} --set run.max_iterations=3 --out here").exit_code == 5
    assert not Path("here/incomplete.txt").exists()  # it has ended by itself


def test_a_run_in_which_nothing_gets_done_is_stopped_long_before_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "MAX_STILL_S", 0.5)
    monkeypatch.setattr(limit, "TICK_S", 0.1)
    Path("p.py").write_text(LOOPS)
    result = ppsim("run unit --plugin p.py --out here")
    assert result.exit_code == 5
    assert "phase schedule: it was stopped: no rank got anything done for 0.5 s; it was in p.py, line " in result.stderr


def test_a_plug_in_that_keeps_every_exception_ends_the_process_with_exit_code_5(folder: Path) -> None:
    Path("p.py").write_text(STUBBORN)
    line = "run unit --plugin p.py --max-seconds 0.2 --out here"
    done = subprocess.run(command(line), cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (5, "")
    assert "and goes on although it was told to stop 5 times" in done.stderr
    assert "the run was ended: rank 0, iteration 0" in Path("here/incomplete.txt").read_text()
    shown = ppsim("show here")
    assert shown.exit_code == 2
    assert "here has no recording.jsonl: the run was ended: " in shown.stderr


def test_a_run_that_never_begins_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("p.py").write_text(BUILDS)
    result = ppsim("run unit --plugin p.py --max-seconds 0.3")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "unit: stopped before it began: it was stopped after 0.3 s" in result.stderr
    assert not any(Path("runs").iterdir())
    monkeypatch.setattr(limit, "MAX_STILL_S", 0.3)
    Path("p.py").write_text("while True:\n    pass\n")
    result = ppsim("run unit --plugin p.py")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "p.py: reading it takes more than 0.3 s; it was in p.py, line " in result.stderr


@pytest.mark.parametrize("line", ["run unit", "fuzz", "explore explore_release", "replay x.json"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(line: str, value: str) -> None:
    result = ppsim(f"{line} --max-seconds {value}")
    assert result.exit_code == 2
    assert f"--max-seconds {value}: must be a number of seconds more than 0" in result.stderr


def test_a_killed_run_is_told_from_a_whole_one(folder: Path) -> None:
    with subprocess.Popen(command("run mooncake --out here"), cwd=folder) as process:
        while not Path("here/incomplete.txt").exists() and process.poll() is None:
            time.sleep(0.05)
        process.kill()
    result = ppsim("show here")
    assert result.exit_code == 2
    assert "here has no recording.jsonl: the run that began here has not ended: it goes on, or it was killed" in (
        result.stderr
    )


# --- ppsim fuzz, replay, explore ---------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_example_without_end_is_a_finding_with_the_command_that_repeats_it(jobs: int) -> None:
    """The limit is one that every example keeps by far on a busy machine: the same one must pass without the loop."""
    Path("p.py").write_text(LOOPS)
    found = ppsim(f"fuzz --profile plain --plugin p.py --examples 200 --jobs {jobs} --max-seconds 8 --out here")
    assert found.exit_code == 5, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].startswith("FAIL  unknown  no-end  seed 0  example ")
    assert lines[1].startswith("  no end: rank ")
    assert "it was stopped after 8 s (--max-seconds); it was in p.py, line " in lines[1]
    assert lines[2] == "not shrunk: each try would take as long"
    (replay,) = (line.removeprefix("replay  ppsim ") for line in lines if line.startswith("replay"))
    again = ppsim(replay)
    assert again.exit_code == 5
    assert again.stdout.splitlines()[-1] == "again it does not end"
    Path("p.py").write_text(HEAD + "    pass\n")
    assert ppsim(replay).exit_code == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_campaign_whose_plug_in_cannot_be_stopped_ends_all_the_same(folder: Path, jobs: int) -> None:
    Path("p.py").write_text(STUBBORN)
    line = f"fuzz --profile plain --plugin p.py --examples 200 --jobs {jobs} --max-seconds 0.2"
    done = subprocess.run(command(line), cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (5, "")
    assert "and goes on although it was told to stop 5 times" in done.stderr
    if jobs == 2:  # the process of the campaign is still there
        told = r"died in round ([01]) with exit code 5: a run in it could not be stopped; that round alone is (.*)"
        died = re.search(told, done.stderr)
        assert died  # both begin at once, and either may be the first
        assert f"--seed 0 --skip {100 * int(died[1])} --examples 100 --jobs 1" in died[2]


def test_an_execution_without_end_is_a_finding_of_an_exploration() -> None:
    Path("p.py").write_text(LOOPS)
    found = ppsim("explore explore_release --bound aborts=2 --plugin p.py --max-seconds 0.3")
    assert found.exit_code == 5
    assert found.stdout.startswith("no end: rank 0, iteration ")


# --- Ctrl-C ------------------------------------------------------------------------------------------------------


def interrupted(line: str, cwd: Path, began: str, wait_s: float = 1.0) -> tuple[int, str, str]:
    """Start a command, press Ctrl-C a while after a path is there."""
    with subprocess.Popen(
        command(line),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    ) as process:
        until = time.monotonic() + 60
        while not (cwd / began).exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ctrl_c_keeps_what_there_is_of_a_run(folder: Path) -> None:
    Path("p.py").write_text(TELLS)
    code, out, err = interrupted("run mooncake --plugin p.py --out here", folder, "began", 0.3)
    assert code == 130
    assert "verdict unknown" in out
    lines = err.splitlines()
    assert lines[0] == "interrupted"
    assert lines[1].startswith("incomplete: ")
    assert "requests had ended, in iteration" in lines[1]
    assert lines[2] == "saved here, marked incomplete"
    assert ppsim("show here").exit_code == 0
    assert Path("here/incomplete.txt").read_text().splitlines() == lines[:2]


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_says_how_far_a_campaign_came_and_how_to_go_on(folder: Path, jobs: int) -> None:
    more = f"--profile plain --seed 7 --jobs {jobs} --out here"
    code, out, err = interrupted(f"fuzz --examples 100000 {more}", folder, "here", 4.0)
    assert (code, out) == (130, "")
    lines = err.splitlines()
    assert lines[0].startswith("interrupted after ")
    assert "examples of profile plain, seed 7" in lines[0]
    assert lines[1] == "saved here"
    words = shlex.split(lines[2].removeprefix("go on with  "))
    assert words[:2] == ["ppsim", "fuzz"]
    skipped = int(words[words.index("--skip") + 1])
    assert skipped % 100 == 0
    assert int(words[words.index("--examples") + 1]) == 100_000 - skipped
    assert json.loads(Path("here/campaign.json").read_text())["interrupted"] is True
    words[words.index("--examples") + 1] = "3"
    went_on = CliRunner().invoke(app, [*words[1:], "--json"])
    assert went_on.exit_code == 0, went_on.stderr


def test_a_campaign_that_goes_on_runs_the_examples_that_are_left() -> None:
    """300 examples at once, or 200 behind the first hundred: the same rounds, by their digests."""
    from ppsim.fuzz.round import Order, round_sizes, run_round

    left = list(round_sizes(Order("plain", 5, 250, num_skipped=100)))
    assert left == [(1, 100), (2, 100), (3, 50)]
    assert list(round_sizes(Order("plain", 5, 350)))[1:] == left
    assert run_round(Order("plain", 5, 100, num_skipped=100), 1, 3).digest == run_round(Order("plain", 5), 1, 3).digest
    result = ppsim("fuzz --skip 50 --examples 3")
    assert result.exit_code == 2
    assert "--skip 50: examples come in rounds of 100; give a multiple of it" in result.stderr


def test_ctrl_c_says_which_bugs_are_left(folder: Path) -> None:
    Path("p.py").write_text(HARMLESS)
    line = "bugs empty_list_not_sent harmless free_at_abort --plugin p.py --budget 50 --seed 3"
    code, out, err = interrupted(line, folder, "runs", 3.0)
    assert code == 130
    assert out.splitlines()[0].startswith("empty_list_not_sent")
    assert "1 of 1 found" in out
    assert err.splitlines()[-2:] == [
        "interrupted at harmless: 1 of 3 bugs were looked for",
        "go on with  ppsim bugs harmless free_at_abort --budget 50 --seed 3 --plugin p.py",
    ]


def test_ctrl_c_says_how_far_an_exploration_came(folder: Path) -> None:
    Path("slow.py").write_text(TELLS)
    line = "explore explore_release --bound aborts=20 --bound delays=transfer:3 --plugin slow.py"
    code, out, err = interrupted(line, folder, "began")
    assert (code, out) == (130, "")
    note, end = err.splitlines()[:2]
    assert note.startswith("note: explore_release: ")
    assert end.startswith("interrupted after ")
    assert "executions (" in end
    assert "nothing is proved" in end


def test_ctrl_c_keeps_what_a_search_has_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block of configurations is done, then somebody interrupts: all of them are in the file, best first."""

    def stop(self: Search, *args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "best_by_split", stop)
    result = ppsim("tune mooncake --gpus 4 --prompt 4096 --out kept")
    assert result.exit_code == 130, result.stderr
    found = json.loads(Path("kept/tune.json").read_text())
    ttfts = [row["ttft_s"] for row in found["table"]]
    assert found["interrupted"]
    assert len(ttfts) > 10
    assert ttfts == sorted(ttfts)
    assert f"interrupted after {len(ttfts)} configurations; nothing was simulated" in result.stderr
    assert f"best of {len(ttfts)} configurations so far" in result.stdout


def test_ctrl_c_before_the_first_configuration_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Search, *args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "evaluate", stop)
    result = ppsim("tune mooncake --gpus 4 --prompt 4096 --out kept")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "interrupted before any configuration was evaluated" in result.stderr
    assert not Path("kept").exists()
