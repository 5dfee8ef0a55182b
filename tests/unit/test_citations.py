"""What code, tests, scenarios and pages cite is in the repository: pages, sections, steps, invariants, reports.

A clone is all that a reader has. So every ``.md`` that is named exists, and every number behind "protocol.md",
"bugs.md", "published.md", "design decision", "decision", "rule" or "invariant" is a heading, a step or a row of the
page that is meant.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from ppsim.check.invariants import BY_NAME
from ppsim.studies.questions import QUESTIONS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("ppsim", "executor", "tests", "docs", "scenarios", "bench", ".ci")
SUFFIXES = {".py", ".md", ".toml", ".txt", ".json", ".tsv", ""}
HERE = Path(__file__).name

ELSEWHERE = {
    "recipes/mesh/GLM-5.2.md": "ROCm/ATOM",
    "blog/2026-01-15-chunked-pipeline.md": "lm-sys/lm-sys.github.io",
    "METHODOLOGY.md": "alpharomercoma/MI300X-vs-H200",
}
"""Files of other people's repositories, each named beside its repository."""


@cache
def texts() -> dict[Path, str]:
    """Every text file of the repository, by its path from the root; comments and wrapped lines joined."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    found += [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml")]
    kept = [path for path in found if path.suffix in SUFFIXES and path.name != HERE and "__pycache__" not in path.parts]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in kept}


def joined(text: str) -> str:
    """One line, so that a citation may wrap; the marks of comments go with the breaks."""
    return re.sub(r"\s*\n[ \t]*(?:#+ |- )?\s*", " ", text)


def cited(pattern: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Every match in the joined texts, with the file that it is in."""
    for path, text in texts().items():
        for found in re.finditer(pattern, joined(text)):
            yield f"{path}: {found[0]}", found


# --- pages -----------------------------------------------------------------------------------------------------


def is_there(name: str, path: Path) -> bool:
    """A named page: beside the file or what it writes, from the root or docs; a bare name also below these."""
    name = name[0].lower() + name[1:] if name.startswith("Protocol") else name  # where a sentence begins with it
    if any((base / name).is_file() for base in (ROOT / path.parent, ROOT, DOCS, DOCS / "results")):
        return True
    return "/" not in name and any([*folder.rglob(name)] for folder in (DOCS, ROOT / "tests" / "data"))


def test_every_page_that_is_named_exists() -> None:
    missing = [
        f"{path}: {found[0]}"
        for path, text in texts().items()
        for found in re.finditer(r"(?<![\w*{<./-])[\w./-]*\w\.md\b", text)
        if found[0] not in ELSEWHERE and not found[0].startswith("runs/")  # what a command writes
        if not is_there(found[0], path)
    ]
    assert missing == [], "\n".join(missing)


CODE = r"[\w./-]*\w\.(?:py|toml|tsv|js|css|html)"
TOPS = (
    "ppsim|executor|tests|docs|bench|scenarios|core|world|check|fuzz|report|sglang|plan|cost|workload|recording|cli|api"
)
MADE = {
    "config.toml": "a run's folder has it",
    "tests/regressions/test_repro_inv26_0.py": "what --emit-test writes",
    "tests/regressions/test_repro_inv80_0.py": "what --emit-test writes",
    "build/site/index.html": "what mkdocs build writes",
    "index.html": "the same",
    "my_policy.py": "a user's own",
    "report.html": "what ppsim report writes",
    "tuned/best.toml": "what ppsim tune --out writes",
    "../scenarios/x.toml": "a name that stands for a scenario's path",
}
"""Files that a command or a user makes: named, and in no clone."""


def said(path: Path, text: str) -> str:
    """What a file says to a reader: a page all of it, a source its docstrings and comments."""
    if path.suffix == ".md":
        return text
    return "\n".join(re.findall(r'""".*?"""|(?:^|  )#.*?$', text, re.M | re.S)) if path.suffix == ".py" else ""


def files_named(text: str) -> set[str]:
    """Sources, scenarios and tables that are named in code marks, or by a path that begins with a folder of ours."""
    in_marks = re.findall(rf"(?<!`)`{{1,2}}({CODE})(?:::?\w+)?`", text)
    return {*in_marks, *re.findall(rf"(?<![\w./*{{<-])((?:{TOPS})/{CODE})(?!\w)", text)}


