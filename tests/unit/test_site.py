"""Law: the documentation is what the code does: every command in it is run, and the site is built without a warning.

Rewrite what is out of date: python docs/sessions.py PAGE, python docs/draw.py, and the generators that a page names.
"""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from tests.unit.browser import Browser, chromium

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    page
    for folder in ("concepts", "howto")
    for page in (DOCS / folder).glob("*.md")
    if "```console" in page.read_text(encoding="utf-8")
)
DRAW = runpy.run_path(str(DOCS / "draw.py"))
# Seconds on somebody's clock, and how fast a search was; all else must come out again.
VARIES = re.compile(r"[\d,]+ a second on one core|, \d+\.\d s$|(?<=ex) +\d+\.\d\d s(?=  )", re.MULTILINE)


def masked(text: str) -> str:
    return VARIES.sub("N", text)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "```console" in p.read_text(encoding="utf-8")], ids=lambda p: p.stem
)
def test_every_command_of_a_page_prints_what_it_shows(page: Path) -> None:
    fresh = runpy.run_path(str(DOCS / "sessions.py"))["fresh"]
    text = page.read_text(encoding="utf-8")
    assert masked(fresh(text)) == masked(text), f"run: python docs/sessions.py {page.relative_to(ROOT)}"


def test_a_session_keeps_what_a_page_shows_and_no_more() -> None:
    """The rewriting itself: the exit code, a last line "...", a file, stderr."""
    fresh = runpy.run_path(str(DOCS / "sessions.py"))["fresh"]

    def again(*lines: str) -> list[str]:
        block = "".join(f"{line}\n" for line in lines)
        return fresh(f"```console\n{block}```\n").splitlines()[1:-1]

    shown = again(
        "$ ppsim run unit --out a",
        "x",
        "...",
        "$ ppsim list nothing 2>&1",
        "$ ppsim export unit > line.txt",
        "$ cat line.txt",
    )
    assert shown[:3] == ["$ ppsim run unit --out a", "unit  seed 0  verdict pass  digest 62cc30fb71de88b2", "..."]
    assert shown[3] == "$ ppsim list nothing 2>&1"
    assert shown[-4] == "exit code 2"
    assert shown[-3:-1] == ["$ ppsim export unit > line.txt", "$ cat line.txt"]
    assert "--pp-size 4" in shown[-1]


def test_the_researchers_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Block by block, the last with less load: a table with its law, pictures, a policy that is tried."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "howto" / "researcher.md").read_text(encoding="utf-8")
    seen: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        assert sum(bool(line.strip()) for line in block.splitlines()) <= 10, block
        exec(
            block.replace("budget_s=30", "num_examples=15").replace('"mooncake"', '"mooncake", num_requests=100'), seen
        )
    assert abs(seen["bubble"] - 7 / 23) < 1e-12
    table = seen["table"]
    assert len(table) == 18
    assert table.bubble.tolist() == pytest.approx(table.theory.tolist(), rel=1e-12)
    assert {p.name for p in tmp_path.glob("*.png")} == {"bubble.png", "gantt.png"}
    assert "iteration" in capsys.readouterr().out
    assert seen["campaign"].num_examples == 15
    assert seen["before"].diff(seen["after"]) is not None  # the policy decides something
    assert -1 < seen["gain"] < 10


def test_the_table_of_bubbles_is_the_formula() -> None:
    page = (DOCS / "concepts" / "ranks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|((?: [\d.]+ % \|)+)$", page, re.MULTILINE)
    assert [int(m) for m, _ in rows] == [1, 4, 16, 64]
    for m, cells in rows:
        told = [float(cell) for cell in re.findall(r"[\d.]+", cells)]
        assert told == [round(100 * (p - 1) / (int(m) + p - 1), 1) for p in (2, 4, 8, 16)]


# --- pictures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DRAW["NAMES"]))
def test_a_picture_is_of_the_runs_of_today(name: str) -> None:
    known = tomllib.loads((DOCS / "images" / "pictures.toml").read_text(encoding="utf-8"))
    assert (DOCS / "images" / name).read_bytes().startswith(b"\x89PNG")
    assert DRAW["digests"](name) == known[name], f"run: python docs/draw.py {name}"


def test_every_picture_is_shown_somewhere_and_is_small() -> None:
    text = "".join(p.read_text(encoding="utf-8") for p in [*DOCS.rglob("*.md"), ROOT / "README.md"])
    for picture in sorted((DOCS / "images").glob("*.png")):
        assert f"images/{picture.name})" in text, picture.name
        assert picture.stat().st_size < 300_000, picture.name


