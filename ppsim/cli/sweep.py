"""``ppsim sweep``: a scenario, or several, at many values of its keys; one table, one picture."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli import completion
from ppsim.cli.guard import EXIT_INTERRUPTED, give_up, guarded, say
from ppsim.cli.options import (
    BugOption,
    ColumnOption,
    FastOption,
    JsonOption,
    OutOption,
    PluginOption,
    SeedOption,
    SkipOption,
    TraceOption,
    check_seconds,
    plugin_of,
    reading_keys,
)

if TYPE_CHECKING:
    from ppsim.sweeps.folder import SweepFolder
    from ppsim.sweeps.order import Order
    from ppsim.sweeps.sweep import Runner, Sweep

NUM_SHOWN = 40  # rows of the table for people; the file has all
MAX_CELL = 32  # letters of a value in it
SHOWN = ("bubble_ratio", "input_tokens_per_s", "output_tokens_per_s", "ttft_p50_s", "ttft_p99_s")


@guarded
def sweep(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCENARIO...", help="Names or TOML files.", autocompletion=completion.scenarios),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=A,B,C", help="Values of a key; all combinations are run. Repeatable."),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option("--points", metavar="FILE", help="A list of points: .csv (a column a key) or .toml ([[points]])."),
    ] = None,
    x: Annotated[str | None, typer.Option("--x", metavar="KEY", help="Of the picture. Default: the longest.")] = None,
    y: Annotated[
        list[str] | None,
        typer.Option("--y", metavar="FIGURE", help="A panel of the picture: a column of the table. Repeatable."),
    ] = None,
    seed: SeedOption = None,
    trace: TraceOption = None,
    columns: ColumnOption = None,
    skip_bad_lines: SkipOption = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, max=256, help="Processes. Default: as many as CPUs.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="Spread over a Ray cluster; 'local' starts one here.")
    ] = None,
    bugs: BugOption = None,
    plugin: PluginOption = None,
    max_seconds: Annotated[
        float, typer.Option("--max-seconds", metavar="SECONDS", help="A point that takes longer is stopped.")
    ] = 3600.0,
    parquet: Annotated[bool, typer.Option("--parquet", help="Also write table.parquet (needs pyarrow).")] = False,
    out: OutOption = None,
    fast: FastOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a scenario at many values of its keys: one table (CSV), one picture. With --out it goes on where it ended.

    A point that fails stops none of the others. The exit code is that of the first one that did not pass.
    """
    from ppsim.cli.progress import ProgressBar
    from ppsim.errors import UsageError
    from ppsim.report.canvas import write
    from ppsim.report.sweep import plot_sweep, title_of
    from ppsim.sweeps.folder import PARQUET, PICTURE, TABLE, SweepFolder
    from ppsim.sweeps.sweep import num_cpus, run_sweep
    from ppsim.sweeps.table import csv_text, load_pyarrow, table_of, write_parquet

    if jobs is not None and ray is not None:
        raise UsageError("--jobs and --ray exclude each other: a Ray cluster has its own number of processes")
    check_seconds("--max-seconds", max_seconds)
    if parquet:
        load_pyarrow()  # a long sweep should not end in a table that cannot be written
    fixed = fixed_keys(seed, trace, columns, skip_bad_lines)
    order, runner = what_to_run(scenarios or [], overrides or [], points, fixed, bugs or [], plugin, max_seconds, fast)
    check_picture(order, x, y or [])
    if order.num_unjudged:
        say("note: ppsim sweep judges no [expect] (ppsim run and ppsim exec do)")
    folder = SweepFolder(order.points[0].scenario, out)
    num_jobs = min(jobs or num_cpus(), len(order.points))
    with ProgressBar("sweeping", "points") as progress:
        done = run_sweep(
            order,
            runner,
            num_jobs=num_jobs,
            ray_address=ray,
            folder=folder,
            progress=progress,
            began=lambda: tell_taken(folder),
        )
    num_others = folder.close(order.points)
    if num_others:
        say(f"{num_others} finished points in {folder.path} are none of this sweep's: kept, and not in the table")
    table = table_of(order.points, done.results, order.keys)
    (folder.path / TABLE).write_text(csv_text(table), encoding="utf-8", newline="\n")
    files = [str(folder.path / TABLE)]
    if parquet:
        write_parquet(table, folder.path / PARQUET)
        files.append(str(folder.path / PARQUET))
    chart = chart_or_none(table, order, x, y or [])
    if chart is not None:
        target = folder.path / PICTURE
        title = title_of(list(dict.fromkeys(table["scenario"])), len(order.points), chart)
        write(target, plot_sweep(table, order.keys, target, title, chart))
        files.append(str(target))
    print_sweep(done, table, files, as_json)
    say(f"saved {folder.path}")
    if done.is_cut:
        say(f"interrupted after {done.num_done} of {len(order.points)} points; what is finished is kept")
        say(f"go on with  {go_on(folder, out)}")
        return EXIT_INTERRUPTED
    return done.exit_code