def test_every_file_that_a_page_or_a_comment_names_is_there() -> None:
    """As a path from the root, from a package of ours, or by its name alone; not in another folder than is said."""
    there = {
        f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()
    }
    there |= {f"/{path.name}" for path in ROOT.iterdir()}
    found = [(path, name) for path, text in texts().items() for name in sorted(files_named(said(path, text)))]
    assert len(found) > 300
    missing = [
        f"{path}: {name}"
        for path, name in found
        if name not in MADE and not any(file.endswith(f"/{name}") for file in there)
    ]
    assert missing == [], "\n".join(missing)


def test_what_is_made_is_named_somewhere_and_is_in_no_clone() -> None:
    for name in MADE:
        assert any(name in text for text in texts().values()), f"nobody names {name} any more"
        assert not (ROOT / name).exists(), name


def test_files_of_others_are_named_beside_their_repository() -> None:
    for name, repository in ELSEWHERE.items():
        files = [text for text in texts().values() if name in text]
        assert files, f"nobody names {name} any more"
        assert any(repository in text for text in files), name


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)}


def test_every_link_of_a_page_leads_somewhere() -> None:
    broken = []
    for path, text in texts().items():
        if path.suffix != ".md":
            continue
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", joined(text)):
            if re.match(r"[a-z]+:", target):
                continue
            page = (ROOT / path.parent / target).resolve() if target else ROOT / path
            if not page.exists() or (anchor and anchor[1:] not in anchors(page)):
                broken.append(f"{path}: {target}{anchor}")
    assert broken == []


# --- sections and steps of the protocol ------------------------------------------------------------------------


@cache
def steps() -> dict[str, set[str]]:
    """Sections of docs/protocol.md, each with the numbers of its steps: items of a list, or first cells of a table."""
    found: dict[str, set[str]] = {}
    section = ""
    for line in (DOCS / "protocol.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"#{2,3} (\d+(?:\.\d+)?) ", line):
            section = heading[1]
            found[section] = set()
        elif step := re.match(r"(?:(\d+[a-z]?)\. |\| (\d+[a-z]?) \|)", line):
            found[section].add(step[1] or step[2])
    return found


NUMBER = r"\d{1,2}(?:\.\d{1,2})?[a-z]?"
JOIN = r"(?:, and |, | and | to )"
WHAT = r"(?:sections? |steps? |invariants? )"
LIST = rf"{WHAT}?{NUMBER}(?:(?:{JOIN}|,? ){WHAT}?{NUMBER}(?![\w%]))*"


def read_list(listed: str) -> Iterator[tuple[str, str, str]]:
    """(kind, section, number) of each number: "4.2 step 8, 12 invariant 20" has a step of 4.2 and an invariant."""
    kind, section = "section", ""
    for word, number in re.findall(rf"({WHAT})?({NUMBER})", listed):
        kind = word.strip().rstrip("s") or ("section" if "." in number or kind == "section" else kind)
        if kind == "section":
            section = number
        yield kind, section, number


def resolves(kind: str, section: str, number: str) -> bool:
    if kind == "invariant":
        return f"INV-{int(number):02d}" in BY_NAME
    if kind == "step":
        return section in steps() and (number in steps()[section] or f"{number}a" in steps()[section])
    return number in steps()


def test_every_section_and_step_of_the_protocol_that_is_cited_is_on_its_page() -> None:
    found = [
        (where, parts)
        for where, match in cited(rf"\b[Pp]rotocol(?:\.md|'s)? (?:in )?({LIST})")
        for parts in read_list(match[1])
    ]
    assert len(found) > 250
    assert [where for where, parts in found if not resolves(*parts)] == []


def test_every_step_that_is_cited_by_its_section_alone_is_on_the_page() -> None:
    pattern = rf"\b(\d{{1,2}}\.\d{{1,2}}),? (steps? \d+[a-z]?(?:{JOIN}\d+[a-z]?\b(?!\.\d))*)"
    found = [(where, m) for where, m in cited(pattern)]
    assert len(found) > 30
    wrong = [
        where for where, m in found for number in re.findall(r"\d+[a-z]?", m[2]) if not resolves("step", m[1], number)
    ]
    assert wrong == []


def test_every_invariant_that_is_cited_has_its_number() -> None:
    found = list(cited(rf"\b[Ii]nvariants? (\d+(?:{JOIN}\d+)*)(?![\w.%])"))
    assert len(found) > 100
    wrong = [w for w, m in found for n in re.findall(r"\d+", m[1]) if f"INV-{int(n):02d}" not in BY_NAME]
    assert wrong == []


# --- reports, figures, decisions, rules ------------------------------------------------------------------------


@cache
def catalogue() -> dict[str, dict[str, str]]:
    return tomllib.loads((DOCS / "bugs.toml").read_text(encoding="utf-8"))


def reports() -> set[str]:
    """Numbers that docs/bugs.md has in the first cell of a row."""
    return set(re.findall(r"^\| ([BPI]\d+) \|", (DOCS / "bugs.md").read_text(encoding="utf-8"), re.M))


def test_the_page_of_reports_has_the_numbers_of_its_tables() -> None:
    kinds = {kind: set(table) for kind, table in catalogue().items() if kind != "sources"}
    assert reports() == set().union(*kinds.values()) | set(QUESTIONS)
    page = (DOCS / "results" / "bugs_b94_b118.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| (B\d+) \| ([^|]*?) \|", page, re.M)) == catalogue()["sources"]


