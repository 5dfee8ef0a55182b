"""A saved failure as the source of a regression test: emitted, not typed, and formatted as the formatter wants it."""

from __future__ import annotations

import json
from typing import Any

from ppsim.errors import UsageError
from ppsim.fuzz.repro import Repro

WIDTH = 120


def regression_test(repro: Repro, name: str) -> str:
    """Python source of a test that keeps this failure from coming back.

    With planted bugs: it is found with them, bit for bit, and nothing is found without. ``name``: an identifier part.
    A plug-in is a file somewhere else, so it is named relative to the folder in which pytest runs. Raises UsageError
    for a failure that is no function of the experiment.
    """
    what = repro.signature.invariant
    if what == "nondeterminism":
        raise UsageError("two runs of this file differ, so no test can keep it: mend what makes them differ")
    plugin = f", {json.dumps(repro.plugin)}" if repro.plugin else ""
    change = f"load({literal(list(repro.bugs))}{plugin}).change"
    is_planted = bool(repro.bugs or repro.plugin)
    lines = [f'"""{what}: found by the fuzzer and shrunk; kept so that it cannot come back."""', ""]
    terms = ""
    if what.startswith("report-"):
        terms = ", terms=Terms(reports=write_and_read)"
        lines.append("from ppsim.cli.every_report import write_and_read")
    names = "Experiment, Terms, run_experiment" if terms else "Experiment, run_experiment"
    lines.append(f"from ppsim.fuzz.experiment import {names}, tape_of")
    if is_planted:
        lines.append("from ppsim.plugin import load")
    lines += ["", f"RAW = {literal(repro.experiment.raw)}", *tape_lines(repro.experiment.tape)]
    if is_planted:
        lines += [
            "",
            "",
            f"def test_{name}_is_caught() -> None:",
            f"    outcome = run_experiment(Experiment(RAW, TAPE), {change}{terms})",
            "    assert outcome.signature is not None",
            f"    assert outcome.signature.invariant == {json.dumps(what)}",
        ]
    lines += [
        "",
        "",
        f"def test_{name}_holds_with_the_right_protocol() -> None:",
        f"    outcome = run_experiment(Experiment(RAW, TAPE){terms})",
        '    assert outcome.verdict.kind == "pass", outcome.verdict.message',
    ]
    return "\n".join(lines) + "\n"


def literal(value: Any, indent: int = 0, before: int = 6) -> str:
    """A Python literal: on one line if it fits behind ``before`` other characters, else an entry on each line."""
    text = flat(value)
    if not isinstance(value, dict | list | tuple) or not value or indent + before + len(text) + 1 <= WIDTH:
        return text
    inner = " " * (indent + 4)
    if isinstance(value, dict):
        items = []
        for key in sorted(value):
            label = json.dumps(key) + ": "
            items.append(label + literal(value[key], indent + 4, len(label)))
    else:
        items = [literal(item, indent + 4, 0) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + "".join(f"{inner}{item},\n" for item in items) + " " * indent + closing


def flat(value: Any) -> str:
    """The same on one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)}: {flat(value[key])}" for key in sorted(value)) + "}"
        case list() | tuple():
            return "[" + ", ".join(flat(item) for item in value) + "]"
        case str():
            return json.dumps(value)
    return repr(value)


def tape_lines(tape: tuple[int, ...]) -> list[str]:
    """``TAPE = tape_of("3 0x12 1")``: a run of equal choices is written once."""
    words: list[str] = []
    position = 0
    while position < len(tape):
        end = position
        while end < len(tape) and tape[end] == tape[position]:
            end += 1
        words.append(str(tape[position]) + (f"x{end - position}" if end - position > 1 else ""))
        position = end
    if len(text := " ".join(words)) + 20 <= WIDTH:
        return [f'TAPE = tape_of("{text}")']
    rows: list[str] = []
    for word in words:
        if rows and len(rows[-1]) + len(word) + 10 <= WIDTH:
            rows[-1] += f" {word}"
        else:
            rows.append(word)
    quoted = [f'    "{row} "' for row in rows[:-1]] + [f'    "{rows[-1]}"']
    return ["TAPE = tape_of(", *quoted, ")"]
