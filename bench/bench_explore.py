"""Every interleaving of a small configuration, with the right protocol and with each abort or vote bug.

    python bench/bench_explore.py --measure FILE [ROW ...]    append a line of JSON for each row
    python bench/bench_explore.py FILE > docs/results/explore.md

All rows are ``scenarios/explore_release.toml`` (two stages, depth 0, two requests of two chunks) with the settings and
bounds of its configuration below. Times are CPU seconds of the process.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from ppsim.fuzz.explore import Exploration, explore, parse_bounds
from ppsim.plugin import all_bugs, load
from ppsim.scenario.load import load_scenario

SCENARIO = "explore_release"


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is explored: settings over the scenario, and bounds."""

    what: str
    bounds: tuple[str, ...]
    sets: tuple[str, ...] = ()
    reduced: bool = True

    def command(self, bug: str = "") -> str:
        """The command line that does the same."""
        sets = (f"--set {quote(s)}" for s in self.sets)
        words = [f"ppsim explore {SCENARIO}", *sets, *(f"--bound {b}" for b in self.bounds)]
        return " ".join(words + ([f"--bug {bug}"] if bug else []) + ([] if self.reduced else ["--unreduced"]))

    def run(self, bug: str = "") -> Exploration:
        raw = load_scenario(SCENARIO, self.sets).model_dump(mode="json", exclude_unset=True)
        bounds = parse_bounds(list(self.bounds), reduced=self.reduced)
        return explore(raw, bounds, load([bug] if bug else []).change)


DECODE = ("disaggregation.role=decode", "disaggregation.num_reserved_decode_tokens=4")
PLAIN = "disaggregation.role=plain"
STORE = "disaggregation.bootstrap=store"
ROW = '{{rid="R{}", at_iteration={}, prompt={}, output={}}}'
LONGER = f"workload.requests=[{ROW.format(1, 0, 48, 4)}, {ROW.format(2, 1, 32, 4)}]"
REPLICAS = ("cluster.tp_size=2", "cluster.tp_replicas=2")
LATE = "links.jitter_us=2500"
NEVER = 'observations.listed=[{what="bootstrap", rid="R1", at=[99999, 99999]}]'
STUCK = ("timeouts.waiting_ms=20", "host.schedule_us=1000", NEVER)
FLUSH = 'workload.flushes=[{rid="F", at_iteration=1}]'
TINY = f"workload.requests=[{ROW.format(1, 0, 8, 1)}]"

QUEUE = ("scheduler.max_running_requests=1", LONGER, "timeouts.running_ms=10")

CONFIGURATIONS: dict[str, Configuration] = {
    "release": Configuration("one vote (release of KV), one abort", ("delays=transfer:3", "aborts=16")),
    "bootstrap": Configuration("one vote (bootstrap), one abort", ("delays=bootstrap:3", "aborts=16")),
    "prealloc": Configuration("one vote (preallocation), one abort", ("delays=handshake:3", "aborts=16"), DECODE),
    "transferred": Configuration("one vote (arrival of KV), one abort", ("delays=receive:3", "aborts=16"), DECODE),
    "abort": Configuration("one abort", ("aborts=16",), (PLAIN,)),
    "drain": Configuration(
        "as release, and an aborted transfer ends late", ("delays=transfer:3", "delays=abort:3", "aborts=16")
    ),
    "failure": Configuration("one failed handshake", ("failures=bootstrap:4",)),
    "failed transfer": Configuration("one failed transfer", ("failures=transfer:10",)),
    "store": Configuration("the consensus store", ("delays=bootstrap:3",), (STORE, "host.schedule_us=2000")),
    "depth": Configuration("one abort at depth 1", ("aborts=20",), (PLAIN, "cluster.pp_async_batch_depth=1", LONGER)),
    "replicas": Configuration("one vote, two tensor-parallel ranks a stage", ("delays=transfer:1",), REPLICAS),
    "limit": Configuration("one abort, a limit on time", ("aborts=16",), (PLAIN, "timeouts.running_ms=60000")),
    "queue": Configuration("one abort, a queue, and a limit that each keeps", ("aborts=24",), (PLAIN, *QUEUE)),
    "stuck": Configuration("a handshake that never completes, a limit", ("delays=transfer:1",), STUCK),
    "flush": Configuration("one request of one chunk, one abort, a flush", ("aborts=16",), (PLAIN, TINY, FLUSH)),
    "tiny": Configuration("one chunk, one abort", ("aborts=1",), (PLAIN, TINY, LATE)),
    "tiny, all orders": Configuration("the same without reduction", ("aborts=1",), (PLAIN, TINY, LATE), reduced=False),
    "tiny vote": Configuration("one chunk, a vote, one abort", ("delays=transfer:2", "aborts=6"), (TINY, LATE)),
    "tiny vote, all orders": Configuration(
        "the same without reduction", ("delays=transfer:2", "aborts=6", "messages=3"), (TINY, LATE), reduced=False
    ),
}
OF_THE_ISSUE = ("release", "bootstrap", "prealloc", "transferred", "abort")
"""Two stages, depth 0, two requests of two chunks, one abort at any time, at most one vote with delays up to three."""