def fixed_keys(
    seed: int | None, trace: str | None, columns: list[str] | None, skip_bad_lines: bool
) -> list[tuple[str, Any]]:
    """What is alike in all points, as options say it."""
    keys: dict[str, Any] = {} if seed is None else {"seed": seed}
    if trace is not None:
        keys |= {"workload.source": "trace", "workload.trace": trace}
    return [*(keys | reading_keys(columns, skip_bad_lines)).items()]


def what_to_run(
    scenarios: list[str],
    overrides: list[str],
    points: str | None,
    fixed: list[tuple[str, Any]],
    bugs: list[str],
    plugin: str | None,
    max_s: float,
    fast: bool | None,
) -> tuple[Order, Runner]:
    """All points as whole scenarios, and what runs one. Raises UsageError."""
    from copy import deepcopy
    from functools import cache

    from ppsim.plugin import load
    from ppsim.scenario.load import read_scenario, scenario_with
    from ppsim.sweeps.order import content_digest, prepared
    from ppsim.sweeps.points import parse_grid, points_of, read_points
    from ppsim.sweeps.sweep import Runner, changed_ranks, refusing

    module = plugin_of(plugin)
    load(bugs, module)  # an unknown name is told here
    listed = read_points(points) if points is not None else []
    chosen = points_of(scenarios, parse_grid(overrides), listed)
    raw = cache(read_scenario)
    changed_by = json.dumps([bugs, content_digest(Path(plugin)) if plugin is not None else "", *refusing(fast)])
    order = prepared(
        chosen, lambda name, keys: scenario_with(deepcopy(raw(name)), [*fixed, *keys], tuple(bugs)), changed_by
    )
    return order, Runner(changed_ranks(plugin), max_s, give_up, fast)


def check_picture(order: Order, x: str | None, y: list[str]) -> None:
    """Raises UsageError for axes that no table of these points could have, before anything runs."""
    from ppsim.errors import UsageError
    from ppsim.scenario.expect import in_seconds, is_figure, nearest_figure

    if x is not None and x not in ("scenario", *order.keys):
        raise UsageError(f"--x {x}: no key of this sweep; there are: {', '.join(('scenario', *order.keys))}")
    for name in y:
        plain, times = in_seconds(name)
        if not is_figure(name) or "stages_" in name:
            raise UsageError(f"--y {name}: no column of the table; {nearest_figure(name)}")
        if times != 1:
            raise UsageError(f"--y {name}: the table has it in seconds: {plain}")


def chart_or_none(table: dict[str, list[Any]], order: Order, x: str | None, y: list[str]) -> Any:
    """What the picture shows; None, with a word, where nothing can be drawn: the table is there all the same."""
    from ppsim.errors import UsageError
    from ppsim.report.sweep import chart_of

    try:
        return chart_of(table, order.keys, x, y)
    except UsageError as error:
        say(f"no picture: {error}")
        return None


def tell_taken(folder: SweepFolder) -> None:
    """What of an earlier sweep in this folder still holds, and what does not."""
    if folder.num_taken:
        say(f"{folder.num_taken} points were finished before and are not run again")
    for sentence in folder.changed[:10]:
        say(sentence)
    if len(folder.changed) > 10:
        say(f"... and {len(folder.changed) - 10} more that have changed")


def go_on(folder: SweepFolder, out: str | None) -> str:
    """The command that goes on: as it was given, with its folder."""
    import sys

    words = [*sys.argv[1:]]
    return shlex.join(["ppsim", *words, *([] if out is not None else ["--out", str(folder.path)])])


# --- the result --------------------------------------------------------------------------------------------------


def print_sweep(done: Sweep, table: dict[str, list[Any]], files: list[str], as_json: bool) -> None:
    counts: dict[str, int] = {}
    for outcome in table["outcome"]:
        counts[outcome] = counts.get(outcome, 0) + 1
    if as_json:
        rows = [dict(zip(table, row)) for row in zip(*table.values())]
        print(json.dumps({"points": rows, "counts": counts, "files": files}, allow_nan=False))
        return
    for line in text_of(table, done.order.keys):
        print(line)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + f" of {len(table['point'])} points")
    for path in files:
        print(path)


def text_of(table: dict[str, list[Any]], keys: list[str]) -> list[str]:
    """The table for people: keys, outcome, a few figures, and what went wrong."""
    names = ["point", *(["scenario"] if len(set(table["scenario"])) > 1 else []), *keys, "outcome"]
    names += [name for name in SHOWN if any(value is not None for value in table.get(name, ()))]
    rows = [[shown(table[name][row]) for name in names] for row in range(min(len(table["point"]), NUM_SHOWN))]
    heads = [name.rpartition(".")[2] for name in names]
    heads = [head if heads.count(head) == 1 else name for head, name in zip(heads, names)]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows)]
    lines = []
    for number, row in enumerate([heads, *rows]):
        told = table["message"][number - 1] if number else None
        cells = "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths))
        lines.append(cells + (f"  {told if len(told) <= 100 else told[:97] + '...'}" if told else ""))
    if len(table["point"]) > NUM_SHOWN:
        lines.append(f"... {len(table['point']) - NUM_SHOWN} more points are in the file")
    return lines


def shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, float):
        text = str(value)
        return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 3]}..."
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
