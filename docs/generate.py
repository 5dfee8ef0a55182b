"""Write the pages that are made from tables: ``python docs/generate.py``. A test holds the pages against the tables."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from ppsim.check.invariants import INVARIANTS, RULES, Invariant
from ppsim.core import effects as fx
from ppsim.core.parts import RIGHT, Parts
from ppsim.core.policy import Policy
from ppsim.core.rank import Phase
from ppsim.core.surroundings import Surroundings
from ppsim.plan.questions import QUESTIONS
from ppsim.plugin import all_bugs
from ppsim.plugin.plans import right_plan

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "planted" / "bug_scenarios.toml"
CATALOGUE = HERE / "bugs.toml"
SCENARIOS = HERE.parent / "scenarios" / "bugs"


def invariants_page() -> str:
    """Every invariant, who checks it, and the planted bugs that break it."""
    by_invariant: dict[str, list[str]] = {}
    for bug in all_bugs().values():
        by_invariant.setdefault(bug.breaks, []).append(f"`{bug.name}`")
    lines = [
        "# The invariants",
        "",
        'Numbered as in [the protocol](protocol.md), section 12. "Same" means equal on all ranks at one iteration.',
        "A run checks them with `run.invariants = true`, in a simulation and on real processes (there all but INV-07",
        "and INV-08, which compare where two ranks are at one moment); `ppsim fuzz` and `ppsim explore` always do.",
        "Who checks one is given as file and function, of `ppsim/check` or `ppsim/core`.",
        "This page is made by `python docs/generate.py`.",
        "",
        "| number | rule | checked by | planted bugs that break it |",
        "| --- | --- | --- | --- |",
    ]
    lines += [row(rule, by_invariant) for rule in INVARIANTS]
    lines += [
        "",
        "## Rules of public bug reports",
        "",
        "What none of the 64 says; numbered on from 65. Checked beside them, and where a scenario sets a limit.",
        "",
        "| name | rule | checked by | planted bugs that break it |",
        "| --- | --- | --- | --- |",
    ]
    lines += [row(rule, by_invariant) for rule in RULES]
    return "\n".join(lines) + "\n"


def row(rule: Invariant, by_invariant: dict[str, list[str]]) -> str:
    bugs = ", ".join(by_invariant.get(rule.name, [])) or rule.unbreakable
    return f"| {rule.name} | {rule.statement} | {rule.checked_by} | {bugs} |"


BUGS_HEAD = """# Public bugs as scenarios

Reported bugs of pipeline-parallel serving that concern scheduling, communication, KV, aborts or consensus, each as a
small scenario in `scenarios/bugs/`. With the right protocol it passes; with its planted bug it fails at the iteration
and with the rule that are named here (`ppsim run bugs/NAME --bug BUG`). The last column is the same run without any
check: how late, or whether at all, an engine would notice. A scenario's comments say what is expected, how its
iterations are derived, and where the nearest rule of this protocol stands in for something that is not modelled.
`ppsim bugs BUG` lets the fuzzer look for it. The rules: [invariants](invariants.md).
This page is made by `python docs/generate.py`.