FOUND_IN: dict[str, tuple[str, ...]] = {
    "abort": (
        "abort_in_the_middle",
        "abort_one_iteration_late",
        "aborted_chunk_leaks",
        "cancelled_output_not_received",
        "free_at_abort",
        "token_before_abort",
    ),
    "release": (
        "conclusion_cut_short",
        "conclusion_not_repeated",
        "conclusions_swapped",
        "ends_twice",
        "last_view_counts",
        "only_the_first_view_counts",
        "polls_after_the_vote",
        "polls_only_when_busy",
        "release_at_own_transfer",
        "release_waits_for_own_poll",
        "vote_behind_a_local_test",
    ),
    "prealloc": ("aborted_entry_stays", "pages_moved_after_the_handshake", "queue_entry_lost"),
    "failure": ("failures_not_passed_on", "good_and_bad", "own_failures_win"),
    "store": ("missing_is_ready", "only_changed_polls", "store_out_of_order", "store_takes_the_first"),
    "depth": ("abort_reaches_two_slots", "freed_at_first_harvest"),
    "replicas": ("empty_vote_left_out",),
    "limit": ("timeouts_on_every_rank",),
    "queue": ("limit_counts_the_queue",),
    "stuck": ("limits_off_in_pd",),
    "flush": ("flush_answered_at_once", "flush_beside_launched"),
}
"""Every bug of the profiles ``abort`` and ``pd``, with the configuration that shows it."""

WHY_ANOTHER: dict[str, str] = {
    "abort_reaches_two_slots": "it spares every slot but two, and depth 0 on two stages has no more than two",
    "freed_at_first_harvest": "it needs two chunks in flight when the abort is read, and two slots leave room for one",
    "failures_not_passed_on": "nothing fails but by an abort, and that ends the request on all ranks by itself",
    "good_and_bad": "nothing fails while a request waits for its bootstrap or its memory",
    "own_failures_win": "nothing fails while a request waits for its bootstrap",
    "missing_is_ready": "it is a bug of the consensus store, and the bootstrap is voted on",
    "only_changed_polls": "it is a bug of the consensus store, and the bootstrap is voted on",
    "store_out_of_order": "it is a bug of the consensus store, and the bootstrap is voted on",
    "store_takes_the_first": "it is a bug of the consensus store, and the bootstrap is voted on",
    "empty_vote_left_out": "it needs a second tensor-parallel rank, whose voice is missing",
    "timeouts_on_every_rank": "no limit on time is set, so nobody has a reason to look at a clock",
    "limit_counts_the_queue": "no limit on time is set, and nobody queues",
    "limits_off_in_pd": "no limit on time is set, and every handshake completes",
    "flush_answered_at_once": "nobody flushes the cache",
    "flush_beside_launched": "nobody flushes the cache; and the second chunk holds what the first has put there",
}


def measure(row: str) -> dict[str, Any]:
    """Explore one row: the name of a configuration, or of a bug in its own configuration."""
    bug = row if row in all_bugs() else ""
    name = next(key for key, bugs in FOUND_IN.items() if bug in bugs) if bug else row
    configuration = CONFIGURATIONS[name]
    began = time.process_time()
    found = configuration.run(bug)
    first = found.findings[0][1].signature if found.findings else None
    return {
        "row": row,
        "configuration": name,
        "verdict": "fail" if found.findings else "pass" if found.complete else "unknown",
        "executions": found.executions,
        "distinct": len(found.runs),
        "states": len(found.states),
        "longest": found.num_iterations,
        "sentence": found.sentence(),
        "invariant": first.invariant if first else None,
        "seconds": round(time.process_time() - began, 2),
        "runs": sorted(found.runs) if name.startswith("tiny") else [],
    }


