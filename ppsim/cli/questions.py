"""``ppsim questions``: what users reported in public beside what a run of ours gives, with a verdict."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import FastOption, JsonOption
from ppsim.errors import UsageError

KeysArg = Annotated[list[str] | None, typer.Argument(metavar="[PNN]...", help="Which ones. Default: all.")]
ListOption = Annotated[bool, typer.Option("--list", help="Name the questions and run nothing.")]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print the page docs/results/questions.md.")]


@guarded
def questions(
    keys: KeysArg = None,
    as_json: JsonOption = False,
    listed: ListOption = False,
    as_markdown: MarkdownOption = False,
    fast: FastOption = None,
) -> int:
    """Answer questions that users asked in public: reported figures beside ours."""
    from ppsim.studies.questions import QUESTIONS, Runs, question
    from ppsim.studies.questions.text import markdown, terminal, to_dict

    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other")
    if listed and fast is not None:
        raise UsageError(f"{'--fast' if fast else '--no-fast'}: --list runs nothing")
    asked = [question(key) for key in keys] if keys else list(QUESTIONS.values())
    if listed:
        rows = [{"question": q.key, "asked": q.asked, "source": q.source, "scenario": q.scenario} for q in asked]
        print(json.dumps(rows) if as_json else "\n".join(f"{q.key}  {q.asked}" for q in asked))
        return 0
    runs = Runs(fast)
    answers = []
    for q in asked:
        if not (as_json or as_markdown):
            answers.append(runs.answer(q))
            print(terminal(answers[-1]), end="\n\n")
            continue
        say(f"{q.key}  {q.asked}")
        answers.append(runs.answer(q))
    if as_json:
        print(json.dumps([to_dict(a) for a in answers]))
    elif as_markdown:
        print(markdown(answers), end="")
    return 0
