"""ppsim fuzz, replay and their bad input: exact JSON names, exit codes, one message and never a traceback."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.fuzz.coverage_probes import PAIRS, PROBES

NEWEST = """
from ppsim.core.policy import Policy as Right
from ppsim.plugin import planted


@planted("newest", breaks="INV-26", profile="plain", source="this test")
class Newest(Right):
    def eviction_key(self, node):
        return -node.last_access if self.pp_rank else node.last_access
"""

PLUGINS = {
    "raises": "    def admission_order(self, waiting):\n        return sorted(waiting, key=lambda r: r.nothing)\n",
    "exits": "    def admission_order(self, waiting):\n        raise SystemExit(3)\n",
    "wrong_type": "    def admission_order(self, waiting):\n        return 7\n",
    "chancy": "    def admission_order(self, waiting):\n        return sorted(waiting, key=lambda r: random())\n",
    "misspelt": "    def admision_order(self, waiting):\n        return waiting\n",
    "unmade": "    def __init__(self, pp_rank=0):\n        super().__init__(pp_rank)\n",
    "fine": "    def may_prefill(self, running, waiting, free_tokens):\n        return True\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, body in PLUGINS.items():
        head = "from random import random\n\nimport ppsim\n\n\nclass Policy(ppsim.Policy):\n"
        (tmp_path / f"{name}.py").write_text(head + body)
    (tmp_path / "syntax.py").write_text("def (\n")
    (tmp_path / "quits.py").write_text("import sys\n\nsys.exit(0)\n")
    (tmp_path / "nothing.py").write_text("x = 1\n")
    return tmp_path


def ppsim(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line))


# --- what is printed -------------------------------------------------------------------------------------------------


def test_json_of_a_campaign_has_the_promised_names() -> None:
    result = ppsim("fuzz --profile chunked --examples 6 --seed 3 --json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    promised = {"verdict", "seed", "examples", "seconds", "findings", "probes_hit", "probes_never_hit", "digest"}
    assert promised <= set(shown)
    assert (shown["verdict"], shown["seed"], shown["examples"], shown["findings"]) == ("pass", 3, 6, [])
    assert sorted(shown["probes_hit"] + shown["probes_never_hit"]) == sorted(PROBES)
    assert set(shown["arrows_never_taken"]) < set(PAIRS)


def test_json_of_a_finding_leads_to_its_reproduction() -> None:
    shown = json.loads(ppsim("fuzz --bug free_at_abort --examples 100 --json").stdout)
    assert (shown["verdict"], shown["profile"]) == ("fail", "abort")
    (finding,) = shown["findings"]
    assert (finding["invariant"], finding["size"]["requests"]) == ("INV-59", 1)
    again = ppsim(f"replay {finding['repro']} --json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["reproduced"] is True


def test_json_of_the_planted_bugs_has_exactly_the_promised_names() -> None:
    rows = json.loads(ppsim("list bugs --json").stdout)
    assert len(rows) >= 60
    assert all(set(row) == {"name", "breaks", "profile", "source"} for row in rows)
    assert all(row["breaks"].startswith("INV-") for row in rows)


def test_a_campaign_that_has_run_nothing_has_not_passed() -> None:
    result = ppsim("fuzz --budget 0.000001 --json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, shown["verdict"], shown["examples"]) == (5, "unknown", 0)


def test_profiles_and_probes_can_be_listed() -> None:
    profiles = json.loads(ppsim("list profiles --json").stdout)
    assert {"plain", "chunked", "abort", "pd", "hicache", "grammar", "blocking", "all"} <= {p["name"] for p in profiles}
    assert [line.split()[0] for line in ppsim("list profiles").stdout.splitlines()] == [p["name"] for p in profiles]
    assert json.loads(ppsim("list probes --json").stdout) == {"probes": list(PROBES), "arrows": list(PAIRS)}
    groups = [group.splitlines() for group in ppsim("list probes").stdout.split("\n\n")]
    assert [group[0] for group in groups] == [
        f"situations: {len(PROBES)}",
        f"arrows of the request table: {len(PAIRS)}",
    ]
    assert [[line.strip() for line in group[1:]] for group in groups] == [list(PROBES), list(PAIRS)]


def test_bugs_and_invariants_are_listed_in_groups_and_none_is_left_out() -> None:
    for what, key in (("bugs", "profile "), ("invariants", ""), ("models", "")):
        rows = {row["name"] for row in json.loads(ppsim(f"list {what} --json").stdout)}
        groups = [group.splitlines() for group in ppsim(f"list {what}").stdout.split("\n\n")]
        assert len(groups) > 1
        assert sorted(line.split()[0] for group in groups for line in group[1:]) == sorted(rows)
        for head, *lines in groups:
            assert head.startswith(key)
            assert head.endswith(f": {len(lines)}")


def test_a_green_campaign_says_what_it_never_reached() -> None:
    shown = ppsim("fuzz --profile plain --examples 5").stdout
    assert shown.startswith("PASS  5 examples of profile plain, seed 0\n")
    probes, arrows = shown.split("probes never reached: ")[1].split("arrows never taken: ")
    assert {"a transfer fails", "abort twice"} < {name.strip() for name in " ".join(probes.split()).split(";")}
    assert {"bootstrap x abort"} < {name.strip() for name in " ".join(arrows.split()).split(";")}
    assert max(len(line) for line in shown.splitlines()) <= 120


def test_stdout_is_a_function_of_the_command_line() -> None:
    command = "fuzz --bug free_at_abort --examples 100 --out here"
    first = ppsim(command)
    for path in (Path("here") / "examples").rglob("*"):
        if path.is_file():
            path.unlink()  # else what failed before comes first
    assert ppsim(command).stdout == first.stdout


def test_the_report_of_a_failure_ends_in_commands_that_work() -> None:
    result = ppsim("fuzz --bug free_at_abort --examples 100")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("FAIL  safety  INV-59 ")
    words = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
    assert {"FAIL", "blame:", "last", "shrunk", "saved", "replay", "keep"} <= set(words)
    assert "rank" in words["blame:"]
    assert "t = " in words["blame:"]
    assert "requests" in words["shrunk"]
    assert "→1" in words["shrunk"]
    assert "same INV-59" in words["shrunk"]
    assert ppsim(words["replay"].removeprefix("replay  ppsim ")).stdout.endswith("reproduced bit for bit\n")
    keep, target = words["keep"].removeprefix("keep    ppsim ").split(" > ")
    assert target.startswith("tests/regressions/test_")
    assert "def test_" in ppsim(keep).stdout


def test_the_digest_does_not_depend_on_the_process(folder: Path) -> None:
    """Other string hashes, another folder, nothing imported before: as on another machine."""
    digests = set()
    for hash_seed in ("1", "2"):
        (folder / hash_seed).mkdir()
        command = [sys.executable, "-m", "ppsim.cli.entry", *["fuzz", "--examples", "12", "--seed", "6", "--json"]]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ended = subprocess.run(
            command, capture_output=True, text=True, cwd=folder / hash_seed, env=environment, check=True
        )
        digests.add(json.loads(ended.stdout)["digest"])
    digests.add(json.loads(ppsim("fuzz --examples 12 --seed 6 --json").stdout)["digest"])
    assert len(digests) == 1


# --- bad input -------------------------------------------------------------------------------------------------------


BAD: list[tuple[str, str]] = [
    ("fuzz --budget 0", "--budget 0: must be a number of seconds more than 0"),
    ("fuzz --budget -2", "--budget -2: "),
    ("fuzz --budget nan", "--budget nan: "),
    ("fuzz --budget inf", "--budget inf: "),
    ("fuzz --examples 0", "--examples"),
    ("fuzz --examples 5 --budget 5", "--examples and --budget exclude each other"),
    ("fuzz --jobs 0", "--jobs"),
    ("fuzz --jobs 2 --ray local", "--jobs and --ray exclude each other"),
    ("fuzz --seed -1", "--seed"),
    ("fuzz --profile abrot", "unknown profile 'abrot' (did you mean 'abort'?); there are: plain, "),
    ("fuzz --profile pd --profile plain", "--profile pd and --profile plain contradict each other"),
    ("fuzz --profile plain --bug release_at_own_transfer", "contradict each other: it shows in examples of profile"),
    ("fuzz --bug free_at_abrt", "unknown planted bug 'free_at_abrt' (did you mean 'free_at_abort'?)"),
    ("fuzz --plugin nowhere.py", "plug-in nowhere.py: there is no such file"),
    ("fuzz --plugin .", "plug-in .: there is no such file"),
    ("fuzz --plugin syntax.py", "plug-in syntax.py raises while it is loaded: SyntaxError: "),
    ("fuzz --plugin quits.py", "plug-in quits.py raises while it is loaded: SystemExit: 0"),
    ("fuzz --plugin nothing.py", "plug-in nothing.py defines neither a class Policy nor a @planted bug"),
    ("fuzz --plugin unmade.py", "Policy(pp_rank, tp_rank) cannot be made: TypeError: "),
    ("fuzz --plugin misspelt.py", "Policy.admision_order overrides nothing of Policy (did you mean 'admission_order'?"),
    ("run unit --plugin syntax.py", "plug-in syntax.py raises while it is loaded: SyntaxError: "),
    ("explore explore_release --bound aborts=1 --plugin nothing.py", "defines neither"),
    ("explore explore_release --bound aborts=1 --bug free_at_abrt", "did you mean 'free_at_abort'?"),
    ("replay nowhere.json", "nowhere.json: cannot be read"),
    ("replay .", ". is not a run folder: it has no recording.jsonl"),
    ("replay syntax.py", "syntax.py:1: not a reproduction"),
]


@pytest.mark.parametrize(("line", "message"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_message_and_exit_code_2(line: str, message: str) -> None:
    result = ppsim(line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_with_other_files_is_refused() -> None:
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("x")
    result = ppsim("fuzz --examples 1 --out mine")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--out mine: holds thesis.tex" in result.stderr


# --- plug-ins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugin", "crash"),
    [("raises", "AttributeError"), ("exits", "SystemExit"), ("wrong_type", "TypeError")],
)
def test_a_plugin_that_raises_is_a_failure_with_its_place(plugin: str, crash: str) -> None:
    fuzzed = ppsim(f"fuzz --plugin {plugin}.py --profile plain --examples 20")
    assert fuzzed.exit_code == 1
    assert fuzzed.stdout.startswith(f"FAIL  safety  crash-{crash}  seed 0  example ")
    run = ppsim(f"run unit --plugin {plugin}.py")
    assert run.exit_code == 1
    assert f"unit: crash: {crash}: " in run.stderr
    assert ") at rank 0, iteration 0, slot 0, phase schedule\n" in run.stderr
    assert "verdict fail" in run.stdout  # the summary of what was recorded, and its folder
    saved = re.search(r"^saved (\S+), marked incomplete$", run.stderr, re.MULTILINE)
    assert saved is not None
    told = json.loads((Path(saved[1]) / "verdict.json").read_text())
    assert (told["rank"], told["iteration"], told["slot"], told["phase"]) == (0, 0, 0, "schedule")
    assert told["came"].startswith(f"{crash}: ")
    if plugin == "exits":
        assert "(exits.py, line 8, in Policy.admission_order)" in run.stderr
    if plugin == "raises":
        assert "(raises.py, line 8, in Policy.admission_order.<locals>.<lambda>)" in run.stderr
        explored = ppsim("explore explore_release --bound aborts=1 --plugin raises.py")
        assert explored.exit_code == 1
        assert "(raises.py, line 8, in Policy.admission_order.<locals>.<lambda>)" in explored.stdout


def test_a_nondeterministic_plugin_is_named_as_such_with_exit_code_4() -> None:
    result = ppsim("fuzz --plugin chancy.py --profile plain --examples 60 --out here")
    assert result.exit_code == 4
    assert result.stdout.startswith("FAIL  nondeterminism  nondeterminism  seed 0  example ")
    assert "first difference: " in result.stdout
    assert "keep " not in result.stdout
    replays = (ppsim("replay here/repro_nondeterminism_0.json") for _ in range(30))  # two runs may be alike by chance
    again = next(r for r in replays if r.stdout.endswith("two runs differ again\n"))
    assert again.exit_code == 4
    kept = ppsim("replay here/repro_nondeterminism_0.json --emit-test")
    assert (kept.exit_code, kept.stdout) == (2, "")


def test_a_plugin_without_effect_changes_nothing() -> None:
    plain, with_it = (ppsim(f"fuzz --profile plain --examples 8 {more}") for more in ("", "--plugin fine.py"))
    assert plain.stdout == with_it.stdout


def test_a_plugin_that_is_gone_or_has_changed_is_told(folder: Path) -> None:
    (folder / "mine.py").write_text(NEWEST)
    assert ppsim("fuzz --plugin mine.py --bug newest --examples 40 --out here").exit_code == 1
    (file,) = (folder / "here").glob("repro_*.json")
    (folder / "mine.py").write_text(NEWEST.replace("self.pp_rank", "False"))
    changed = ppsim(f"replay {file}")
    assert "plug-in mine.py has changed since" in changed.stderr
    assert (changed.exit_code, changed.stdout.splitlines()[0]) == (0, "the run passes: nothing is broken")
    (folder / "mine.py").unlink()
    gone = ppsim(f"replay {file}")
    assert (gone.exit_code, gone.stderr) == (2, "ppsim: plug-in mine.py: there is no such file\n")


def test_a_bug_in_a_file_of_ones_own_works_everywhere(folder: Path) -> None:
    (folder / "mine.py").write_text(NEWEST)
    fuzzed = ppsim("fuzz --plugin mine.py --bug newest --examples 40")
    assert (fuzzed.exit_code, fuzzed.stdout.split()[2]) == (1, "INV-26")
    searched = json.loads(ppsim("bugs newest --plugin mine.py --budget 60 --json").stdout)
    assert [(row["name"], row["found"], row["invariant"]) for row in searched] == [("newest", True, "INV-26")]
    assert ppsim("run unit --plugin mine.py --bug newest").exit_code == 0  # nothing is evicted there
    assert ppsim("explore explore_release --bound aborts=1 --plugin mine.py --bug newest").exit_code == 0
    for command in ("fuzz --examples 1", "run unit", "explore explore_release --bound aborts=1"):
        unknown = ppsim(f"{command} --plugin mine.py --bug newst")
        assert (unknown.exit_code, unknown.stdout) == (2, "")
        assert "unknown planted bug 'newst' (did you mean 'newest'?)" in unknown.stderr


# --- other versions, and the end ------------------------------------------------------------------------------------


def test_a_reproduction_of_another_version_says_which_and_is_run_anyway(folder: Path) -> None:
    ppsim("fuzz --bug free_at_abort --examples 100 --out here")
    (file,) = (folder / "here").glob("repro_*.json")
    content = json.loads(file.read_text()) | {"ppsim": "0.0.7"}
    file.write_text(json.dumps(content))
    refused = ppsim(f"replay {file}")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "written by ppsim 0.0.7, this is " in refused.stderr
    assert "--anyway" in refused.stderr
    assert ppsim(f"replay {file} --anyway").stdout.endswith("reproduced bit for bit\n")
