"""Planted bugs that simulation finds, again on real processes: docs/results/replayed_bugs.md.

    python -m bench.bench_replayed --measure FILE [NAME ...]    append a line of JSON for each bug
    python -m bench.bench_replayed FILE > docs/results/replayed_bugs.md

For each planted bug of a profile with a role that the executor has: the first generated example that breaks the rule
of the bug (or the one that is seen first, ``bench_planted.WHY_OTHER``), asks for nothing that processes lack and has
links on which ranks wait as they do between processes. It is replayed by ``ppsim replay FILE --in exec``'s own
function. Where every example asks for something else, the first one at all, and what is said. Ranks are forked from a
server that has torch and transformers loaded. What is measured already is left out, but for what was searched for in
vain for less time than ``--seconds``; of a bug's rows the last one counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.bench_planted import WHY_OTHER
from ppsim.cli.replay_exec import both_ends, told, unlike_gloo
from ppsim.errors import PpsimError, UsageError
from ppsim.fuzz.experiment import Experiment, Terms, run_experiment
from ppsim.fuzz.generate import generated
from ppsim.fuzz.profiles import Profile, profile_named
from ppsim.fuzz.repro import Repro
from ppsim.plugin import Planted, all_bugs, load
from ppsim.scenario.tree import Links

MAX_EXAMPLES = 400
HERE = ("plain", "prefill")
PRELOAD = ["executor.serve", "transformers.models.llama.modeling_llama"]


def candidates() -> Iterator[tuple[Planted, Profile]]:
    """Bugs of a profile that has a role of the executor."""
    for bug in all_bugs().values():
        wanted = profile_named(bug.profile)
        if set(wanted.roles) & set(HERE):
            yield bug, wanted


def runs_here(raw: dict[str, Any]) -> bool:
    """Whether processes have all that an example asks for, and links on which the same ranks wait for each other."""
    return has_parts(raw) and not unlike_gloo(Links(**raw["links"]))


def has_parts(raw: dict[str, Any]) -> bool:
    """Whether processes have all parts of an example; what its links are like decides nothing where nobody hangs."""
    cluster, role = raw["cluster"], raw.get("disaggregation", {}).get("role", "plain")
    replicas = cluster.get("tp_replicas", 1), cluster.get("tp_size", 1)
    return role in HERE and replicas == (1, 1) and "hicache" not in raw


def found(bug: Planted, wanted: Profile, max_s: float, *, here: bool) -> Repro | None:
    """The first example that shows the bug, of those that run on processes or of the others."""
    change = load((bug.name,)).change
    until = time.process_time() + max_s
    for index in range(MAX_EXAMPLES):
        if time.process_time() > until:
            return None
        example = generated(wanted, 0, 0, index)
        if runs_here(example.raw) != here:
            continue
        outcome = run_experiment(example, change, terms=Terms(10.0))
        rule = "" if outcome.signature is None else outcome.signature.invariant
        if rule == bug.breaks or (rule.startswith("INV") and bug.name in WHY_OTHER):
            assert outcome.signature is not None
            verdict = outcome.verdict
            again = Experiment(example.raw, outcome.tape)
            return Repro(again, outcome.signature, outcome.digest, verdict.iteration, (bug.name,))
    return None


def measure(bug: Planted, wanted: Profile, max_s: float) -> dict[str, Any]:
    row: dict[str, Any] = {"name": bug.name, "breaks": bug.breaks, "profile": bug.profile}
    repro = found(bug, wanted, max_s, here=True) or found(bug, wanted, max_s, here=False)
    if repro is None:
        return {**row, "left_out": f"none of {MAX_EXAMPLES} examples shows it in {max_s:g} s", "searched_s": max_s}
    size = {key: repro.experiment.size()[key] for key in ("pp_size", "requests")}
    row |= {**size, "simulated": repro.signature.invariant}
    begun = time.monotonic()
    try:
        ends = both_ends(bug.name, repro, Terms(), "forkserver")
    except UsageError as refusal:
        return {**row, "refused": str(refusal).splitlines()[0]}
    except PpsimError as error:
        return {**row, "error": str(error).splitlines()[0]}
    cycle = " -> ".join(map(str, ends.cycles[1]))
    return {
        **row,
        "same": ends.same,
        "simulated": told(ends.simulated),
        "real": told(ends.real) + (f", cycle {cycle}" if cycle else ""),
        "seconds": round(time.monotonic() - begun, 1),
    }


HEAD = """# Planted bugs on real processes

What the fuzzer finds in simulation, replayed on real processes with the same inputs, observations, tokens and refused
memory at the same logical times: the first generated example of seed 0 that breaks the rule of the bug. "Same" is the
same rule and exit code, and where ranks wait for each other the same circle. The commands:

    ppsim fuzz --profile PROFILE --bug NAME --out DIR
    ppsim replay DIR/repro_... --in exec

Made by `python -m bench.bench_replayed` (its head says how).

"""

REFUSED = """## Refused

Every example that shows one of these asks for something that processes lack, or its rule or the bug itself is about
something that only the simulated world has. `ppsim replay FILE --in exec` says so before a process starts: exit 2.
"""


def page(rows: list[dict[str, Any]]) -> str:
    last = {str(row["name"]): row for row in rows}
    rows = [last[name] for name in sorted(last)]
    ran = [row for row in rows if "same" in row or "error" in row]
    refused = [row for row in rows if "refused" in row]
    alike = sum(row.get("same", False) for row in ran)
    lines = [f"{alike} of {len(ran)} replayed bugs end alike; {len(refused)} are refused by name.", ""]
    lines += ["| bug | profile | in simulation | on processes | ranks | requests | same |", "|" + " --- |" * 7]
    lines += [
        f"| `{row['name']}` | {row['profile']} | {row['simulated']} | {row.get('real', row.get('error'))} | "
        f"{row['pp_size']} | {row['requests']} | {'yes' if row.get('same') else 'no'} |"
        for row in ran
    ]
    lines += ["", REFUSED, "| bug | profile | rule | what is said |", "|" + " --- |" * 4]
    lines += [
        f"| `{row['name']}` | {row['profile']} | {row['breaks']} | {row['refused'].removeprefix(row['name'] + ': ')} |"
        for row in refused
    ]
    unseen = [f"`{row['name']}` ({row['left_out']})" for row in rows if "left_out" in row]
    missing = [f"`{bug.name}`" for bug, _ in candidates() if bug.name not in last]
    elsewhere = [f"`{name}`" for name in all_bugs() if name not in {bug.name for bug, _ in candidates()}]
    for what, names in (
        ("Not seen in simulation", unseen),
        ("Not measured yet", missing),
        ("Of profiles without a role that processes have (two servers)", elsewhere),
    ):
        lines += ["", f"{what}: {', '.join(names)}."] if names else []
    return HEAD + "\n".join(lines) + "\n"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU, to search for an example")
    parser.add_argument("file", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if not args.measure:
        print(page(read(args.file)), end="")
        return
    multiprocessing.set_forkserver_preload(PRELOAD)
    done = {row["name"] for row in read(args.file) if row.get("searched_s", args.seconds) >= args.seconds}
    for bug, wanted in candidates():
        if bug.name not in done and (not args.names or bug.name in args.names):
            row = measure(bug, wanted, args.seconds)
            with args.file.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
