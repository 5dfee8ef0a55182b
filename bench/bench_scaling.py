"""How the cost of a run grows with its requests, stages and depth, in the representative world.

    python bench/bench_scaling.py --measure FILE [--long]    append a JSON line a run to FILE; what is there is not run
    python bench/bench_scaling.py FILE > docs/results/scaling.md    the page, and its picture in docs/images

Each run is a process of its own with ``run.keep`` "summary": CPU seconds and peak memory are of all of it, start-up and
summary included. Two workloads: requests of 2,048 prompt and 128 output tokens, Poisson 4/s, on default costs; and the
shipped trace (scenario ``mooncake``), its 400 requests again and again with blocks of their own. ``--long`` goes to
100,000 requests. "Bare": what a message costs a SimPy loop that does nothing else (``bench_world.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_world import COMPILED, KIB, bare

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "scaling.png"
REQUESTS, LONG_REQUESTS = (250, 1000, 4000), (10_000, 100_000)
TRACE, LONG_TRACE = (400, 1200, 3600), (10_000, 100_000)
STAGES = (1, 2, 4, 8, 16, 32, 64)
DEPTHS = (0, 1, 2, 3, 4)
NUM_SMALL = 60  # requests of the runs over stages and depths
BARE_MESSAGES = 200_000
TICKS = (1, 3, 10, 30, 100, 1000, 10_000, 100_000)  # further apart where their words are long
Row = dict[str, Any]


def wanted(is_long: bool) -> Iterator[Row]:
    """What is measured, cheapest part first."""
    yield {"part": "bare"}
    for depth in DEPTHS:
        yield from ({"part": "stages", "pp": pp, "depth": depth, "requests": NUM_SMALL} for pp in STAGES)
    for num in REQUESTS + (LONG_REQUESTS if is_long else ()):
        yield {"part": "requests", "pp": 4, "depth": 0, "requests": num}
    for num in TRACE + (LONG_TRACE if is_long else ()):
        yield {"part": "trace", "pp": 4, "depth": 0, "requests": num}


def run_one(row: Row) -> Row:
    """In a process of its own."""
    from ppsim.recording.summary import summarize
    from ppsim.scenario import load_scenario
    from ppsim.scenario.load import put, validate
    from ppsim.world import simulate

    if row["part"] == "bare":
        return {"cpu_s": bare(4, BARE_MESSAGES)["cpu_s"], "messages": BARE_MESSAGES}
    keys = {"cluster.pp_size": row["pp"], "cluster.pp_async_batch_depth": row["depth"], "run.keep": "summary"}
    with tempfile.TemporaryDirectory() as folder:
        if row["part"] == "trace":
            keys |= {"workload.trace": long_trace(Path(folder), row["requests"]), "workload.num_requests": 0}
            sets = [f"{key}={value}" for key, value in keys.items()]
            scenario = load_scenario(str(ROOT / "scenarios" / "mooncake.toml"), sets)
        else:
            raw: dict[str, object] = {"name": "load"}
            load = {"num_requests": row["requests"], "rate_per_s": 4.0, "input_length.value": 2048}
            load |= {"output_length.value": 128}
            keys |= {"model.num_hidden_layers": STAGES[-1]}  # a stage has a layer at least
            for key, value in (keys | {f"workload.{name}": value for name, value in load.items()}).items():
                put(raw, key, value)
            scenario = validate(raw)
        before = time.process_time()
        result = simulate(scenario, fast=None)
        cpu_s = time.process_time() - before
    assert result.verdict.kind == "pass", result.verdict.message
    summary = summarize(result.recording, result.verdict)
    found = {key: summary[key] for key in ("num_iterations", "num_finished", "output_tokens", "makespan_s")}
    return {**found, "simulate_s": cpu_s}


def long_trace(folder: Path, num_requests: int) -> str:
    """The shipped trace as often as it takes: each time later, and with blocks that nobody has seen."""
    rows = [json.loads(line) for line in (ROOT / "ppsim/data/generated_mooncake_like.jsonl").read_text().splitlines()]
    span = rows[-1]["timestamp"] + 300
    num_blocks = 1 + max(block for row in rows for block in row["hash_ids"])
    path = folder / "trace.jsonl"
    with path.open("w") as out:
        for place in range(num_requests):
            again, row = place // len(rows), rows[place % len(rows)]
            blocks = [block + again * num_blocks for block in row["hash_ids"]]
            moved = {**row, "timestamp": row["timestamp"] + again * span, "hash_ids": blocks}
            out.write(json.dumps(moved) + "\n")
    return str(path)


def in_own_process(row: Row) -> Row:
    command = [sys.executable, __file__, "--row", json.dumps(row)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **COMPILED})
    return {**row, **json.loads(done.stdout)}


def measure(path: Path, is_long: bool) -> None:
    """Append what is not there yet."""
    known = read(path) if path.exists() else []
    for row in wanted(is_long):
        if any(row.items() <= old.items() for old in known):
            continue
        found = in_own_process(row)
        with path.open("a") as out:
            out.write(json.dumps(found) + "\n")
        print(found, file=sys.stderr, flush=True)


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- the page ------------------------------------------------------------------------------------------------------

HEAD = """# How cost grows

Runs by one rank for all ([fast](../fast.md)) that keep their summary alone (`run.keep`), made by
`make bench-long`: each is a process of its own, CPU seconds and memory are of the whole of it. {machine}
A message between two SimPy processes that do nothing else costs {bare:.1f} us there ("bare").

