"""docs/plugins.md shows what the tool really prints; only digests may differ. Rewrite: python docs/sessions.py PAGE."""

from __future__ import annotations

import re
import runpy
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.core.parts import RIGHT, Parts
from ppsim.core.policy import Policy
from ppsim.core.schedule.admission import PrefillAdder
from ppsim.core.surroundings import Surroundings
from ppsim.plugin import load_plugin

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "plugins.md").read_text(encoding="utf-8")
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))


def masked(text: str) -> list[str]:
    return re.sub(r"\b[0-9a-f]{16}\b", "DIGEST", text).splitlines()


def test_every_session_of_the_page_prints_what_is_shown() -> None:
    fresh = runpy.run_path(str(DOCS / "sessions.py"))["fresh"]
    assert masked(fresh(PAGE)) == masked(PAGE), "run: python docs/sessions.py docs/plugins.md"


def test_what_cannot_be_repeated_ends_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lines begin with the same words; the numbers in them are another run's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real_clock_eviction.py").write_bytes((DOCS / "examples" / "real_clock_eviction.py").read_bytes())
    block = next(b for b in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) if b.startswith("$ "))
    command, *shown = block.splitlines()
    result = CliRunner().invoke(app, shlex.split(command)[2:])
    assert shown[-1] == f"exit code {result.exit_code}" == "exit code 4"
    labels = [line.split()[0] for line in shown[:-1] if not line.split()[0].isdigit()]
    real = [line.split()[0] for line in result.stdout.splitlines() if not line.split()[0].isdigit()]
    steady = ["FAIL", "nondeterminism:", "one", "another", "first", "not", "saved", "replay"]
    assert [label for label in labels if label in steady] == [label for label in real if label in steady]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_file_is_a_plugin_and_is_shown(path: Path) -> None:
    """On the page of plug-ins, or on that of the scheduler developer, whose commands a test runs."""
    load_plugin(str(path))
    assert f"$ cat {path.name}" in PAGE + (DOCS / "howto" / "developer.md").read_text(encoding="utf-8")


def named_methods(head: str) -> list[tuple[str, str]]:
    """Class and method of each row of a table, as far as a row says both."""
    table = PAGE.split(head)[1].split("\n\n")[0]
    rows = [row.split("|")[1:-1] for row in table.splitlines() if row.startswith("| ") and "---" not in row]
    found: list[tuple[str, str]] = []
    for _, classes, methods in rows:
        groups = zip(re.findall(r"`(\w+)`", classes), methods.split(";"), strict=False)
        found += [(owner, name) for owner, group in groups for name in re.findall(r"`(\w+)`", group.split("with `")[0])]
    return found


CLASSES: dict[str, type] = {cls.__name__: cls for cls in (*(getattr(RIGHT, f.name) for f in fields(Parts)), Policy)}
CLASSES |= {"Surroundings": Surroundings, "PrefillAdder": PrefillAdder}


def test_every_method_that_the_page_names_exists_and_every_kind_of_change_has_one() -> None:
    head = "| what you want to change | subclass | methods |"
    for owner, name in named_methods(head):
        assert hasattr(CLASSES[owner], name), f"{owner}.{name}"
    kinds = PAGE.split(head)[1].split("\n\n")[0]
    for kind in ("batch choice", "admission", "eviction order", "vote reducers", "abort handling", "chunk planner"):
        assert kind in kinds
    for kind in ("send order", "clocks", "world"):
        assert kind in kinds


def test_every_hook_of_before_has_a_place_that_there_is() -> None:
    table = PAGE.split("| hook | now | |")[1]
    places = re.findall(r"^\| `(\w+)` \| (?:`(\w+)\.(\w+)`)? \|", table, re.MULTILINE)
    assert len(places) == 40
    for hook, owner, name in places:
        assert hasattr(CLASSES[owner], name), f"{hook}: {owner}.{name}"
