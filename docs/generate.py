"""Write the pages that are made from tables: ``python docs/generate.py``. A test holds the pages against the tables."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

from ppsim.check.invariants import INVARIANTS, RULES, Invariant
from ppsim.core.hooks import Hooks
from ppsim.plan.questions import QUESTIONS
from ppsim.planted import all_bugs

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
        "The fact is what a rule is held against: not a flag, and, where it can be, not another rank alone.",
        "This page is made by `python docs/generate.py`.",
        "",
        "| number | rule | the fact it is held against | checked by | planted bugs that break it |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [row(rule, by_invariant) for rule in INVARIANTS]
    lines += [
        "",
        "## Rules of public bug reports",
        "",
        "What none of the 64 says; numbered on from 65. Checked beside them, and where a scenario sets a limit.",
        "",
        "| name | rule | the fact it is held against | checked by | planted bugs that break it |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [row(rule, by_invariant) for rule in RULES]
    return "\n".join(lines) + "\n"


def row(rule: Invariant, by_invariant: dict[str, list[str]]) -> str:
    bugs = ", ".join(by_invariant.get(rule.name, [])) or rule.unbreakable
    return f"| {rule.name} | {rule.statement} | {rule.fact} | {rule.checked_by} | {bugs} |"


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


HOOKS_HEAD = """# The hooks

Every place where a plug-in may step in, as they stand in `ppsim/core/hooks.py`. What is written there is the right
protocol; a plug-in overrides one of them ([how](plugins.md)). Each rank has an instance of its own, with `pp_rank`,
`tp_rank`, and `wall_clock_ns()`, its own clock. What a hook returns must be the same on all ranks, unless it says so.
This page is made by `python docs/generate.py`.
"""


def hooks_page() -> str:
    """Every method of Hooks, by the sections of its source: arguments, and what the default means."""
    lines, section = [HOOKS_HEAD], ""
    for line in inspect.getsource(Hooks).splitlines():
        if found := re.match(r"    # --- (.*?) -+$", line):
            section = found[1]
            lines += [
                f"\n## {section[0].upper()}{section[1:]}\n",
                "| hook | what the right protocol does |",
                "| --- | --- |",
            ]
        elif found := re.match(r"    def ([a-z]\w*)\(self(?:, )?(.*)\) -> (.*):$", line):
            hook = getattr(Hooks, found[1])
            names = ", ".join(part.split(":")[0] for part in re.split(r", (?=\w+:)", found[2]) if part)
            meaning = " ".join((inspect.getdoc(hook) or "").split()).replace("``", "`")
            if not section:
                lines += ["| hook | what the right protocol does |", "| --- | --- |"]
            lines.append(f"| `{found[1]}({names})` | {meaning} |")
    return "\n".join(lines) + "\n"


PAGES = {"hooks.md": hooks_page, "invariants.md": invariants_page, "bugs.md": bugs_page}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