![CPU seconds and memory by requests, CPU by stages and depth](../images/scaling.png)
"""


END = """
- **Requests**: CPU grows as they do. Memory is that of what is under way and of the cache of prefixes, which fills its
  pool; prompts and records are made and dropped on the way.
- **Stages**: one rank's scheduler is all that runs; of every other rank a few additions an iteration are left. But a
  ring of more stages has more slots, and more iterations for the same tokens.
- **Depth** gives the ring more slots as well, so that a batch has fewer rows.
- Rows may be of different hours, and the machine is shared: it is up to 1.7 times slower while others work. The longest
  row is of such an hour.
"""


def page(rows: list[Row]) -> str:
    bare_us = next(1e6 * row["cpu_s"] / row["messages"] for row in rows if row["part"] == "bare")
    machine = next(row["machine"] for row in rows if row["part"] == "bare")
    lines = [HEAD.format(bare=bare_us, machine=machine)]
    for part, title in (
        ("requests", "## Requests of 2,048 and 128 tokens, 4 a second, on 4 stages"),
        ("trace", "## The shipped trace again and again, on 4 stages"),
    ):
        lines += [title, "", "| requests | iterations | output tokens | CPU s | ms a request | us an iteration | MiB |"]
        lines.append("| --- | --- | --- | --- | --- | --- | --- |")
        for row in sorted((r for r in rows if r["part"] == part), key=lambda r: r["requests"]):
            num, iterations = row["requests"], row["num_iterations"]
            lines.append(
                f"| {num:,} | {iterations:,} | {row['output_tokens']:,} | {row['process_s']:.1f} | "
                f"{1e3 * row['simulate_s'] / num:.1f} | {1e6 * row['simulate_s'] / iterations:.0f} | "
                f"{row['peak_mib']:.0f} |"
            )
        lines.append("")
    lines += [f"## Stages and depth: ms of CPU a request, of {NUM_SMALL}", ""]
    lines += ["| stages | " + " | ".join(f"depth {depth}" for depth in DEPTHS) + " | iterations, depth 0 |"]
    lines.append("| --- " * (len(DEPTHS) + 2) + "|")
    for pp in STAGES:
        cells = " | ".join(f"{ms_a_request(rows, pp, depth):.1f}" for depth in DEPTHS)
        lines.append(f"| {pp} | {cells} | {of_stages(rows, pp, 0)['num_iterations']:,} |")
    return "\n".join([*lines, END])


def of_stages(rows: list[Row], pp: int, depth: int) -> Row:
    (row,) = (r for r in rows if (r["part"], r.get("pp"), r.get("depth")) == ("stages", pp, depth))
    return row


def ms_a_request(rows: list[Row], pp: int, depth: int) -> float:
    row = of_stages(rows, pp, depth)
    return float(1e3 * row["simulate_s"] / row["requests"])


def draw(rows: list[Row], path: Path) -> None:
    """Three panels: CPU and memory by requests, CPU by stages."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (cpu, memory, stages) = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    for part, name, mark in (("requests", "2,048/128 tokens", "o"), ("trace", "the trace", "s")):
        mine = sorted((r for r in rows if r["part"] == part), key=lambda r: r["requests"])
        num = [r["requests"] for r in mine]
        cpu.loglog(num, [r["process_s"] for r in mine], marker=mark, label=name)
        memory.semilogx(num, [r["peak_mib"] for r in mine], marker=mark, label=name)
        last = mine[-1]
        straight = [last["process_s"] * n / last["requests"] for n in num]
        cpu.loglog(num, straight, color="0.6", linestyle=":", label="proportional" if part == "requests" else None)
    for depth in DEPTHS:
        stages.loglog(STAGES, [ms_a_request(rows, pp, depth) for pp in STAGES], marker=".", label=f"depth {depth}")
    cpu.set(xlabel="requests", ylabel="CPU seconds", title="CPU, whole process")
    memory.set(xlabel="requests", ylabel="MiB", title="Peak memory", ylim=(0, None))
    stages.set(xlabel="stages", ylabel="ms of CPU", title="A request, all ranks")
    stages.set_xticks(STAGES, [str(pp) for pp in STAGES])
    for axes in (cpu, memory, stages):
        axes.minorticks_off()
    for axis in (cpu.xaxis, cpu.yaxis, memory.xaxis, stages.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    most = max(row.get("requests", 0) for row in rows)
    for axes in (cpu, memory):
        axes.set_xticks([tick for tick in TICKS if tick < 2 * most])
        axes.set_xlim(150, 1.6 * most)
    cpu.set_yticks([tick for tick in TICKS if tick < 2 * max(row.get("process_s", 0) for row in rows)])
    stages.set_yticks([1, 3, 10, 30, 100, 300])
    for axes in (cpu, memory, stages):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", nargs="?", type=Path, help="measurements, for the page")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure what FILE does not have")
    parser.add_argument("--long", action="store_true", help="up to 100,000 requests: an hour")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where the picture goes")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        found = run_one(json.loads(options.row))
        used = resource.getrusage(resource.RUSAGE_SELF)
        machine = f"Python {platform.python_version()}, {platform.machine()}."
        also = {"process_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / KIB, "machine": machine}
        print(json.dumps({**found, **also}))
    elif options.measure:
        measure(options.measure, options.long)
    elif options.file:
        rows = read(options.file)
        print(page(rows))
        draw(rows, options.picture)
    else:
        parser.error("give a file of measurements, or --measure FILE")


if __name__ == "__main__":
    main()
