"""Write the pages that are made from tables: ``python docs/generate.py``. A test holds the pages against the tables."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

from ppsim.check.invariants import INVARIANTS, RULES, Invariant
from ppsim.core.hooks import Hooks
from ppsim.planted import all_bugs

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "planted" / "bug_scenarios.toml"
SCENARIOS = HERE.parent / "scenarios" / "bugs"


def invariants_page() -> str:
    """Every invariant, who checks it, and the planted bugs that break it."""
    by_invariant: dict[str, list[str]] = {}
    for bug in all_bugs().values():
        by_invariant.setdefault(bug.breaks, []).append(f"`{bug.name}`")
    lines = [
        "# The invariants",
        "",
        'Numbered as in the protocol\'s section 12. "Same" means equal on all ranks at the same logical iteration.',
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
    return BUGS_HEAD + "\n".join(lines) + "\n"


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
