"""Each public question gets the verdict that stands here, and the page of results says what the runs say.

One test a question, so that its runs are made once. Expected verdicts are written by hand: a sign or a size that is
lost, or found, is a change that somebody has to look at.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.scenario import load_scenario
from ppsim.studies.questions import QUESTIONS, Runs
from ppsim.studies.questions.asked import Answered
from ppsim.studies.questions.text import markdown, section, terminal, to_dict

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "questions.md"
HANDED = (
    1,
    2,
    3,
    4,
    5,
    8,
    9,
    10,
    11,
    12,
    14,
    15,
    17,
    19,
    21,
    22,
    23,
    26,
    28,
    31,
)  # bugs.md; the rest was left out there

VERDICTS = {
    "P01": "sign and size",
    "P02": "sign only",
    "P03": "sign only",
    "P04": "sign and size",
    "P05": "sign only",
    "P08": "sign and size",
    "P09": "sign only",
    "P10": "sign and size",
    "P11": "sign only",
    "P12": "sign and size",
    "P14": "sign and size",
    "P15": "sign and size",
    "P17": "sign only",
    "P19": "sign only",
    "P21": "sign only",
    "P22": "sign and size",
    "P23": "sign only",
    "P26": "sign and size",
    "P28": "sign and size",
    "P31": "sign and size",
}


def sections() -> dict[str, str]:
    """The sections of the page by question."""
    _, *parts = re.split(r"^(?=## P)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {part[3:6]: part.strip() for part in parts}


@pytest.mark.parametrize("key", QUESTIONS)
def test_a_question_has_every_sign_right_and_its_section_of_the_page_is_in_step(key: str) -> None:
    answered = Runs().answer(QUESTIONS[key])
    assert not [c.figure.name for c in answered.figures if c.sign_ok is False]
    assert answered.verdict == VERDICTS[key]
    fitted = [c for c in answered.figures if c.figure.fitted and c.figure.reported]
    off = [(c.figure.name, c.ours) for c in fitted if c.error is None or abs(c.error) > 0.03]
    assert not off, "a constant no longer gives the figure that it was set by"
    assert section(answered) == sections()[key], "ppsim questions --markdown > docs/results/questions.md"
    check_texts(answered)


def check_texts(answered: Answered) -> None:
    """What is printed never shows a fitted figure as a result, nor a lesser verdict without its reason."""
    shown = json.loads(json.dumps(to_dict(answered)))
    assert bool(shown["why"]) == (answered.verdict != "sign and size")
    text = terminal(answered)
    for figure in shown["figures"]:
        line = next(line for line in text.splitlines() if line.strip().startswith(figure["name"]))
        assert ("fit:" in line) == bool(figure["used_to_fit"])
        if figure["used_to_fit"]:
            assert figure["sign"] is None
            assert figure["size"] is None
    assert text.splitlines()[-1].startswith(f"     verdict: {answered.verdict}")


def test_the_page_has_the_questions_in_order_and_a_verdict_for_each() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert list(sections()) == list(QUESTIONS)
    listed = re.findall(r"^\| \[(P\d\d)\]\(#(\S+)\) .* \| ([a-z ]+) \|$", text, re.MULTILINE)
    assert {key: verdict for key, _, verdict in listed} == VERDICTS
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    for (key, link, _), title in zip(listed, titles):
        assert title.startswith(key)
        assert link == re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")
    head = text[: text.index("## P01")]
    assert markdown([])[:-1].startswith(head[:200])


def test_every_handed_question_is_asked_and_every_scenario_of_a_question_is_used() -> None:
    assert list(QUESTIONS) == [f"P{n:02d}" for n in HANDED]
    used = {q.scenario for q in QUESTIONS.values()}
    files = {f"questions/{path.stem}" for path in (ROOT / "scenarios" / "questions").glob("*.toml")}
    assert files == used
    assert all(q.scenario.split("/")[1].startswith(q.key.lower()) for q in QUESTIONS.values())


@pytest.mark.parametrize("key", QUESTIONS)
def test_a_question_states_its_claims_before_it_is_run(key: str) -> None:
    question = QUESTIONS[key]
    labels = [variant.label for variant in question.variants]
    assert len(set(labels)) == len(labels)
    names = [figure.name for figure in question.figures]
    assert len(set(names)) == len(names) or key == "P31"
    for figure in question.figures:
        if figure.fitted:
            assert figure.reported is not None
        elif figure.reported is not None:
            assert figure.tolerance is not None, f"{figure.name}: how close is close enough?"
        else:
            assert figure.sign is not None, f"{figure.name}: what is claimed?"
    assert any(not figure.fitted for figure in question.figures)
    for variant in question.variants:
        load_scenario(variant.scenario or question.scenario, variant.overrides)


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios" / "questions").glob("*.toml")), ids=lambda path: path.stem)
def test_a_scenario_of_a_question_says_where_it_comes_from_and_what_was_made_up(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    scenario = load_scenario(str(path))
    assert scenario.name == path.stem
    assert scenario.description.endswith(f" ({path.stem[:3].upper()}).")
    assert scenario.description.split()[0] in ("How", "What", "Where", "Whether", "Which", "Why", "From")
    for word in ("# Source: ", "# Abstraction: "):
        assert word in text
    assert "Fitted: " in text or "Nothing is fitted" in text
    assert "Reported" in text or "argument" in text


def test_the_command_prints_json_for_some_questions_and_names_an_unknown_one() -> None:
    result = CliRunner().invoke(app, ["questions", "p28", "P26", "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["question"] for row in rows] == ["P28", "P26"]
    passes = {figure["name"]: figure["ours"] for figure in rows[0]["figures"]}
    assert passes == {"passes without packing": 4, "passes with packing": 3}
    assert rows[1]["verdict"] == "sign and size"
    assert rows[1]["why"] is None
    unknown = CliRunner().invoke(app, ["questions", "P27"])
    assert unknown.exit_code == 2
    assert "unknown question 'P27' (did you mean P2" in unknown.stderr
    both = CliRunner().invoke(app, ["questions", "P28", "--json", "--markdown"])
    assert both.exit_code == 2


def test_the_list_of_questions_runs_nothing() -> None:
    result = CliRunner().invoke(app, ["questions", "--list"])
    assert result.exit_code == 0
    assert [line[:3] for line in result.stdout.splitlines()] == list(QUESTIONS)
    assert [
        row["question"] for row in json.loads(CliRunner().invoke(app, ["questions", "--list", "--json"]).stdout)
    ] == list(QUESTIONS)
