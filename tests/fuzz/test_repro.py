"""A saved failure comes back bit for bit, says what is wrong with a bad file, and becomes a test that pytest runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppsim.core.parts import UNCHANGED
from ppsim.errors import UsageError
from ppsim.fuzz.campaign import Finding, run_campaign
from ppsim.fuzz.emit import WIDTH, literal, regression_test, tape_lines
from ppsim.fuzz.experiment import Experiment, run_experiment, tape_of
from ppsim.fuzz.repro import Repro, load, parse, save
from ppsim.fuzz.round import Order
from ppsim.recording.origin import ppsim_version

ROOT = Path(__file__).resolve().parents[2]


def found(order: Order) -> Finding:
    result = run_campaign(order)
    assert len(result.findings) == 1
    return result.findings[0]


@pytest.fixture(scope="module")
def finding() -> Finding:
    return found(Order("abort", 0, 100, bugs=("free_at_abort",)))


@pytest.fixture
def file(finding: Finding, tmp_path: Path) -> Path:
    path = tmp_path / "repro.json"
    save(path, finding.repro)
    return path


def test_a_file_comes_back_as_what_was_saved(file: Path, finding: Finding) -> None:
    loaded = load(str(file))
    assert loaded.experiment == finding.repro.experiment
    assert (loaded.signature, loaded.digest, loaded.bugs) == (
        finding.repro.signature,
        finding.repro.digest,
        ("free_at_abort",),
    )
    assert loaded.version == ppsim_version()


def test_the_same_failure_is_saved_in_the_same_bytes(file: Path, finding: Finding, tmp_path: Path) -> None:
    save(tmp_path / "again.json", load(str(file)))
    assert (tmp_path / "again.json").read_bytes() == file.read_bytes()


def test_it_replays_bit_for_bit_in_another_process(file: Path) -> None:
    command = [sys.executable, "-m", "ppsim.cli.entry", "replay", str(file), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    shown = json.loads(ended.stdout)
    assert (shown["reproduced"], shown["invariant"]) == (True, "INV-59")
    assert shown["digest"] == load(str(file)).digest


def test_without_the_bug_it_passes_and_is_not_the_saved_failure(file: Path) -> None:
    repro = load(str(file))
    outcome = run_experiment(repro.experiment, UNCHANGED)
    assert outcome.verdict.kind == "pass"
    assert not repro.again(outcome)


def test_the_same_rule_in_another_run_is_not_the_saved_failure(finding: Finding) -> None:
    repro = finding.repro
    outcome = repro.run()
    assert repro.again(outcome)
    for other in (replace(repro, digest="0" * 16), replace(repro, signature=replace(repro.signature, role="last"))):
        assert not other.again(outcome)


# --- damaged files ---------------------------------------------------------------------------------------------------


DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"format": 9}, "not a reproduction of format 1"),
    "tape of words": ({"tape": ["x"]}, "field 'tape': expected a list of integers"),
    "negative tape": ({"tape": [-1]}, "field 'tape'"),
    "tape of truths": ({"tape": [True]}, "field 'tape'"),
    "scenario": ({"scenario": []}, "field 'scenario': expected an object"),
    "bugs": ({"bugs": "free_at_abort"}, "field 'bugs': expected a list of names"),
    "plug-in": ({"plugin": 3}, "field 'plugin': expected a path, or null"),
    "expectation": ({"expect": {"invariant": 3}}, "field 'expect': expected an object with invariant"),
    "version": ({"ppsim": None}, "field 'ppsim': expected a version"),
}


@pytest.mark.parametrize("what", sorted(DAMAGE))
def test_a_damaged_field_is_named(what: str, file: Path) -> None:
    change, message = DAMAGE[what]
    content = json.loads(file.read_text(encoding="utf-8")) | change
    with pytest.raises(UsageError, match=message):
        parse("repro.json", content)


@pytest.mark.parametrize("field", ["ppsim", "expect", "tape", "scenario", "bugs", "plugin"])
def test_a_missing_field_is_named(field: str, file: Path) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    del content[field]
    with pytest.raises(UsageError, match=f"damaged: field '{field}' is missing"):
        parse("repro.json", content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not a reproduction: Expecting value"),
        (b'{"format": 1,', "not a reproduction"),
        (b"\xff\xfe\x00", "not a reproduction: begins with the mark of UTF-16-LE"),
        (b"[1, 2]", "not a reproduction of format 1"),
        (b"null", "not a reproduction of format 1"),
    ],
)
def test_a_file_that_is_no_reproduction_is_one_message(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=message):
        load(str(path))


# --- emitted tests ---------------------------------------------------------------------------------------------------


def run_pytest(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_emitted.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_an_emitted_test_runs_green_with_and_without_the_bug(finding: Finding, tmp_path: Path) -> None:
    ended = run_pytest(tmp_path, regression_test(finding.repro, "r"))
    assert "2 passed" in ended.stdout, ended.stdout


def test_an_emitted_test_is_red_where_the_bug_is_not_found(finding: Finding, tmp_path: Path) -> None:
    repro = finding.repro
    harmless = Repro(repro.experiment, repro.signature, repro.digest, None, ("zigzag_slots",))
    ended = run_pytest(tmp_path, regression_test(harmless, "r"))
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout


def test_a_finding_in_the_protocol_itself_becomes_one_test_that_it_holds(finding: Finding) -> None:
    repro = finding.repro
    own = regression_test(Repro(repro.experiment, repro.signature, repro.digest, None), "own")
    assert "ppsim.plugin" not in own
    assert own.count("def test_") == 1


def test_a_plugin_is_named_in_the_emitted_test(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import ppsim\n\n\nclass Policy(ppsim.Policy):\n"
        "    def eviction_key(self, node):\n        return -node.last_access if self.pp_rank else node.last_access\n"
    )
    repro = found(Order("plain", 0, 100, plugin=str(plugin))).repro
    source = regression_test(repro, "mine")
    assert f'load([], "{plugin}").change' in source
    assert "2 passed" in run_pytest(tmp_path, source).stdout


def test_what_cannot_be_repeated_cannot_be_kept(finding: Finding) -> None:
    flaky = Repro(finding.repro.experiment, finding.repro.signature.__class__("nondeterminism", ""), "", None)
    with pytest.raises(UsageError, match="no test can keep it"):
        regression_test(flaky, "flaky")


def test_emitted_source_is_as_the_formatter_wants_it(finding: Finding, tmp_path: Path) -> None:
    path = tmp_path / "test_emitted.py"
    path.write_text(regression_test(finding.repro, "r"), encoding="utf-8")
    for command in (["format", "--check"], ["check"]):
        tool = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(path)]
        ended = subprocess.run(tool, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("tape", [(), (3,), (0, 0, 0, 2), tuple(range(200)), (1, 1, 0, 0, 0, 7)])
def test_a_tape_is_written_and_read_back(tape: tuple[int, ...]) -> None:
    lines = tape_lines(tape)
    assert max(map(len, lines)) <= WIDTH
    names: dict[str, Any] = {"tape_of": tape_of}
    exec("\n".join(lines), names)
    assert names["TAPE"] == tape


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True], "b": {}}, {"k" * 30: ["x" * 40] * 9}, [], "it's"])
def test_a_literal_is_the_value(value: Any) -> None:
    assert eval(literal(value)) == value


def test_the_size_of_an_experiment_counts_choices_that_are_not_zero() -> None:
    assert Experiment({"workload": {"requests": [1, 2]}}, (0, 3, 0, 1)).size() == {
        "requests": 2,
        "faults": 0,
        "pp_size": 1,
        "choices": 2,
    }