| entry | reported in | scenario | what it shows | planted bug | breaks | at | without checks |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def bugs_page() -> str:
    """Every entry of the catalogue: its scenario, its planted bug, and what the run must show."""
    lines = []
    for name, entry in sorted(tomllib.loads(DATA.read_text(encoding="utf-8")).items()):
        shows = tomllib.loads((SCENARIOS / f"{name}.toml").read_text(encoding="utf-8"))["description"]
        at = f"iteration {entry['iteration']}" if "iteration" in entry else "the end"
        cells = (
            name[:3].upper(),
            entry["source"],
            f"[{name}](../scenarios/bugs/{name}.toml)",
            shows,
            f"`{entry['bug']}`",
            entry["invariant"],
            f"{at}, {entry['rank']} rank",
            unnoticed(entry.get("bare")),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return BUGS_HEAD + "\n".join(lines) + "\n" + catalogue()


CATALOGUE_HEAD = """
## What was reported

Every number that code, tests and scenarios cite as "bugs.md B66": where it was reported in public, and what went wrong.
Only excerpts of the threads were read; the sentences are ours. Numbers that are missing stand for nothing. B94 and
above, but for B100, have no planted bug: [how each is shown](results/bugs_b94_b118.md).
"""
RULES_HEAD = """
## The rules behind them

What the reports have in common, cited as "bugs.md I4". Most are [invariants](invariants.md) by other words; I9, I10,
I12 to I15, I17, I18 and I20 gave those above 64.

| rule | |
| --- | --- |
"""
UNIT_MODEL = """
## The unit model

Iterations and times of these scenarios are worked out by hand in a small model: a stage needs one tick for any batch
that is not empty, messages cost nothing, inputs of an iteration are processed before its launch. With L = `pp_size` +
`pp_async_batch_depth`:

- A batch launched in iteration i is harvested in i + L - 1 on every rank.
- A prompt of one chunk launched in i delivers its n-th token in i + n L - 1; K chunks launched from i on deliver the
  first in i + K + L - 2, and the last stage is done with them after K + `pp_size` - 1 ticks.
- M equal batches from an empty pipeline to an empty one leave (`pp_size` - 1) / (`pp_size` - 1 + M) of its time unused.
- A round of steady decode over slots of t_s ticks, with h ticks from the last stage back to the first, lasts
  max(sum of t_s, `pp_size` x max t_s + h). That is exact at h = 0 and depth 0 or 1, otherwise a lower bound: hidden
  states leave behind the harvest, and the relay of an output queues behind hidden states that are not computed yet.
"""
QUESTIONS_HEAD = """
## Questions

What people asked about configuration and speed, cited as "bugs.md P08": [answered by runs](results/questions.md).

| question | asked in | |
| --- | --- | --- |
"""
TABLE = "\n| number | reported in | what went wrong |\n| --- | --- | --- |\n"


def catalogue() -> str:
    """Every report with its source and a sentence, by class; the rules behind them, the unit model, the questions."""
    told = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    sources, rules = told.pop("sources"), told.pop("rules")
    for name, entry in tomllib.loads(DATA.read_text(encoding="utf-8")).items():
        sources[name[:3].upper()] = entry["source"]
    text = CATALOGUE_HEAD
    for kind, entries in told.items():
        text += f"\n### {kind[0].upper()}{kind[1:]}\n{TABLE}"
        text += "".join(f"| {number} | {sources[number]} | {wrong} |\n" for number, wrong in entries.items())
    text += RULES_HEAD + "".join(f"| {number} | {rule} |\n" for number, rule in rules.items()) + UNIT_MODEL
    return text + QUESTIONS_HEAD + "".join(f"| {q.key} | {q.source} | {q.asked} |\n" for q in QUESTIONS.values())


def unnoticed(bare: dict[str, Any] | None) -> str:
    """What happens where nobody checks."""
    if bare is None:
        return "nothing is noticed"
    if "endless" in bare:
        return "never ends"
    return bare["invariant"] + (f", iteration {bare['iteration']}" if "iteration" in bare else "")


PARTS_HEAD = """# Policy, parts and surroundings

What a plug-in or a planted bug may replace ([how](plugins.md)), as it stands in `ppsim/core`. What is written there is
the right protocol. This page is made by `python docs/generate.py`.

## Policy

The decisions that a scheduler developer may want to make differently: a class `Policy(ppsim.Policy)`. Each rank makes
an instance of its own, with `pp_rank`, `tp_rank` and `wall_clock_ns()`, its own clock. Every answer must be the same on
all ranks.
"""

PARTS_TEXT = """
## Parts

A subclass of one of these classes stands in its place; whoever overrides a method changes just that rule. A bug may
override any method; these are the public ones that the class itself defines.
"""

PHASES_TEXT = """
## Phases

An iteration is a list of phases, one list a role (`core/loop.py`). A subclass of `Loop` changes the list in `plan()`,
with the help of `ppsim.plugin.plans`: `instead`, `before`, `behind`, `moved_behind`, `does`, `edited`. A phase is known
by its name; a name that no list has is told. What has a vote in its name exists once for each vote of the role.
"""

SURROUNDINGS_TEXT = """
## Surroundings

How the world around the ranks behaves: one object for a whole run, which may remember. `rank` is a rank number over all
stages and replicas.
"""

EFFECTS_TEXT = """
## Effects

All that a rank may ask of its world (`core/effects.py`).

| effect | fields |
| --- | --- |
"""


def parts_page() -> str:
    """Policy, parts, phases, surroundings and effects, from their sources."""
    text = PARTS_HEAD + methods_table(Policy, Policy, whole=True) + PARTS_TEXT
    for field in fields(Parts):
        name, part = field.name, getattr(RIGHT, field.name)
        file = part.__module__.rpartition(".")[2]
        text += f"\n### {name}: `{part.__name__}`, core/{file}.py\n\n{first_sentence(part)}\n"
        text += methods_table(part, part)
    text += PHASES_TEXT
    for role, bootstrap in (("plain", "store"), ("prefill", "store"), ("prefill", "vote"), ("decode", "store")):
        title = f"{role}, bootstrap by {bootstrap}" if role == "prefill" else role
        text += f"\n### {title[0].upper()}{title[1:]}\n\n| phase | what it does |\n| --- | --- |\n"
        text += "".join(phase_row(phase) for phase in right_plan(role, bootstrap))
    text += SURROUNDINGS_TEXT + methods_table(Surroundings, Surroundings, whole=True)
    return text + EFFECTS_TEXT + "".join(effect_row(effect) for effect in fx.Effect.__args__)


def methods_table(cls: type, owner: type, *, whole: bool = False) -> str:
    """The public methods that a class defines itself; ``whole``: with all that is said of them."""
    rows = []
    for name, value in vars(owner).items():
        function = value.fget if isinstance(value, property) else value
        if name.startswith("_") or not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        names = ", ".join(p for p in inspect.signature(function).parameters if p != "self")
        told = inspect.getdoc(function) or ""
        meaning = " ".join((told if whole else told.split("\n\n")[0]).split()).replace("``", "`")
        shown = name if isinstance(value, property) else f"{name}({names})"
        rows.append(f"| `{shown}` | {meaning} |\n")
    return "\n| method | what the right one does |\n| --- | --- |\n" + "".join(rows) if rows else ""


def first_sentence(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()).replace("``", "`")


def phase_row(phase: Phase) -> str:
    told = first_sentence(phase)
    return f"| `{phase.__name__}` | {told} |\n"


def effect_row(effect: Any) -> str:
    shown = ", ".join(f"`{field.name}`" for field in fields(effect))
    return f"| `{effect.__name__}` | {shown} |\n"


PAGES = {"parts.md": parts_page, "invariants.md": invariants_page, "bugs.md": bugs_page}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
