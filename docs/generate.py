"""Write the pages that are made from tables: ``python docs/generate.py``. A test holds the pages against the tables."""

from __future__ import annotations

from pathlib import Path

from ppsim.core.invariants import INVARIANTS
from ppsim.planted import all_bugs

HERE = Path(__file__).resolve().parent


def invariants_page() -> str:
    """Every invariant, who checks it, and the planted bugs that break it."""
    by_invariant: dict[str, list[str]] = {}
    for bug in all_bugs().values():
        by_invariant.setdefault(bug.breaks, []).append(f"`{bug.name}`")
    lines = [
        "# The invariants",
        "",
        'Numbered as in the protocol\'s section 12. "Same" means equal on all ranks at the same logical iteration.',
        "A run checks them with `run.invariants = true`; `ppsim fuzz` and `ppsim explore` always do.",
        "This page is made by `python docs/generate.py`.",
        "",
        "| number | rule | checked by | planted bugs that break it |",
        "| --- | --- | --- | --- |",
    ]
    for rule in INVARIANTS:
        bugs = ", ".join(by_invariant.get(rule.name, [])) or rule.unbreakable
        lines.append(f"| {rule.name} | {rule.statement} | {rule.owner} | {bugs} |")
    return "\n".join(lines) + "\n"


PAGES = {"invariants.md": invariants_page}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
