"""Law: what the README shows is what the commands print, to the digest; a last line "..." stands for what follows.

The block with ``make test`` is not run here: it is this test's own caller.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ppsim
from ppsim.cli.entry import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)


def session(block: str) -> list[tuple[str, list[str]]]:
    """Commands of a block, each with the lines that it is said to print."""
    steps: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    return steps


def printed(command: str) -> list[str]:
    """What a command prints, stdout and stderr in order, without the lines that a slow machine brings every 10 s."""
    lines = CliRunner().invoke(app, shlex.split(command.removeprefix("ppsim "))).output.splitlines()
    return [line for line in lines if not re.fullmatch(r"\w+ing [\w/]+: \d+( of \d+)? \w+, \d+ s", line)]


def agrees(shown: list[str], real: list[str]) -> bool:
    """Equal line by line; a last line "..." stands for all that follows."""
    if shown and shown[-1] == "...":
        shown = shown[:-1]
        real = real[: len(shown)]
    return shown == real


@pytest.mark.parametrize("block", [b for b in BLOCKS if "make " not in b])
def test_a_session_prints_what_the_readme_shows(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "ppsim exec" in block:
        pytest.importorskip("torch", reason="the executor needs the extra 'executor'")
    monkeypatch.chdir(tmp_path)
    for command, shown in session(block):
        real = printed(command)
        assert agrees(shown, real), "\n".join([command, *real])


@pytest.mark.slow
def test_make_run_prints_what_the_readme_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((command, shown),) = session(BLOCKS[0])
    assert command == "make run"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.findall(r"^\t\$\(BIN\)/(ppsim .*)$", makefile.partition("\nrun:")[2].partition("\n\n")[0], re.MULTILINE)
    real = [line for step in recipe for line in (f".venv/bin/{step}", *printed(step))]
    assert shown == real


def test_two_notebooks_worth_of_work_is_ten_lines_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of Python run, the second with less load: a table with its law, a picture, a policy that is tried."""
    bubbles, policy = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for block in (bubbles, policy):
        assert sum(bool(line.strip()) for line in block.splitlines()) <= 10, block
    monkeypatch.chdir(tmp_path)
    seen: dict[str, Any] = {}
    exec(bubbles, seen)
    table = seen["table"]
    assert len(table) == 18
    assert table.bubble.tolist() == pytest.approx(table.theory.tolist(), rel=1e-12)
    assert Path("bubble.png").read_bytes().startswith(b"\x89PNG")
    assert policy.count("budget_s=30") == policy.count('"mooncake"') == 1
    exec(policy.replace("budget_s=30", "num_examples=15").replace('"mooncake"', '"mooncake", num_requests=100'), seen)
    assert seen["campaign"].num_examples == 15
    assert seen["before"].diff(seen["after"]) is not None  # the policy decides something
    assert -1 < seen["gain"] < 10


def test_the_library_page_does_what_it_says() -> None:
    """Its blocks run one after the other, as in a notebook; one shows the error that it raises."""
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    seen: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        code = block.replace("budget_s=30", "num_examples=3").replace("max_examples=50", "max_examples=3")
        code = code.replace('"mooncake", pp_size=8', '"tiny"').replace('"mooncake"', '"tiny"')
        told = re.search(r"^# (\w+): (.*), \.\.\.\)$", block, re.MULTILINE)
        if told is None:
            exec(code, seen)
            continue
        with pytest.raises(getattr(ppsim, told[1])) as error:
            exec(code, seen)
        assert str(error.value).startswith(told[2])
    assert seen["campaign"].num_examples == 3
    seen["test_my_policy_keeps_the_ranks_together"]()


def test_every_file_the_readme_names_is_there() -> None:
    pictures = re.findall(r"\]\(([^)]+)\)", README)
    places = re.findall(r"`((?:ppsim|executor|docs|scenarios|tests)(?:/[\w./]+)?)`", README)
    assert pictures
    assert {"ppsim/core", "ppsim/world", "executor"} <= set(places)
    for name in [*pictures, *places]:
        assert (ROOT / name).exists(), name


def test_the_readme_names_every_command() -> None:
    cells = [row.split("|")[1] for row in re.findall(r"^\| `ppsim .*", README, re.MULTILINE)]
    listed = {name for cell in cells for name in re.findall(r"`(?:ppsim )?(\w+)[^`]*`", cell)}
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert listed == known