def page(measured: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The lines of docs/results/explore.md."""
    yield from (
        "# Every interleaving of a small configuration",
        "",
        "Two stages, depth 0, two prompts of two chunks (`scenarios/explore_release.toml`): one abort of any request",
        "in any iteration, and one vote whose facts each rank sees up to three iterations late, in every combination.",
        "The right protocol breaks no rule in any execution; with a planted bug of aborts or votes some execution",
        f"does. Made by `python bench/bench_explore.py`, CPU seconds of one core (Python {platform.python_version()},",
        f"{platform.machine()}). The last rows are for bugs that need what the first six do not have.",
        "",
        "| configuration | executions | distinct | states | longest | seconds | violations |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    )
    healthy = {name: row for name, row in measured.items() if name in CONFIGURATIONS}
    for name, row in healthy.items():
        if not name.startswith("tiny"):
            yield line_of(name, row)
    yield from (
        "",
        "*Distinct* executions differ in a decision, a token or a reply; *states* are those of the first rank's",
        "scheduler; *longest* is the longest execution without an abort, in iterations: later than that, an abort",
        "finds nobody. What was bounded, as the command prints it:",
        "",
    )
    for name, row in healthy.items():
        yield from (f"- **{name}** (`{CONFIGURATIONS[name].command()}`): {row['sentence']}.",)
    yield from soundness(measured)
    yield from (
        "",
        "## With a planted bug",
        "",
        "| bug | breaks | found in | after executions | seen |",
        "| --- | --- | --- | --- | --- |",
    )
    for bug in sorted(bug for bugs in FOUND_IN.values() for bug in bugs):
        row = measured[bug]
        seen = row["invariant"] or "not found"
        yield f"| `{bug}` | {all_bugs()[bug].breaks} | {row['configuration']} | {row['executions']} | {seen} |"
    yield from (
        "",
        "Why a bug needs another configuration than those of one abort and at most one vote:",
        "",
        *(f"- `{bug}` ({measured[bug]['configuration']}): {why}." for bug, why in sorted(WHY_ANOTHER.items())),
        "",
        "Not here: `bound_to_another_slot`, a bug of the retraction vote, because nothing is retracted while the pool",
        "is large; bugs of two pipelines and of cache tiers, whose facts come by time.",
    )


def soundness(measured: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What the reduction leaves out, and that nothing is lost by it."""
    yield from (
        "",
        "## What the reduction leaves out",
        "",
        "Between two observations the ranks are a dataflow network, so neither the order in which ready ranks run nor",
        "the length of a message can change what they decide: the delay of each observed fact and the iteration of",
        "each input are enumerated, and nothing else. `--unreduced` enumerates the rest too: every order of equal",
        "events, and every message in time or 2.5 ms late, two and a half forward passes (of *tiny vote*: each of the",
        "first three messages). On smaller configurations both were run:",
        "",
        "| configuration | executions | distinct | states | without reduction | distinct | states | same set |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    )
    for name in ("tiny", "tiny vote"):
        one, every = measured[name], measured[f"{name}, all orders"]
        same = "yes" if one["runs"] == every["runs"] else "NO"
        yield (
            f"| {name} | {one['executions']} | {one['distinct']} | {one['states']} | {every['executions']} | "
            f"{every['distinct']} | {every['states']} | {same} |"
        )
    yield from (
        "",
        "What reads the time is not covered by this argument: the consensus store, limits on time, copies between",
        "cache tiers, transfers between two pipelines. The bounds name it where a scenario has it. Tests:",
        "`tests/fuzz/test_explore.py`.",
    )


def line_of(name: str, row: dict[str, Any]) -> str:
    """A row of the first table."""
    violations = "none" if row["verdict"] == "pass" else row["invariant"] or "not complete"
    what = f"{name}: {CONFIGURATIONS[name].what}"
    return (
        f"| {what} | {row['executions']:,} | {row['distinct']} | {row['states']} | {row['longest']} | "
        f"{row['seconds']:.0f} | {violations} |"
    )


def main() -> None:
    """Measure, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("file", type=Path)
    parser.add_argument("rows", nargs="*")
    given = parser.parse_args()
    if not given.measure:
        texts = given.file.read_text(encoding="utf-8").splitlines()
        measured = {row["row"]: row for row in map(json.loads, texts)}
        ordered = {name: measured[name] for name in CONFIGURATIONS} | measured
        print("\n".join(page(ordered)))
        return
    for row in given.rows or [*(bug for bugs in FOUND_IN.values() for bug in bugs), *reversed(CONFIGURATIONS)]:
        text = json.dumps(measure(row))
        with given.file.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
