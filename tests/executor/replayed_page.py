"""The page of what random runs and random kills of real processes have left: docs/results/replayed_runs.md.

    python -m tests.executor.replayed_page LOG [LOG ...] > docs/results/replayed_runs.md

``LOG``: of ``random_runs`` and ``random_kills``.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.executor.campaign_log import key_of, read_rows

HEAD = """# Random runs and random kills on real processes

Made by `python -m tests.executor.replayed_page` from the logs of the commands below, which go on where they were
stopped (`--log FILE`). CPU seconds are those of all processes of a run, of a killed command without its ranks.

"""

THERE = """## From processes into simulation

    python -m tests.executor.random_runs 200 --log FILE

A random scenario runs on one to four ranks with a small model, with tight pools, aborts, flushes, prefixes, chunks,
grammars, time limits, skewed clocks, the consensus checker and the prefill role. Its files alone are then replayed in
simulation. Equal means: every decision, harvest, observation and reply of every rank, the digest of the run, the
verdict, and that every request that was not cut short got the tokens of transformers' own greedy generation (not
compared in bfloat16, where a batch of another size has other last digits).
"""

BACK = """## From simulation to processes

    python -m tests.executor.random_runs 200 --way back --log FILE

Examples of the fuzzer's profiles that pass in simulation. Real ranks are fed with what each was answered, and make
every record again. Left out is what asks for replicas, tiers or a decode server, or does not pass.
"""

KILLS = """## Killed at random moments

    python -m tests.executor.random_kills 50 --seed 0 --log FILE

`ppsim exec` on a random scenario; one rank, or the command itself, is killed with signal 9: every second one while it
starts, the others after a random iteration. Each time the rank and what it was doing are named (held against the memory
in which it says so, read from outside), no process, port, shared memory or temporary file is left, `ppsim show` reads
what there is, and the simulator makes every record of it again.
"""


def page(rows: list[dict[str, Any]]) -> str:
    last = list({key_of(row): row for row in rows}.values())
    parts = [HEAD]
    for way, text in (("there", THERE), ("back", BACK)):
        mine = [row for row in last if row["way"] == way]
        if mine:
            parts += [text, "\n", runs_table(mine), "\n"]
    kills = [row for row in last if row["way"].startswith("kill ")]
    if kills:
        parts += [KILLS, "\n", kills_table(kills)]
    return "".join(parts)


def runs_table(rows: list[dict[str, Any]]) -> str:
    ran = [row for row in rows if "left_out" not in row]
    good = [row for row in ran if "error" not in row]
    seeds = [row["seed"] for row in rows]
    lines = [
        f"**{len(good)} of {len(ran)} equal**, seeds {min(seeds)} to {max(seeds)}"
        + (f", {len(rows) - len(ran)} left out" if len(rows) > len(ran) else "")
        + f"; {sum(row['iterations'] for row in good):,} iterations, {sum(row['cpu_s'] for row in rows):.0f} CPU s.",
        f"In {sum(row['retracted'] > 0 for row in good)} runs requests were retracted "
        f"({sum(row['retracted'] for row in good)} times), in {sum(row['aborted'] > 0 for row in good)} aborted.",
        "",
        "| kind | runs |",
        "| --- | --- |",
        *(f"| {kind} | {num} |" for kind, num in sorted(Counter(row["kind"] for row in good).items())),
        "",
        "Digests by seed, some of them (a run with time limits has another one each time): "
        + ", ".join(f"{row['seed']} `{row['digest']}`" for row in good[:: max(1, len(good) // 20)])
        + ".",
    ]
    lines += [f"\nNot equal: seed {row['seed']}: {row['error']}" for row in ran if "error" in row]
    return "\n".join(lines) + "\n"


def kills_table(rows: list[dict[str, Any]]) -> str:
    good = [row for row in rows if "error" not in row]
    lines = [
        f"**{len(good)} of {len(rows)} left what they should**, {sum(row['cpu_s'] for row in rows):.0f} CPU seconds."
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in good:
        whom = row["victim"] if row["victim"] == "the command" else "a rank"
        groups.setdefault((whom, row["moment"]), []).append(row)
    lines += ["", "| killed | while | kills | named after, median and most | all gone after | records, most |"]
    lines += ["|" + " --- |" * 6]
    for (whom, moment), mine in sorted(groups.items()):
        named = [row["named_s"] for row in mine if row["named_s"] is not None]
        told = f"{middle(named):.2f} s, {max(named):.2f} s" if named else "by `ppsim show`"
        gone = [row["gone_s"] for row in mine]
        gone_s = f"{middle(gone):.2f} s, {max(gone):.2f} s"
        lines.append(f"| {whom} | {moment} | {len(mine)} | {told} | {gone_s} | {max(row['records'] for row in mine)} |")
    doing = Counter(without_numbers(row["doing"]) for row in good if row["victim"] != "the command")
    lines += [
        "",
        "What the killed ranks were doing: " + ", ".join(f"{text} ({num})" for text, num in doing.most_common()),
    ]
    lines[-1] += "."
    lines += [f"\nNot as it should be: kill {row['seed']}: {row['error']}" for row in rows if "error" in row]
    return "\n".join(lines) + "\n"


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def without_numbers(doing: str) -> str:
    """What a rank was doing, whoever its peer was."""
    text = doing.partition(" in iteration")[0]
    return " ".join(word for word in text.split() if not word.isdecimal()).replace("from rank", "from a rank")


if __name__ == "__main__":
    print(page([row for name in sys.argv[1:] for row in read_rows(Path(name))]), end="")
