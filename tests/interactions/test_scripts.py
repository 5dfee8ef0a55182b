"""Every script in scripts/ prints what it says. ``pytest tests/interactions --rewrite-scripts`` writes the output anew.

Rewrite only what you understand, and read the difference: the comments of a script say what its output must show.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interactions.script import COMMANDS, ScriptError, Stage, Step, parse, play, render

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    stage, parts = Stage(), parse(path)
    outputs = [play(stage, step) for _, step in parts if step is not None]
    if request.config.getoption("--rewrite-scripts", default=False):
        path.write_text(render(parts, outputs))
        return
    for (_, step), output in zip(parts, outputs, strict=False):
        assert step is not None
        assert output == step.expected, f"{path.name}:{step.line}: {step.command}"


def test_there_are_scripts_and_together_they_use_every_command() -> None:
    used = {step.command.split()[0] for path in SCRIPTS for _, step in parse(path) if step is not None}
    assert used == set(COMMANDS)


def test_rewriting_keeps_comments_and_an_unchanged_script_stays_as_it_is(tmp_path: Path) -> None:
    text = "# A story.\n# It goes on.\npipeline pp=2\n----\n2 ranks, 2 slots\n\n# The end.\nwhere\n----\nold\n"
    path = tmp_path / "story.txt"
    path.write_text(text)
    parts = parse(path)
    assert [step.line for _, step in parts if step is not None] == [3, 8]
    assert render(parts, ["2 ranks, 2 slots", "old"]) == text
    assert render(parts, ["2 ranks, 2 slots", "new"]) == text.replace("old", "new")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("fly R1", "no command 'fly'"),
        ("run 3", "no pipeline yet"),
        ("pipeline pp=2 wings=3", "pipeline knows no wings"),
    ],
)
def test_a_wrong_script_says_what_is_wrong(command: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        play(Stage(), Step(1, command, ""))
