"""Write the pages that are made from tables: ``python docs/generate.py``. A test holds the pages against the tables."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from ppsim.check.invariants import INVARIANTS, RULES, Invariant
from ppsim.core import actions, effects, observations
from ppsim.core.parts import RIGHT, Parts
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan
from ppsim.core.schedule import journal
from ppsim.core.schedule.request import Moved
from ppsim.core.surroundings import Surroundings
from ppsim.plugin import all_bugs
from ppsim.plugin.plans import right_plan
from ppsim.scenario import Scenario, load_scenario
from ppsim.scenario.load import section_in
from ppsim.scenario.worlds import WORLDS
from ppsim.studies.questions import QUESTIONS

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
and with the rule that are named here (`ppsim run bugs/NAME --bug BUG`). Both stand in the scenario itself, which
[judges its run](expect.md). The last column is the same run without any check: how late, or whether at all, an engine
would notice. A scenario's comments say what is expected, how its iterations are derived, and where the nearest rule of
this protocol stands in for something that is not modelled. `ppsim bugs BUG` lets the fuzzer look for it. The rules:
[invariants](invariants.md).
This page is made by `python docs/generate.py`.

| entry | reported in | scenario | what it shows | planted bug | breaks | at | without checks |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def bugs_page() -> str:
    """Every entry of the catalogue: its scenario, its planted bug, and what the run must show."""
    lines = []
    for name, entry in sorted(tomllib.loads(DATA.read_text(encoding="utf-8")).items()):
        scenario = load_scenario(str(SCENARIOS / f"{name}.toml"))
        assert scenario.expect is not None
        ((bug, outcome),) = scenario.expect.bugs.items()
        at = "the end" if outcome.iteration is None else f"iteration {outcome.iteration}"
        cells = (
            name[:3].upper(),
            entry["source"],
            f"[{name}](../scenarios/bugs/{name}.toml)",
            scenario.description,
            f"`{bug}`",
            str(outcome.rule),
            f"{at}, {place_of(outcome.rank, scenario)} rank",
            unnoticed(entry.get("bare")),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return BUGS_HEAD + "\n".join(lines) + "\n" + catalogue()


def place_of(rank: int | None, scenario: Scenario) -> str:
    """Where in the pipeline a rank is."""
    assert rank is not None
    stage = rank // scenario.cluster.tp_replicas
    return "first" if stage == 0 else "last" if stage == scenario.cluster.pp_size - 1 else "middle"


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
override any method; these are the public ones that the class itself defines. `Loop.plan` is the list of phases, which
stand by name in [effects.md](effects.md); `ppsim.plugin.plans` helps to change it: `instead`, `before`, `behind`,
`moved_behind`, `does`, `edited`.
"""

SURROUNDINGS_TEXT = """
## Surroundings

How the world around the ranks behaves: one object for a whole run, which may remember. `rank` is a rank number over all
stages and replicas.
"""


def parts_page() -> str:
    """Policy, parts and surroundings, from their sources."""
    text = PARTS_HEAD + methods_table(Policy, Policy, whole=True) + PARTS_TEXT
    for field in fields(Parts):
        name, part = field.name, getattr(RIGHT, field.name)
        file = part.__module__.removeprefix("ppsim.").replace(".", "/")
        text += f"\n### {name}: `{part.__name__}`, {file}.py\n\n{first_sentence(part)}\n"
        text += methods_table(part, part)
    return text + SURROUNDINGS_TEXT + methods_table(Surroundings, Surroundings, whole=True)


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


EFFECTS_HEAD = """# Phases, effects, observations, acts, journal

What a rank does in an iteration, and all that it may say, ask and know of its surroundings. The sets are closed: they
are types (`ppsim/core/effects.py`, `observations.py`, `actions.py`, `journal.py`), each world answers every one of
them or does not pass its type check, and a plug-in that misspells one fails when it is loaded.
This page is made by `python docs/generate.py`.

## Phases

A loop is a list of phases (`ppsim/core/loop.py`), by these names: what `Loop.plan` answers, and what reports call
the place where a rank stands. A number is the place of the phase in the loop of its role; "prefill, voting" is a
prefill server whose bootstrap is a vote (`disaggregation.bootstrap`).

"""


