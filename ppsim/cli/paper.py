"""``ppsim paper``: published figures beside ours: which were used to fit, which are predictions, the error of each."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ppsim.cli.guard import guarded
from ppsim.cli.options import FastOption, JsonOption
from ppsim.errors import UsageError

MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print the page docs/results/paper.md.")]


@guarded
def paper(as_json: JsonOption = False, as_markdown: MarkdownOption = False, fast: FastOption = None) -> int:
    """Run the published configurations and print the published figures beside ours."""
    from ppsim.studies.paper import PaperRuns, fitted_efficiency, paper_table
    from ppsim.studies.paper_page import markdown

    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other")
    runs = PaperRuns(fitted_efficiency(fast), fast=fast)
    rows = paper_table(runs)
    if as_markdown:
        print(markdown(runs, rows), end="")
        return 0
    if as_json:
        print(json.dumps([row.to_dict() for row in rows]))
        return 0
    print(f"one constant: efficiency {runs.efficiency:.4f} of the peak arithmetic rate, fitted on the row marked 'fit'")
    print()
    width = max(len(row.name) for row in rows)
    print(f"{'figure':<{width}}  {'published':>9} {'ours':>9} {'error':>7}  kind")
    for row in rows:
        error = "" if row.error is None else f"{100 * row.error:+.1f} %"
        ours, kind = f"{row.ours:.2f}", "fit" if row.used_to_fit else "prediction"
        if row.error is None:  # ours is another quantity
            ours, kind = "", f"no prediction: needs {row.ours:.0f} {row.unit}"
        print(f"{row.name:<{width}}  {row.published:>9.2f} {ours:>9} {error:>7}  {kind}")
    print()
    print(f"source: {rows[0].source}")
    return 0