def test_every_report_that_is_cited_is_on_the_page() -> None:
    found = list(cited(r"bugs\.md,? (?:rules? )?([BPI]\d+(?:(?:, | and | to )[BPI]\d+)*)"))
    assert len(found) > 150
    assert [where for where, m in found for n in re.findall(r"[BPI]\d+", m[1]) if n not in reports()] == []


NO_REPORT = {
    "B200": "a GPU",
    "B300": "a GPU",
    "B905": "a rule of ruff",
    "B007": "a rule of ruff",
    "B023": "a rule of ruff",
}


def test_every_report_that_is_named_alone_is_on_the_page() -> None:
    found = list(cited(r"(?<![\w#.-])B(?:\d{2}|[1-9]\d{2})(?![\w-])"))
    assert len(found) > 400
    assert [where for where, m in found if m[0] not in reports() and m[0] not in NO_REPORT] == []


def test_every_class_of_reports_that_is_cited_is_a_heading() -> None:
    found = list(cited(r"bugs\.md, class(?:es)? ([A-Za-z ,]+?)[.\"]"))
    assert len(found) >= 6
    assert [where for where, m in found for kind in re.split(r", | and ", m[1]) if kind not in catalogue()] == []


def headings(page: str) -> set[str]:
    return set(re.findall(r"^#+ (\w+)", (DOCS / page).read_text(encoding="utf-8"), re.M))


CITED: dict[str, tuple[str, int, Callable[[str], bool]]] = {
    "published figures": (
        r"published\.md,? ([0A-Z]\d?(?:, [A-Z]\d?)*)(?!\w)",
        20,
        lambda name: name in headings("results/published.md"),
    ),
    "design decisions": (
        r"\b[Dd]esign(?:\.md\))?,? decisions? (\d+)",
        18,
        lambda name: f"\n{name}. **" in (DOCS / "design.md").read_text(encoding="utf-8"),
    ),
    "decisions": (
        r"\b[Dd]ecisions? (\d{4}(?:(?:, | and )\d{4})*)",
        20,
        lambda name: bool([*(DOCS / "decisions").glob(f"{name}-*.md")]),
    ),
    "rules": (
        r"\b[Rr]ules? (\d[a-c]?(?:(?:, | and | to )\d[a-c]?)*)\b(?! (?:of|a)\b)",
        60,
        lambda name: bool(re.search(rf"^\| {name}[a-c]? \|", (DOCS / "batches.md").read_text(encoding="utf-8"), re.M)),
    ),
}


@pytest.mark.parametrize("kind", CITED)
def test_every_number_of_this_kind_that_is_cited_is_on_its_page(kind: str) -> None:
    pattern, at_least, is_known = CITED[kind]
    found = list(cited(pattern))
    assert len(found) >= at_least
    assert [where for where, m in found for name in re.split(r", | and | to ", m[1]) if not is_known(name)] == []