WORLDS_HEAD = """# The keys of a scenario in both worlds

A scenario is one file for simulation (`ppsim run`) and for real processes (`ppsim exec`), and no key of it is passed
over in silence: honoured, refused (exit code 2 before anything starts) or told (a warning at the start, where it is
set to something else than usual). `other` describes something to the other world alone. In simulation a key may do
nothing in some modes, and a warning says so. The table is `ppsim/scenario/worlds.py`; a key without a row fails a test.
This page is made by `python docs/generate.py`.

On real processes stages, links and hosts take the time that they take, so what would give them a time is told. What
steers a decision is honoured in both worlds: costs too, where chunks are cut by them (`enable_dynamic_chunking`).

"""


def worlds_page() -> str:
    """What becomes of each key in each world."""
    rows = []
    for key in keys_of(Scenario):
        row = WORLDS[key]
        why = row.why + (f"; honoured {row.when}" if row.when else "")
        rows.append([f"`{key}`", row.run.value, row.exec.value, why])
    return WORLDS_HEAD + table(("key", "run", "exec", "on real processes"), rows)


def keys_of(model: type[BaseModel], place: str = "") -> list[str]:
    """All dotted keys, in the order of the tree."""
    found = []
    for name, field in model.model_fields.items():
        section = section_in(field.annotation)
        found += [place + name] if section is None else keys_of(section, f"{place}{name}.")
    return found


def effects_page() -> str:
    """Phases with their places in each loop; every effect, observation, act and entry of the journal."""
    text = EFFECTS_HEAD + table(("phase", *plans(), "what it does"), phase_rows())
    text += "\n## Effects\n\nA phase yields them, the world answers.\n\n"
    text += table(("effect", "fields", "what it is"), effect_rows())
    for title, module in (("Observations", observations), ("Acts", actions)):
        head, *rows = [
            re.split(r"  +", line.strip()) for line in (module.__doc__ or "").splitlines() if line.startswith("    ")
        ]
        text += f"\n## {title}\n\n{lead(module)}\n\n"
        text += table(head, [[f"`{name}`", *rest] for name, *rest in rows])
    text += f"\n## The journal\n\n{lead(journal)}\n\nBeside every act and every reply:\n\n"
    entries = [kind for kind in get_args(journal.Entry) if kind.__module__ == journal.__name__]
    return text + table(("entry", "fields", "what it is"), [entry_row(kind) for kind in [*entries, Moved]])


def plans() -> dict[str, Plan]:
    """The loop of each role."""
    return {
        "plain": right_plan("plain"),
        "prefill": right_plan("prefill"),
        "prefill, voting": right_plan("prefill", "vote"),
        "decode": right_plan("decode"),
    }


def phase_rows() -> list[list[str]]:
    found: dict[str, list[str]] = {}
    docs: dict[str, str] = {}
    for number, plan in enumerate(plans().values()):
        for place, phase in enumerate(plan, 1):
            name = phase.__name__
            found.setdefault(name, ["-"] * len(plans()))[number] = str(place)
            docs[name] = (phase.__doc__ or "").split("\n\n")[0]
    return [[f"`{name}`", *places, one_line(docs[name])] for name, places in found.items()]


def effect_rows() -> list[list[str]]:
    """From the table in the docstring of ``effects.py``."""
    parts = re.split(r"^``(\w+)`` +", effects.__doc__ or "", flags=re.M)[1:]
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    return [[f"`{kind.__name__}`", names_of(kind), one_line(told[kind.__name__])] for kind in get_args(effects.Effect)]


def entry_row(kind: type) -> list[str]:
    return [f"`{kind.__name__}`", names_of(kind), one_line(kind.__doc__ or "")]


def names_of(kind: Any) -> str:
    return ", ".join(f"`{field.name}`" for field in fields(kind)) or "-"


def lead(module: Any) -> str:
    """The first sentence of a module's docstring."""
    return one_line((module.__doc__ or "").split("\n\n")[0])


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


PAGES = {
    "effects.md": effects_page,
    "parts.md": parts_page,
    "invariants.md": invariants_page,
    "bugs.md": bugs_page,
    "worlds.md": worlds_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