# --- the commands' page and the site -------------------------------------------------------------------------------


def test_the_options_of_a_command_are_those_of_its_help() -> None:
    """The page is made from annotations, and the help by typer: two readings of one thing."""
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ppsim (\w+)$", page, flags=re.MULTILINE)[1:]
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    assert set(told) == {c.name for c in app.registered_commands} | {g.name for g in app.registered_groups}
    for name, text in told.items():
        help_text = CliRunner().invoke(app, [name, "--help"]).output
        wanted = set(re.findall(r"^  (?:-\w, )?(--[\w-]+(?: / --[\w-]+)?)", help_text, re.MULTILINE)) - {"--help"}
        wanted = {word.replace(" / ", "/") for word in wanted}  # a switch and its opposite
        rows = re.findall(r"^\| `(-[^`]*)` \|", text, re.MULTILINE)
        assert {word for row in rows for word in row.split(", ") if word.startswith("--")} == wanted, name


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: --strict makes each warning an error (and --quiet would hide them from it)."""
    pytest.importorskip("material", reason="the site needs the extra 'docs'")
    path = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return path


LOADED = "document.readyState === 'complete'"
SEARCH = """(() => {{
  const box = document.querySelector(".md-search__input");
  box.focus();
  box.value = "{words}";
  box.dispatchEvent(new Event("input", {{ bubbles: true }}));
  box.dispatchEvent(new KeyboardEvent("keyup", {{ bubbles: true }}));
}})()"""
FOUND = "[...document.querySelectorAll('.md-search-result__item a')].map((link) => link.href)"


@pytest.mark.xdist_group("browser")
@pytest.mark.skipif(chromium() is None, reason="no Chromium: apt install chromium")
def test_the_search_box_works_in_a_site_that_was_opened_from_a_folder(site: Path) -> None:
    """No server, no network, no complaint; from a page in a folder of its own, too."""
    with Browser() as browser:
        for page, words, wanted in (
            ("index.html", "bubble", "concepts/ranks.html"),
            ("howto/student.html", "skip rule", "concepts/skip-rule.html"),
        ):
            browser.open(site / page, LOADED)
            browser.js(SEARCH.format(words=words))
            browser.wait(f"{FOUND}.length > 0")
            links = browser.js(FOUND)
            assert all(link.startswith(site.as_uri()) for link in links)
            assert any(wanted in link for link in links), links
            assert browser.troubles() == []
            assert browser.requests() == []


@pytest.mark.xdist_group("browser")
@pytest.mark.skipif(chromium() is None, reason="no Chromium: apt install chromium")
def test_a_notebook_tells_code_from_output_and_a_dark_page_has_pictures_on_a_card(site: Path) -> None:
    with Browser() as browser:
        browser.open(site / "notebooks" / "1_ring_and_bubble.html", LOADED)
        style = "getComputedStyle(document.querySelector('.notebook-{}'){}).{}"
        names = [browser.js(style.format(kind, ", '::before'", "content")) for kind in ("in", "out")]
        assert names == ['"code"', '"output"']
        bars = [browser.js(style.format(kind, "", "borderLeftColor")) for kind in ("in", "out")]
        assert bars[0] != bars[1]
        cells = json.loads((DOCS / "notebooks" / "1_ring_and_bubble.ipynb").read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        count = "document.querySelectorAll('.notebook-{}').length"
        assert browser.js(count.format("in")) == len(code)
        assert browser.js(count.format("out")) == sum(len(cell["outputs"]) for cell in code) > 3
        assert browser.js("document.querySelectorAll('.notebook-out img, .notebook-out pre').length") > 3
        picture = "getComputedStyle(document.querySelector('.md-typeset img')).padding"
        browser.js("document.body.setAttribute('data-md-color-scheme', 'default')")
        assert browser.js(picture) == "0px"
        browser.js("document.body.setAttribute('data-md-color-scheme', 'slate')")
        assert browser.js(picture) != "0px"


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    """Links, anchors and the navigation; files of the repository that pages link to go along."""
    pages = {p.relative_to(DOCS).with_suffix(".html").as_posix() for p in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]}
    built = {p.relative_to(site).as_posix() for p in site.rglob("*.html")}
    assert pages <= built
    bugs = (site / "bugs.html").read_text(encoding="utf-8")
    copies = re.findall(r'href="(files/scenarios/bugs/[^"]+)"', bugs)
    assert len(copies) >= 40
    assert all((site / copy).is_file() for copy in copies)
    assert "http" not in "".join(re.findall(r'<(?:script|link)[^>]*(?:src|href)="([^"]+)"', bugs))
