"""``ppsim diff``: the first record in which two runs differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import guarded
from ppsim.cli.options import RUN_HELP, JsonOption
from ppsim.errors import EXIT_PASS, EXIT_SAFETY, UsageError

if TYPE_CHECKING:
    from ppsim.recording import Recording
    from ppsim.recording.diff import Difference

A = Annotated[str, typer.Argument(metavar="A", help=RUN_HELP)]
B = Annotated[str, typer.Argument(metavar="B", help="The run to compare it with.")]
TimesOption = Annotated[bool, typer.Option("--times", help="Compare times too, once all else is equal.")]
DecisionsOption = Annotated[
    bool, typer.Option("--decisions", help="Compare the decisions only: for two worlds that sample their own tokens.")
]


@guarded
def diff(
    a: A, b: B, times: TimesOption = False, decisions: DecisionsOption = False, as_json: JsonOption = False
) -> int:
    """Name the first record in which two runs differ. Exit code 0 if they agree, 1 if not."""
    from ppsim.recording.diff import first_difference
    from ppsim.recording.folder import open_run

    if times and decisions:
        raise UsageError("--times and --decisions exclude each other")
    left, right = open_run(a), open_run(b)
    found = first_difference(left, right, times=times, decisions_only=decisions)
    if as_json:
        print(json.dumps(difference_json(found), allow_nan=False))
    else:
        print(equal_text(left, times, decisions) if found is None else difference_text(found, a, b))
    return EXIT_PASS if found is None else EXIT_SAFETY


def equal_text(recording: Recording, times: bool, decisions_only: bool) -> str:
    from ppsim.recording.digest import digests_of

    digests = digests_of(recording)
    num_decisions = sum(len(records) for records in recording.decisions)
    if decisions_only:
        listed = " ".join(dict.fromkeys(digests.decisions))
        return f"equal: {num_decisions} decisions of {recording.num_ranks} ranks, digest of the ranks {listed}"
    what = "decisions, tokens, replies and times" if times else "decisions, tokens and replies"
    return f"equal: {what} of {recording.num_ranks} ranks, {num_decisions} decisions, digest {digests.run}"


def difference_text(found: Difference, a: str, b: str) -> str:
    where = f" of {found.place()}" if found.place() else ""
    what = f"field {found.field}" if found.field else "only one run has this record"
    width = max(len(a), len(b))
    return "\n".join(
        [
            f"different: first in the {found.kind} record{where}: {what}",
            f"  {a:<{width}}  {value_text(found.left)}",
            f"  {b:<{width}}  {value_text(found.right)}",
        ]
    )


def value_text(value: Any) -> str:
    return "absent" if value is None else json.dumps(plain(value), separators=(", ", ": "))


def plain(value: Any) -> Any:
    """Tuples, records and dataclasses as lists and dictionaries."""
    from dataclasses import asdict, is_dataclass

    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def difference_json(found: Difference | None) -> dict[str, Any]:
    if found is None:
        return {"equal": True}
    return {
        "equal": False,
        "kind": found.kind,
        "rank": found.rank,
        "iteration": found.iteration,
        "slot": found.slot,
        "field": found.field or None,
        "a": plain(found.left),
        "b": plain(found.right),
    }
