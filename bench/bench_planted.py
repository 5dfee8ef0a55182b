"""The fuzzer against every planted bug, in CPU seconds of one core: docs/results/planted_bugs.md.

    python bench/bench_planted.py --measure FILE [NAME ...]    append a line of JSON for each bug
    python bench/bench_planted.py FILE > docs/results/planted_bugs.md

Times are those of the process, so a busy machine changes them little. ``ppsim bugs --all --budget 60`` does the same by
the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppsim.fuzz.campaign import run_campaign
from ppsim.fuzz.experiment import run_experiment
from ppsim.fuzz.round import Order
from ppsim.plugin import Planted, all_bugs

BUDGET_S = 60.0
MAX_REQUESTS = MAX_STAGES = 3

WHY_LARGER: dict[str, str] = {
    "chunk_sizes_refitted": "ranks refit at other times only while several prompts are chunked one after the other",
    "ended_rows_dropped_at_harvest": "a request must end in a slot that others keep open until its next decode",
    "last_view_counts": "the first rank's view must be lost on the way round; the shrinker could take no stage away",
    "middle_chunk_counts_as_last": "the shrinker could leave none of its prompts out",
    "parked_chunk_waits_too": "a chunk is parked only where others fill the pool",
    "retracts_the_first": "several must share a slot and outgrow the pool there",
}
"""Why a bug needs more than three requests or stages, for each that does."""

WHY_OTHER: dict[str, str] = {
    "abort_reaches_two_slots": "a slot that is not reached delivers behind the abort, and that is looked at first",
    "ended_rows_dropped_at_harvest": "the batch without these rows is another one, and that is compared first",
    "barrier_in_each_iteration": "the barrier closes a ring of waiting ranks before its length can be measured",
    "local_grammar_cache": "a request leaves the queue on one rank alone, and who advances is compared first",
    "decodes_first": "the visit that does not try a prefill leaves the slot open, and that is compared first",
}
"""Why the first rule that is seen broken is another one than the bug is listed under, for each where it is."""


class OutOfTimeError(Exception):
    """The budget is used up."""


def measure(planted: Planted, seed: int = 0) -> dict[str, Any]:
    """One campaign, in CPU time. ``seconds``: until it is found; ``shrink_seconds``: from there to the smallest."""
    began = time.process_time()
    last = [began, 0.0]

    def look(num_examples: int, _: int) -> None:
        last[:] = time.process_time(), num_examples
        if last[0] - began > BUDGET_S:
            raise OutOfTimeError

    try:
        result = run_campaign(Order(planted.profile, seed, None, None, (planted.name,)), progress=look)
    except OutOfTimeError:
        return {**head(planted), "found": False, "examples": int(last[1]), "seconds": last[0] - began}
    found = result.findings[0]
    return {
        **head(planted),
        "found": True,
        "examples": found.example,
        "seconds": round(last[0] - began, 2),
        "shrink_seconds": round(time.process_time() - last[0], 2),
        "shrink_runs": found.shrink_runs,
        "invariant": found.repro.signature.invariant,
        "shrunk": found.repro.experiment.size(),
        "passes_without": run_experiment(found.repro.experiment).verdict.kind == "pass",
        "replays": found.repro.again(found.repro.run()),
    }


def head(planted: Planted) -> dict[str, Any]:
    return {"name": planted.name, "breaks": planted.breaks, "profile": planted.profile, "source": planted.source}


def page(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of docs/results/planted_bugs.md."""
    rows = sorted(rows, key=lambda row: str(row["name"]))
    found = [row for row in rows if row["found"]]
    slowest = max(found, key=lambda row: float(row["seconds"]))
    yield from (
        "# The fuzzer against every planted bug",
        "",
        f"{len(found)} of {len(rows)} planted bugs are found by their own profile, the slowest after",
        f"{slowest['seconds']:.1f} CPU seconds and {slowest['examples']} examples (`{slowest['name']}`); the limit is",
        f"{BUDGET_S:.0f} seconds for each. Half of them need no more than {median(found)} examples. Made by",
        f"`python bench/bench_planted.py` with seed 0, CPU seconds of one core (Python {platform.python_version()},",
        f"{platform.machine()}). `ppsim bugs --all --budget 60` makes the same campaigns by the clock on the wall.",
        "",
        "*Breaks* is the rule that the bug is listed under (`ppsim list bugs`); *seen* is the first rule that a run",
        "shows broken, and so the one that is shrunk. Requests, stages and choices are those of the smallest",
        f"experiment. Each was run again with the same bits ({sum(row['replays'] for row in found)} of {len(found)}),",
        f"and without the bug, which passes ({sum(row['passes_without'] for row in found)} of {len(found)}).",
        "",
        "| bug | from | profile | breaks | seen | examples | seconds | shrinking | requests | pp | choices |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(line(row) for row in rows),
    )
    yield from ("", f"## Larger than {MAX_REQUESTS} requests or {MAX_STAGES} stages", "")
    larger = [row for row in found if is_large(row)]
    yield from (f"- `{row['name']}`: {WHY_LARGER[row['name']]}" for row in larger)
    yield from ("",) if larger else ("None.", "")
    yield from (
        "## Seen by another rule first",
        "",
        "A campaign stops at the first violation. That each bug breaks its own rule as well is held by",
        "`tests/planted/test_invariants.py` and `tests/planted/test_bug_scenarios.py`, with a scenario for each.",
        "",
    )
    yield from (
        f"- `{row['name']}` ({row['invariant']}): {WHY_OTHER[row['name']]}"
        for row in found
        if row["invariant"] != row["breaks"]
    )


def median(rows: list[dict[str, Any]]) -> int:
    return int(sorted(row["examples"] for row in rows)[len(rows) // 2])


def is_large(row: dict[str, Any]) -> bool:
    return bool(row["shrunk"]["requests"] > MAX_REQUESTS or row["shrunk"]["pp_size"] > MAX_STAGES)


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    first = f"| `{row['name']}` | {row['source']} | {row['profile']} | {row['breaks']} |"
    if not row["found"]:
        return f"{first} not found | {row['examples']} | {row['seconds']:.1f} | | | | |"
    size = row["shrunk"]
    return (
        f"{first} {row['invariant']} | {row['examples']} | {row['seconds']:.1f} | {row['shrink_seconds']:.1f} | "
        f"{size['requests']} | {size['pp_size']} | {size['choices']} |"
    )


def main() -> None:
    """Measure, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("file", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if not given.measure:
        rows = [json.loads(text) for text in given.file.read_text(encoding="utf-8").splitlines()]
        print("\n".join(page(rows)))
        return
    for name in given.names or list(all_bugs()):
        with given.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(measure(all_bugs()[name])) + "\n")


if __name__ == "__main__":
    main()
