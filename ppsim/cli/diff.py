"""``ppsim diff``: the first record in which two runs differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli import completion
from ppsim.cli.guard import guarded
from ppsim.cli.options import RUN_HELP, JsonOption
from ppsim.errors import EXIT_PASS, EXIT_SAFETY, UsageError

if TYPE_CHECKING:
    from ppsim.recording import Recording
    from ppsim.recording.diff import Difference

A = Annotated[str, typer.Argument(metavar="A", help=RUN_HELP, autocompletion=completion.runs)]
B = Annotated[str, typer.Argument(metavar="B", help="The run to compare it with.", autocompletion=completion.runs)]
TimesOption = Annotated[bool, typer.Option("--times", help="Compare times too, once all else is equal.")]
DecisionsOption = Annotated[
    bool, typer.Option("--decisions", help="Compare the decisions only: for two worlds that sample their own tokens.")
]


@guarded
def diff(
    a: A, b: B, times: TimesOption = False, decisions: DecisionsOption = False, as_json: JsonOption = False
) -> int:
    """Name the first record in which two runs differ. Exit code 0 if they agree, 1 if not."""
    from ppsim.recording.diff import first_difference, first_in_batches
    from ppsim.recording.folder import open_run

    if times and decisions:
        raise UsageError("--times and --decisions exclude each other")
    left, right = open_run(a), open_run(b)
    found = first_difference(left, right, times=times, decisions_only=decisions)
    # Where only the inner state parted at first, the batch in which that shows is worth a second look.
    hidden = found is not None and found.field == "state_digest"
    shows = first_in_batches(left, right) if hidden else None
    if as_json:
        print(json.dumps(difference_json(found, shows, of_two_worlds(left, right)), allow_nan=False))
    elif found is None:
        print(equal_text(left, times, decisions))
    else:
        print(difference_text("different: first", found, a, b))
        if hidden:
            print(difference_text("it shows", shows, a, b) if shows else "it never shows in a batch")
        if of_two_worlds(left, right):
            print(TWO_WORLDS)
    return EXIT_PASS if found is None else EXIT_SAFETY


TWO_WORLDS = """\
note: two worlds, each with tokens and a clock of its own; they decide alike unless one of these steers:
  a token: it stops a request (stop_after, eos_probability), or a prefix holds it (equal prompts, whose answers a model
  gives alike and a simulation does not)
  a moment: of arrivals and aborts that name a time, of a timeout, of an answer that brings the next request, of the
  consensus store's words"""
"""What may make two worlds part although nothing is wrong (design decision 5: only such replies are not determined)."""


def of_two_worlds(left: Recording, right: Recording) -> bool:
    return left.world != right.world


def equal_text(recording: Recording, times: bool, decisions_only: bool) -> str:
    from ppsim.recording.digest import digests_of

    sides = [recording] if recording.peer is None else [recording.peer, recording]
    num_decisions = sum(len(records) for side in sides for records in side.decisions)
    ranks = " + ".join(str(side.num_ranks) for side in sides)
    digests = [digests_of(side) for side in sides]
    if decisions_only:
        listed = " ".join(dict.fromkeys(digest for side in digests for digest in side.decisions))
        return f"equal: {num_decisions} decisions of {ranks} ranks, digest of the ranks {listed}"
    what = "decisions, tokens, replies and times" if times else "decisions, tokens and replies"
    listed = " ".join(side.run for side in digests)
    return f"equal: {what} of {ranks} ranks, {num_decisions} decisions, digest {listed}"


def difference_text(lead: str, found: Difference, a: str, b: str) -> str:
    where = f" of {found.place()}" if found.place() else ""
    what = f"field {found.field}" if found.field else "only one run has this record"
    width = max(len(a), len(b))
    return "\n".join(
        [
            f"{lead} in the {found.kind} record{where}: {what}",
            f"  {a:<{width}}  {value_text(found.left)}",
            f"  {b:<{width}}  {value_text(found.right)}",
        ]
    )


def value_text(value: Any) -> str:
    return "absent" if value is None else json.dumps(plain(value), separators=(", ", ": "))


def plain(value: Any) -> Any:
    """A whole decision or harvest, where one side has none, by the names of its fields."""
    from ppsim.core.effects import Decision, Harvest

    return value._asdict() if isinstance(value, Decision | Harvest) else value


def difference_json(found: Difference | None, shows: Difference | None, of_two_worlds: bool) -> dict[str, Any]:
    """``shows`` is where a difference of the inner state is first seen in a batch."""
    if found is None:
        return {"equal": True}
    note = {"note": TWO_WORLDS} if of_two_worlds else {}
    return {"equal": False, **record_json(found), "shows": None if shows is None else record_json(shows), **note}


def record_json(found: Difference) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "side": found.side or None,
        "rank": found.rank,
        "iteration": found.iteration,
        "slot": found.slot,
        "field": found.field or None,
        "a": plain(found.left),
        "b": plain(found.right),
    }
