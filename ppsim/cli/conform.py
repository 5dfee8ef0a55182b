"""``ppsim conform``: recorded decisions of an engine against the scheduler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import guarded
from ppsim.cli.options import JsonOption
from ppsim.errors import EXIT_PASS, EXIT_SAFETY

if TYPE_CHECKING:
    from ppsim.conform import Difference, RecordedRun

FileArg = Annotated[str, typer.Argument(metavar="FILE", help="Recorded runs, one a line: .jsonl or .jsonl.gz.")]


@guarded
def conform(file: FileArg, as_json: JsonOption = False) -> int:
    """Replay recorded decisions of an engine and name the first difference of each run. Exit code 1 if there is any."""
    from ppsim.conform import VERSION, first_difference, read_runs

    runs = read_runs(file)
    found = [(run, first_difference(run)) for run in runs]
    num_equal = sum(difference is None for _, difference in found)
    num_visits = sum(len(run.visits) for run in runs)
    if as_json:
        report = {
            "version": VERSION,
            "num_runs": len(runs),
            "num_equal": num_equal,
            "num_visits": num_visits,
            "runs": [run_json(run, difference) for run, difference in found],
        }
        print(json.dumps(report, allow_nan=False))
    else:
        for _, difference in found:
            if difference is not None:
                print(difference_text(difference))
        print(f"{num_equal} of {len(runs)} runs are equal, field by field ({num_visits} visits recorded)")
    return EXIT_PASS if num_equal == len(runs) else EXIT_SAFETY


def run_json(run: RecordedRun, difference: Difference | None) -> dict[str, Any]:
    found: dict[str, Any] = {"run": run.seed, "line": run.line, "num_visits": len(run.visits)}
    if difference is None:
        return {**found, "equal": True}
    return {
        **found,
        "equal": False,
        "visit": difference.visit,
        "field": difference.field,
        "recorded": difference.recorded,
        "here": plain(difference.here),
        "note": difference.note,
    }


def difference_text(found: Difference) -> str:
    lines = [
        f"run {found.seed} (line {found.line}) differs in visit {found.visit}, field {found.field}:",
        f"  recorded  {json.dumps(found.recorded)}",
        f"  here      {json.dumps(plain(found.here))}",
    ]
    return "\n".join([*lines, f"  ({found.note})"] if found.note else lines)


def plain(value: Any) -> Any:
    """A value of ours as JSON has it: the ratio is kept as a fraction."""
    from fractions import Fraction

    return float(value) if isinstance(value, Fraction) else value
